"""Estimators made from settings, and what each keeps to: cost, chunks, bounds, refusals."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from tables import exhaustive
from torch import Tensor
from toys import Linear, OverImages, Toy, agreement, composed, featured, point, rng

from dfme.config.sections import EstimatorConfig
from dfme.errors import UserError
from dfme.estimators import FiniteDifference
from dfme.estimators.base import DIRECTIONS, SPACES
from dfme.estimators.build import make_estimator
from dfme.estimators.differences import FORMS
from dfme.spec import ImageSpec

every_form = pytest.mark.parametrize("form", list(FORMS))
EIGHT_BIT = ImageSpec((1, 8, 8), (-1.0, 1.0), levels=256)


EVERY = [
    *({"direction": name} for name in DIRECTIONS),
    {"kind": "synthetic"},
]


@every_form
@pytest.mark.parametrize("space", list(SPACES))
@pytest.mark.parametrize("settings", EVERY, ids=str)
def test_every_kind_and_direction_works_in_every_space(
    form: str, settings: dict[str, Any], space: str
) -> None:
    """As many images as stated reach the API, within bounds; forward differences ask the points
    first.
    """
    step = 2.0 if space == "lattice" else 1e-3
    config = EstimatorConfig(directions=2, form=form, space=space, step=step, **settings)
    objective, u_BCHW = composed(OverImages(EIGHT_BIT.shape)), point(3, EIGHT_BIT.shape)
    objective = replace(objective, features_BFHW=torch.randn(3, 5, 8, 8, generator=rng(11)))
    estimator = make_estimator(config, EIGHT_BIT, torch.tanh, 4, seed=0)
    cost = estimator.cost(3)
    estimate = estimator.estimate(objective, u_BCHW, rng())
    assert estimate.grad_BCHW.shape == u_BCHW.shape
    assert estimate.grad_BCHW.isfinite().all()
    assert not estimate.grad_BCHW.requires_grad
    asked_NCHW = torch.cat([x_NCHW for x_NCHW, _ in objective.asked])
    assert len(asked_NCHW) == estimate.queries == cost
    assert float(asked_NCHW.abs().max()) <= 1
    if form == "forward":
        torch.testing.assert_close(
            asked_NCHW[:3], EIGHT_BIT.quantise(u_BCHW.tanh()), atol=5 / 255, rtol=0
        )


@pytest.mark.gpu
@pytest.mark.parametrize("space", list(SPACES))
@pytest.mark.parametrize("settings", EVERY[:-1], ids=str)
def test_on_a_gpu_directions_are_drawn_there_and_nothing_waits(
    settings: dict[str, Any], space: str
) -> None:
    spec, toy = ImageSpec((1, 8, 8), (-1.0, 1.0), 256), OverImages((1, 8, 8))
    toy.toy.student, toy.toy.teacher = toy.toy.student.cuda(), toy.toy.teacher.cuda()
    u_BCHW, generator = point(64, spec.shape).cuda(), torch.Generator("cuda").manual_seed(0)
    config = EstimatorConfig(space=space, step=1.0 if space == "lattice" else 1e-3, **settings)
    estimator = make_estimator(config, spec, torch.tanh, 100, 0)
    objective = replace(composed(toy), features_BFHW=torch.ones(64, 2, 8, 8, device="cuda"))
    estimator.estimate(objective, u_BCHW, generator)
    torch.cuda.set_sync_debug_mode("error")
    try:
        estimate = estimator.estimate(objective, u_BCHW, generator)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert estimate.grad_BCHW.device == u_BCHW.device
    assert estimate.grad_BCHW.isfinite().all()


FLOATS = ImageSpec((1, 8, 8))


@pytest.mark.parametrize(
    ("changes", "spec", "named"),
    [
        (
            {"space": "lattice", "step": 1.0},
            FLOATS,
            "--estimator.space lattice: .*--teacher.levels",
        ),
        (
            {"space": "lattice"},
            EIGHT_BIT,
            "--estimator.step 0.001: .* whole number of levels from 1 to 127",
        ),
        (
            {"space": "lattice", "step": 1.5},
            EIGHT_BIT,
            "--estimator.step 1.5: expected a whole number",
        ),
        ({"space": "lattice", "step": 128.0}, EIGHT_BIT, "--estimator.step 128: .*from 1 to 127"),
        (
            {"space": "lattice", "step": 1.0},
            ImageSpec((1, 8, 8), levels=2),
            "at least 3 levels.*got 2",
        ),
        (
            {"space": "image", "step": 0.6},
            FLOATS,
            "--estimator.step: .*got 0.6; take a smaller step",
        ),
        ({"kind": "auto"}, FLOATS, "--estimator.kind: expected another by now"),
        ({"step": "auto"}, FLOATS, "--estimator.step: expected a number"),
    ],
)
def test_impossible_settings_are_refused_by_their_flag(
    changes: dict[str, Any], spec: ImageSpec, named: str
) -> None:
    with pytest.raises(UserError, match=named) as refusal:
        make_estimator(replace(EstimatorConfig(), **changes), spec, torch.tanh, None, 0)
    assert "\n" not in str(refusal.value)


every_direction = pytest.mark.parametrize("direction", list(DIRECTIONS))


@every_direction
@pytest.mark.parametrize("chunk", [7, *exhaustive(1, 13)])
def test_every_family_draws_the_same_in_chunks(direction: str, chunk: int) -> None:
    """Bit for bit: the probes of forward differences come in one order, whatever a call holds."""
    asked = []
    for size in (None, chunk):
        objective = featured(Linear(5, (2, 4, 6)), point(5, (2, 4, 6)))
        FiniteDifference(3, direction=direction, chunk=size).estimate(
            objective, point(5, (2, 4, 6)), rng(9)
        )
        asked.append(torch.cat([x_NCHW for x_NCHW, _ in objective.asked]))
    assert torch.equal(*asked)


@every_form
@pytest.mark.parametrize("chunk", [7, *exhaustive(1, 13)])
@pytest.mark.parametrize("directions", [1, 4])
def test_the_chunk_changes_nothing(form: str, chunk: int, directions: int) -> None:
    toy, u_BCHW = Toy((3, 16, 24)), point(5, (3, 16, 24))
    sizes: list[int] = []

    def counted(images_NCHW: Tensor) -> Tensor:
        sizes.append(len(images_NCHW))
        return toy(images_NCHW.double().float())

    whole = FiniteDifference(directions, form=form).estimate(counted, u_BCHW, rng(9))
    assert sizes == [whole.queries]  # base and probes in one call
    sizes.clear()
    parts = FiniteDifference(directions, form=form, chunk=chunk).estimate(counted, u_BCHW, rng(9))
    assert max(sizes) <= chunk
    assert sum(sizes) == whole.queries
    # fp32 noise of the toy's output, some 1e-7, over a difference of some 1e-5
    assert agreement(parts.grad_BCHW, whole.grad_BCHW) == pytest.approx((1, 1), abs=1e-2)
    torch.testing.assert_close(parts.value_B, whole.value_B)
    torch.testing.assert_close(parts.differences_BM, whole.differences_BM, atol=5e-7, rtol=0)


@every_form
@pytest.mark.parametrize("batch", [2, *exhaustive(1, 256)])
@pytest.mark.parametrize("directions", [1, 3])
@pytest.mark.parametrize("chunk", [None, 3, *exhaustive(100)])
def test_cost_is_what_the_objective_saw(
    form: str, batch: int, directions: int, chunk: int | None
) -> None:
    objective = Linear(batch, (1, 2, 2))
    estimator = FiniteDifference(directions, form=form, chunk=chunk)
    estimate = estimator.estimate(objective, point(batch, (1, 2, 2)), rng())
    expected = batch * (directions + 1) if form == "forward" else 2 * batch * directions
    assert estimator.cost(batch) == expected == estimate.queries == sum(map(len, objective.calls))
    assert estimate.differences_BM.shape == (batch, directions)
    assert estimate.value_B.shape == (batch,)


@every_form
@every_direction
def test_an_image_does_not_feel_its_neighbours(form: str, direction: str) -> None:
    toy, u_BCHW = Toy((3, 16, 24)), point(4, (3, 16, 24))
    other_BCHW = u_BCHW.clone()
    other_BCHW[2] = 10 * torch.randn(3, 16, 24, generator=rng(8))
    estimator = FiniteDifference(2, form=form, direction=direction)
    one = estimator.estimate(featured(toy, u_BCHW), u_BCHW, rng(4))
    two = estimator.estimate(featured(toy, u_BCHW), other_BCHW, rng(4))
    for i in (0, 1, 3):
        assert torch.equal(one.grad_BCHW[i], two.grad_BCHW[i])
        assert one.value_B[i] == two.value_B[i]
    assert not torch.equal(one.grad_BCHW[2], two.grad_BCHW[2])


@every_form
@every_direction
@pytest.mark.parametrize(
    "bounds", [(-1.0, 1.0), (-0.92, 1.9), *exhaustive((0.0, 1.0), (0.0, 255.0))]
)
@pytest.mark.parametrize("step", [0.03, *exhaustive(1e-3)])
def test_probes_of_images_stay_legal_without_a_clipping_bias(
    form: str, direction: str, bounds: tuple[float, float], step: float
) -> None:
    low, high = bounds
    batch, shape = 3, (3, 8, 8)
    x_BCHW = low + (high - low) * torch.rand(batch, *shape, generator=rng(2))
    x_BCHW[:, 0], x_BCHW[:, 1, :4] = low, high
    objective = Linear(batch, shape)
    estimator = FiniteDifference(2, step, form, direction=direction, bounds=bounds)
    estimate = estimator.estimate(featured(objective, x_BCHW), x_BCHW, rng(6))
    for call_NCHW in objective.calls:
        assert float(call_NCHW.min()) >= torch.tensor(low)
        assert float(call_NCHW.max()) <= torch.tensor(high)

    unbounded = FiniteDifference(2, step, form, direction=direction)
    free = unbounded.estimate(featured(Linear(batch, shape), x_BCHW), x_BCHW, rng(6))
    tolerance = 2e-7 * max(map(abs, bounds)) * math.sqrt(192) / step + 1e-4
    assert agreement(estimate.grad_BCHW, free.grad_BCHW) == pytest.approx((1, 1), abs=tolerance)


def test_bounds_move_only_what_is_near_them() -> None:
    objective = Linear(1, (1, 1, 3))
    x_BCHW = torch.tensor([0.0, 0.5, 1.0]).view(1, 1, 1, 3)
    FiniteDifference(step=0.01, direction="rademacher", bounds=(0, 1)).estimate(
        objective, x_BCHW, rng()
    )
    torch.testing.assert_close(objective.calls[0][0].flatten(), torch.tensor([0.01, 0.5, 0.99]))


@every_form
def test_no_gradient_is_recorded_and_no_state_left(form: str) -> None:
    toy, u_BCHW = Toy((1, 8, 8)), point(2, (1, 8, 8)).requires_grad_()
    before = u_BCHW.detach().clone()

    def objective(images_NCHW: Tensor) -> Tensor:
        assert not torch.is_grad_enabled()
        assert not images_NCHW.requires_grad
        return toy(images_NCHW)

    estimate = FiniteDifference(form=form).estimate(objective, u_BCHW, rng())
    assert not estimate.grad_BCHW.requires_grad
    assert torch.is_grad_enabled()
    assert u_BCHW.grad is None
    assert all(weight.grad is None for weight in toy.student.parameters())
    assert torch.equal(u_BCHW.detach(), before)


def test_points_in_channels_last_are_probed_in_channels_last() -> None:
    """Else every convolution behind the objective would copy its input first."""
    u_BCHW = point(2, (3, 8, 8))
    objective = Linear(2, (3, 8, 8))
    seen: list[bool] = []

    def watched(images_NCHW: Tensor) -> Tensor:
        seen.append(images_NCHW.is_contiguous(memory_format=torch.channels_last))
        return objective(images_NCHW)

    last = FiniteDifference(2, chunk=2).estimate(
        watched, u_BCHW.to(memory_format=torch.channels_last), rng()
    )
    assert seen == [True] * 3
    plain = FiniteDifference(2, chunk=2).estimate(Linear(2, (3, 8, 8)), u_BCHW, rng())
    torch.testing.assert_close(last.grad_BCHW, plain.grad_BCHW)


def test_a_step_that_moves_nothing_is_not_mistaken_for_a_flat_objective() -> None:
    estimate = FiniteDifference(step=1e-12).estimate(
        Linear(1, (1, 8, 8)), 1 + point(1, (1, 8, 8)).abs(), rng()
    )
    assert estimate.grad_BCHW.isnan().all()


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"directions": 0}, "directions"),
        ({"step": 0.0}, "step"),
        ({"step": float("nan")}, "step"),
        ({"form": "backward"}, "forward or central"),
        ({"step": 0.5, "bounds": (0.0, 1.0)}, "smaller step"),
    ],
)
def test_impossible_arguments_are_refused_in_words(arguments: dict[str, Any], named: str) -> None:
    with pytest.raises(UserError, match=named):
        FiniteDifference(**arguments)


IMAGES = torch.zeros(2, 3, 8, 8)


@pytest.mark.parametrize(
    ("objective", "at", "named"),
    [
        (lambda x: x.sum((1, 2, 3)), IMAGES[0], "point: expected"),
        (lambda x: x.sum((1, 2, 3)), IMAGES[:0], "point: expected"),
        (lambda x: x.sum((1, 2, 3)), IMAGES.bfloat16(), "point: expected"),
        (lambda x: x.sum(), IMAGES, "one floating-point number per image"),
        (lambda x: x.sum((2, 3)), IMAGES, "one floating-point number per image"),
        (lambda x: x.sum((1, 2, 3)).long(), IMAGES, "one floating-point number per image"),
    ],
)
def test_points_that_are_no_images_and_objectives_not_per_image_are_refused(
    objective: Callable[[Tensor], Tensor], at: Tensor, named: str
) -> None:
    with pytest.raises(UserError, match=named):
        FiniteDifference().estimate(objective, at, rng())
