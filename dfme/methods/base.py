"""What the loop asks of a method, and what a method is given. A method does no I/O, no logging, no evaluation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

from torch import Tensor, nn

from dfme.config import EstimatorConfig
from dfme.generators import Generator
from dfme.oracle import Oracle
from dfme.randomness import Streams
from dfme.sentinel import Sentinel
from dfme.spec import LabelKind
from dfme.students import Metrics, StudentTrainer

__all__ = ["Examiner", "Method", "Metrics", "Parts"]

Examiner = Callable[[Tensor, Tensor], bool]
"""May take a paid batch (images, answers) out of training, to score the student on; says whether it did."""


@dataclass(frozen=True)
class Parts:
    """What ``dfme.build`` hands a method to work with.

    ``lr_factor`` is the learning-rate schedule at the share of the budget spent so far. ``chunk`` bounds the
    images in one evaluation of an objective. ``seed`` is the run's, for weights a method makes of its own.
    """

    oracle: Oracle
    generator: Generator
    trainer: StudentTrainer
    streams: Streams
    sentinel: Sentinel
    lr_factor: Callable[[], float]
    chunk: int
    examiner: Examiner | None = None
    estimator: EstimatorConfig = field(default_factory=EstimatorConfig)
    seed: int = 0


class Method(Protocol):
    """One extraction method.

    ``prepare`` comes once before the first step, and after a resumed run has its state; it asks what must be
    known beforehand, charged as ``check``, and returns lines for the user. ``step`` spends exactly ``cost``
    images, which may differ from step to step, and returns metrics whose names are all in ``tracking.METRICS``;
    tensors among them stay on their device. ``finish`` spends exactly ``images < cost``: what is left of the
    budget when a whole step no longer fits. ``student`` is what the run delivers, ``facts`` what the method
    adds to the run's summary.
    """

    label_modes: ClassVar[tuple[LabelKind, ...]]

    @property
    def cost(self) -> int: ...

    @property
    def student(self) -> nn.Module: ...

    @property
    def facts(self) -> dict[str, Any]: ...

    def prepare(self) -> tuple[str, ...]: ...

    def step(self) -> Metrics: ...

    def finish(self, images: int) -> Metrics: ...

    @property
    def recent(self) -> tuple[Tensor, Tensor] | None:
        """The last images paid for with the student, and their answers; none before the first step."""
        ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...
