"""The true gradient, by autograd through student, squashing and teacher: what estimates are held against."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from dfme.benchmarks.gradients.stages import Stage, WhiteBox
from dfme.estimators.base import Estimate, Estimator, ImageFunction, Objective
from dfme.estimators.spaces import Squash, carried
from dfme.nets.generators import GeneratorNet
from dfme.precision import ieee_fp32
from dfme.spec import ImageSpec
from dfme.students.losses import Distance

LossOfAnswers = Callable[[Tensor, Tensor], Tensor]
"""Images and answers -> one number per image: ``Objective.value``."""


@dataclass(frozen=True, eq=False)
class Truth:
    """One batch: the generator's output with its graph, and what the gradient there and in the weights truly is.

    ``features_BFHW``: what the generator's last convolution read. ``grad_BCHW``: d f / d gen_op for each image by
    itself. ``weights_P``: the gradient of the mean of f in all weights of the generator, in one row.
    """

    gen_op: Tensor
    features_BFHW: Tensor
    grad_BCHW: Tensor
    weights_P: Tensor


def true_gradients(
    box: WhiteBox, stage: Stage, distances: Mapping[str, Distance], batch_size: int, rng: torch.Generator
) -> dict[str, Truth]:
    """The truth at a fresh batch by each distance: images not rounded, the teacher's logits themselves, IEEE fp32.

    ``distances`` are for answers that are logits. The generator is in train mode, as in training.
    """
    generator = stage.generator
    with ieee_fp32():
        with generator.watched() as features:
            gen_op = generator(generator.draw(batch_size, rng))
        u_BCHW = gen_op.detach().requires_grad_()
        x_BCHW = generator.squash(u_BCHW)
        scores_BK, logits_BK = stage.student(x_BCHW).double(), box.logits(x_BCHW).double()
        grads = {
            name: torch.autograd.grad(-distance(scores_BK, logits_BK).sum(), u_BCHW, retain_graph=True)[0]
            for name, distance in distances.items()
        }
    return {
        name: Truth(gen_op, features[0], grad_BCHW, weights_gradient(generator, gen_op, grad_BCHW))
        for name, grad_BCHW in grads.items()
    }


class TrueGradient(Estimator):
    """The truth in place of an estimate: it asks for nothing, and no estimate is worth more."""

    def __init__(self, box: WhiteBox, squash: Squash) -> None:
        self._box, self._squash = box, squash

    def cost(self, batch: int, ahead: int = 0) -> int:
        return 0

    def calls(self, batch: int, ahead: int = 0) -> list[int]:
        return []

    def estimate(self, objective: ImageFunction, point_BCHW: Tensor, rng: torch.Generator) -> Estimate:
        assert isinstance(objective, Objective), "its value must be known of any answers"
        u_BCHW = point_BCHW.detach().requires_grad_()
        x_BCHW = self._squash(u_BCHW)
        value_B = objective.value(x_BCHW, self._box.logits(x_BCHW).double().softmax(dim=1))
        (grad_BCHW,) = torch.autograd.grad(value_B.sum(), u_BCHW)
        return Estimate(grad_BCHW, value_B.detach(), value_B.new_zeros(len(u_BCHW), 0), 0)


def limit_gradient(
    box: WhiteBox, generator: GeneratorNet, gen_op: Tensor, spec: ImageSpec, ask: ImageFunction, value: LossOfAnswers
) -> Tensor:
    """What more queries tend to: the gradient (B, C, H, W) of ``value`` on the answers as they come.

    Rounding, of images and of answers, lets the gradient pass as if it were not there. What is lost against the
    truth is then lost by the loss where answers do not tell: a class whose probability was rounded to 0.
    """
    u_BCHW = gen_op.detach().requires_grad_()
    with ieee_fp32():
        x_BCHW = generator.squash(u_BCHW)
        seen_BCHW = carried(x_BCHW, spec)
        answers_BK = ask(seen_BCHW.detach())
        p_BK = box.logits(seen_BCHW).softmax(dim=1)
        known_BK = torch.where(answers_BK.isnan(), answers_BK, p_BK + (answers_BK - p_BK).detach())
        (grad_BCHW,) = torch.autograd.grad(value(seen_BCHW, known_BK).sum(), u_BCHW)
    return grad_BCHW


def beside_truth(stage: Stage, truth: Truth, grad_BCHW: Tensor) -> tuple[Tensor, dict[str, float]]:
    """What a gradient at the generator's output gives in its weights (P,), and the cosines of both to the truth."""
    weights_P = weights_gradient(stage.generator, truth.gen_op, grad_BCHW)
    at_output = float(cosine(grad_BCHW.flatten(1), truth.grad_BCHW.flatten(1)).mean())
    return weights_P, {"cosine": at_output, "weights_cosine": float(cosine(weights_P, truth.weights_P))}


def cosine(left: Tensor, right: Tensor) -> Tensor:
    """Cosine along the last axis, in double precision; 0 where one of the two is zero."""
    left, right = left.double(), right.double()
    norms = left.square().sum(-1).sqrt() * right.square().sum(-1).sqrt()
    return (left * right).sum(-1) / norms.clamp_min(torch.finfo(torch.float64).tiny)


def weights_gradient(generator: GeneratorNet, gen_op: Tensor, grad_BCHW: Tensor) -> Tensor:
    """The generator's gradient in one row (P,) as ``gen_op.backward(grad / B)`` gives it; no ``grad`` is touched."""
    upstream_grads = (grad_BCHW / len(gen_op)).to(gen_op.dtype)
    parameters = list(generator.parameters())
    with ieee_fp32():
        pieces = torch.autograd.grad(gen_op, parameters, upstream_grads, retain_graph=True)
    return torch.cat([piece.flatten() for piece in pieces])
