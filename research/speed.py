"""The framework's own loop beside the bare kernels of the same work, or the published loop, timed
in turn.

The loop is ``loop.run`` with everything it does in a run: ledger, journal and log on disk, checks,
losses, optimisers, replay. The bare work is the forward and backward passes of teacher, student and
generator at the same sizes, counts, memory format and precision, and nothing else. Ratio = bare
seconds / loop seconds; 1 is the most there is. The published loop (``published.py``) may take
longer than ours.
"""

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from dfme.compute.device import (
    Streams,
    arithmetic,
    choose_device,
    deterministic,
    device_name,
    ieee_fp32,
)
from dfme.compute.modules import DeferredChecks
from dfme.config.messages import unknown_choice
from dfme.config.sections import EstimatorConfig
from dfme.config.settings import ExtractConfig, Job, TeacherConfig
from dfme.config.values import build, options_of
from dfme.errors import UserError
from dfme.methods.base import Method
from dfme.methods.configs import DfmeConfig
from dfme.nets import build_net
from dfme.report.recorder import Recorder
from dfme.run import loop, work
from dfme.run.build import build_oracle
from dfme.run.components import build_components, build_method, build_nets
from dfme.run.directory import RunDirectory
from dfme.spec import ImageSpec, LabelMode
from dfme.teachers.label_modes import restrict
from dfme.teachers.local.pytorch import TorchTeacher
from research.options import BenchConfig
from research.published import PublishedLoop


class Case(NamedTuple):
    """Networks and recipe of one row."""

    shape: tuple[int, int, int]
    teacher: str
    student: str
    replay_steps: int
    cpu_batch: int


CLASSES = 10

UNSPENT = 10**15
"""Images of a budget that no timing comes near."""

WARM_UP = 5
"""Iterations on a GPU before the first that is timed: kernels are chosen, compiled and captured in
them.
"""

CASES = {
    "digits": Case((1, 8, 8), "cnn_small", "cnn_small", 4, 256),
    "digits_paper": Case((1, 8, 8), "cnn_small", "cnn_small", 0, 256),
    "resnet": Case((3, 32, 32), "resnet34_8x", "resnet18_8x", 0, 16),
    "digits28": Case((1, 28, 28), "lenet5", "resnet18_8x", 0, 16),
}


class _NoExamination:
    """An examination that costs nothing."""

    def score(self, student: nn.Module) -> dict[str, float]:
        return {}


class Work:
    """One case's networks, to be run through the loop or bare."""

    def __init__(self, case: Case, config: BenchConfig, device: torch.device) -> None:
        self.case = case
        self.device = device
        self.spec = ImageSpec(case.shape)
        self.batch = config.batch_size or (case.cpu_batch if device.type == "cpu" else 256)
        self.method_config = DfmeConfig(batch_size=self.batch)
        values = {
            **{"student.arch": case.student, "student.replay_steps": case.replay_steps},
            **{"student.replay_batch": self.batch, "schedule.kind": "constant"},
            **{name: getattr(config, name) for name in ("precision", "channels_last")},
            **dict(text.split("=", 1) for text in config.options),
        }
        precision = values.pop("teacher.precision", "auto")
        options = (*options_of(ExtractConfig), *options_of(EstimatorConfig, "estimator."))
        known = [option.key for option in options]
        for name in set(values).difference(known):
            raise UserError(f"--options: {unknown_choice('option of a run', name, known)}")
        settings, wrong = build(ExtractConfig, values)
        estimator, also_wrong = build(EstimatorConfig, values, "estimator.")
        for problem in (*wrong, *also_wrong):
            raise UserError(f"--options {problem.key}: {problem.text}")
        self.job = Job(settings, TeacherConfig(), {}, "dfme", self.method_config, estimator)
        # A network as it was initialised: its answers are worthless, its time is not.
        net = build_net(case.teacher, case.shape, CLASSES)
        self.network = TorchTeacher(net, self.spec, CLASSES, device=device, precision=precision)
        self.teacher = restrict(self.network, LabelMode("probabilities"))
        self.nets = build_nets(self.job, self.spec, CLASSES, device)
        self.student = self.nets.students[0]
        self.queries = self.batch * (2 + self.method_config.student_steps)

    @contextmanager
    def opened(self, progress: loop.Progress) -> Iterator[tuple[Method, Callable[[int], None]]]:
        """The method in a temporary run directory, and a function that runs its iterations."""
        streams = Streams(0, self.device)
        deferred = DeferredChecks()
        job = replace(self.job, config=replace(self.job.config, budget=UNSPENT))
        with (
            deterministic(job.config.deterministic, self.device),
            tempfile.TemporaryDirectory(prefix="dfme-bench-") as folder,
            RunDirectory.create(Path(folder)) as directory,
        ):
            oracle = build_oracle(job, self.teacher, directory, {}, deferred)
            method = build_method(job, build_components(job, self.nets, oracle, streams, deferred))
            assert method.cost == self.queries
            method.prepare()
            with Recorder(directory.path, UNSPENT, {}, job.config.wandb, quiet=True) as recorder:
                parts = method, oracle, _NoExamination(), recorder, progress, deferred
                run = partial(loop.run, *parts, work=work.Work(job, method), points=1)

                def run_on(iterations: int) -> None:
                    left = iter(range(iterations - 1, -1, -1))
                    run(checkpoint_seconds=1e9, keep=lambda: None, stopped=lambda: next(left) == 0)

                yield method, run_on

    def bare(self, iterations: int) -> None:
        """The same passes without anything around them."""
        generator = self.nets.generator
        assert generator is not None
        z_BZ = torch.randn(self.batch, self.method_config.latent_size, device=self.device)
        x_BCHW = torch.rand(self.batch, *self.spec.shape, device=self.device)
        probes_NCHW = torch.cat([x_BCHW, x_BCHW])
        ones_BCHW = torch.ones_like(x_BCHW)
        ones_BK = torch.ones(self.batch, CLASSES, device=self.device)
        for _ in range(iterations):
            gen_op = generator(z_BZ)
            with torch.no_grad(), ieee_fp32():
                with arithmetic(
                    "tf32" if self.job.estimator.arithmetic == "tf32" else "ieee", self.device
                ):
                    self.student.eval()(probes_NCHW)
                self.teacher(probes_NCHW)
            _backward(generator, gen_op, ones_BCHW)
            self.student.train()
            for _ in range(self.method_config.student_steps):
                with torch.no_grad():
                    generator.squash(generator(z_BZ))
                    self.teacher(x_BCHW)
                for _ in range(1 + self.job.config.student.replay_steps):
                    in_bf16 = self.job.config.precision == "bf16"
                    with torch.autocast(self.device.type, torch.bfloat16, enabled=in_bf16):
                        scores_BK = self.student(x_BCHW)
                    _backward(self.student, scores_BK.float(), ones_BK)


