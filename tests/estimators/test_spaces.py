"""The space of an estimate: probes that the wire leaves alone, and the chain rule through the
squashing.
"""

from typing import Any

import pytest
import torch
from tables import exhaustive, exhaustive_rows
from torch import Tensor
from toys import Linear, OverImages, agreement, composed, featured, of_answers, point, rng

from dfme.config.sections import EstimatorConfig
from dfme.estimators import FiniteDifference
from dfme.estimators.base import AfterSquash, BeforeSquash, Estimate, Objective, carried
from dfme.estimators.build import make_estimator
from dfme.estimators.differences import FORMS
from dfme.spec import ImageSpec

WITHIN_TANH = ImageSpec((1, 4, 4), (-1.0, 1.0))

every_form = pytest.mark.parametrize("form", list(FORMS))


def level_of(spec: ImageSpec) -> float:
    assert spec.levels is not None
    return (spec.bounds[1] - spec.bounds[0]) / (spec.levels - 1)


def on_lattice(
    spec: ImageSpec, step: int = 1, directions: int = 2, form: str = "forward", **options: Any
) -> Any:
    return FiniteDifference(
        directions, step, form, bounds=spec.bounds, lattice=level_of(spec), **options
    )


@every_form
@pytest.mark.parametrize("direction", ["sphere", "dct"])
@pytest.mark.parametrize(
    "bounds",
    [(-0.92, 1.9), (0.0, 255.0), *exhaustive((0.0, 1.0), (-1.0, 1.0), (-2.1179, 2.6400))],
    ids=str,
)
@pytest.mark.parametrize(
    ("levels", "step"), [(256, 127), (65_536, 1), *exhaustive_rows([(256, 1), (7, 2)])]
)
def test_the_wire_changes_no_bit_of_any_probe(
    form: str, direction: str, bounds: tuple[float, float], levels: int, step: int
) -> None:
    spec, batch = ImageSpec((2, 5, 6), bounds, levels), 3
    low, high = bounds
    x_BCHW = low + (high - low) * torch.rand(batch, *spec.shape, generator=rng(2))
    x_BCHW[:, 0, 0], x_BCHW[:, 1, 1] = low, high
    objective = Linear(batch, spec.shape)
    estimator = on_lattice(spec, step, 2, form, direction=direction)
    estimator.estimate(featured(objective, x_BCHW), x_BCHW, rng(6))
    asked_NCHW = torch.cat(objective.calls)
    assert torch.equal(spec.quantise(asked_NCHW), asked_NCHW)

    # and every pixel of every probe has moved by exactly so many levels from the centre
    index_RBCHW = (
        ((asked_NCHW.double() - low) / level_of(spec)).round().view(-1, batch, *spec.shape)
    )
    if form == "forward":
        moved = index_RBCHW[1:] - index_RBCHW[0]
        assert set(moved.unique().tolist()) == {-step, step}
    else:
        moved = index_RBCHW[:2] - index_RBCHW[2:]
        assert set(moved.unique().tolist()) == {-2 * step, 2 * step}


def test_the_centre_is_the_nearest_point_with_room_for_the_step() -> None:
    spec = ImageSpec((1, 1, 5), (0.0, 1.0), levels=11)
    objective = Linear(1, spec.shape)
    x_BCHW = torch.tensor([0.0, 0.13, 0.48, 0.96, 1.0]).view(1, 1, 1, 5)
    on_lattice(spec, 2, 1).estimate(objective, x_BCHW, rng())
    torch.testing.assert_close(
        objective.calls[0][0].flatten(), torch.tensor([0.2, 0.2, 0.5, 0.8, 0.8])
    )


