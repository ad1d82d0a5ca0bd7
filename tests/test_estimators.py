"""Finite differences against independent truths: autograd, a linear objective, a count of the images seen."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from dfme.errors import UserError
from dfme.estimators import DIRECTIONS, FORMS, DirectionName, FiniteDifference, Form

SHAPES = [(1, 8, 8), (3, 32, 32), (3, 16, 24)]
every_form = pytest.mark.parametrize("form", list(FORMS))
every_direction = pytest.mark.parametrize("direction", list(DIRECTIONS))
every_shape = pytest.mark.parametrize("shape", SHAPES, ids=str)


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def point(batch: int, shape: tuple[int, ...], seed: int = 1) -> Tensor:
    return torch.randn(batch, *shape, generator=rng(seed))


class Linear:
    """f(x) = <g_i, x_i> in float64, whose gradient is g whatever the step; records what it was asked for."""

    def __init__(self, batch: int, shape: tuple[int, ...]) -> None:
        self.gradient = point(batch, shape, seed=2).double()
        self.calls: list[Tensor] = []

    def __call__(self, images_NCHW: Tensor) -> Tensor:
        start = sum(map(len, self.calls))
        self.calls.append(images_NCHW.clone())
        # Rows follow each other in whole batches, so the place in the stream tells which image is meant.
        which_N = torch.arange(start, start + len(images_NCHW)) % len(self.gradient)
        return (images_NCHW.double() * self.gradient[which_N]).sum((1, 2, 3))


class Toy:
    """A student and a teacher that is known, so that autograd can go through both."""

    def __init__(self, shape: tuple[int, ...], seed: int = 3) -> None:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.student, self.teacher = (
                nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), 64), nn.Tanh(), nn.Linear(64, 10))
                for _ in range(2)
            )

    def __call__(self, u_NCHW: Tensor) -> Tensor:
        x_NCHW = u_NCHW.tanh()
        return -(self.student(x_NCHW) - self.teacher(x_NCHW)).square().mean(1)

    def gradient(self, u_BCHW: Tensor) -> Tensor:
        u_BCHW = u_BCHW.detach().requires_grad_()
        return torch.autograd.grad(self(u_BCHW).sum(), u_BCHW)[0]


def agreement(estimate_BCHW: Tensor, truth_BCHW: Tensor) -> tuple[float, float]:
    """Cosine, and the scale <estimate, truth> / <truth, truth>, over the whole batch."""
    dot = (estimate_BCHW * truth_BCHW).sum()
    return float(dot / estimate_BCHW.norm() / truth_BCHW.norm()), float(dot / truth_BCHW.square().sum())


@every_form
@every_direction
@every_shape
@pytest.mark.parametrize(("batch", "directions"), [(1, 1), (1, 3), (5, 1), (4, 3)])
def test_linear_objective_gives_the_formula_exactly(
    form: Form, direction: DirectionName, shape: tuple[int, ...], batch: int, directions: int
) -> None:
    """(s / m) sum_j v_j <v_j, g>, with v_j drawn once more here from a generator of the same seed."""
    objective, u_BCHW = Linear(batch, shape), point(batch, shape)
    estimator = FiniteDifference(directions, step=1e-2, form=form, direction=direction)
    estimate = estimator.estimate(objective, u_BCHW, rng(7))

    again, expected_BCHW = rng(7), torch.zeros_like(objective.gradient)
    for _ in range(directions):
        if direction == "rademacher":
            v_BCHW = torch.empty_like(u_BCHW).bernoulli_(0.5, generator=again).double() * 2 - 1
        else:
            v_BCHW = torch.randn(batch, *shape, generator=again).double()
        if direction == "sphere":
            v_BCHW /= v_BCHW.flatten(1).norm(dim=1).view(-1, 1, 1, 1)
        slope_B = (v_BCHW * objective.gradient).sum((1, 2, 3))
        expected_BCHW += slope_B.view(-1, 1, 1, 1) * v_BCHW / directions
    if direction == "sphere":
        expected_BCHW *= math.prod(shape)

    assert estimate.grad_BCHW.dtype == torch.float32
    # Measured in the size of a typical one-direction estimate; a single slope can happen to be near zero.
    typical = math.sqrt(math.prod(shape)) * objective.gradient.norm()
    assert (estimate.grad_BCHW - expected_BCHW).norm() < 1e-3 * typical
    value_B = (u_BCHW.double() * objective.gradient).sum((1, 2, 3))
    torch.testing.assert_close(estimate.value_B, value_B, atol=1e-3, rtol=1e-3)


@every_form
@every_direction
@every_shape
def test_mean_over_directions_is_autograds_gradient(
    form: Form, direction: DirectionName, shape: tuple[int, ...]
) -> None:
    """Direction and scale. A direction adds s <v, g>^2 / |g|^2 to the scale: mean 1, variance about 2."""
    toy, u_BCHW, directions = Toy(shape), point(4, shape), 2048 if shape[0] == 1 else 256
    estimator = FiniteDifference(directions, 1e-3, form, direction, chunk=512)
    cosine, scale = agreement(estimator.estimate(toy, u_BCHW, rng(5)).grad_BCHW, toy.gradient(u_BCHW))
    size = math.prod(shape)
    # With n directions and n < D: E cosine is about 1 / sqrt(1 + (D + 1) / n), per image.
    assert cosine == pytest.approx(1 / math.sqrt(1 + (size + 1) / directions), abs=0.08)
    truth_B = toy.gradient(u_BCHW).square().sum((1, 2, 3))
    spread = math.sqrt(2 * float(truth_B.square().sum()) / directions) / float(truth_B.sum())
    assert abs(scale - 1) < 4 * spread + 2e-3


@every_form
def test_enough_directions_reach_the_gradient(form: Form) -> None:
    toy, u_BCHW = Toy((1, 4, 4)), point(2, (1, 4, 4))
    estimator = FiniteDifference(20_000, 1e-2 if form == "central" else 1e-3, form, chunk=4096)
    estimate_BCHW = estimator.estimate(toy, u_BCHW, rng()).grad_BCHW
    torch.testing.assert_close(estimate_BCHW, toy.gradient(u_BCHW), atol=2e-3, rtol=0.05)
    assert agreement(estimate_BCHW, toy.gradient(u_BCHW))[0] > 0.999


@every_form
@pytest.mark.parametrize(
    ("dtype", "least", "off"), [(torch.float32, 0.99, 1e-2), (torch.float64, 0.99999, 1e-3)]
)
def test_one_direction_gives_the_true_directional_derivative(
    form: Form, dtype: torch.dtype, least: float, off: float
) -> None:
    """B = 1, m = 1 and DFME's own step; with an objective in float64 only the probes are rounded to fp32."""
    toy = Toy((3, 32, 32))
    toy.student, toy.teacher = toy.student.to(dtype), toy.teacher.to(dtype)
    found, true = [], []
    for seed in range(64):
        u_BCHW = point(1, (3, 32, 32), seed)
        estimate = FiniteDifference(form=form).estimate(
            lambda images: toy(images.to(dtype)), u_BCHW, rng(seed)
        )
        v_BCHW = torch.randn(1, 3, 32, 32, generator=rng(seed))
        v_BCHW /= v_BCHW.norm()
        found.append((estimate.grad_BCHW * v_BCHW).sum() / v_BCHW.numel())
        true.append((toy.gradient(u_BCHW.to(dtype)) * v_BCHW).sum())
    found_S, true_S = torch.stack(found).double(), torch.stack(true).double()
    assert torch.corrcoef(torch.stack([found_S, true_S]))[0, 1] > least
    assert float((found_S * true_S).sum() / true_S.square().sum()) == pytest.approx(1, abs=off)


