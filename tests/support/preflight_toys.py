"""Teachers whose every property is known, for the pre-flight check, and slopes that autograd
gives.
"""

import copy
import dataclasses
from collections.abc import Callable
from functools import cache, partial

import torch
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity

from dfme.config.estimator_settings import EstimatorConfig, ObjectiveName
from dfme.estimators.base import Objective
from dfme.estimators.build import make_estimator
from dfme.estimators.preflight.choose import Finding
from dfme.estimators.preflight.diagnostics import ObjectiveOfAnswers
from dfme.estimators.preflight.measure import Channel, run_preflight
from dfme.nets.generators import Generator
from dfme.oracle.ledger import Ledger
from dfme.oracle.oracle import Oracle
from dfme.spec import ImageSpec, LabelMode, TeacherInfo
from dfme.students.losses import make_distance
from dfme.teachers.label_modes import reveal

SHAPE = (1, 8, 8)
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
        self.spec = ImageSpec(SHAPE, levels=levels)
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
