"""Directions that lean towards a prior: the paper's closed form, what is measured, what it
costs.
"""

from typing import Any

import pytest
import torch
from tiers import exhaustive
from torch import Tensor
from torch.nn.functional import normalize
from toy_objectives import agreement, point, rng
from two_parts import TwoParts, cosines, straight

from dfme.errors import UserError
from dfme.estimators import FiniteDifference
from dfme.estimators.base import Objective
from dfme.estimators.prior_guided import PriorGuided, measured_alpha2, mixing_weight
from dfme.spec import ImageSpec

every_form = pytest.mark.parametrize("form", ["forward", "central"])
SHAPE = (1, 4, 8)  # D 32


def with_alpha2(alpha2: float, size: int = 32) -> tuple[Tensor, Tensor]:
    """A gradient of unit length and a prior whose squared cosine to it is ``alpha2``."""
    prior, other = torch.linalg.qr(torch.randn(size, 2, generator=rng(11), dtype=torch.float64)).Q.T
    return alpha2**0.5 * prior + (1 - alpha2) ** 0.5 * other, prior


def guided_by(gradient_D: Tensor, prior_D: Tensor, size: float = 1e-6) -> Objective:
    """An API with this gradient, and a student whose own one is the prior's direction and next to
    nothing.
    """
    return straight(gradient_D.view(SHAPE), size * prior_D.view(SHAPE))


@pytest.mark.parametrize("directions", [1, 5, *exhaustive(2)])
@pytest.mark.parametrize("alpha2", [0.0, 0.1, 0.95, *exhaustive(0.02, 0.05, 0.5)])
def test_the_closed_form_is_the_best_of_all_lambdas(alpha2: float, directions: int) -> None:
    """Brute force: simulate the estimate for a grid of lambdas."""
    size, draws = 16, 10_000
    gradient_D, prior_D = with_alpha2(alpha2, size)
    xi_NMD = torch.randn(draws, directions, size, generator=rng(2), dtype=torch.float64)
    xi_NMD = normalize(xi_NMD - (xi_NMD @ prior_D).unsqueeze(2) * prior_D, dim=2)

    def captured(mixing: float) -> float:
        v_NMD = mixing**0.5 * prior_D + (1 - mixing) ** 0.5 * xi_NMD
        estimate_ND = ((v_NMD @ gradient_D).unsqueeze(2) * v_NMD).mean(1)
        return float(
            (estimate_ND @ gradient_D).mean().square() / estimate_ND.square().sum(1).mean()
        )

    best = max(captured(i / 10) for i in range(11))
    mixing = float(mixing_weight(torch.tensor(alpha2, dtype=torch.float64), size, directions))
    assert 0 <= mixing <= 1
    assert captured(mixing) > 0.97 * best


@pytest.mark.parametrize("alpha2", [0.0, 0.1, 1.0, *exhaustive(0.01, 0.6)])
def test_alpha2_is_measured_from_slopes(alpha2: float) -> None:
    gradient_D, prior_D = with_alpha2(alpha2)
    xi_ND = torch.randn(20_000, 32, generator=rng(3), dtype=torch.float64)
    xi_ND = normalize(xi_ND - (xi_ND @ prior_D).unsqueeze(1) * prior_D, dim=1)
    along_N = (prior_D @ gradient_D).repeat(5)
    assert float(measured_alpha2(torch.zeros(4), torch.zeros(4), 32)) == 0, (
        "a flat batch has no use for it"
    )
    assert float(measured_alpha2(along_N, xi_ND @ gradient_D, 32)) == pytest.approx(
        alpha2, rel=0.03, abs=1e-12
    )


@every_form
@pytest.mark.parametrize("batch", [1, 32, *exhaustive(8, 100)])
@pytest.mark.parametrize("directions", [1, 3])
@pytest.mark.parametrize("chunk", [None, 7])
def test_cost_is_what_was_asked_and_the_points_come_first(
    form: str, batch: int, directions: int, chunk: int | None
) -> None:
    toy, x_BCHW = TwoParts(SHAPE), point(batch, SHAPE)
    estimator = PriorGuided(directions, form=form, chunk=chunk)
    estimate = estimator.estimate(toy.composed(), x_BCHW, rng())
    expected = batch * (1 + directions * (1 if form == "forward" else 2))
    assert {estimate.queries, estimator.cost(batch), estimator.cost(batch, ahead=3), toy.asked} == {
        expected
    }
    assert torch.equal(torch.cat(toy.calls)[:batch], x_BCHW)
    assert chunk is None or max(map(len, toy.calls)) <= chunk
    assert estimate.grad_BCHW.shape == x_BCHW.shape
    assert estimate.differences_BM.shape == (batch, directions)
    torch.testing.assert_close(
        estimate.value_B, toy.composed().value(x_BCHW, toy.teacher(x_BCHW.double()))
    )


