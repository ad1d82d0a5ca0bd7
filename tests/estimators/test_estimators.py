"""Finite differences against independent truths: autograd, a linear objective, arithmetic."""

import math

import pytest
import torch
from tables import exhaustive, exhaustive_rows
from torch import Tensor
from toys import Linear, Toy, agreement, point, rng

from dfme.estimators import FiniteDifference
from dfme.estimators.base import DIRECTIONS
from dfme.estimators.differences import FORMS

every_form = pytest.mark.parametrize("form", list(FORMS))
every_direction = pytest.mark.parametrize("direction", list(DIRECTIONS))
every_independent_direction = pytest.mark.parametrize("direction", ["sphere", "rademacher"])
every_shape = pytest.mark.parametrize(
    "shape", [(1, 8, 8), *exhaustive((3, 32, 32)), (3, 16, 24)], ids=str
)


@every_form
@every_independent_direction
@every_shape
@pytest.mark.parametrize(
    ("batch", "directions"), [(1, 1), (4, 3), *exhaustive_rows([(1, 3), (5, 1)])]
)
def test_linear_objective_gives_the_formula_exactly(
    form: str, direction: str, shape: tuple[int, ...], batch: int, directions: int
) -> None:
    """(s / m) sum_j v_j <v_j, g>, with v_j drawn once more here from a generator of the same
    seed.
    """
    objective, u_BCHW = Linear(batch, shape), point(batch, shape)
    estimator = FiniteDifference(directions, step=1e-2, form=form, direction=direction)
    estimate = estimator.estimate(objective, u_BCHW, rng(7))

    again, expected_BCHW = rng(7), torch.zeros_like(objective.gradient)
    for _ in range(directions):
        if direction == "rademacher":
            v_BCHW = torch.empty_like(u_BCHW).bernoulli_(0.5, generator=again).double() * 2 - 1
        else:
            v_BCHW = torch.randn(batch, *shape, generator=again).double()
            v_BCHW /= v_BCHW.flatten(1).norm(dim=1).view(-1, 1, 1, 1)
        slope_B = (v_BCHW * objective.gradient).sum((1, 2, 3))
        expected_BCHW += slope_B.view(-1, 1, 1, 1) * v_BCHW / directions
    if direction == "sphere":
        expected_BCHW *= math.prod(shape)

    assert estimate.grad_BCHW.dtype == torch.float32
    # Measured in the size of a typical one-direction estimate; a single slope can happen to be near
    # zero.
    typical = math.sqrt(math.prod(shape)) * objective.gradient.norm()
    assert (estimate.grad_BCHW - expected_BCHW).norm() < 1e-3 * typical
    value_B = (u_BCHW.double() * objective.gradient).sum((1, 2, 3))
    torch.testing.assert_close(estimate.value_B, value_B, atol=1e-3, rtol=1e-3)


@every_form
@every_independent_direction
@every_shape
def test_mean_over_directions_is_autograds_gradient(
    form: str, direction: str, shape: tuple[int, ...]
) -> None:
    """Direction and scale. A direction adds s <v, g>^2 / |g|^2 to the scale: mean 1, variance about
    2.
    """
    toy, u_BCHW, directions = Toy(shape), point(4, shape), 2048 if shape[0] == 1 else 256
    estimator = FiniteDifference(directions, 1e-3, form, direction=direction, chunk=512)
    cosine, scale = agreement(
        estimator.estimate(toy, u_BCHW, rng(5)).grad_BCHW, toy.gradient(u_BCHW)
    )
    size = math.prod(shape)
    # With n directions and n < D: E cosine is about 1 / sqrt(1 + (D + 1) / n), per image.
    assert cosine == pytest.approx(1 / math.sqrt(1 + (size + 1) / directions), abs=0.08)
    truth_B = toy.gradient(u_BCHW).square().sum((1, 2, 3))
    spread = math.sqrt(2 * float(truth_B.square().sum()) / directions) / float(truth_B.sum())
    assert abs(scale - 1) < 4 * spread + 2e-3


