"""Students and generators along a recipe, and the true gradient by autograd.

The only place beyond ``teachers/`` that looks through the API: it is handed a white box, and no
method is.
"""

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from dfme.compute.device import Streams, ieee_fp32
from dfme.compute.modules import DeferredChecks
from dfme.config.settings import Job
from dfme.estimators.base import Estimate, Estimator, Objective, Squash, carried
from dfme.methods.base import Method
from dfme.methods.dfme import Dfme
from dfme.nets.generators import GeneratorNet
from dfme.oracle.ledger import Ledger
from dfme.oracle.oracle import Oracle
from dfme.run.components import build_components, build_method, build_nets, open_pool
from dfme.run.recipes import with_variants
from dfme.run.scores import evaluation_images, scores
from dfme.spec import LabelMode
from dfme.students.losses import Distance
from dfme.teachers.local.pytorch import TorchTeacher
from research.behind_api import as_seen

LossOfAnswers = Callable[[Tensor, Tensor], Tensor]
"""Images and answers -> one number per image: ``Objective.value``."""

GENERATED = 2_000
"""Images that agreement is counted on where there is no evaluation set."""


@dataclass(frozen=True)
class Stage:
    """A student and its generator after ``queries`` images, copies in eval and in train mode.

    ``agreement``: share of the evaluation set on which student and teacher have the same top class.
    ``estimator``: a copy of the recipe's own, with its state; none before the first step, and where
    the method has none.
    """

    share: float
    queries: int
    agreement: float
    student: nn.Module
    generator: GeneratorNet
    estimator: Estimator | None = None


def stages(
    box: TorchTeacher,
    job: Job,
    shares: Sequence[float],
    gradient: Callable[[Squash], Estimator] | None = None,
) -> Iterator[Stage]:
    """Run the recipe's method, through its own API, and stop at each share of its budget to copy
    what it has.

    ``shares`` increase within 0 and 1. The method stops at the first whole step that reaches the
    share. ``gradient``: makes what stands in for the recipe's estimator.
    """
    deferred = DeferredChecks()
    method = _method(box, job, deferred)
    ledger = method.oracle.ledger
    gradients = method.approximate_gradients if isinstance(method, Dfme) else None
    if gradient and gradients is not None:
        gradients.estimator = gradient(method.generator.squash)
    images_NCHW = _evaluation_images(box, job, method.generator)
    with torch.no_grad():
        teacher_N = torch.cat([box.logits(part).argmax(1) for part in images_NCHW.split(GENERATED)])
    for share in shares:
        while ledger.spent < share * ledger.budget:
            if ledger.spent == 0:
                method.prepare()
            if ledger.remaining >= method.cost:
                method.step()
            else:
                method.finish(ledger.remaining)
        deferred.verify()
        yield Stage(
            share,
            ledger.spent,
            (scores(method.student, images_NCHW).argmax(1) == teacher_N).double().mean().item(),
            copy.deepcopy(method.student).eval(),
            copy.deepcopy(method.generator).train(),
            copy.deepcopy(gradients.estimator) if ledger.spent and gradients is not None else None,
        )


def _method(box: TorchTeacher, job: Job, deferred: DeferredChecks) -> Method:
    """The recipe's method as in a run, without files."""
    streams = Streams(job.config.seed, box.device)
    mode = LabelMode.parse(job.teacher.label_mode or "probabilities")
    ledger = Ledger(int(job.config.budget))
    oracle = Oracle(as_seen(box, job.teacher.levels, mode, ieee_fp32), ledger, None, deferred)
    job, _ = with_variants(job, mode, oracle.spec.shape)
    job = replace(job, config=job.config.with_precision(oracle.spec.shape))
    nets = build_nets(job, oracle.spec, box.num_classes, box.device)
    return build_method(
        job,
        build_components(job, nets, oracle, streams, deferred, pool=open_pool(job, oracle.spec)),
    )


def _evaluation_images(box: TorchTeacher, job: Job, generator: GeneratorNet) -> Tensor:
    """The evaluation set's images; without one, images of the untrained generator."""
    data = evaluation_images(job.config.evaluation, box.spec, box.num_classes)
    if data is not None:
        return data.batch(slice(None if data.read is None else GENERATED)).to(box.device)
    with torch.no_grad():
        z_NZ = generator.draw(GENERATED, Streams(job.config.seed, box.device)["examined"])
        return generator.squash(copy.deepcopy(generator)(z_NZ))


@dataclass(frozen=True, eq=False)
class Truth:
    """One batch: the generator's output with its graph, and the true gradients there and in the
    weights.

    ``features_BFHW``: the input of the generator's last convolution. ``grad_BCHW``: d f / d gen_op
    for each image by itself. ``weights_P``: the gradient of the mean of f in all weights of the
    generator, in one row.
    """

    gen_op: Tensor
    features_BFHW: Tensor
    grad_BCHW: Tensor
    weights_P: Tensor