@every_form
@pytest.mark.parametrize("directions", [1, 3])
def test_the_chunk_changes_nothing(form: str, directions: int) -> None:
    toy, x_BCHW = TwoParts(SHAPE), point(40, SHAPE).double()
    whole, parts = (
        PriorGuided(directions, form=form, chunk=chunk).estimate(toy.composed(), x_BCHW, rng(5))
        for chunk in (None, 6)
    )
    torch.testing.assert_close(parts.grad_BCHW, whole.grad_BCHW)
    torch.testing.assert_close(parts.differences_BM, whole.differences_BM, atol=1e-12, rtol=1e-6)


@every_form
def test_a_perfect_prior_gives_the_gradient_with_one_direction(form: str) -> None:
    """The answers never change, so the student's term is all there is: in direction and in
    scale.
    """
    toy, x_BCHW = TwoParts(SHAPE), point(64, SHAPE)
    constant = Objective(lambda x_NCHW: torch.zeros(len(x_NCHW), 10).double(), toy.value)
    estimate = PriorGuided(1, form=form).estimate(constant, x_BCHW, rng())
    truth_BCHW = student_truth(toy, x_BCHW)
    # the second eighth leaves the prior out to measure what it is worth
    leaning = [*range(8), *range(16, 64)]
    assert float(cosines(estimate.grad_BCHW, truth_BCHW)[leaning].min()) > 0.999
    assert agreement(estimate.grad_BCHW[leaning], truth_BCHW[leaning])[1] == pytest.approx(
        1, abs=1e-3
    )
    assert float(cosines(estimate.grad_BCHW, truth_BCHW)[8:16].abs().max()) < 0.05


def student_truth(toy: TwoParts, x_BCHW: Tensor) -> Tensor:
    x_BCHW = x_BCHW.detach().double().requires_grad_()
    return torch.autograd.grad(toy.value(x_BCHW, torch.zeros(len(x_BCHW), 10)).sum(), x_BCHW)[0]


@pytest.mark.parametrize("directions", [1, 4])
def test_a_useless_prior_costs_little(directions: int) -> None:
    """At right angles to the gradient. A share of cosine^2 near m / (D + m) is what plain
    differences get.
    """
    objective, x_BCHW = guided_by(*with_alpha2(0.0)), point(512, SHAPE).double()
    truth_BCHW = with_alpha2(0.0)[0].view(SHAPE).expand_as(x_BCHW)
    guided = PriorGuided(directions).estimate(objective, x_BCHW, rng()).grad_BCHW
    plain = FiniteDifference(directions).estimate(objective, x_BCHW, rng()).grad_BCHW
    found = [float(cosines(grad_BCHW, truth_BCHW).square().mean()) for grad_BCHW in (guided, plain)]
    assert found[0] > 0.8 * found[1]
    # What an optimiser sees is the sum over the batch.
    summed = [agreement(grad_BCHW.sum(0), truth_BCHW.sum(0))[0] for grad_BCHW in (guided, plain)]
    assert summed[0] > summed[1] - 0.08


@pytest.mark.parametrize("directions", [1, 6, *exhaustive(2)])
@pytest.mark.parametrize("alpha2", [0.1, 0.4])
def test_a_good_prior_captures_what_the_formula_says(alpha2: float, directions: int) -> None:
    """alpha^2 by the prior's own probe, the rest by the others'."""
    gradient_D, prior_D = with_alpha2(alpha2)
    x_BCHW, truth_CHW = point(2048, SHAPE).double(), gradient_D.view(SHAPE)
    estimate_BCHW = (
        PriorGuided(directions).estimate(guided_by(gradient_D, prior_D), x_BCHW, rng()).grad_BCHW
    )
    profiting = estimate_BCHW[512:]
    expected = alpha2 + (1 - alpha2) * (directions - 1) / (32 + directions - 3)
    share = 1 - (profiting - truth_CHW).square().sum((1, 2, 3)).mean()  # of |g|^2, which is 1
    assert float(share) == pytest.approx(expected, rel=0.05)
    # It is the scale of least error: any other one is worse.
    for factor in (0.9, 1.1):
        assert float((factor * profiting - truth_CHW).square().sum((1, 2, 3)).mean()) > float(
            1 - share
        )


