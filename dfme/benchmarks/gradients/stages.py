"""Students and generators on the way of a recipe: what estimates are measured at."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from dfme.compute import DeferredChecks
from dfme.config.settings import Job
from dfme.estimators.base import Estimator
from dfme.estimators.spaces import Squash
from dfme.methods.base import Method
from dfme.methods.dfme import Dfme
from dfme.nets.generators import GeneratorNet
from dfme.oracle.ledger import Ledger
from dfme.oracle.oracle import Oracle
from dfme.precision import ieee_fp32
from dfme.randomness import Streams
from dfme.run.components import build_components, build_method, build_nets, open_pool
from dfme.run.evaluation import evaluation_images
from dfme.run.scores import scores
from dfme.spec import ImageSpec, LabelMode, Teacher

GENERATED = 2_000
"""Images that agreement is counted on where there is no evaluation set."""


class WhiteBox(Protocol):
    """What no auditor knows: a teacher with its gradients, beside the same network behind any API."""

    @property
    def spec(self) -> ImageSpec:
        """The images, before any rounding: ``levels`` is None."""
        ...

    @property
    def num_classes(self) -> int: ...

    @property
    def device(self) -> torch.device: ...

    def logits(self, x_NCHW: Tensor) -> Tensor:
        """Logits (N, K) of images within the bounds, normalisation included; autograd goes through."""
        ...

    def as_seen(
        self, levels: int | None, mode: LabelMode, arithmetic: Callable[[], AbstractContextManager[None]]
    ) -> Teacher:
        """The network behind an API: pixels of so many levels (None: floats), answers in ``mode``.

        It computes in the context that ``arithmetic`` makes.
        """
        ...


@dataclass(frozen=True)
class Stage:
    """A student and its generator after ``queries`` images, copies in eval and in train mode.

    ``agreement``: share of the evaluation set on which student and teacher have the same top class.
    ``estimator``: a copy of the recipe's own, with what it has learnt so far; none before the first step, and
    where the method has none.
    """

    share: float
    queries: int
    agreement: float
    student: nn.Module
    generator: GeneratorNet
    estimator: Estimator | None = None


def stages(
    box: WhiteBox, job: Job, shares: Sequence[float], gradient: Callable[[Squash], Estimator] | None = None
) -> Iterator[Stage]:
    """Run the recipe's method, through its own API, and stop at each share of its budget to copy what it has.

    ``shares`` increase within 0 and 1. The method stops at the first whole step that reaches the share.
    ``gradient``: makes what stands in for the recipe's estimator.
    """
    deferred = DeferredChecks()
    method = _method(box, job, deferred)
    ledger, student = method.oracle.ledger, method.student
    estimated = method.approximate_gradients if isinstance(method, Dfme) else None
    if gradient and estimated is not None:
        estimated.stand_in(gradient(method.generator.squash))
    images_NCHW = _examined(box, job, method.generator)
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
            (scores(student, images_NCHW).argmax(1) == teacher_N).double().mean().item(),
            copy.deepcopy(student).eval(),
            copy.deepcopy(method.generator).train(),
            copy.deepcopy(estimated.estimator) if ledger.spent and estimated is not None else None,
        )


def _method(box: WhiteBox, job: Job, deferred: DeferredChecks) -> Method:
    """The recipe's method as in a run, without files."""
    rng, mode = Streams(job.config.seed, box.device), LabelMode.parse(job.teacher.label_mode or "probabilities")
    ledger = Ledger(int(job.config.budget))
    oracle = Oracle(box.as_seen(job.teacher.levels, mode, ieee_fp32), ledger, None, deferred)
    nets = build_nets(job, oracle.spec, box.num_classes, box.device)
    return build_method(job, build_components(job, nets, oracle, rng, deferred, pool=open_pool(job, oracle.spec)))


def _examined(box: WhiteBox, job: Job, generator: GeneratorNet) -> Tensor:
    """The evaluation set's images; without one, what the untrained generator makes."""
    data = evaluation_images(job.config.evaluation, box.spec, box.num_classes)
    if data is not None:
        return data.batch(slice(None if data.read is None else GENERATED)).to(box.device)
    with torch.no_grad():
        z_NZ = generator.draw(GENERATED, Streams(job.config.seed, box.device)["examined"])
        return generator.squash(copy.deepcopy(generator)(z_NZ))
