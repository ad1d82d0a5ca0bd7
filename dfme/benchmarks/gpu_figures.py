"""What the rows of ``bench --suite gpu`` measure: each gives figures by name, which says the unit."""

from __future__ import annotations

import json
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

from dfme.benchmarks.compare.engines.pool import WorkerPool
from dfme.benchmarks.compare.processes import last_line, start
from dfme.benchmarks.gradients.truth import cosine
from dfme.benchmarks.options import BenchConfig
from dfme.benchmarks.speed import CLASSES, WARM_UP, Case, Work, clock, published, time_in_turn, timings
from dfme.compute import evaluating
from dfme.errors import DfmeError
from dfme.estimators.approximate import ApproximateGradients
from dfme.estimators.base import Objective
from dfme.graphs import beside
from dfme.methods.dfme import Dfme
from dfme.nets import build_net
from dfme.precision import arithmetic
from dfme.run.loop import Progress
from dfme.spec import LabelMode
from dfme.students.losses import make_distance

Measured = dict[str, float]
Changes = Mapping[str, Any]
"""Options of a run, by dotted key."""

PLAIN: Changes = {"channels_last": "no"}
PUBLISHED, OURS, BARE = "the published loop", "our loop with no option", "the same kernels bare, as one CUDA graph"
TIMES, SLOPES = "times as fast as ", "correlation of its differences with the true slopes"
SAME = "both students the same to the last bit (1: yes)"

FORMATS = {"NCHW": torch.contiguous_format, "channels-last": torch.channels_last}
PRECISIONS: dict[str, tuple[Literal["ieee", "tf32"], torch.dtype]] = {
    "IEEE fp32": ("ieee", torch.float32),
    "TF32": ("tf32", torch.float32),
    "bf16": ("ieee", torch.bfloat16),
    "fp64": ("ieee", torch.float64),
}


