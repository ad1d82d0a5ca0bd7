"""The student's term exact, the teacher's by differences: against autograd through both."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from toy_objectives import agreement, point, rng
from two_parts import TwoParts, straight

from dfme.errors import UserError
from dfme.estimators import Composed, DirectionName, FiniteDifference
from dfme.estimators.exact_student import ExactStudent
from dfme.spec import ImageSpec

SHAPE = (1, 4, 4)
every_control = pytest.mark.parametrize("control", [0.0, 0.5, 1.0, "auto"])


def error(control: Any, toy: TwoParts, x_BCHW: Tensor) -> float:
    """Mean squared error of one-direction estimates, as a share of |g|^2."""
    estimate = ExactStudent(control, FiniteDifference(1)).estimate(toy.composed(), x_BCHW, rng(4))
    truth_BCHW = toy.gradient(x_BCHW)
    return float((estimate.grad_BCHW - truth_BCHW).square().sum() / truth_BCHW.square().sum())


@every_control
@pytest.mark.parametrize("apart", [0.1, 1.0])
def test_the_mean_over_directions_is_autograds_gradient(control: Any, apart: float) -> None:
    toy, x_BCHW = TwoParts(SHAPE, apart), point(4, SHAPE).double()
    estimator = ExactStudent(control, FiniteDifference(3000, 1e-5, chunk=4000))
    grad_BCHW = estimator.estimate(toy.composed(), x_BCHW, rng()).grad_BCHW
    cosine, scale = agreement(grad_BCHW, toy.gradient(x_BCHW))
    # Where the terms cancel, c = 0 has the noise of a g_T that is several times g.
    least = 0.997 if apart == 1 or control in (1.0, "auto") else 0.95
    assert cosine > least
    assert scale == pytest.approx(1, abs=0.1)


@pytest.mark.parametrize("direction", ["sphere", "rademacher", "orthogonal", "dct"])
@pytest.mark.parametrize("directions", [1, 3])
def test_control_1_is_the_plain_difference_to_first_order(direction: DirectionName, directions: int) -> None:
    toy, x_BCHW = TwoParts(SHAPE), point(8, SHAPE).double()
    inner = FiniteDifference(directions, 1e-6, direction=direction, frequencies=0.5)
    exact = ExactStudent(1.0, inner).estimate(toy.composed(), x_BCHW, rng(2))
    plain = inner.estimate(toy.composed(), x_BCHW, rng(2))
    torch.testing.assert_close(exact.grad_BCHW, plain.grad_BCHW, rtol=1e-3, atol=1e-5)
    torch.testing.assert_close(exact.value_B, plain.value_B)


def test_answers_that_never_change_leave_the_students_term_alone_without_noise() -> None:
    toy, x_BCHW = TwoParts(SHAPE), point(5, SHAPE).double()
    answers = toy.teacher(torch.zeros(1, *SHAPE).double()).detach()
    constant = Composed(lambda x_NCHW: answers.expand(len(x_NCHW), -1), toy.value)
    for control in (0.0, "auto"):
        estimate = ExactStudent(control, FiniteDifference(1)).estimate(constant, x_BCHW, rng())
        at = x_BCHW.clone().requires_grad_()
        truth_BCHW = torch.autograd.grad(toy.value(at, answers).sum(), at)[0]
        torch.testing.assert_close(estimate.grad_BCHW, truth_BCHW)
        assert not estimate.differences_BM.any()


def test_the_differences_are_the_teachers_with_the_student_held() -> None:
    toy, x_BCHW = TwoParts(SHAPE), point(3, SHAPE).double()
    inner = FiniteDifference(2, 1e-2, chunk=4)
    estimate = ExactStudent(0.0, inner).estimate(toy.composed(), x_BCHW, rng(6))
    again = rng(6)
    with torch.no_grad():
        for j in range(2):
            v_BCHW = torch.randn(3, *SHAPE, generator=again, dtype=torch.float64)
            v_BCHW /= v_BCHW.flatten(1).norm(dim=1).view(-1, 1, 1, 1)
            there, here = (toy.teacher(x_BCHW + h * v_BCHW) for h in (1e-2, 0.0))
            expected_B = toy.value(x_BCHW, there) - toy.value(x_BCHW, here)
            torch.testing.assert_close(estimate.differences_BM[:, j], expected_B, rtol=1e-6, atol=1e-12)


def test_auto_is_the_control_of_least_variance() -> None:
    """c* = - <g_T, g_S> / |g_S|^2 over the batch, by autograd; auto is read from c = 0, c = 1 and itself."""
    for apart in (0.05, 0.3, 1.0):
        toy, x_BCHW = TwoParts((3, 8, 8), apart), point(256, (3, 8, 8)).double()
        zero, one, auto = (
            ExactStudent(control, FiniteDifference(1)).estimate(toy.composed(), x_BCHW, rng(1)).grad_BCHW
            for control in (0.0, 1.0, "auto")
        )
        chosen_B = ((auto - zero) * (one - zero)).sum((1, 2, 3)) / (one - zero).square().sum((1, 2, 3))
        own_BCHW, teachers_BCHW = toy.terms(x_BCHW)
        best = -(own_BCHW * teachers_BCHW).sum() / own_BCHW.square().sum()
        # sd of a regression on 256 slopes: |g_T + c g_S| / |g_S| / 16
        spread = (teachers_BCHW + best * own_BCHW).norm() / own_BCHW.norm() / 16
        assert float((chosen_B - best).abs().max()) < 4 * float(spread)
        errors = {c: error(c, toy, x_BCHW) for c in (-0.5, 0.0, 0.5, 1.0, 1.5)}
        assert error("auto", toy, x_BCHW) < 1.05 * min(errors.values())


def test_without_the_control_a_close_student_loses_what_the_difference_cancels() -> None:
    """L1's two terms keep their size as the student learns, and cancel; a stranger's have nothing to cancel."""
    x_BCHW = point(256, (3, 8, 8)).double()
    close, stranger = TwoParts((3, 8, 8), 0.05), TwoParts((3, 8, 8), 1.0)
    assert error(0.0, close, x_BCHW) > 10 * error(1.0, close, x_BCHW)
    assert error(0.0, stranger, x_BCHW) < error(1.0, stranger, x_BCHW)


def test_leaving_the_own_image_out_keeps_auto_unbiased() -> None:
    """Six images, one direction, 4,000 batches. With an image's own slopes in its c the mean is short of g."""
    gradient, own = point(1, SHAPE, seed=2)[0].double(), point(1, SHAPE, seed=3)[0].double()
    objective, x_BCHW = straight(gradient - own, own), point(6, SHAPE).double()
    estimator, generator = ExactStudent("auto", FiniteDifference(1, 1e-2)), rng()
    batches = [estimator.estimate(objective, x_BCHW, generator).grad_BCHW.mean(0) for _ in range(4_000)]
    along_N = (torch.stack(batches) * gradient).sum((1, 2, 3)) / gradient.square().sum()
    assert float(along_N.mean()) == pytest.approx(1, abs=4 * float(along_N.std()) / 4_000**0.5)
    assert float(along_N.std()) / 4_000**0.5 < 0.01

    v_NBD = torch.nn.functional.normalize(torch.randn(4_000, 6, 16, generator=rng(9), dtype=torch.float64), dim=2)
    slope_T_NB, slope_S_NB = v_NBD @ (gradient - own).flatten(), v_NBD @ own.flatten()
    control_N1 = -(slope_T_NB * slope_S_NB).sum(1, keepdim=True) / slope_S_NB.square().sum(1, keepdim=True)
    noisy_NB = 16 * (slope_T_NB + control_N1 * slope_S_NB) * (v_NBD @ gradient.flatten())
    with_own_N = ((1 - control_N1) * (own * gradient).sum() + noisy_NB).mean(1) / gradient.square().sum()
    assert float(with_own_N.mean()) < 1 - 4 * float(with_own_N.std()) / 4_000**0.5


