"""Objectives in two parts, an API's and our own, whose gradients autograd knows."""

import math

import torch
from torch import Tensor, nn

from dfme.estimators.base import Objective


def net(shape: tuple[int, ...], seed: int) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        layers = nn.Flatten(), nn.Linear(math.prod(shape), 64), nn.Tanh(), nn.Linear(64, 10)
        return nn.Sequential(*layers).double()


class TwoParts:
    """- mean |student - teacher| in float64, with a meter."""

    def __init__(self, shape: tuple[int, ...], apart: float = 1.0) -> None:
        self.student, self.teacher, stranger = net(shape, 3), net(shape, 3), net(shape, 4)
        with torch.no_grad():
            for weight, other in zip(self.student.parameters(), stranger.parameters(), strict=True):
                weight.lerp_(other, apart)
        self.calls: list[Tensor] = []

    @property
    def asked(self) -> int:
        return sum(map(len, self.calls))

    def observe(self, x_NCHW: Tensor) -> Tensor:
        assert not torch.is_grad_enabled()
        assert not x_NCHW.requires_grad
        self.calls.append(x_NCHW.clone())
        return self.teacher(x_NCHW.double())

    def value(self, x_NCHW: Tensor, answers: Tensor) -> Tensor:
        return -(self.student(x_NCHW.double()) - answers).abs().mean(1)

    def composed(self, *remembered: tuple[Tensor, Tensor]) -> Objective:
        return Objective(self.observe, self.value, remembered=remembered)

    def terms(self, x_BCHW: Tensor) -> tuple[Tensor, Tensor]:
        """The student's and the teacher's term of the gradient, by autograd through both nets."""
        x_BCHW = x_BCHW.detach().double().requires_grad_()
        scores, answers = self.student(x_BCHW), self.teacher(x_BCHW)
        student_value = -(scores - answers.detach()).abs().mean(1).sum()
        teacher_value = -(scores.detach() - answers).abs().mean(1).sum()
        return torch.autograd.grad(student_value, x_BCHW)[0], torch.autograd.grad(
            teacher_value, x_BCHW
        )[0]

    def gradient(self, x_BCHW: Tensor) -> Tensor:
        own_BCHW, teachers_BCHW = self.terms(x_BCHW)
        return own_BCHW + teachers_BCHW


def straight(teachers_CHW: Tensor, students_CHW: Tensor) -> Objective:
    """f(x) = <t, x> + <s, x>, the first through the API; the same gradient everywhere."""

    def along(x_NCHW: Tensor, direction_CHW: Tensor) -> Tensor:
        return (x_NCHW.double() * direction_CHW).sum((1, 2, 3))

    return Objective(
        lambda x_NCHW: along(x_NCHW, teachers_CHW),
        lambda x_NCHW, a_N: a_N + along(x_NCHW, students_CHW),
    )


def cosines(one_BCHW: Tensor, other_BCHW: Tensor) -> Tensor:
    """Cosine per image (B,), of vectors however short."""
    one_BD, other_BD = (images.double().flatten(1) for images in (one_BCHW, other_BCHW))
    return (one_BD * other_BD).sum(1) / (one_BD.norm(dim=1) * other_BD.norm(dim=1))
