"""Priors that cost nothing: against autograd, and against functions whose slopes are known."""

import pytest
import torch
from torch import Tensor
from toy_objectives import point, rng
from two_parts import TwoParts, cosines, straight

from dfme.estimators.base import Objective
from dfme.estimators.prior_guided import (
    NEIGHBOURS,
    PRIORS,
    neighbour_prior,
    student_prior,
    student_term,
)

every_prior = pytest.mark.parametrize("prior", list(PRIORS))


def no_observing(x_NCHW: Tensor) -> Tensor:
    raise AssertionError("a prior asks for nothing")


def silent(toy: TwoParts, remembered: tuple[Tensor, Tensor] | None = None) -> Objective:
    return Objective(no_observing, toy.value, remembered=[] if remembered is None else [remembered])


@torch.no_grad()
def answered(toy: TwoParts, x_BCHW: Tensor) -> Tensor:
    return toy.teacher(x_BCHW.double())


def test_the_students_term_is_autograds_and_leaves_nothing_behind() -> None:
    toy, x_BCHW = TwoParts((3, 6, 6)), point(5, (3, 6, 6))
    with torch.no_grad():
        term_BCHW = student_term(silent(toy), x_BCHW, answered(toy, x_BCHW))
        assert not torch.is_grad_enabled()
    torch.testing.assert_close(term_BCHW.double(), toy.terms(x_BCHW)[0], rtol=1e-5, atol=1e-7)
    assert not term_BCHW.requires_grad
    assert not x_BCHW.requires_grad
    assert all(weight.grad is None for weight in toy.student.parameters())


@every_prior
def test_priors_are_directions_of_unit_length(prior: str) -> None:
    toy, x_BCHW = TwoParts((3, 6, 6)), point(5, (3, 6, 6))
    images_NCHW = point(20, (3, 6, 6), seed=5)
    objective = silent(toy, (images_NCHW, answered(toy, images_NCHW)))
    p_BCHW = PRIORS[prior](objective, x_BCHW, answered(toy, x_BCHW), rng())
    assert p_BCHW.shape == x_BCHW.shape
    assert p_BCHW.dtype == x_BCHW.dtype
    torch.testing.assert_close(p_BCHW.flatten(1).norm(dim=1), torch.ones(5))
    if prior == "student":
        assert float(cosines(p_BCHW, toy.terms(x_BCHW)[0]).min()) > 1 - 1e-6


@pytest.mark.parametrize("size", [1e-42, 1e-25, 1.0, 1e25])
def test_a_small_gradient_has_a_direction_too(size: float) -> None:
    g_CHW = size * point(1, (1, 4, 4), seed=2)[0]
    objective = Objective(no_observing, lambda x_NCHW, answers: (x_NCHW * g_CHW).sum((1, 2, 3)))
    p_BCHW = student_prior(objective, point(3, (1, 4, 4)), torch.zeros(3), rng())
    # 1e-42 is a denormal number, of which fp32 keeps three digits
    assert float(cosines(p_BCHW, g_CHW.expand_as(p_BCHW)).min()) > 0.9999


def test_without_a_gradient_the_direction_is_random_for_that_image_alone() -> None:
    toy, x_BCHW = TwoParts((1, 4, 4)), point(4, (1, 4, 4))
    answers = answered(toy, x_BCHW)

    def flat_at_2(x_NCHW: Tensor, answers: Tensor) -> Tensor:
        return toy.value(x_NCHW, answers) * torch.tensor([1.0, 1.0, 0.0, 1.0])

    whole = student_prior(silent(toy), x_BCHW, answers, rng(1))
    one, again, other = (
        student_prior(Objective(no_observing, flat_at_2), x_BCHW, answers, rng(seed))
        for seed in (1, 1, 2)
    )
    assert torch.equal(one, again)
    assert torch.equal(one[[0, 1, 3]], whole[[0, 1, 3]])
    assert torch.equal(one[[0, 1, 3]], other[[0, 1, 3]])
    assert float(one[2].norm()) == pytest.approx(1)
    assert abs(float(cosines(one[2:3], other[2:3]))) < 0.9


def test_neighbours_see_what_lies_in_their_span_alone() -> None:
    """Four neighbours in 48 dimensions: the gradient's projection, here by the QR of their
    differences.
    """
    g_CHW = point(1, (3, 4, 4), seed=2)[0]
    objective = straight(g_CHW, torch.zeros(3, 4, 4))
    images_NCHW, x_BCHW = point(4, (3, 4, 4), seed=4), point(6, (3, 4, 4))
    known = Objective(
        no_observing, objective.value, remembered=[(images_NCHW, objective.observe(images_NCHW))]
    )
    p_BCHW = neighbour_prior(known, x_BCHW, objective.observe(x_BCHW), rng())
    for x_CHW, p_CHW in zip(x_BCHW, p_BCHW, strict=True):
        basis_DR = torch.linalg.qr((images_NCHW - x_CHW).flatten(1).T).Q
        projection_D = basis_DR @ (basis_DR.T @ g_CHW.flatten())
        assert float(torch.cosine_similarity(projection_D, p_CHW.flatten(), dim=0)) > 0.99


def test_only_the_nearest_count_and_only_as_the_student_sees_them_now() -> None:
    toy, x_BCHW = TwoParts((1, 4, 4)), point(5, (1, 4, 4))
    near = x_BCHW.repeat_interleave(NEIGHBOURS, 0)
    near = near + 0.05 * torch.randn(near.shape, generator=rng(6))
    far = 50 + point(30, (1, 4, 4), seed=7)
    alone = silent(toy, (near, answered(toy, near)))
    crowd = silent(
        toy,
        (
            torch.cat([far, near]),
            torch.cat([torch.full((30, 10), 1e3).double(), answered(toy, near)]),
        ),
    )
    p_BCHW = neighbour_prior(alone, x_BCHW, answered(toy, x_BCHW), rng())
    torch.testing.assert_close(p_BCHW, neighbour_prior(crowd, x_BCHW, answered(toy, x_BCHW), rng()))
    # Against .2 for a random direction.
    assert float(cosines(p_BCHW, toy.gradient(x_BCHW)).mean()) > 0.8


@pytest.mark.parametrize("count", [None, 0])
def test_without_a_memory_directions_are_random(count: int | None) -> None:
    toy, x_BCHW = TwoParts((1, 4, 4)), point(3, (1, 4, 4))
    remembered = None if count is None else (point(0, (1, 4, 4)), torch.zeros(0, 10))
    p_BCHW = neighbour_prior(silent(toy, remembered), x_BCHW, answered(toy, x_BCHW), rng(4))
    expected = torch.nn.functional.normalize(torch.randn(3, 1, 4, 4, generator=rng(4)).flatten(1))
    torch.testing.assert_close(p_BCHW.flatten(1), expected)


def test_neighbours_that_are_the_point_itself_say_nothing_and_do_no_harm() -> None:
    toy, x_BCHW = TwoParts((1, 4, 4)), point(2, (1, 4, 4))
    same = x_BCHW[:1].repeat(3, 1, 1, 1)
    p_BCHW = neighbour_prior(
        silent(toy, (same, answered(toy, same))), x_BCHW, answered(toy, x_BCHW), rng()
    )
    assert p_BCHW.isfinite().all()
    torch.testing.assert_close(p_BCHW.flatten(1).norm(dim=1), torch.ones(2))