def test_a_single_image_takes_the_plain_difference() -> None:
    toy, x_BCHW = TwoParts(SHAPE), point(1, SHAPE).double()
    auto, one = (
        ExactStudent(control, FiniteDifference(3)).estimate(toy.composed(), x_BCHW, rng()) for control in ("auto", 1.0)
    )
    torch.testing.assert_close(auto.grad_BCHW, one.grad_BCHW)


@every_control
@pytest.mark.parametrize("batch", [1, 5, 64])
@pytest.mark.parametrize("chunk", [None, 3])
def test_cost_is_what_was_asked_and_the_points_come_first(control: Any, batch: int, chunk: int | None) -> None:
    toy, x_BCHW = TwoParts(SHAPE), point(batch, SHAPE)
    estimator = ExactStudent(control, FiniteDifference(2, chunk=chunk))
    estimate = estimator.estimate(toy.composed(), x_BCHW, rng())
    assert estimate.queries == estimator.cost(batch) == estimator.cost(batch, ahead=2) == toy.asked == 3 * batch
    assert torch.equal(torch.cat(toy.calls)[:batch], x_BCHW)
    assert chunk is None or max(map(len, toy.calls)) <= chunk
    assert estimate.grad_BCHW.dtype == torch.float32
    assert estimate.differences_BM.shape == (batch, 2)


