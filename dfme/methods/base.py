"""What the loop asks of a method, and what a method is given. A method does no I/O, no logging, no evaluation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from torch import Tensor, nn

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
    images in one evaluation of an objective.
    """

    oracle: Oracle
    generator: Generator
    trainer: StudentTrainer
    streams: Streams
    sentinel: Sentinel
    lr_factor: Callable[[], float]
    chunk: int
    examiner: Examiner | None = None


class Method(Protocol):
    """One extraction method.

    ``step`` spends exactly ``cost`` images and returns metrics whose names are all in ``tracking.METRICS``;
    tensors among them stay on their device. ``finish`` spends exactly ``images < cost``: what is left of the
    budget when a whole step no longer fits. ``student`` is what the run delivers.
    """

    label_modes: ClassVar[tuple[LabelKind, ...]]
    cost: int

    @property
    def student(self) -> nn.Module: ...

    def step(self) -> Metrics: ...

    def finish(self, images: int) -> Metrics: ...

    @property
    def recent(self) -> tuple[Tensor, Tensor] | None:
        """The last images paid for with the student, and their answers; none before the first step."""
        ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...