def test_central_differences_have_the_smaller_bias() -> None:
    """On f = sum x^3 central differences err by h^2, forward ones by h; computed by hand in one dimension."""

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
@pytest.mark.parametrize("chunk", [1, 7, 5, 13, 1000])
@pytest.mark.parametrize("directions", [1, 4])
def test_the_chunk_changes_nothing(form: Form, chunk: int, directions: int) -> None:
    toy, u_BCHW = Toy((3, 16, 24)), point(5, (3, 16, 24))
    sizes: list[int] = []

    def counted(images_NCHW: Tensor) -> Tensor:
        sizes.append(len(images_NCHW))
        return toy(images_NCHW.double().float())

    whole = FiniteDifference(directions, form=form).estimate(counted, u_BCHW, rng(9))
    assert sizes == [whole.queries]  # base and probes in one call
    sizes.clear()
    generator = rng(9)
    parts = FiniteDifference(directions, form=form, chunk=chunk).estimate(counted, u_BCHW, generator)
    assert max(sizes) <= chunk
    assert sum(sizes) == whole.queries
    # fp32 noise of the toy's output, some 1e-7, over a difference of some 1e-5
    assert agreement(parts.grad_BCHW, whole.grad_BCHW) == pytest.approx((1, 1), abs=1e-2)
    torch.testing.assert_close(parts.value_B, whole.value_B)
    torch.testing.assert_close(parts.differences_BM, whole.differences_BM, atol=5e-7, rtol=0)
    after = rng(9)
    FiniteDifference(directions, form=form).estimate(counted, u_BCHW, after)
    assert torch.equal(generator.get_state(), after.get_state())


