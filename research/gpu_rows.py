"""The rows of ``research.bench --suite gpu``, in the order of their worth; each gives figures by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any, NamedTuple

import torch

from dfme.compute import evaluating
from dfme.estimators.approximate import ApproximateGradients
from dfme.estimators.base import Objective
from dfme.graphs import beside
from dfme.methods.dfme import Dfme
from dfme.nets import build_net
from dfme.run.loop import Progress
from dfme.spec import LabelMode
from dfme.students.losses import make_distance
from research.options import BenchConfig
from research.speed import CASES, CLASSES, WARM_UP, Case, Work, published, time_in_turn
from research.truth import cosine

Measured = dict[str, float]
Changes = Mapping[str, Any]
"""Options of a run, by dotted key."""

PLAIN: Changes = {"channels_last": "no"}
PUBLISHED = "the published loop"
OURS = "our loop with no option"
BARE = "the same kernels bare, as one CUDA graph"
TIMES = "times as fast as "
SLOPES = "correlation of its differences with the true slopes"


TF32: Changes = {"estimator.arithmetic": "tf32", "estimator.step": 0.3, "teacher.precision": "tf32"}
BF16_TEACHER: Changes = {"teacher.precision": "bf16"}
OPTIONS: dict[str, Changes] = {
    "no option": {},
    "a bf16 student": {"precision": "bf16"},
    "channels-last": {"channels_last": "yes"},
    "TF32 in teacher and differences, of step 0.3,": TF32,
    "a bf16 teacher": BF16_TEACHER,
    "CUDA graphs": {"graphs": True},
    "deterministic algorithms": {"deterministic": True},
}
"""Changes that are switched on alone, on top of ``PLAIN``."""
IEEE_PLAN: Changes = {"precision": "bf16", "channels_last": "yes", "graphs": True}
PLAN: Changes = {**IEEE_PLAN, **TF32}
COMPILED: Changes = {"compile": True}
PLANS: dict[str, tuple[Changes, float]] = {
    "all options but TF32": (IEEE_PLAN, 1.7),
    "all options and a bf16 teacher": ({**PLAN, **BF16_TEACHER}, 2.0),
}
"""Other plans that are judged at ResNet's size, and how many times as fast as the published loop each should be."""
ARITHMETICS: dict[str, Changes] = {"IEEE fp32": {}, "TF32": TF32, "IEEE fp32, of a bf16 teacher": BF16_TEACHER}

RESNET = "ResNet-34-8x to 18-8x at 3x32x32"
SMALL = "small CNNs at 1x8x8"
MEDIUM = "small CNNs at 3x16x16"
LOOPS: dict[str, tuple[Case, float]] = {
    RESNET: (CASES["resnet"], 1.7),
    SMALL: (CASES["digits_paper"], 3.0),
    MEDIUM: (Case((3, 16, 16), "cnn_medium", "cnn_medium", 0, 256), 3.0),
    f"{SMALL}, four replay steps a batch": (CASES["digits"], 0.0),
    "DisGUIDE, three replay steps a batch": (CASES["resnet"]._replace(replay_steps=3, method="disguide"), 0.0),
}
"""Cases, and the least speed in published loops; 0: that loop has no replay, so nothing is judged."""


class Row(NamedTuple):
    """``bars``: the least that figures should be. ``seconds``: about how long it takes on a GPU."""

    name: str
    measure: Callable[[], Measured]
    bars: Mapping[str, float] = {}
    seconds: float = 12


def rows(bench: Bench) -> Iterator[Row]:
    """All rows, the most worthwhile first; last those that wait for a compiler."""

    def loop(
        name: str, options: str, changes: Changes, times: float = 0, against: str = PUBLISHED, batch: int = 256
    ) -> Row:
        """Our loop beside another; ``times``: as fast as that it should be."""
        bars = {TIMES + against: times, **({SLOPES: 0.9} if against == PUBLISHED else {})} if times else {}
        work = partial(bench.beside, LOOPS[name][0], changes, against, batch)
        seconds = 60 if "compile" in changes else 12
        return Row(f"{name}: our loop with {options}, in turn with {against}", work, bars, seconds)

    for name in (RESNET, SMALL, MEDIUM):
        yield loop(name, "all options", PLAN, LOOPS[name][1])
        yield loop(name, "all options", PLAN, 0.9, BARE)
    for options, (changes, times) in PLANS.items():
        yield loop(RESNET, options, changes, times)
    for name, (options, changes) in product((RESNET, SMALL), OPTIONS.items()):
        yield loop(name, f"{options} alone", {**PLAIN, **changes})
    for iterations, (name, changes) in product((5, 150), ARITHMETICS.items()):
        title = f"{RESNET}: correlation of differences in {name} with true slopes, after {iterations} iterations"
        work = partial(bench.slopes, LOOPS[RESNET][0], changes, iterations if bench.is_cuda else 1)
        yield Row(title, work, seconds=25)
    for name in (name for name, (_, times) in LOOPS.items() if not times):
        yield loop(name, "all options", PLAN, against=OURS)
    for batch in (64, 32):
        yield loop(RESNET, f"all options, batch {batch}", PLAN, batch=batch)
    for options, changes in {"all options but TF32": IEEE_PLAN, "all options": PLAN}.items():
        yield loop(RESNET, f"{options} and torch.compile", {**changes, **COMPILED})


