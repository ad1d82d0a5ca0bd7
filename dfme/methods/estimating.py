"""What DFME and MAZE share: the estimator, and the answers that the generator's steps paid for."""

import dataclasses
from functools import partial
from itertools import chain
from typing import Any, ClassVar

from torch import Tensor

from dfme.compute.modes import evaluating
from dfme.estimators.approximate import ApproximateGradients
from dfme.estimators.base import Estimate, Objective
from dfme.estimators.preflight.measure import Channel
from dfme.methods.base import Ask, Components, Method, Metrics
from dfme.methods.configs import DfmeConfig, MazeConfig
from dfme.spec import LabelKind
from dfme.students.losses import Distance


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
