"""Teachers in this process whose answers, outcomes or slopes are known beforehand."""

import copy
import dataclasses
import os
import threading
import time
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity

from dfme.compute.modules import validate_like
from dfme.config.sections import EstimatorConfig, ObjectiveName
from dfme.errors import BatchTooLarge, Refused, Unanswered
from dfme.estimators.base import Objective
from dfme.estimators.build import make_estimator
from dfme.estimators.preflight.choose import Finding
from dfme.estimators.preflight.diagnostics import ObjectiveOfAnswers
from dfme.estimators.preflight.measure import Channel, run_preflight
from dfme.nets.generators import Generator
from dfme.oracle.ledger import Ledger
from dfme.oracle.oracle import Oracle
from dfme.spec import ImageSpec, LabelMode, RequestPolicy, TeacherInfo
from dfme.students.losses import make_distance
from dfme.teachers.label_modes import reveal


class Counting:
    """Every image's scores are those of ``truth``, moved on by one class for each image asked
    before.

    It counts what was ``answered`` and ``witnessed``, what ``truth`` was, and what an ``honest``
    user was.
    """

    defences: tuple[str, ...] = ("counting:moved=0.3",)

    def __init__(
        self, at: dict[int, Callable[[], object]] | None = None, moved: float = 0.3
    ) -> None:
        self.calls = self.answered = self.truths = self.honest = self.witnessed = 0
        self._at = at or {}
        self._weight = torch.randn(64, 10, generator=torch.Generator().manual_seed(7))
        self._moved, self._asked, self._sum = moved, 0, torch.zeros(10)
        self.info = TeacherInfo(
            defences=self.defences, stateful=self, undefended=self.truth, preview=self.served
        )

    @property
    def images(self) -> int:
        """All that was answered and charged, or answered to score with."""
        return self.answered + self.truths

    def truth(self, images: Tensor) -> Tensor:
        self.truths += len(images)
        return self._scores(images)

    def __call__(self, images: Tensor) -> Tensor:
        self.calls += 1
        self._at.get(self.calls, int)()
        self.answered += len(images)
        return self._defended(images)

    def served(self, images: Tensor) -> Tensor:
        self.honest += len(images)
        return self._answers(images, 0)

    def replay_answer(self, images: Tensor, answers: Tensor) -> None:
        self.witnessed += len(images)
        if not torch.equal(self._defended(images), answers):
            raise ValueError(f"{len(images)} answers differ")

    def state_dict(self) -> dict[str, Any]:
        return {"asked": self._asked, "sum": self._sum.clone()}

    def load_state_dict(self, state: Any) -> None:
        validate_like(self.state_dict(), state, "counting")
        self._asked, self._sum = state["asked"], state["sum"]

    def report(self) -> dict[str, Any]:
        return {"asked": self._asked}

    def _scores(self, images: Tensor) -> Tensor:
        return (3 * (images - 0.5).flatten(1) @ self._weight).softmax(dim=1)

    def _answers(self, images: Tensor, asked: int) -> Tensor:
        p_BK = self._scores(images)
        number_B = (asked + torch.arange(len(images)) + self._sum.argmax()) % 10
        return (1 - self._moved) * p_BK + self._moved * torch.eye(10)[number_B]

    def _defended(self, images: Tensor) -> Tensor:
        answers = self._answers(images, self._asked)
        self._asked += len(images)
        self._sum = self._sum * 0.9 + answers.sum(0)
        return answers


def metered(log: str, moved: float = 0.3) -> Counting:
    """For a command line; the images it serves are in the file before it answers."""
    meter = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    class Metering(Counting):
        shape, num_classes = (1, 8, 8), 10

        def __call__(self, images: Tensor) -> Tensor:
            os.write(meter, f"{len(images)}\n".encode())
            return super().__call__(images)

        def truth(self, images: Tensor) -> Tensor:
            os.write(meter, f"{len(images)}\n".encode())
            return super().truth(images)

    return Metering(moved=moved)


SHAPE = (1, 2, 2)


class Interrupted(KeyboardInterrupt):
    """Ctrl-C for the second time, in the middle of a request."""