def test_the_chunk_changes_nothing() -> None:
    toy, x_BCHW = TwoParts(SHAPE), point(5, SHAPE).double()
    whole, parts = (
        ExactStudent("auto", FiniteDifference(4, chunk=chunk)).estimate(toy.composed(), x_BCHW, rng(5))
        for chunk in (None, 7)
    )
    torch.testing.assert_close(parts.grad_BCHW, whole.grad_BCHW, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("bounds", [(0.0, 1.0), (-1.0, 1.0)])
def test_on_a_lattice_every_probe_is_carried_bit_for_bit(bounds: tuple[float, float]) -> None:
    spec = ImageSpec((3, 8, 8), bounds, levels=256)
    low, high = bounds
    x_BCHW = low + (high - low) * torch.rand(16, 3, 8, 8, generator=rng(2))
    x_BCHW[:, 0], x_BCHW[:, 1, :4] = low, high
    toy = TwoParts((3, 8, 8))
    inner = FiniteDifference(400, 1.0, bounds=bounds, lattice=(high - low) / 255, chunk=2000)
    estimate = ExactStudent("auto", inner).estimate(toy.composed(), x_BCHW, rng())
    for call_NCHW in toy.calls:
        assert torch.equal(spec.quantise(call_NCHW), call_NCHW)
    cosine, scale = agreement(estimate.grad_BCHW, toy.gradient(toy.calls[0][:16]))
    assert cosine > 1 / math.sqrt(1 + 193 / 400) - 0.03
    assert scale == pytest.approx(1, abs=0.1)


def test_no_gradient_is_left_and_draws_come_from_the_generator_alone() -> None:
    toy, x_BCHW = TwoParts(SHAPE), point(4, SHAPE).requires_grad_()
    before = torch.get_rng_state()
    one, two = (ExactStudent("auto", FiniteDifference(2)).estimate(toy.composed(), x_BCHW, rng(3)) for _ in range(2))
    assert torch.equal(one.grad_BCHW, two.grad_BCHW)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.is_grad_enabled()
    assert not one.grad_BCHW.requires_grad
    assert x_BCHW.grad is None
    assert all(weight.grad is None for weight in toy.student.parameters())


def test_what_cannot_work_is_refused_in_words() -> None:
    with pytest.raises(UserError, match="expected forward with kind exact_student"):
        ExactStudent("auto", FiniteDifference(form="central"))
    with pytest.raises(UserError, match="finite number or auto"):
        ExactStudent(float("nan"), FiniteDifference())
    with pytest.raises(UserError, match="Composed"):
        ExactStudent(0.0, FiniteDifference()).estimate(lambda images: images.sum((1, 2, 3)), point(2, SHAPE), rng())


@pytest.mark.gpu
def test_on_a_gpu_nothing_waits() -> None:
    toy, x_BCHW = TwoParts(SHAPE), point(64, SHAPE).cuda()
    toy.student, toy.teacher = toy.student.cuda(), toy.teacher.cuda()
    generator, estimator = torch.Generator("cuda").manual_seed(0), ExactStudent("auto", FiniteDifference(2))
    estimator.estimate(toy.composed(), x_BCHW, generator)
    torch.cuda.set_sync_debug_mode("error")
    try:
        estimate = estimator.estimate(toy.composed(), x_BCHW, generator)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert estimate.grad_BCHW.isfinite().all()
