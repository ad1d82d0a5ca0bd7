"""Finite differences and their directions against independent truths: autograd, arithmetic, moments."""

import math
from itertools import islice

import pytest
import torch
from tables import exhaustive, exhaustive_rows
from torch import Tensor
from torch.nn.functional import cosine_similarity, unfold
from toys import Linear, Toy, agreement, point, rng

from dfme.errors import UserError
from dfme.estimators import FiniteDifference
from dfme.estimators.base import DIRECTIONS, Objective, PerturbedPoint, low_frequencies
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


def place(batch: int, shape: tuple[int, int, int], frequencies: float = 0.125) -> PerturbedPoint:
    features_BFHW = torch.randn(batch, 2, *shape[1:], generator=rng(4))
    return PerturbedPoint(torch.empty(batch, *shape), features_BFHW, frequencies)


def draws(direction: str, where: PerturbedPoint, count: int, seed: int = 0) -> Tensor:
    """(B, count, D)."""
    stream = DIRECTIONS[direction].stream(where, rng(seed))
    return torch.stack([v_BCHW.flatten(1) for v_BCHW in islice(stream, count)], dim=1)


def second_moment(direction: str, where: PerturbedPoint, which: int = 0) -> Tensor:
    v_BD = draws(direction, where, which + 1)[:, which]
    return DIRECTIONS[direction].scale(where) * v_BD.T @ v_BD / len(v_BD)


@pytest.mark.parametrize(
    ("direction", "which"),
    [*((name, 0) for name in ("sphere", "rademacher", "orthogonal")), ("orthogonal", 3)],
)
def test_isotropic_families_have_the_moments_they_claim(direction: str, which: int) -> None:
    where = place(40_000, (1, 2, 3))
    torch.testing.assert_close(
        second_moment(direction, where, which), torch.eye(6), atol=0.03, rtol=0
    )
    assert float(draws(direction, where, which + 1).mean(0).abs().max()) < 0.02


@every_direction
def test_no_coordinate_exceeds_the_reach(direction: str) -> None:
    assert float(draws(direction, place(500, (2, 3, 4)), 6).abs().max()) <= 1


@every_direction
def test_draws_depend_on_the_generator_alone_and_none_is_drawn_ahead(direction: str) -> None:
    """So that what follows an estimate does not depend on how many directions were drawn in one
    go.
    """
    torch.manual_seed(0)
    where, generator, state = place(2, (3, 4, 5)), rng(1), torch.get_rng_state()
    last = PerturbedPoint(
        where.like_BCHW.to(memory_format=torch.channels_last), where.features_BFHW
    )
    together = draws(direction, last, 3, seed=1)
    assert torch.equal(torch.get_rng_state(), state)
    stream = DIRECTIONS[direction].stream(where, generator)
    for j in range(3):
        assert torch.equal(next(stream).flatten(1), together[:, j])


def test_orthogonal_directions_are_at_right_angles_and_start_anew_after_d() -> None:
    v_BMD = draws("orthogonal", place(50, (1, 3, 4)), 30)
    for start in (0, 12):
        block_BMD = v_BMD[:, start : start + 12]
        torch.testing.assert_close(
            block_BMD @ block_BMD.mT, torch.eye(12).expand(50, -1, -1), atol=2e-6, rtol=0
        )
    assert float((v_BMD[:, 0] * v_BMD[:, 12]).sum(1).abs().max()) > 0.1
    assert torch.equal(v_BMD[:, 0], draws("sphere", place(50, (1, 3, 4)), 1)[:, 0])


@pytest.mark.parametrize("blocks", [1, 2])
def test_d_orthogonal_directions_are_exact_for_a_linear_objective(blocks: int) -> None:
    objective = Linear(4, (2, 3, 4))
    estimator = FiniteDifference(24 * blocks, 0.1, direction="orthogonal")
    estimate = estimator.estimate(objective, point(4, (2, 3, 4)), rng())
    torch.testing.assert_close(
        estimate.grad_BCHW.double(), objective.gradient, atol=2e-5, rtol=1e-5
    )