def run_bench(config: BenchConfig) -> str:
    """Time every case; a Markdown table with machine and versions. UserError if unknown."""
    for name in config.cases:
        if name not in CASES:
            raise UserError(f"--cases: {unknown_choice('case', name, CASES)}")
        if config.against == "published" and CASES[name].replay_steps:
            fitting = ", ".join(name for name, case in CASES.items() if not case.replay_steps)
            raise UserError(
                f"--against published: it has no replay, {name} has; choose --cases {fitting}"
            )
    device = choose_device(config.device)
    options = ", ".join((config.precision, *config.options))
    head = (
        f"{device_name(device)}, {torch.get_num_threads()} threads, torch "
        f"{torch.__version__}, {options}"
    )
    columns = (
        f"case | batch | loop ms | {config.against} ms | queries/s | {config.against} / "
        "loop | log %"
    )
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(0)
        rows = [_row(name, config, device) for name in config.cases]
    return "\n".join([head, "", f"| {columns} |", f"|---{'|---:' * 6}|", *rows])


def _row(name: str, config: BenchConfig, device: torch.device) -> str:
    """One case's figures: medians over the rounds, and the log's share of the loop's time.

    On an accelerator that share includes the wait for what the steps before had queued.
    """
    work = Work(CASES[name], config, device)
    progress = loop.Progress()
    case = work.case
    other = work.bare
    if config.against == "published":
        other = PublishedLoop(
            work.spec, case.teacher, case.student, CLASSES, work.batch, device
        ).run
    with work.opened(progress) as (_, ours):
        seconds, other_seconds, ratio = time_in_turn(
            ours, other, config.rounds, config.seconds, device
        )
    figures = (
        f"{seconds * 1e3:.1f} | {other_seconds * 1e3:.1f} | "
        f"{work.queries / seconds:,.0f} | {ratio:.3f}"
    )
    return (
        f"| {name} | {work.batch} | {figures} | {100 * progress.logging / progress.seconds:.2f} |"
    )


def time_in_turn(
    ours: Callable[[int], None],
    other: Callable[[int], None],
    rounds: int,
    seconds: float,
    device: torch.device,
) -> tuple[float, float, float]:
    """Median seconds per iteration of both over ``rounds``, and the median ratio to ours.

    The two are timed in turn in every round; one timing takes about ``seconds``.
    """

    def timed(run: Callable[[int], None], iterations: int) -> float:
        started = clock(device)
        run(iterations)
        return (clock(device) - started) / iterations

    for run in (ours, other):
        run(WARM_UP if device.type == "cuda" else 1)
    iterations = max(1, round(seconds / min(timed(ours, 1), timed(other, 1))))
    pairs = [(timed(ours, iterations), timed(other, iterations)) for _ in range(rounds)]
    ours_seconds, other_seconds = map(statistics.median, zip(*pairs, strict=True))
    return ours_seconds, other_seconds, statistics.median(after / before for before, after in pairs)


def _backward(net: nn.Module, output: Tensor, upstream: Tensor) -> None:
    for parameter in net.parameters():
        parameter.grad = None
    output.backward(upstream)


def clock(device: torch.device) -> float:
    """Seconds, once the device has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