@every_form
@pytest.mark.parametrize("batch", [1, 2, 256])
@pytest.mark.parametrize("directions", [1, 3, 10])
@pytest.mark.parametrize("chunk", [None, 100, 300])
def test_cost_is_what_the_objective_saw(form: Form, batch: int, directions: int, chunk: int | None) -> None:
    objective = Linear(batch, (1, 2, 2))
    estimator = FiniteDifference(directions, form=form, chunk=chunk)
    estimate = estimator.estimate(objective, point(batch, (1, 2, 2)), rng())
    expected = batch * (directions + 1) if form == "forward" else 2 * batch * directions
    assert estimator.cost(batch) == expected == estimate.queries == sum(map(len, objective.calls))
    assert estimate.differences_BM.shape == (batch, directions)
    assert estimate.value_B.shape == (batch,)


@every_form
@every_direction
def test_an_image_does_not_feel_its_neighbours(form: Form, direction: DirectionName) -> None:
    toy, u_BCHW = Toy((3, 16, 24)), point(4, (3, 16, 24))
    other_BCHW = u_BCHW.clone()
    other_BCHW[2] = 10 * torch.randn(3, 16, 24, generator=rng(8))
    estimator = FiniteDifference(2, form=form, direction=direction)
    one = estimator.estimate(toy, u_BCHW, rng(4))
    two = estimator.estimate(toy, other_BCHW, rng(4))
    for i in (0, 1, 3):
        assert torch.equal(one.grad_BCHW[i], two.grad_BCHW[i])
        assert one.value_B[i] == two.value_B[i]
    assert not torch.equal(one.grad_BCHW[2], two.grad_BCHW[2])


@every_form
def test_the_estimate_is_not_averaged_over_the_batch(form: Form) -> None:
    """Eight copies of one image with a direction each: every one has the full scale of its own derivative."""
    objective = Linear(1, (1, 8, 8))
    u_BCHW = point(1, (1, 8, 8)).expand(8, -1, -1, -1)
    estimate = FiniteDifference(form=form, step=1e-2).estimate(objective, u_BCHW, rng())
    v_BCHW = torch.nn.functional.normalize(torch.randn(8, 1, 8, 8, generator=rng()).flatten(1))
    slope_B = v_BCHW.double() @ objective.gradient.flatten()
    torch.testing.assert_close(
        estimate.grad_BCHW.flatten(1).norm(dim=1).double(), 64 * slope_B.abs(), rtol=1e-3, atol=1e-3
    )


@every_form
@every_direction
@pytest.mark.parametrize("bounds", [(0.0, 1.0), (-1.0, 1.0), (-0.92, 1.9), (0.0, 255.0)])
@pytest.mark.parametrize("step", [1e-3, 0.03])
def test_probes_of_images_stay_legal_without_a_clipping_bias(
    form: Form, direction: DirectionName, bounds: tuple[float, float], step: float
) -> None:
    low, high = bounds
    batch, shape = 3, (3, 8, 8)
    x_BCHW = low + (high - low) * torch.rand(batch, *shape, generator=rng(2))
    x_BCHW[:, 0], x_BCHW[:, 1, :4] = low, high
    objective = Linear(batch, shape)
    estimator = FiniteDifference(2, step, form, direction, bounds=bounds)
    estimate = estimator.estimate(objective, x_BCHW, rng(6))
    for call_NCHW in objective.calls:
        assert float(call_NCHW.min()) >= torch.tensor(low)
        assert float(call_NCHW.max()) <= torch.tensor(high)

    free = FiniteDifference(2, step, form, direction).estimate(Linear(batch, shape), x_BCHW, rng(6))
    tolerance = 2e-7 * max(map(abs, bounds)) * math.sqrt(192) / step + 1e-4
    assert agreement(estimate.grad_BCHW, free.grad_BCHW) == pytest.approx((1, 1), abs=tolerance)


def test_bounds_move_only_what_is_near_them() -> None:
    objective = Linear(1, (1, 1, 3))
    x_BCHW = torch.tensor([0.0, 0.5, 1.0]).view(1, 1, 1, 3)
    FiniteDifference(step=0.01, direction="rademacher", bounds=(0, 1)).estimate(objective, x_BCHW, rng())
    torch.testing.assert_close(objective.calls[0][0].flatten(), torch.tensor([0.01, 0.5, 0.99]))


@every_direction
def test_directions_have_the_moments_and_reach_they_claim(direction: DirectionName) -> None:
    kind = DIRECTIONS[direction]
    v = kind.draw(torch.empty(40_000, 1, 2, 3), rng()).flatten(1)
    second = kind.scale(6) * v.T @ v / len(v)
    torch.testing.assert_close(second, torch.eye(6), atol=0.03, rtol=0)
    assert float(v.mean(0).abs().max()) < 0.02
    assert float(v.abs().max()) <= kind.reach