class ScriptedTeacher:
    """Answers by arithmetic; request number n (from 0) first does what ``plan[n]`` says.

    ``ok``; ``429``: refused; ``500``: served, then failed; ``nan``: served, and answers with NaN;
    ``stop before`` and ``stop after``: the client is interrupted, the request not yet or already
    served; a number: refused for more images.
    """

    spec, num_classes, label_mode = ImageSpec(SHAPE), 3, LabelMode("probabilities")

    def __init__(
        self,
        plan: Sequence[str | int] = (),
        wire: RequestPolicy | None = None,
        max_batch: int | None = None,
    ) -> None:
        self.plan, self.wire = list(plan), wire or RequestPolicy(patience=5.0)
        self.info = TeacherInfo(max_batch=max_batch, remote=self)
        self.requests = self.served = self.unserved = self.at_once = self.most_at_once = 0
        self.keys: list[str] = []
        self.delay: Callable[[int], float] = lambda number: 0.0
        self._lock = threading.Lock()

    @staticmethod
    def truth(images: Tensor) -> Tensor:
        return (images.flatten(1)[:, :3] * 5).softmax(dim=1)

    def __call__(self, images: Tensor) -> Tensor:
        raise AssertionError("a teacher with ask is asked with a key")

    def ask(self, images: Tensor, key: str) -> Tensor:
        with self._lock:
            number, self.requests = self.requests, self.requests + 1
            outcome = self.plan[number] if number < len(self.plan) else "ok"
            self.keys.append(key)
            self.at_once += 1
            self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            time.sleep(self.delay(number))
            return self._do(outcome, images)
        finally:
            with self._lock:
                self.at_once -= 1

    def close(self) -> None:
        pass

    def _do(self, outcome: str | int, images: Tensor) -> Tensor:
        if outcome == "429":
            raise Refused("service: too many requests", "429", retry_after=0.0)
        if isinstance(outcome, int) and len(images) > outcome:
            raise BatchTooLarge(f"service: at most {outcome} images", outcome or None)
        with self._lock:
            self.served += 0 if outcome == "stop before" else len(images)
            self.unserved += len(images) if outcome == "stop before" else 0
        if str(outcome).startswith("stop"):
            raise Interrupted
        if outcome == "500":
            raise Unanswered("service: internal error", "500")
        answers = self.truth(images)
        return answers.fill_(torch.nan) if outcome == "nan" else answers


PREFLIGHT_SHAPE = (1, 8, 8)
CLASSES = 5
LOGITS = LabelMode("logits")
OPEN = EstimatorConfig(step="auto")
AUTO = EstimatorConfig(kind="auto")


def net(seed: int, gain: float = 1.0) -> nn.Sequential:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        layers = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, CLASSES))
    layers[3].weight.data.mul_(gain)
    return layers.eval().requires_grad_(False)


class Toy:
    """A known network behind a wire of known defects; ``gain`` makes its answers confident."""

    num_classes = CLASSES
    info = TeacherInfo()

    def __init__(
        self,
        mode: str = "logits",
        levels: int | None = None,
        gain: float = 6.0,
        noise: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        self.spec = ImageSpec(PREFLIGHT_SHAPE, levels=levels)
        self.label_mode = LabelMode.parse(mode)
        self.net = net(1, gain)
        self.seen = 0
        self._noise = noise

    def __call__(self, images: Tensor) -> Tensor:
        self.seen += len(images)
        logits = self.net(images)
        if self._noise is not None:
            logits = logits + self._noise(logits)
        return reveal(logits, LOGITS, self.label_mode)


class Setting:
    """Everything around one teacher: an untrained student, a generator, an objective."""

    def __init__(self, teacher: Toy, budget: int = 10**6) -> None:
        self.teacher = teacher
        self.oracle = Oracle(teacher, Ledger(budget))
        self.student = net(2)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(3)
            self.generator = Generator(8, teacher.spec)

    def probe(self, config: EstimatorConfig = OPEN, seed: int = 4) -> Finding:
        rng = torch.Generator().manual_seed(seed)
        oracle = self.oracle
        ask = partial(oracle, purpose="check")
        channel = Channel(ask, oracle.spec, oracle.label_mode, oracle.ledger.remaining)
        return run_preflight(channel, self.generator, self.value_of, config, rng)

    def value_of(self, objective: ObjectiveName) -> ObjectiveOfAnswers:
        distance = make_distance(
            "auto" if objective == "student" else objective, self.oracle.label_mode
        )
        return lambda x_NCHW, answers: -distance(self.student(x_NCHW).double(), answers.double())

    def correlation(self, config: EstimatorConfig, step: float) -> float:
        """Cosine over 256 images between estimated slopes and autograd's, through the wire and
        without it.
        """
        draws = torch.Generator().manual_seed(5)
        u = copy.deepcopy(self.generator)(self.generator.draw(256, draws)).detach().requires_grad_()
        x = self.generator.squash(u)
        exact = make_distance("l1", LOGITS)(self.student(x).double(), self.teacher.net(x).double())
        (truth,) = torch.autograd.grad(-exact.sum(), u)
        settled = dataclasses.replace(config, step=step)
        estimator = make_estimator(settled, self.teacher.spec, self.generator.squash, None, 0)
        objective = Objective(partial(self.oracle, purpose="generator"), self.value_of("student"))
        grad = estimator.estimate(objective, u.detach(), draws).grad_BCHW.flatten(1)
        size = grad.norm(dim=1)
        direction = grad / size.clamp_min(1e-30).unsqueeze(1)
        return cosine_similarity(size, (truth.flatten(1) * direction).sum(1), dim=0).item()


@cache
def found(mode: str, levels: int | None = None, gain: float = 6.0) -> tuple[Setting, Finding]:
    setting = Setting(Toy(mode, levels, gain))
    return setting, setting.probe()