def true_gradients(
    box: TorchTeacher,
    stage: Stage,
    distances: Mapping[str, Distance],
    batch_size: int,
    rng: torch.Generator,
) -> dict[str, Truth]:
    """True gradients at a fresh batch: images not rounded, exact logits, IEEE fp32.

    ``distances`` are for answers that are logits. The generator is in train mode, as in training.
    """
    generator = stage.generator
    with ieee_fp32():
        with generator.watched() as features:
            gen_op = generator(generator.draw(batch_size, rng))
        u_BCHW = gen_op.detach().requires_grad_()
        x_BCHW = generator.squash(u_BCHW)
        scores_BK = stage.student(x_BCHW).double()
        logits_BK = box.logits(x_BCHW).double()
        grads = {
            name: torch.autograd.grad(
                -distance(scores_BK, logits_BK).sum(), u_BCHW, retain_graph=True
            )[0]
            for name, distance in distances.items()
        }
    return {
        name: Truth(gen_op, features[0], grad_BCHW, weights_gradient(generator, gen_op, grad_BCHW))
        for name, grad_BCHW in grads.items()
    }


class TrueGradient(Estimator):
    """The truth in place of an estimate: it asks for nothing, and no estimate is worth more."""

    def __init__(self, box: TorchTeacher, squash: Squash) -> None:
        self._box = box
        self._squash = squash

    def calls(self, batch: int, ahead: int = 0) -> list[int]:
        return []

    def estimate(self, objective: Objective, point_BCHW: Tensor, rng: torch.Generator) -> Estimate:
        u_BCHW = point_BCHW.detach().requires_grad_()
        x_BCHW = self._squash(u_BCHW)
        value_B = objective.value(x_BCHW, self._box.logits(x_BCHW).double().softmax(dim=1))
        (grad_BCHW,) = torch.autograd.grad(value_B.sum(), u_BCHW)
        return Estimate(grad_BCHW, value_B.detach(), value_B.new_zeros(len(u_BCHW), 0), 0)


def limit_gradient(
    box: TorchTeacher, stage: Stage, gen_op: Tensor, oracle: Oracle, value: LossOfAnswers
) -> Tensor:
    """The limit of more queries: the gradient (B, C, H, W) of ``value`` on the answers as they
    come.

    Rounding, of images and of answers, lets the gradient pass as if it were not there. What is lost
    against the truth is then lost by the loss where answers do not tell: a class whose probability
    was rounded to 0.
    """
    u_BCHW = gen_op.detach().requires_grad_()
    with ieee_fp32():
        x_BCHW = stage.generator.squash(u_BCHW)
        seen_BCHW = carried(x_BCHW, oracle.spec)
        answers_BK = oracle(seen_BCHW.detach(), purpose="evaluation")
        p_BK = box.logits(seen_BCHW).softmax(dim=1)
        known_BK = torch.where(answers_BK.isnan(), answers_BK, p_BK + (answers_BK - p_BK).detach())
        (grad_BCHW,) = torch.autograd.grad(value(seen_BCHW, known_BK).sum(), u_BCHW)
    return grad_BCHW


def beside_truth(stage: Stage, truth: Truth, grad_BCHW: Tensor) -> tuple[Tensor, dict[str, float]]:
    """Weights' gradient (P,) of a gradient at the output, and both cosines to the truth."""
    weights_P = weights_gradient(stage.generator, truth.gen_op, grad_BCHW)
    at_output = float(cosine(grad_BCHW.flatten(1), truth.grad_BCHW.flatten(1)).mean())
    return weights_P, {
        "cosine": at_output,
        "weights_cosine": float(cosine(weights_P, truth.weights_P)),
    }


def cosine(left: Tensor, right: Tensor) -> Tensor:
    """Cosine along the last axis, in double precision; 0 where one of the two is zero."""
    left = left.double()
    right = right.double()
    norms = left.square().sum(-1).sqrt() * right.square().sum(-1).sqrt()
    return (left * right).sum(-1) / norms.clamp_min(torch.finfo(torch.float64).tiny)


def weights_gradient(generator: GeneratorNet, gen_op: Tensor, grad_BCHW: Tensor) -> Tensor:
    """Generator's gradient (P,) of ``gen_op.backward(grad / B)``; no ``grad`` is touched."""
    upstream_grads = (grad_BCHW / len(gen_op)).to(gen_op.dtype)
    parameters = list(generator.parameters())
    with ieee_fp32():
        pieces = torch.autograd.grad(gen_op, parameters, upstream_grads, retain_graph=True)
    return torch.cat([piece.flatten() for piece in pieces])