class Bench:
    """Measures on one device; on a CPU everything is a toy, and no graph is captured."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.is_cuda = device.type == "cuda"
        self.batch = 256 if self.is_cuda else 4
        self.images = 512 if self.is_cuda else 8
        self.turns = (3, 0.5) if self.is_cuda else (1, 0.01)

    def beside(self, case: Case, changes: Changes, against: str = PUBLISHED, batch: int = 256) -> Measured:
        """Our loop and another, timed in turn; beside the published one also how good its gradients are then."""
        work = self._work(case, changes, batch)
        with ExitStack() as held:
            method, ours = held.enter_context(work.opened(Progress()))
            if against == PUBLISHED:
                other = published(work)
            elif against == OURS:
                other = held.enter_context(self._work(case, PLAIN, batch).opened(Progress()))[1]
            else:
                other = self._replayed(self._work(case, {**changes, "graphs": False}, batch))
            seconds, other_seconds, ratio = time_in_turn(ours, other, *self.turns, self.device)
            figures = {"ms an iteration": seconds * 1e3, f"ms an iteration of {against}": other_seconds * 1e3}
            figures |= {TIMES + against: ratio, "queries/s": work.queries / seconds}
            if isinstance(method, Dfme) and against == PUBLISHED:
                figures[SLOPES] = self._slopes(work, method, method.approximate_gradients)
        return figures

    def slopes(self, case: Case, changes: Changes, iterations: int) -> Measured:
        """Quality of differences before the squashing, by step."""
        work = self._work(case, changes)
        figures = {}
        with work.opened(Progress()) as (method, run):
            assert isinstance(method, Dfme)
            run(iterations)
            parts = (method.oracle.label_mode, method.generator, method.students, work.job.config.seed)
            for step in (1e-3, 1e-2, 0.03, 0.1, 0.3, 0.5):
                gradients = ApproximateGradients(replace(work.job.estimator, step=step), work.spec, *parts)
                figures[f"step {step:g}"] = self._slopes(work, method, gradients)
        return figures

    def _work(self, case: Case, changes: Changes, batch: int = 256) -> Work:
        """The case's networks, once the teacher's batch statistics have settled on what the generator makes."""
        if not self.is_cuda:
            case = case._replace(shape=(case.shape[0], 8, 8), teacher="cnn_small", student="cnn_small")
            changes = {**changes, "graphs": False}
        work = Work(case, BenchConfig(batch_size=min(batch, self.batch)), self.device, changes)
        generator = work.nets.generator
        teacher = work.teacher.net.train()
        assert generator is not None
        with torch.no_grad():
            for _ in range(20):
                teacher(generator.squash(generator(torch.randn(64, generator.latent_size, device=self.device))))
        teacher.eval()
        return work

    def _replayed(self, work: Work) -> Callable[[int], None]:
        """The bare passes, captured once as a CUDA graph; on a CPU as they are."""
        if not self.is_cuda:
            return work.bare
        graph = torch.cuda.CUDAGraph()
        with beside(self.device):
            work.bare(WARM_UP)
            with torch.cuda.graph(graph, stream=torch.cuda.current_stream()):
                work.bare(1)

        def replay(iterations: int) -> None:
            for _ in range(iterations):
                graph.replay()

        return replay

    def _slopes(self, work: Work, method: Dfme, estimated: ApproximateGradients) -> float:
        """Correlation, over images, of differences with the slopes that autograd finds along them in float64.

        An estimate of one direction is the difference times that direction, up to a factor that all images share.
        """
        teacher, student = (
            build_net(arch, work.spec.shape, CLASSES).to(self.device, torch.float64).eval()
            for arch in (work.case.teacher, work.case.student)
        )
        teacher.load_state_dict(work.teacher.net.state_dict())
        student.load_state_dict(work.student.state_dict())
        distance = make_distance("l1", LabelMode("logits"))
        pairs = []
        value = partial(method.disagreement, estimated.distance)
        for _ in range(max(1, self.images // work.batch)):
            with torch.no_grad(), evaluating(method.student):
                u_BCHW = method.generator(method.generator.draw(work.batch, method.rng["latent"]))
                objective = Objective(work.teacher, value, scores=method.student)
                estimate_BD = estimated(objective, u_BCHW, method.rng["directions"]).grad_BCHW.flatten(1).double()
            u_BCHW = u_BCHW.double().requires_grad_()
            x_BCHW = method.generator.squash(u_BCHW)
            (grad_BCHW,) = torch.autograd.grad(-distance(student(x_BCHW), teacher(x_BCHW)).sum(), u_BCHW)
            length_B = estimate_BD.norm(dim=1)
            pairs.append(
                torch.stack([length_B, (grad_BCHW.flatten(1) * estimate_BD).sum(1) / length_B.clamp_min(1e-300)])
            )
        return float(cosine(*torch.cat(pairs, dim=1)))
