"""What every method is: what the loop asks of it, what it is given, and what methods share.

A method does no I/O, no logging, no evaluation.
"""

import dataclasses
from abc import ABC
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from dfme.answers.reading import with_answers
from dfme.compute.device import Streams
from dfme.compute.modules import DeferredChecks, evaluating
from dfme.config.sections import EstimatorConfig, QueriesConfig
from dfme.estimators.approximate import ApproximateGradients
from dfme.estimators.base import Estimate, Objective
from dfme.estimators.preflight.measure import Channel
from dfme.methods.configs import DfmeConfig, MazeConfig
from dfme.nets.generators import GeneratorNet
from dfme.oracle.ledger import Purpose
from dfme.oracle.oracle import Oracle
from dfme.queries.pool import ImageSource
from dfme.queries.sampler import QuerySampler
from dfme.spec import LABEL_KINDS, ImageSpec, LabelKind
from dfme.students.losses import Distance
from dfme.students.optimizers import ScheduledOptimizer, gradient_norm
from dfme.students.trainer import Metrics, StudentTrainer

AT_ONCE = 1 << 23
"""Most numbers in the images of several student batches that one call asks about: bounds memory."""

__all__ = ["Ask", "Components", "Method", "Metrics", "in_batches"]


@dataclass(frozen=True)
class Components:
    """Parts that ``dfme.run.components`` puts together for a method.

    ``generator``: of methods whose configuration has a latent size. ``queries``: the images to pay
    for, of methods that heed that section. ``rng``: the run's random streams by purpose.
    ``lr_factor``: the learning-rate schedule at the share of the budget spent so far. ``pool``:
    images of the method's own ``open_pool``. ``hold_out`` may take a paid batch out of training, to
    score the students on; says whether it did. ``seed``: the run's, for weights that a method
    initialises itself.
    """

    oracle: Oracle
    students: StudentTrainer
    generator: GeneratorNet | None
    queries: QuerySampler
    rng: Streams
    deferred: DeferredChecks
    lr_factor: Callable[[], float]
    estimator: EstimatorConfig
    sources: QueriesConfig
    pool: ImageSource | None = None
    hold_out: Callable[[Tensor, Tensor], bool] | None = None
    seed: int = 0


class Ask(NamedTuple):
    """One batch that the oracle is asked about."""

    purpose: Purpose
    images: int


def in_batches(purpose: Purpose, images: int, size: int) -> list[Ask]:
    """So many images in batches, the last of which may be smaller."""
    return [Ask(purpose, min(size, images - start)) for start in range(0, images, size)]