@every_form
@pytest.mark.parametrize("direction", ["orthogonal", *exhaustive("rademacher")])
@pytest.mark.parametrize("value", [1.0, *exhaustive(-1.0)], ids=["highest", "lowest"])
def test_images_at_the_bounds_are_estimated_without_bias(
    form: str, direction: str, value: float
) -> None:
    """A linear objective, whose gradient is the same wherever the centre is."""
    objective, x_BCHW = Linear(1, (1, 3, 4)), torch.full((1, 1, 3, 4), value)
    estimate = on_lattice(
        ImageSpec((1, 8, 8), (-1.0, 1.0), levels=256), 4, 2000, form, direction=direction
    ).estimate(objective, x_BCHW, rng(1))
    cosine, scale = agreement(estimate.grad_BCHW.double(), objective.gradient)
    assert cosine > 0.996
    # One direction spreads by about sqrt(2) of the scale.
    assert scale == pytest.approx(1, abs=4 * (2 / 2000) ** 0.5)


@every_form
def test_lattice_estimates_are_the_formula_with_the_way_really_sent(form: str) -> None:
    spec = ImageSpec((1, 4, 4), (0.0, 1.0), levels=16)
    objective, again, size = Linear(2, spec.shape), rng(3), 16
    x_BCHW = torch.rand(2, *spec.shape, generator=rng(2))
    estimate = on_lattice(spec, 2, 3, form, direction="rademacher").estimate(
        objective, x_BCHW, rng(3)
    )
    expected_BCHW = torch.zeros(2, *spec.shape, dtype=torch.float64)
    for _ in range(3):
        delta_BCHW = torch.empty(2, *spec.shape).bernoulli_(0.5, generator=again).double() * 2 - 1
        slope_B = (delta_BCHW * objective.gradient).sum((1, 2, 3)) / delta_BCHW.square().sum(
            (1, 2, 3)
        )
        expected_BCHW += size / 3 * slope_B.view(-1, 1, 1, 1) * delta_BCHW
    torch.testing.assert_close(estimate.grad_BCHW.double(), expected_BCHW, atol=1e-5, rtol=1e-5)


@every_form
def test_an_8_bit_wire_takes_nothing_from_the_lattice_and_all_from_the_published_step(
    form: str,
) -> None:
    """One direction per image, as in DFME: the share of an exact wire's estimate that is left."""
    objective, u_BCHW = of_answers(OverImages((3, 32, 32))), point(400, (3, 32, 32))
    floats, eight_bit = (ImageSpec((3, 32, 32), (-1.0, 1.0), levels) for levels in (None, 256))

    def estimate(spec: ImageSpec, **settings: Any) -> Tensor:
        estimator = make_estimator(
            EstimatorConfig(form=form, **settings), spec, torch.tanh, 2048, 0
        )
        return estimator.estimate(objective, u_BCHW, rng(5)).grad_BCHW

    assert abs(agreement(estimate(eight_bit), estimate(floats))[0]) < 0.1
    on_levels = estimate(eight_bit, space="lattice", step=1.0)
    unrounded = estimate(floats, space="image", step=2 / 255, direction="rademacher")
    truth_BCHW = objective.query.toy.gradient(u_BCHW)
    assert agreement(on_levels, truth_BCHW)[0] > 0.9 * agreement(unrounded, truth_BCHW)[0] > 0


class Autograd:
    """An inner estimator that cheats: the exact gradient of what it is given, and a note of what
    that was.
    """

    def __init__(self) -> None:
        self.seen: list[Objective] = []

    def estimate(self, objective: Objective, point_BCHW: Tensor, rng: torch.Generator) -> Estimate:
        self.seen.append(objective)
        point_BCHW = point_BCHW.detach().requires_grad_()
        with torch.enable_grad():
            value_B = objective(point_BCHW)
            (grad_BCHW,) = torch.autograd.grad(value_B.sum(), point_BCHW)
        return Estimate(grad_BCHW, value_B.detach(), value_B.detach().unsqueeze(1), 7)


