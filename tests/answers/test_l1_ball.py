"""The solver of the L1 ball against a linear-programming library's optima, by hand, and what it
promises.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from dfme.answers.maps import minimise

FILE = Path(__file__).with_name("lp_optima.json")
"""Of each problem, by SciPy's HiGHS (1.17.1): the least cost, None where the ball holds no answer
with that margin, and the largest margin that it holds."""
GROUPS, ROWS = 72, 18
MARGINS = (None, 0.0, 1e-4, 0.05)
RADII = (0.0, 1e-4, 0.05, 0.4, 1.0, 2.0)
Array = NDArray[np.float64]


class Problems(NamedTuple):
    cost_BK: Array
    p_BK: Array
    epsilon: float
    margin: float | None


def problems() -> Iterator[Problems]:
    """The same on every machine: a stream of numbers that NumPy has frozen."""
    draw = np.random.RandomState(16)
    for group in range(GROUPS):
        classes = draw.randint(2, 27)
        p_BK = draw.dirichlet(np.full(classes, 0.3), ROWS)
        confident_BK = np.exp(draw.normal(size=(ROWS, classes)) * 5)
        even_BK = 1 + 1e-3 * draw.normal(size=(ROWS, classes))
        kinds = draw.randint(3, size=(ROWS, 1))
        p_BK = np.where(kinds == 0, p_BK, np.where(kinds == 1, confident_BK, even_BK))
        p_BK /= p_BK.sum(-1, keepdims=True)
        q_BK = draw.dirichlet(np.ones(classes), ROWS)
        # the last has ties
        costs = (np.log(p_BK + 1e-6), p_BK - q_BK, draw.normal(size=p_BK.shape), p_BK.round(1))
        radius = RADII[draw.randint(len(RADII))] if draw.rand() < 0.7 else 2 * draw.rand()
        yield Problems(
            costs[draw.randint(len(costs))], p_BK, float(radius), MARGINS[group % len(MARGINS)]
        )


def answers(group: Problems) -> tuple[Tensor, Tensor, Tensor]:
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
    y_BK = minimise(p_BK.log(), p_BK, epsilon, 0.0)
    torch.testing.assert_close(y_BK, torch.tensor([y], dtype=torch.float64), atol=1e-12, rtol=0)
    p_BK = torch.tensor([[0.4, 0.35, 0.25]], dtype=torch.float64)  # where raising the top is best
    best_BK = torch.tensor([[0.5, 0.35, 0.15]], dtype=torch.float64)
    y_BK = minimise(torch.tensor([[0.0, 1.0, 2.0]]), p_BK, 0.2, 0.0)
    torch.testing.assert_close(y_BK, best_BK, atol=1e-12, rtol=0)


def test_the_recorded_optima_of_a_library_are_met_and_every_bound_is_kept() -> None:
    recorded = iter(json.loads(FILE.read_text()))
    compared, refused, worst = 0, 0, 0.0
    for group in problems():
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
    for group in list(problems())[:24]:
        cost_BK, p_BK, y_BK = answers(group)
        for rows in (slice(0, 1), slice(3, 8), slice(17, 18)):
            assert torch.equal(
                minimise(cost_BK[rows], p_BK[rows], group.epsilon, group.margin), y_BK[rows]
            )
        wider = group._replace(epsilon=group.epsilon + 0.1)
        # Where p's own margin is asked for in both, the ball of one lies within the other's.
        kept = lead(y_BK, p_BK) >= (-9 if group.margin is None else group.margin - 1e-12)
        saved_B = (cost_BK * (y_BK - answers(wider)[2])).sum(-1)
        assert torch.where(kept, saved_B, 0.0).min() > -1e-10
