"""The solver of the L1 ball against a linear-programming library's optima, by hand, and what it promises."""

from __future__ import annotations

import json
import time

import pytest
import record_lp
import torch
from torch import Tensor

from dfme.answers.l1_ball import minimise


def answers(group: record_lp.Problems) -> tuple[Tensor, Tensor, Tensor]:
    cost_BK, p_BK = torch.tensor(group.cost_BK), torch.tensor(group.p_BK)
    return cost_BK, p_BK, minimise(cost_BK, p_BK, group.epsilon, group.margin)


def lead(y_BK: Tensor, p_BK: Tensor) -> Tensor:
    top_B1 = p_BK.argmax(-1, keepdim=True)
    return y_BK.gather(-1, top_B1)[:, 0] - y_BK.scatter(-1, top_B1, -1.0).amax(-1)


@pytest.mark.parametrize(
    ("epsilon", "y"), [(0.0, (0.7, 0.2, 0.1)), (0.4, (0.5, 0.2, 0.3)), (0.8, (1 / 3, 1 / 3, 1 / 3))]
)
def test_by_hand(epsilon: float, y: tuple[float, ...]) -> None:
    p_BK = torch.tensor([[0.7, 0.2, 0.1]], dtype=torch.float64)
    found = minimise(p_BK.log(), p_BK, epsilon, 0.0)
    torch.testing.assert_close(found, torch.tensor([y], dtype=torch.float64), atol=1e-12, rtol=0)


def test_raising_the_top_may_be_best() -> None:
    p_BK = torch.tensor([[0.4, 0.35, 0.25]], dtype=torch.float64)
    y_BK = minimise(torch.tensor([[0.0, 1.0, 2.0]]), p_BK, 0.2, 0.0)
    torch.testing.assert_close(y_BK, torch.tensor([[0.5, 0.35, 0.15]], dtype=torch.float64), atol=1e-12, rtol=0)


def test_the_recorded_optima_of_a_library_are_met_and_every_bound_is_kept() -> None:
    recorded = iter(json.loads(record_lp.FILE.read_text()))
    compared, refused, worst = 0, 0, 0.0
    for group in record_lp.problems():
        cost_BK, p_BK, y_BK = answers(group)
        assert y_BK.min() >= 0
        assert (y_BK.sum(-1) - 1).abs().max() < 1e-9
        assert (y_BK - p_BK).abs().sum(-1).max() <= group.epsilon + 1e-9
        values_B = (cost_BK * y_BK).sum(-1)
        for row, (value, largest) in enumerate([next(recorded) for _ in range(len(p_BK))]):
            ahead = lead(y_BK, p_BK)[row].item()
            if value is None:  # the largest margin of the ball instead
                assert ahead == pytest.approx(largest, abs=1e-9)
                refused += 1
                continue
            compared += 1
            worst = max(worst, abs(values_B[row].item() - value))
            assert group.margin is None or ahead >= group.margin - 1e-9
    assert next(recorded, None) is None
    assert compared >= 1000
    assert refused >= 50
    assert worst < 1e-6


def test_a_larger_ball_never_costs_more_and_nothing_depends_on_the_batch() -> None:
    for group in list(record_lp.problems())[:24]:
        cost_BK, p_BK, y_BK = answers(group)
        for rows in (slice(0, 1), slice(3, 8), slice(17, 18)):
            assert torch.equal(minimise(cost_BK[rows], p_BK[rows], group.epsilon, group.margin), y_BK[rows])
        wider = group._replace(epsilon=group.epsilon + 0.1)
        # Where p's own margin is asked for in both, the ball of one lies within the other's.
        kept = lead(y_BK, p_BK) >= (group.margin or 0) - 1e-12 if group.margin is not None else torch.tensor(True)
        saved_B = (cost_BK * (y_BK - answers(wider)[2])).sum(-1)
        assert torch.where(kept, saved_B, 0.0).min() > -1e-10


def test_no_ball_is_p_bit_for_bit_and_ties_and_certainty_are_answers() -> None:
    p_BK = torch.tensor([[0.25, 0.25, 0.25, 0.25], [0.0, 0.0, 1.0, 0.0], [0.0, 0.5, 0.5, 0.0]], dtype=torch.float64)
    cost_BK = torch.tensor([[3.0, 0.0, 1.0, 0.0]]).expand(3, -1)
    for margin in (None, 0.0, 1e-4, 1.0, 7.0):
        assert torch.equal(minimise(cost_BK, p_BK, 0.0, margin), p_BK)
        for epsilon in (1e-9, 1e-5, 0.5, 2.0):
            y_BK = minimise(cost_BK, p_BK, epsilon, margin)
            assert y_BK.isfinite().all()
            assert (y_BK - p_BK).abs().sum(-1).max() <= epsilon + 1e-9
            assert (y_BK.sum(-1) - 1).abs().max() < 1e-9
            if margin is not None and margin > 0:
                assert torch.equal(y_BK.argmax(-1), p_BK.argmax(-1))


@pytest.mark.exhaustive
def test_ten_classes_take_less_than_a_tenth_of_a_millisecond() -> None:
    p_BK = torch.distributions.Dirichlet(torch.full((10,), 0.3, dtype=torch.float64)).sample((256,))
    cost_BK = (p_BK + 1e-6).log()
    minimise(cost_BK, p_BK, 1.0, 1e-4)
    started = time.process_time()
    for _ in range(5):
        minimise(cost_BK, p_BK, 1.0, 1e-4)
    assert (time.process_time() - started) / (5 * 256) < 4 * 1e-4  # seconds; four times the bar, for a busy machine