@pytest.mark.parametrize("wrapper", [BeforeSquash, AfterSquash])
@pytest.mark.parametrize("recording", [True, False])
def test_either_side_gives_the_gradient_before_the_squashing(wrapper: Any, recording: bool) -> None:
    over_images, u_BCHW = OverImages((1, 4, 4)), point(3, (1, 4, 4))
    with torch.set_grad_enabled(recording):
        estimate = wrapper(Autograd(), torch.tanh, WITHIN_TANH).estimate(
            of_answers(over_images), u_BCHW, rng()
        )
        assert torch.is_grad_enabled() == recording
    torch.testing.assert_close(estimate.grad_BCHW, over_images.toy.gradient(u_BCHW))
    assert not estimate.grad_BCHW.requires_grad
    assert not u_BCHW.requires_grad
    assert estimate.queries == 7
    torch.testing.assert_close(estimate.value_B, over_images.toy(u_BCHW).detach())


def test_an_objective_in_two_parts_stays_one_before_the_squashing() -> None:
    over_images, u_BCHW = OverImages((1, 4, 4)), point(3, (1, 4, 4))
    inner, objective = Autograd(), composed(over_images)
    BeforeSquash(inner, torch.tanh, WITHIN_TANH).estimate(objective, u_BCHW, rng())
    seen = inner.seen[0]
    assert isinstance(seen, Objective)
    assert torch.equal(seen(u_BCHW), objective(u_BCHW.tanh()))
    assert torch.equal(seen.asked[-1][1], over_images.toy.teacher(u_BCHW.tanh()))
    assert seen.features_BFHW is objective.features_BFHW


def test_after_the_squashing_the_objective_is_about_images() -> None:
    inner, objective = Autograd(), composed(OverImages((1, 4, 4)))
    AfterSquash(inner, torch.tanh, WITHIN_TANH).estimate(objective, point(3, (1, 4, 4)), rng())
    (seen,) = inner.seen
    x_BCHW = point(3, (1, 4, 4)).tanh()
    assert torch.equal(seen(x_BCHW), objective(x_BCHW))


@pytest.mark.parametrize("space", ["pre_squash", "image", "lattice"])
def test_an_image_is_rounded_once_for_both_parts_of_the_objective(
    space: str, monkeypatch: Any
) -> None:
    rounded, spec = [], ImageSpec((1, 4, 4), (-1.0, 1.0), levels=16)
    quantise = ImageSpec.quantise
    monkeypatch.setattr(
        ImageSpec, "quantise", lambda spec, x: rounded.append(len(x)) or quantise(spec, x)
    )
    seen: list[Tensor] = []

    def query(x_NCHW: Tensor) -> Tensor:
        seen.append(x_NCHW)
        return x_NCHW.sum((1, 2, 3))

    def value(x_NCHW: Tensor, answers_N: Tensor) -> Tensor:
        assert x_NCHW is seen[-1], "the very image that was asked about"
        return answers_N

    settings = EstimatorConfig(space=space, step=1.0 if space == "lattice" else 0.1, directions=2)
    estimator = make_estimator(settings, spec, torch.tanh, None, 0)
    estimator.estimate(Objective(query, value), point(3, (1, 4, 4)), rng())
    assert rounded == [3 * (2 + 1)]
    assert torch.equal(seen[0], quantise(spec, seen[0]))


@pytest.mark.parametrize("levels", [None, 16])
def test_rounding_lets_gradients_pass(levels: int | None) -> None:
    x_BCHW = point(2, (1, 4, 4)).tanh().requires_grad_()
    spec = ImageSpec((1, 4, 4), (-1.0, 1.0), levels=levels)
    out_BCHW = carried(x_BCHW, spec)
    torch.testing.assert_close(out_BCHW, spec.quantise(x_BCHW.detach()))
    (grad_BCHW,) = torch.autograd.grad(out_BCHW.square().sum(), x_BCHW)
    torch.testing.assert_close(grad_BCHW, 2 * out_BCHW.detach())