class Bench:
    """Measures on one device; on a CPU everything is a toy, and no graph is captured."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.is_cuda = device, device.type == "cuda"
        sizes = (256, 3, 0.5, 8192, 2**30, 512, 30_000) if self.is_cuda else (4, 1, 0.01, 64, 2**20, 8, 1_500)
        self.batch, self.rounds, self.seconds, self.matrix, self.copied, self.images, self.budget = sizes

    def peaks(self) -> Measured:
        """Bytes that a copy reads and writes; multiplications and additions of a large matrix product."""
        source, size = torch.empty(self.copied, dtype=torch.uint8, device=self.device), self.matrix
        copy = partial(torch.empty_like(source).copy_, source)
        figures = {"copy, TB/s": 2 * len(source) / self._seconds(copy) / 1e12}
        for name, (within, dtype) in PRECISIONS.items():
            left, right = torch.randn(2, size, size, device=self.device).to(dtype)
            with arithmetic(within, self.device):
                figures[f"{name}, TFLOP/s"] = 2 * size**3 / self._seconds(partial(torch.mm, left, right)) / 1e12
        return figures

    def convolution(self, channels: int, pixels: int) -> Measured:
        """A 3x3 convolution, forward and both gradients."""
        figures, flops = {}, 3 * 2 * 9 * self.batch * (pixels * channels) ** 2
        for (name, (within, dtype)), (layout, form) in product(PRECISIONS.items(), FORMATS.items()):
            net = nn.Conv2d(channels, channels, 3, padding=1, bias=False).to(self.device, dtype).to(memory_format=form)
            x_BCHW = torch.randn(self.batch, channels, pixels, pixels, device=self.device).to(dtype, memory_format=form)
            x_BCHW.requires_grad_()
            with arithmetic(within, self.device):
                seconds = self._seconds(lambda net=net, x=x_BCHW: net(x).backward(x.detach()))  # type: ignore[misc]
            figures[f"{name} {layout}, TFLOP/s"] = flops / seconds / 1e12
        return figures

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
            loop, beside, ratio = time_in_turn(ours, other, self.rounds, self.seconds, self.device)
            figures = {"ms an iteration": loop * 1e3, f"ms an iteration of {against}": beside * 1e3}
            figures |= {TIMES + against: ratio, "queries/s": work.queries / loop}
            if isinstance(method, Dfme) and against == PUBLISHED:
                figures[SLOPES] = self._slopes(work, method, method.approximate_gradients)
        return figures

    def slopes(self, case: Case, changes: Changes, iterations: int) -> Measured:
        """How good differences before the squashing are, by step."""
        work, figures = self._work(case, changes), {}
        with work.opened(Progress()) as (method, run):
            assert isinstance(method, Dfme)
            run(iterations)
            for step in (1e-3, 1e-2, 0.03, 0.1, 0.3, 0.5):
                config = replace(work.job.estimator, step=step)
                mode, generator, students = method.oracle.label_mode, method.generator, method.students
                estimated = ApproximateGradients(config, work.spec, mode, generator, students, work.job.config.seed)
                figures[f"step {step:g}"] = self._slopes(work, method, estimated)
        return figures

    def kernels(self, case: Case, changes: Changes | None) -> Measured:
        """What one iteration has the device do, and how busy that keeps it; ``changes`` None: the published loop's."""
        work = self._work(case, changes or {})
        with work.opened(Progress()) as (method, ours):
            run = published(work) if changes is None else ours
            wall = self._seconds(partial(run, 1))
            with profile(activities=[ProfilerActivity.CUDA if self.is_cuda else ProfilerActivity.CPU]) as seen:
                run(2)
                clock(self.device)
            waits = self._waits(method.step) if self.is_cuda and changes is not None else {}
        kind = self.device.type.upper()  # as the profiler spells it
        spans = [(each.name, each.time_range.elapsed_us()) for each in seen.events() if each.device_type.name == kind]
        copies = sum("Memcpy" in name or "Memset" in name for name, _ in spans)
        busy = sum(each for _, each in spans) / 2e6  # seconds: on one stream they run one after the other
        figures = {"kernels an iteration": (len(spans) - copies) / 2, "copies and fills an iteration": copies / 2}
        return figures | {"ms an iteration": wall * 1e3, "share of it that the device works": busy / wall} | waits

    def cells(self, count: int) -> Measured:
        """So many processes, each with a loop of its own."""
        words = ["bench", "--cases=digits_paper", "--rounds=3", f"--device={self.device}"]
        words += [f"--batch-size={self.batch}", f"--seconds={4 * self.seconds}"]
        with tempfile.TemporaryDirectory(prefix="dfme-bench-") as folder:
            rows = _side_by_side(Path(folder), [words] * count)
        speeds = [float(row.split("|")[5].replace(",", "")) for row in rows]
        return {"queries/s of all together": sum(speeds), "queries/s of the slowest": min(speeds)}

    def killed(self, *options: str) -> Measured:
        """A run that is killed (SIGKILL) once it has a checkpoint and then resumed, beside one that is not killed."""
        with tempfile.TemporaryDirectory(prefix="dfme-bench-") as folder:
            whole, cut, log = (Path(folder, name) for name in ("whole", "cut", "log.txt"))
            words = [f"--budget={self.budget}", f"--device={self.device}", "--checkpoint-seconds=0.2", *options]
            process = start(["extract", f"--out={cut}", *words], log, 1)
            try:
                while process.poll() is None and not (cut / "checkpoint.pt").exists():
                    time.sleep(0.02)
            finally:
                process.kill()
            if process.wait() >= 0:
                raise DfmeError(f"the run was over before it was killed: {last_line(log)}")
            rest = ["extract", f"--out={whole}", *words], ["extract", f"--out={cut}", "--resume"]
            _side_by_side(Path(folder), rest)
            students = {(out / "student.safetensors").read_bytes() for out in (whole, cut)}
            lost = json.loads((cut / "summary.json").read_text())["lost"]
        return {SAME: 2.0 - len(students), "images asked again": lost}

    def _work(self, case: Case, changes: Changes, batch: int = 256) -> Work:
        """The case's networks, once the teacher's batch statistics have settled on what the generator makes."""
        if not self.is_cuda:
            case = case._replace(shape=(case.shape[0], 8, 8), teacher="cnn_small", student="cnn_small")
            changes = {**changes, "graphs": False}
        work = Work(case, BenchConfig(batch_size=min(batch, self.batch)), self.device, changes)
        generator, teacher = work.nets.generator, work.teacher.net.train()
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
        return _repeated(graph.replay)

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
        distance, pairs = make_distance("l1", LabelMode("logits")), []
        value = partial(method.disagreement, estimated.distance)
        for _ in range(max(1, self.images // work.batch)):
            with torch.no_grad(), evaluating(method.student):
                u_BCHW = method.generator(method.generator.draw(work.batch, method.rng["latent"]))
                objective = Objective(work.teacher, value, scores=method.student)
                found_BD = estimated(objective, u_BCHW, method.rng["directions"]).grad_BCHW.flatten(1).double()
            u_BCHW = u_BCHW.double().requires_grad_()
            x_BCHW = method.generator.squash(u_BCHW)
            (grad_BCHW,) = torch.autograd.grad(-distance(student(x_BCHW), teacher(x_BCHW)).sum(), u_BCHW)
            length_B = found_BD.norm(dim=1)
            pairs.append(torch.stack([length_B, (grad_BCHW.flatten(1) * found_BD).sum(1) / length_B.clamp_min(1e-300)]))
        return float(cosine(*torch.cat(pairs, dim=1)))

    def _waits(self, step: Callable[[], object]) -> Measured:
        """How often a step makes the host wait."""
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            torch.cuda.set_sync_debug_mode("warn")
            try:
                for _ in range(4):
                    step()
            finally:
                torch.cuda.set_sync_debug_mode("default")
        return {"times that a step waits for the GPU": sum("synchroniz" in str(each.message) for each in seen) / 4}

    def _seconds(self, work: Callable[[], object]) -> float:
        """Seconds of one call, the median of three timings."""
        return statistics.median(each for (each,) in timings([_repeated(work)], 3, self.seconds / 3, self.device))


def _repeated(work: Callable[[], object]) -> Callable[[int], None]:
    def run(times: int) -> None:
        for _ in range(times):
            work()

    return run


def _side_by_side(folder: Path, commands: Sequence[list[str]]) -> list[str]:
    """Run commands of dfme at once, each a process of one thread; the last line of each. DfmeError if one fails."""
    logs = {folder / f"{number}.txt": words for number, words in enumerate(commands)}
    failed: list[str] = []

    def ended(log: Path, code: int) -> bool:
        failed.extend([f"{logs[log][0]} ended with exit code {code}: {last_line(log)}"] * bool(code))
        return False

    WorkerPool[Path](lambda log, _: start(logs[log], log, 1), len(logs)).run(logs, ended, lambda: False)
    if failed:
        raise DfmeError(failed[0])
    return [last_line(log) for log in logs]
