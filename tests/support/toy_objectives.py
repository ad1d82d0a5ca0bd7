"""Objectives whose gradient is known by other means, for the tests of the estimators."""

import math

import torch
from torch import Tensor, nn

from dfme.estimators.base import ImageFunction, Objective


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def point(batch: int, shape: tuple[int, ...], seed: int = 1) -> Tensor:
    return torch.randn(batch, *shape, generator=rng(seed))


class Linear:
    """f(x) = <g_i, x_i> in float64, whose gradient is g whatever the step; records what it was
    asked for.
    """

    def __init__(self, batch: int, shape: tuple[int, ...]) -> None:
        self.gradient = point(batch, shape, seed=2).double()
        self.calls: list[Tensor] = []

    def __call__(self, images_NCHW: Tensor) -> Tensor:
        start = sum(map(len, self.calls))
        self.calls.append(images_NCHW.clone())
        # Rows follow each other in whole batches, so the place in the stream tells which image is
        # meant.
        which_N = torch.arange(start, start + len(images_NCHW)) % len(self.gradient)
        return (images_NCHW.double() * self.gradient[which_N]).sum((1, 2, 3))


class Toy:
    """A student and a teacher that is known, so that autograd can go through both."""

    def __init__(self, shape: tuple[int, ...], seed: int = 3) -> None:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.student, self.teacher = (
                nn.Sequential(
                    nn.Flatten(), nn.Linear(math.prod(shape), 64), nn.Tanh(), nn.Linear(64, 10)
                )
                for _ in range(2)
            )

    def __call__(self, u_NCHW: Tensor) -> Tensor:
        x_NCHW = u_NCHW.tanh()
        return -(self.student(x_NCHW) - self.teacher(x_NCHW)).square().mean(1)

    def gradient(self, u_BCHW: Tensor) -> Tensor:
        u_BCHW = u_BCHW.detach().requires_grad_()
        return torch.autograd.grad(self(u_BCHW).sum(), u_BCHW)[0]


class OverImages:
    """Toy's objective with images in place of what comes before tanh."""

    def __init__(self, shape: tuple[int, int, int]) -> None:
        self.toy = Toy(shape)

    def __call__(self, x_NCHW: Tensor) -> Tensor:
        return -(self.toy.student(x_NCHW) - self.toy.teacher(x_NCHW)).square().mean(1)


def composed(over_images: OverImages) -> Objective:
    """The toy's objective as the API's part and our own, with all that may come along."""
    toy = over_images.toy
    return Objective(
        toy.teacher,
        lambda x_NCHW, answers: -(toy.student(x_NCHW) - answers).square().mean(1),
        features_BFHW=torch.ones(3, 2, 4, 4),
        scores=toy.student,
    )


def of_answers(query: ImageFunction, features_BFHW: Tensor | None = None) -> Objective:
    """An objective that is the answers themselves."""
    return Objective(query, lambda _, answers: answers, features_BFHW)


def featured(objective: ImageFunction, point_BCHW: Tensor, width: int = 5) -> Objective:
    """The objective with something that a last convolution might have read at these points."""
    batch, _, height, rows = point_BCHW.shape
    features_BFHW = torch.randn(batch, width, height, rows, generator=rng(11)).to(point_BCHW)
    return of_answers(objective, features_BFHW)


def agreement(estimate_BCHW: Tensor, truth_BCHW: Tensor) -> tuple[float, float]:
    """Cosine, and the scale <estimate, truth> / <truth, truth>, over the whole batch."""
    dot = (estimate_BCHW * truth_BCHW).sum()
    return float(dot / estimate_BCHW.norm() / truth_BCHW.norm()), float(
        dot / truth_BCHW.square().sum()
    )