def test_rare_gaussian_draws_are_cut_at_the_reach(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "randn", lambda *_, **__: torch.tensor([-9.0, 1.0, 9.0]).view(1, 1, 1, 3))
    v_BCHW = DIRECTIONS["gaussian"].draw(torch.empty(1, 1, 1, 3), rng())
    assert v_BCHW.flatten().tolist() == [-6.0, 1.0, 6.0]


@every_direction
def test_draws_depend_on_the_generator_alone(direction: DirectionName) -> None:
    kind, like = DIRECTIONS[direction], torch.empty(2, 3, 4, 5)
    torch.manual_seed(0)
    one = kind.draw(like, rng(1))
    torch.manual_seed(1)
    state = torch.get_rng_state()
    assert torch.equal(one, kind.draw(like.to(memory_format=torch.channels_last), rng(1)))
    assert torch.equal(torch.get_rng_state(), state)
    assert not torch.equal(one, kind.draw(like, rng(2)))


@every_form
def test_no_gradient_is_recorded_and_no_state_left(form: Form) -> None:
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


@every_form
def test_estimates_are_fp32_whatever_is_set_outside(form: Form) -> None:
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

    estimate = FiniteDifference(direction="rademacher").estimate(objective, torch.zeros(2, 1, 1, 1), rng())
    assert estimate.differences_BM.dtype == torch.float64
    torch.testing.assert_close(estimate.grad_BCHW, torch.full((2, 1, 1, 1), 1e-6), rtol=1e-4, atol=0)


def test_points_in_channels_last_are_probed_in_channels_last() -> None:
    """Else every convolution behind the objective would copy its input first."""
    u_BCHW = point(2, (3, 8, 8))
    objective = Linear(2, (3, 8, 8))
    seen: list[bool] = []

    def watched(images_NCHW: Tensor) -> Tensor:
        seen.append(images_NCHW.is_contiguous(memory_format=torch.channels_last))
        return objective(images_NCHW)

    last = FiniteDifference(2, chunk=2).estimate(watched, u_BCHW.to(memory_format=torch.channels_last), rng())
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
        ({"direction": "cube"}, "sphere, gaussian, rademacher"),
        ({"chunk": 0}, "chunk"),
        ({"step": 0.5, "bounds": (0.0, 1.0)}, "smaller step"),
        ({"step": 0.1, "bounds": (0.0, 1.0), "direction": "gaussian"}, "smaller step"),
    ],
)
def test_impossible_arguments_are_refused_in_words(arguments: dict[str, Any], named: str) -> None:
    with pytest.raises(UserError, match=named):
        FiniteDifference(**arguments)


@pytest.mark.parametrize(
    "bad",
    [torch.zeros(3, 8, 8), torch.zeros(0, 1, 8, 8), torch.zeros(2, 1, 8, 8, dtype=torch.bfloat16)],
    ids=str,
)
def test_points_that_are_no_images_are_refused(bad: Tensor) -> None:
    with pytest.raises(UserError, match="point: expected"):
        FiniteDifference().estimate(lambda images: images.sum((1, 2, 3)), bad, rng())


@pytest.mark.parametrize(
    "objective",
    [
        lambda images: images.sum(),
        lambda images: images.sum((2, 3)),
        lambda images: images.sum((1, 2, 3)).long(),
    ],
)
def test_objectives_that_do_not_answer_per_image_are_refused(objective: Callable[[Tensor], Tensor]) -> None:
    with pytest.raises(UserError, match="one floating-point number per image"):
        FiniteDifference().estimate(objective, torch.zeros(2, 3, 8, 8), rng())


@pytest.mark.gpu
@every_form
@every_direction
def test_on_a_gpu_directions_are_drawn_there_and_nothing_waits(form: Form, direction: DirectionName) -> None:
    toy, u_BCHW = Toy((3, 32, 32)), point(8, (3, 32, 32)).cuda()
    toy.student, toy.teacher = toy.student.cuda(), toy.teacher.cuda()
    generator = torch.Generator("cuda").manual_seed(0)
    estimator = FiniteDifference(256, form=form, direction=direction, chunk=512)
    FiniteDifference(1, form=form, direction=direction).estimate(toy, u_BCHW, generator)
    torch.cuda.set_sync_debug_mode("error")
    try:
        estimate = estimator.estimate(toy, u_BCHW, generator)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert estimate.grad_BCHW.device == u_BCHW.device
    cosine, scale = agreement(estimate.grad_BCHW, toy.gradient(u_BCHW))
    assert cosine == pytest.approx(1 / math.sqrt(1 + 3073 / 256), abs=0.08)
    assert scale == pytest.approx(1, abs=0.15)