class Method(ABC):
    """One extraction method; this class is the simplest one, which pays for images with its
    students alone.

    ``label_modes``: answers that it can learn from. ``entry``: a MethodEntry; ours stand in
    METHODS. A method that trains its generator sets ``generator_optimizer``; both are then part of
    its state.
    """

    label_modes: ClassVar[tuple[LabelKind, ...]] = LABEL_KINDS
    entry: ClassVar[Any]
    config: Any
    generator_optimizer: ScheduledOptimizer

    def __init__(self, config: Any, components: Components) -> None:
        self.config = config
        self.oracle = components.oracle
        self.students = components.students
        self.queries = components.queries
        self.rng = components.rng
        self.deferred = components.deferred
        self._generator = components.generator
        self._hold_out = components.hold_out
        self.recent: tuple[Tensor, Tensor] | None = None  # last images paid for, and answers
        self._own_parts: dict[str, Any] = {}  # of a method, with a state each

    @staticmethod
    def open_pool(config: Any, spec: ImageSpec, budget: int) -> ImageSource | None:
        """Images that the method reads from disk; UserError before any query if they are
        missing.
        """
        return None

    @property
    def generator(self) -> GeneratorNet:
        """The generator, of a method that has one."""
        assert self._generator is not None, "a method without a latent size has no generator"
        return self._generator

    @property
    def student(self) -> nn.Module:
        """The student that the generator works against: of several, the first."""
        return self.students.net

    @property
    def _student_steps(self) -> int:
        """Student batches that an iteration pays for; one where the method has no such option."""
        steps: int = getattr(self.config, "student_steps", 1)
        return steps

    @property
    def cost(self) -> int:
        """Images that the next ``step`` pays for, exactly; it may differ from step to step."""
        cost: int = self.config.batch_size * self._student_steps
        return cost

    def asks(self, ahead: int = 0) -> list[Ask]:
        """Every batch asked by the step ``ahead`` steps from now, in order; they sum to its
        cost.
        """
        return self.student_asks(self.cost)

    def student_asks(self, images: int) -> list[Ask]:
        """The calls that pay for so many images with the students."""
        return in_batches("student", images, self.config.batch_size * self.batches_at_once)

    @property
    def batches_at_once(self) -> int:
        """Student batches that one call asks about: the same images in the same order in fewer
        calls.

        More than one where the teacher is a network on this process's GPU, and nothing that is
        asked or planned depends on the steps in between. The share of the budget spent, and with it
        the learning rate, is then that after the last of them.
        """
        batch_size: int = self.config.batch_size
        planned = self.students.plan.during is not None
        if planned or self.queries.by_students or not self.oracle.on_own_accelerator:
            return 1
        return max(1, AT_ONCE // (batch_size * self.oracle.spec.numel * self.oracle.times))

    def asks_before(self) -> list[Ask]:
        """Every batch that ``prepare`` asks about in a new run, besides those of the pre-flight
        check.
        """
        return []

    @property
    def facts(self) -> dict[str, Any]:
        """Facts that the method adds to the run's summary."""
        return {}

    def prepare(self) -> tuple[str, ...]:
        """Ask, once, what must precede the first step, as ``check`` or ``seed``; lines for the
        user.
        """
        return ()

    def step(self) -> Metrics:
        """One iteration, which pays for exactly ``cost`` images. Returns metrics of
        ``report.metrics``.
        """
        return self.pay_in_batches(self.cost)

    def finish(self, images: int) -> Metrics:
        """Give the students what is left of the budget when a whole step no longer fits."""
        return self.pay_in_batches(images)

    def pay_in_batches(self, images: int, keep_all: bool = True) -> Metrics:
        """Student steps on exactly ``images`` images; a smaller last batch is stored for replay
        too.
        """
        metrics: Metrics = {}
        for x_BCHW, answers in self.paid_batches(images):
            images -= len(x_BCHW)
            metrics |= self.learn(x_BCHW, answers, keep_all or images == 0)
        return metrics

    def paid_batches(self, images: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Batches of so many images to learn from, the last perhaps smaller, and their paid
        answers.
        """
        size = self.config.batch_size
        for call in self.student_asks(images):
            drawn = [
                self.query_images(part.images) for part in in_batches("student", call.images, size)
            ]
            answers = self.oracle(drawn[0] if len(drawn) == 1 else torch.cat(drawn), "student")
            yield from zip(drawn, answers.split(size), strict=True)

    def query_images(self, count: int) -> Tensor:
        """``count`` images (B, C, H, W) to pay for, as the wire carries them."""
        return self.queries.images(count)

    def learn(self, x_BCHW: Tensor, answers: Tensor, keep: bool = True) -> Metrics:
        """The students' steps on a paid batch, unless it is held out; only one to ``keep`` is for
        replay.

        Images to which a service named no class are left out first.
        """
        if self.oracle.is_service:
            x_BCHW, answers = with_answers(x_BCHW, answers)
            if len(answers) == 0:
                return {}
        self.recent = x_BCHW, answers
        if self._hold_out is not None and self._hold_out(x_BCHW, answers):
            return {}
        return self.students.learn(x_BCHW, answers, keep)

    @torch.no_grad()
    def generate(self, count: int) -> Tensor:
        """Images (B, C, H, W) as the generator makes them now, in the mode it is in; nobody is
        asked.
        """
        return self.generator.squash(self.generator(self.generator.draw(count, self.rng["latent"])))

    def generator_metrics(self, upstream_grads: Tensor | None) -> Metrics:
        """Metrics of a step of the generator; norms are computed when they are read."""
        assert upstream_grads is not None
        return {
            "generator_lr": self.generator_optimizer.lr,
            "upstream_grad_norm": upstream_grads.norm,
            "generator_grad_norm": partial(gradient_norm, self.generator),
        }

    def state_dict(self) -> dict[str, Any]:
        """All that the next step depends on but the students, which have a state of their own."""
        return {name: part.state_dict() for name, part in self._parts_with_state.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, part in self._parts_with_state.items():
            part.load_state_dict(state[name])

    @property
    def _parts_with_state(self) -> dict[str, Any]:
        parts: dict[str, Any] = {}
        if self._generator is not None:
            parts["generator"] = self._generator
        if hasattr(self, "generator_optimizer"):
            parts["generator_optimizer"] = self.generator_optimizer
        return parts | self._own_parts


class EstimatingMethod(Method):
    """A method whose generator learns by gradients that are estimated through the API.

    ``reuse``: the answers at the points of the generator's last step are the students' first batch.
    It saves B images an iteration, and nothing where the estimator asked nothing. ``learn_from``
    all: the students learn from all images of the generator's steps, their neighbours too.
    """

    label_modes: ClassVar[tuple[LabelKind, ...]] = ("logits", "probabilities", "top_k")
    config: DfmeConfig | MazeConfig

    def __init__(self, config: DfmeConfig | MazeConfig, components: Components) -> None:
        super().__init__(config, components)
        oracle = self.oracle
        self.approximate_gradients = ApproximateGradients(
            components.estimator,
            oracle.spec,
            oracle.label_mode,
            self.generator,
            self.students,
            components.seed,
        )
        self._own_parts["approximate_gradients"] = self.approximate_gradients
        self.last_objective: Objective | None = None

    def disagreement(self, distance: Distance, x_NCHW: Tensor, answers: Tensor) -> Tensor:
        """f(x) = -loss(S(x), T(x)) for known answers T(x), float64. The minus sign is only here."""
        return -distance(self.student(x_NCHW).double(), answers.double())

    def estimate(self, gen_op: Tensor) -> Estimate:
        """Estimate d f / d gen_op for each image by itself, with f of the generator's objective.

        f(x) = -loss(S(x), T(x)) is what the generator minimises, one number per image. T is a paid
        API: it returns no gradient. Asks B (m + 1) images by forward differences.
        """
        query_teacher = partial(self.oracle, purpose="generator")
        f = partial(self.disagreement, self.approximate_gradients.distance)
        with evaluating(self.student):
            objective = Objective(
                query_teacher,
                f,
                scores=self.student,
                may_lack=self.oracle.is_service,
            )
            self.last_objective = objective
            return self.approximate_gradients(objective, gen_op.detach(), self.rng["directions"])

    def after_estimate(self, gen_op: Tensor, estimate: Estimate) -> Metrics:
        """Metrics of an estimate whose step is taken; the students learn what it asked, if so
        configured.
        """
        assert self.last_objective is not None
        metrics = self.approximate_gradients.metrics(self.last_objective, gen_op.detach(), estimate)
        if self.config.learn_from == "all":
            size = self.config.batch_size
            for x_NCHW, answers in self.last_objective.asked:
                for batch in zip(x_NCHW.split(size), answers.split(size), strict=True):
                    metrics |= self.learn(*batch)
        return metrics

    def train_students(self, keep_all: bool = True) -> Metrics:
        """d batches for the students, of which the first may be paid for already, with replay if it
        is on.
        """
        assert self.last_objective is not None
        size = self.config.batch_size
        reuse = self.config.reuse and bool(self.last_objective.asked)
        unpaid = (self._student_steps - reuse) * size
        metrics: Metrics = {}
        if reuse and self.config.learn_from != "all":
            metrics |= self.learn(*self.last_objective.first_asked(size), keep_all or not unpaid)
        return metrics | self.pay_in_batches(unpaid, keep_all)

    @property
    def cost(self) -> int:
        return sum(ask.images for ask in self.asks())

    def asks(self, ahead: int = 0) -> list[Ask]:
        size = self.config.batch_size
        steps = self.config.generator_steps
        estimator = self.approximate_gradients.estimator
        assert estimator is not None, "prepare comes first"
        calls = [estimator.calls(size, ahead * steps + number) for number in range(steps)]
        reuse = self.config.reuse and bool(calls[-1])
        students = self.student_asks((self._student_steps - reuse) * size)
        generators = [Ask("generator", images) for images in chain.from_iterable(calls)]
        return generators + students

    @property
    def facts(self) -> dict[str, Any]:
        return {"estimator": dataclasses.asdict(self.approximate_gradients.settings)}

    def prepare(self) -> tuple[str, ...]:
        """Settle the estimator's settings, where they are left to the pre-flight check."""
        ask = partial(self.oracle, purpose="check")
        channel = Channel(ask, self.oracle.spec, self.oracle.label_mode, self.oracle.remaining)
        return self.approximate_gradients.prepare(
            channel, self.disagreement, self.config.reuse, self.rng["check"]
        )
