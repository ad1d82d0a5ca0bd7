"""What the loop asks of a method, and what a method is given. A method does no I/O, no logging, no evaluation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Protocol

from torch import Tensor, nn

from dfme.compute import DeferredChecks
from dfme.config.settings import EstimatorConfig, QueriesConfig
from dfme.methods.generator_trainer import GeneratorTrainer
from dfme.nets.generators import GeneratorNet
from dfme.oracle.oracle import Oracle
from dfme.queries.evolution import Evolution
from dfme.queries.sampler import DrawImages, QuerySampler
from dfme.randomness import Streams
from dfme.spec import ImageSpec, LabelKind
from dfme.students.trainer import Metrics, StudentTrainer

__all__ = ["HoldOut", "Method", "Metrics", "Parts", "opened_for"]

HoldOut = Callable[[Tensor, Tensor], bool]
"""May take a paid batch (images, answers) out of training, to score the student on; says whether it did."""


def unplaced(net: nn.Module) -> nn.Module:
    """The net where it is."""
    return net


@dataclass(frozen=True)
class Parts:
    """What ``dfme.run.build`` hands a method to work with.

    ``made``: the generator, of methods whose configuration has a latent size. ``draw``: procedural images.
    ``lr_factor`` is the learning-rate schedule at the share of the budget spent so far. ``chunk`` bounds the images
    in one evaluation of an objective. ``opened`` is what the method's own ``open`` gave. ``seed`` is the run's, for
    weights a method makes of its own; ``place`` puts such a net on the run's device, in its memory format.
    """

    oracle: Oracle
    made: GeneratorNet | None
    trainer: StudentTrainer
    streams: Streams
    deferred: DeferredChecks
    lr_factor: Callable[[], float]
    chunk: int
    examiner: HoldOut | None = None
    estimator: EstimatorConfig = field(default_factory=EstimatorConfig)
    queries: QueriesConfig = field(default_factory=QueriesConfig)
    draw: DrawImages | None = None
    opened: Any = None
    seed: int = 0
    place: Callable[[nn.Module], nn.Module] = unplaced

    @property
    def generator(self) -> GeneratorNet:
        """The generator, of a method that has one."""
        assert self.made is not None, "a method without a latent size has no generator"
        return self.made

    def generator_trainer(
        self, lr: float, optimizer: Literal["adam", "sgd"] = "adam", betas: tuple[float, float] = (0.9, 0.999)
    ) -> GeneratorTrainer:
        """The generator with an optimiser on the run's schedule, drawing from the run's latents."""
        rng = self.streams["latent"]
        return GeneratorTrainer(self.generator, lr, self.lr_factor, rng, self.deferred, optimizer, betas)

    def sampler(self, batch_size: int) -> QuerySampler:
        """What is paid for with the students, as the ``queries`` section says."""
        oracle, trainer = self.oracle, self.trainer
        evolution = None
        if self.queries.evolve and trainer.replay is not None:
            evolution = Evolution(trainer.replay, oracle.label_mode, oracle.num_classes)
        return QuerySampler(
            self.queries, oracle.spec, self.made, self.draw, trainer.nets, self.streams, batch_size, evolution
        )


class Method(Protocol):
    """One extraction method.

    ``prepare`` comes once before the first step, and after a resumed run has its state; it does and asks what must be
    done and known beforehand, charged as ``check`` or ``seed``, and returns lines for the user. ``step`` spends exactly
    ``cost`` images, which may differ from step to step, and returns metrics whose names are all in
    ``tracking.METRICS``; tensors among them stay on their device. ``finish`` spends exactly ``images < cost``: what is
    left of the budget when a whole step no longer fits. The students are the trainer's, which has a state of its
    own. ``facts`` is what the method adds to the run's summary. A class may have a static ``open(config, spec,
    budget)`` that reads what the method needs besides, from disk, and raises UserError before anything is asked.
    """

    label_modes: ClassVar[tuple[LabelKind, ...]]

    @property
    def cost(self) -> int: ...

    @property
    def facts(self) -> dict[str, Any]: ...

    def prepare(self) -> tuple[str, ...]: ...

    def step(self) -> Metrics: ...

    def finish(self, images: int) -> Metrics: ...

    @property
    def recent(self) -> tuple[Tensor, Tensor] | None:
        """The last images paid for with the students, and their answers; none before the first step."""
        ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


def opened_for(make_method: Any, config: Any, spec: ImageSpec, budget: int) -> Any:
    """What the method's own ``open`` gives; None of a method without one."""
    return make_method.open(config, spec, budget) if hasattr(make_method, "open") else None
