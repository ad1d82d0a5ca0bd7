"""Students and generators on the way of a recipe: what estimates are measured at."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from dfme.benchmarks.gradients.white_box import WhiteBox
from dfme.compute import DeferredChecks, ieee_fp32
from dfme.config.settings import Job
from dfme.estimators.base import Estimator
from dfme.methods import METHODS
from dfme.methods.base import Method, Parts, opened_for
from dfme.methods.dfme import Dfme
from dfme.methods.maze import Maze
from dfme.nets.generators import GeneratorNet
from dfme.oracle.ledger import Ledger
from dfme.oracle.oracle import Oracle
from dfme.randomness import Streams, derived_seed
from dfme.run.components import build_nets, make_components
from dfme.run.evaluation import evaluation_images, scores
from dfme.spec import LabelMode

GENERATED = 2_000
"""Images that agreement is counted on where there is no evaluation set."""


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


def stages(box: WhiteBox, job: Job, shares: Sequence[float]) -> Iterator[Stage]:
    """Run the recipe's method, through its own API, and stop at each share of its budget to copy what it has.

    ``shares`` increase within 0 and 1. The method stops at the first whole step that reaches the share.
    """
    held, deferred = _assemble(box, job)
    method, ledger = _method(job, held), held.oracle.ledger
    images_NCHW = _examined(box, job, held)
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
            _agreement(box, held.trainer.net, images_NCHW),
            copy.deepcopy(held.trainer.net).eval(),
            copy.deepcopy(held.generator).train(),
            copy.deepcopy(method.estimator) if ledger.spent and isinstance(method, Dfme | Maze) else None,
        )


def _assemble(box: WhiteBox, job: Job) -> tuple[Parts, DeferredChecks]:
    """What ``dfme.run.build`` makes for a run, without files."""
    config, deferred, streams = job.config, DeferredChecks(), Streams(job.config.seed, box.device)
    mode = LabelMode.parse(job.teacher.label_mode or "probabilities")
    oracle = Oracle(box.as_seen(job.teacher.levels, mode, ieee_fp32), Ledger(int(config.budget)), None, deferred)
    nets = build_nets(job, oracle.spec, box.num_classes, box.device)
    parts = make_components(job, nets, oracle, streams, deferred)
    torch.manual_seed(derived_seed(config.seed, "global"))
    return parts, deferred


def _method(job: Job, parts: Parts) -> Method:
    make_method = METHODS[job.method].load()
    opened = opened_for(make_method, job.method_config, parts.oracle.spec, parts.oracle.ledger.budget)
    method: Method = make_method(job.method_config, replace(parts, opened=opened))
    return method


def _examined(box: WhiteBox, job: Job, parts: Parts) -> Tensor:
    """The evaluation set's images; without one, what the untrained generator makes."""
    data = evaluation_images(job.config.evaluation, box.spec, box.num_classes)
    if data is not None:
        return data.images.to(box.device)
    with torch.no_grad():
        z_NZ = parts.generator.draw(GENERATED, Streams(job.config.seed, box.device)["examined"])
        return parts.generator.squash(copy.deepcopy(parts.generator)(z_NZ))


def _agreement(box: WhiteBox, student: nn.Module, images_NCHW: Tensor) -> float:
    with torch.no_grad():
        teacher_N = torch.cat([box.logits(part).argmax(1) for part in images_NCHW.split(GENERATED)])
    return (scores(student, images_NCHW).argmax(1) == teacher_N).double().mean().item()