@pytest.mark.parametrize(("alpha2", "leans"), [(0.2, True), (0.002, False)])
def test_the_batch_decides_whether_the_prior_is_worth_following(alpha2: float, leans: bool) -> None:
    """With one direction it is all or nothing, at alpha^2 = 1/D."""
    gradient_D, prior_D = with_alpha2(alpha2)
    estimate = PriorGuided(1).estimate(
        guided_by(gradient_D, prior_D), point(256, SHAPE).double(), rng()
    )
    along_B = cosines(estimate.grad_BCHW, prior_D.view(SHAPE).expand_as(estimate.grad_BCHW)).abs()
    assert float(along_B[:32].min()) > 1 - 1e-6
    assert float(along_B[32:64].max()) < 1e-6
    assert float((along_B[64:] - float(leans)).abs().max()) < 1e-6


def test_a_small_batch_leans_halfway() -> None:
    gradient_D, prior_D = with_alpha2(0.5)
    estimate = PriorGuided(1).estimate(
        guided_by(gradient_D, prior_D), point(31, SHAPE).double(), rng()
    )
    along_B = cosines(estimate.grad_BCHW, prior_D.view(SHAPE).expand_as(estimate.grad_BCHW)).abs()
    torch.testing.assert_close(along_B, torch.full_like(along_B, 0.5**0.5), rtol=1e-6, atol=1e-6)


@every_form
@pytest.mark.parametrize("prior", ["student", "neighbours"])
@pytest.mark.parametrize("bounds", [(0.0, 1.0), (-1.0, 1.0), (-0.92, 1.9)])
def test_on_a_lattice_every_probe_is_carried_bit_for_bit(
    form: str, prior: Any, bounds: tuple[float, float]
) -> None:
    spec = ImageSpec((3, 8, 8), bounds, levels=256)
    low, high = bounds
    x_BCHW = low + (high - low) * torch.rand(64, 3, 8, 8, generator=rng(2))
    x_BCHW[:, 0], x_BCHW[:, 1, :4] = low, high
    toy = TwoParts((3, 8, 8))
    with torch.no_grad():
        remembered = spec.quantise(x_BCHW), toy.teacher(spec.quantise(x_BCHW).double())
    estimator = PriorGuided(2, 2.0, form, bounds, (high - low) / 255, prior=prior)
    estimate = estimator.estimate(toy.composed(remembered), x_BCHW, rng())
    for call_NCHW in toy.calls:
        assert torch.equal(spec.quantise(call_NCHW), call_NCHW)
    assert estimate.grad_BCHW.isfinite().all()


def test_on_a_lattice_the_prior_keeps_what_its_signs_keep() -> None:
    """Signs of a Gaussian direction keep sqrt(2 / pi) = .80 of its cosine; 8-bit images lose no
    more.
    """
    spec, toy = ImageSpec((3, 8, 8), (-2.0, 2.0), levels=256), TwoParts((3, 8, 8))
    x_BCHW = point(64, (3, 8, 8)).clamp(-1.9, 1.9)
    constant = Objective(
        lambda x_NCHW: torch.zeros(len(x_NCHW), 10).double(),
        lambda x, a: toy.value(x + (spec.quantise(x) - x).detach(), a),
    )
    estimate = PriorGuided(1, 1.0, "forward", spec.bounds, 4 / 255).estimate(
        constant, x_BCHW, rng()
    )
    truth_BCHW = student_truth(toy, x_BCHW)
    assert float(cosines(estimate.grad_BCHW, truth_BCHW)[16:].mean()) == pytest.approx(
        0.8, abs=0.05
    )


def test_points_that_cannot_be_guided_are_refused() -> None:
    with pytest.raises(UserError, match="at least 2 numbers"):
        PriorGuided().estimate(TwoParts((1, 1, 1)).composed(), point(2, (1, 1, 1)), rng())