def cosine_pattern(i: int, j: int, height: int, width: int) -> list[float]:
    """One pattern of the two-dimensional DCT-II by its definition, at unit length."""
    values = [
        math.cos(math.pi * i * (2 * y + 1) / (2 * height))
        * math.cos(math.pi * j * (2 * x + 1) / (2 * width))
        for y in range(height)
        for x in range(width)
    ]
    length = math.sqrt(sum(value * value for value in values))
    return [value / length for value in values]


@pytest.mark.parametrize(
    ("size", "share", "chosen"),
    [
        ((4, 4), 3 / 16, [(0, 0), (0, 1), (1, 0)]),
        ((4, 4), 1e-6, [(0, 0)]),
        ((8, 8), 0.12, [(0, 0), (0, 1), (1, 0), (1, 1), (0, 2), (2, 0), (1, 2), (2, 1)]),
        ((4, 8), 5 / 32, [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1)]),
        ((3, 5), 1.0, [(i, j) for i in range(3) for j in range(5)]),
    ],
    ids=str,
)
def test_dct_directions_span_the_lowest_frequencies(
    size: tuple[int, int], share: float, chosen: list[tuple[int, int]]
) -> None:
    """The projection, since a basis of the same span may come in another order."""
    expected_PN = torch.tensor([cosine_pattern(i, j, *size) for i, j in chosen])
    patterns_PN = low_frequencies(place(1, (2, *size), share))
    torch.testing.assert_close(
        patterns_PN.T @ patterns_PN, expected_PN.T @ expected_PN, atol=1e-5, rtol=0
    )


def test_dct_estimates_are_the_projection_of_the_gradient() -> None:
    """Scale and direction: channels apart, what lies in the low frequencies is found, the rest
    never.
    """
    where = place(40_000, (2, 3, 4), 3 / 12)
    patterns_PN = torch.tensor([cosine_pattern(i, j, 3, 4) for i, j in ((0, 0), (0, 1), (1, 0))])
    projection_NN = patterns_PN.T @ patterns_PN
    expected = torch.block_diag(projection_NN, projection_NN)
    torch.testing.assert_close(second_moment("dct", where), expected, atol=0.03, rtol=0)
    assert torch.allclose(draws("dct", where, 1).norm(dim=2), torch.ones(40_000, 1))

    objective = Linear(1, (2, 3, 4))
    estimator = FiniteDifference(3000, 0.1, direction="dct", frequencies=3 / 12)
    estimate = estimator.estimate(objective, point(1, (2, 3, 4)), rng())
    projected = expected.double() @ objective.gradient.flatten()
    assert agreement(estimate.grad_BCHW.flatten(), projected) == pytest.approx((1, 1), abs=0.06)


def test_range_directions_are_what_a_last_convolution_can_do() -> None:
    """Each channel is a linear combination of the shifted features of its own image and of no
    other.
    """
    where = place(3, (2, 6, 7))
    assert where.features_BFHW is not None
    shifted_BNS = unfold(where.features_BFHW, 3, padding=1).mT  # S = F * 9 = 18 shifted features
    v_BCN = draws("range", where, 1).view(3, 2, 42)
    torch.testing.assert_close(v_BCN.flatten(1).norm(dim=1), torch.ones(3))
    kernels_BCS = torch.randn(6, 2, 3, 3, generator=rng()).view(3, 2, 18)
    response_BCN = kernels_BCS @ shifted_BNS.mT
    torch.testing.assert_close(
        v_BCN, response_BCN / response_BCN.flatten(1).norm(dim=1).view(3, 1, 1)
    )
    assert float(cosine_similarity(kernels_BCS[0, 0], kernels_BCS[1, 0], dim=0)) < 0.9


@pytest.mark.parametrize(
    "features",
    [None, torch.zeros(2, 4, 8, 8), torch.zeros(3, 4, 4, 4)],
    ids=["none", "batch", "size"],
)
def test_range_without_fitting_features_is_refused_in_words(features: Tensor | None) -> None:
    objective = Objective(
        lambda images: images.sum((1, 2, 3)), lambda _, answers: answers, features
    )
    with pytest.raises(UserError, match=r"direction range: expected.*take another direction"):
        FiniteDifference(direction="range").estimate(objective, torch.zeros(3, 1, 8, 8), rng())
