"""Families of directions against what each claims: moments, reach, right angles, frequencies."""

import math
from itertools import islice

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity, unfold
from toys import Linear, agreement, point, rng

from dfme.errors import UserError
from dfme.estimators import FiniteDifference
from dfme.estimators.base import DIRECTIONS, Objective, PerturbedPoint, low_frequencies

every_direction = pytest.mark.parametrize("direction", list(DIRECTIONS))
ISOTROPIC: tuple[str, ...] = ("sphere", "rademacher", "orthogonal")


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
    ("direction", "which"), [*((name, 0) for name in ISOTROPIC), ("orthogonal", 3)]
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