@every_form
@pytest.mark.parametrize(
    ("dtype", "least", "off"), [(torch.float32, 0.99, 1e-2), (torch.float64, 0.99999, 1e-3)]
)
def test_one_direction_gives_the_true_directional_derivative(
    form: str, dtype: torch.dtype, least: float, off: float
) -> None:
    """B = 1, m = 1 and DFME's own step; with an objective in float64 only the probes are rounded to
    fp32.
    """
    toy = Toy((3, 32, 32))
    toy.student, toy.teacher = toy.student.to(dtype), toy.teacher.to(dtype)
    slopes, true = [], []
    for seed in range(64):
        u_BCHW = point(1, (3, 32, 32), seed)
        estimate = FiniteDifference(form=form).estimate(
            lambda images: toy(images.to(dtype)), u_BCHW, rng(seed)
        )
        v_BCHW = torch.randn(1, 3, 32, 32, generator=rng(seed))
        v_BCHW /= v_BCHW.norm()
        slopes.append((estimate.grad_BCHW * v_BCHW).sum() / v_BCHW.numel())
        true.append((toy.gradient(u_BCHW.to(dtype)) * v_BCHW).sum())
    found_S, true_S = torch.stack(slopes).double(), torch.stack(true).double()
    assert torch.corrcoef(torch.stack([found_S, true_S]))[0, 1] > least
    assert float((found_S * true_S).sum() / true_S.square().sum()) == pytest.approx(1, abs=off)


def test_central_differences_have_the_smaller_bias() -> None:
    """On f = sum x^3 central differences err by h^2, forward ones by h; computed by hand in one
    dimension.
    """

    def cube(x_NCHW: Tensor) -> Tensor:
        return x_NCHW.pow(3).sum((1, 2, 3))

    u_BCHW, h = torch.full((1, 1, 1, 1), 2.0, dtype=torch.float64), 0.1
    forward, central = (
        float(
            FiniteDifference(step=h, form=form, direction="rademacher")
            .estimate(cube, u_BCHW, rng())
            .grad_BCHW
        )
        for form in ("forward", "central")
    )
    assert min(abs(forward - (12 + 6 * h + h * h)), abs(forward - (12 - 6 * h + h * h))) < 1e-9
    assert central == pytest.approx(12 + h * h, abs=1e-9)


@every_form
def test_estimates_are_fp32_whatever_is_set_outside(form: str) -> None:
    toy, u_BCHW = Toy((3, 16, 24)), point(4, (3, 16, 24))
    plain = FiniteDifference(form=form).estimate(toy, u_BCHW, rng())
    outside = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("medium")
        with torch.autocast("cpu", torch.bfloat16):
            coarse = toy(u_BCHW)
            shielded = FiniteDifference(form=form).estimate(toy, u_BCHW, rng())
            assert torch.is_autocast_enabled("cpu")
    finally:
        torch.set_float32_matmul_precision(outside)
    assert not torch.allclose(coarse.float(), plain.value_B, rtol=1e-5)
    assert torch.equal(shielded.grad_BCHW, plain.grad_BCHW)
    assert torch.equal(shielded.differences_BM, plain.differences_BM)


def test_double_precision_values_give_double_precision_differences() -> None:
    """A difference of 1e-9 beside a value of 1 is lost in fp32 and must not be."""

    def objective(images_NCHW: Tensor) -> Tensor:
        return 1 + 1e-6 * images_NCHW.double().sum((1, 2, 3))

    estimate = FiniteDifference(direction="rademacher").estimate(
        objective, torch.zeros(2, 1, 1, 1), rng()
    )
    assert estimate.differences_BM.dtype == torch.float64
    torch.testing.assert_close(
        estimate.grad_BCHW, torch.full((2, 1, 1, 1), 1e-6), rtol=1e-4, atol=0
    )
