"""``bench --suite gpu``: its rows, in the order of their worth, measured one by one and kept as they come."""

from __future__ import annotations

import gc
import json
import os
import platform
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, field
from functools import partial
from itertools import product
from pathlib import Path
from typing import NamedTuple

import torch
from pydantic import ValidationError
from pydantic.dataclasses import dataclass

from dfme import __version__
from dfme.benchmarks.gpu_figures import BARE, OURS, PLAIN, PUBLISHED, SAME, SLOPES, TIMES, Bench, Changes, Measured
from dfme.benchmarks.options import BenchConfig
from dfme.benchmarks.speed import CASES, Case
from dfme.compute import choose_device, device_name
from dfme.config.fields import CONFIG
from dfme.config.messages import printable
from dfme.config.values import reader
from dfme.errors import DfmeError, UserError
from dfme.files import open_file, write_text
from dfme.run.directory import RunDirectory
from dfme.run.job import PROJECT

DATA, REPORT = "gpu.json", "gpu.md"
MAX_BYTES = 1 << 20
NOTES = {
    "cuda": "Batches of 256, unless a row says otherwise. A bar is the least that its figure should be.",
    "cpu": "At toy size, on a CPU, to try the suite itself: these figures say nothing about a GPU; no bar is judged. "
    "CUDA graphs, and how often a step waits for the GPU, need CUDA.",
}

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
"""What is switched on alone, on top of ``PLAIN``."""
IEEE_PLAN: Changes = {"precision": "bf16", "channels_last": "yes", "graphs": True}
PLAN: Changes = {**IEEE_PLAN, **TF32}
COMPILED: Changes = {"compile": True}
PLANS: dict[str, tuple[Changes, float]] = {
    "all options but TF32": (IEEE_PLAN, 1.7),
    "all options and a bf16 teacher": ({**PLAN, **BF16_TEACHER}, 2.0),
}
"""What else is judged at ResNet's size, and how many times as fast as the published loop it should be."""
ARITHMETICS: dict[str, Changes] = {"IEEE fp32": {}, "TF32": TF32, "IEEE fp32, of a bf16 teacher": BF16_TEACHER}

RESNET, SMALL, MEDIUM = "ResNet-34-8x to 18-8x at 3x32x32", "small CNNs at 1x8x8", "small CNNs at 3x16x16"
LOOPS: dict[str, tuple[Case, float]] = {
    RESNET: (CASES["resnet"], 1.7),
    SMALL: (CASES["digits_paper"], 3.0),
    MEDIUM: (Case((3, 16, 16), "cnn_medium", "cnn_medium", 0, 256), 3.0),
    f"{SMALL}, four replay steps a batch": (CASES["digits"], 0.0),
    "DisGUIDE, three replay steps a batch": (CASES["resnet"]._replace(replay_steps=3, method="disguide"), 0.0),
}
"""How many times as fast as the published loop ours should be; 0: that one has no replay, so nothing is judged."""
CONVOLUTIONS = ((64, 32), (128, 16), (256, 8), (512, 4))
"""Channels and pixels of a ResNet's 3x3 convolutions."""


class Row(NamedTuple):
    """``bars``: the least that figures should be. ``seconds``: about how long it takes on a GPU."""

    name: str
    measure: Callable[[], Measured]
    bars: Mapping[str, float] = {}
    seconds: float = 12


def rows(bench: Bench) -> Iterator[Row]:
    """All rows, what is worth most first; last those that wait for a compiler."""

    def loop(
        name: str, options: str, changes: Changes, times: float = 0, against: str = PUBLISHED, batch: int = 256
    ) -> Row:
        """Our loop beside another; ``times``: as fast as that it should be."""
        bars = {TIMES + against: times, **({SLOPES: 0.9} if against == PUBLISHED else {})} if times else {}
        work = partial(bench.beside, LOOPS[name][0], changes, against, batch)
        seconds = 60 if "compile" in changes else 12
        return Row(f"{name}: our loop with {options}, in turn with {against}", work, bars, seconds)

    yield Row("Copy, and products of large matrices", bench.peaks, seconds=5)
    for name in (RESNET, SMALL, MEDIUM):
        yield loop(name, "all options", PLAN, LOOPS[name][1])
        yield loop(name, "all options", PLAN, 0.9, BARE)
    for options, (changes, times) in PLANS.items():
        yield loop(RESNET, options, changes, times)
    for name, (options, changes) in product((RESNET, SMALL), OPTIONS.items()):
        yield loop(name, f"{options} alone", {**PLAIN, **changes})
    plans: dict[str, Changes | None] = {PUBLISHED: None, OURS: PLAIN, "our loop with all options": PLAN}
    for name, (which, plan) in product((RESNET, SMALL), plans.items()):
        yield Row(f"{name}: an iteration of {which}, on the GPU", partial(bench.kernels, LOOPS[name][0], plan))
    for iterations, (name, changes) in product((5, 150), ARITHMETICS.items()):
        what = f"{RESNET}: correlation of differences in {name} with true slopes, after {iterations} iterations"
        work = partial(bench.slopes, LOOPS[RESNET][0], changes, iterations if bench.is_cuda else 1)
        yield Row(what, work, seconds=25)
    for name in (name for name, (_, times) in LOOPS.items() if not times):
        yield loop(name, "all options", PLAN, against=OURS)
    for batch in (64, 32):
        yield loop(RESNET, f"all options, batch {batch}", PLAN, batch=batch)
    for count in (1, 4, 8) if bench.is_cuda else (1, 2):
        yield Row(f"{SMALL}: {count} runs side by side, each a process", partial(bench.cells, count), seconds=35)
    killed = "A run that was killed and resumed, --deterministic, and one that was not"
    yield Row(killed, partial(bench.killed, "--deterministic"), {SAME: 1.0}, seconds=40)
    for channels, pixels in CONVOLUTIONS:
        what = f"3x3 convolution, {channels} channels at {pixels}x{pixels}, forward and backward"
        yield Row(what, partial(bench.convolution, channels, pixels), seconds=5)
    for options, changes in {"all options but TF32": IEEE_PLAN, "all options": PLAN}.items():
        yield loop(RESNET, f"{options} and torch.compile", {**changes, **COMPILED})


@dataclass(frozen=True, config=CONFIG)
class RowResult:
    """What a row gave. ``bars``: whether each is met, None where nothing is judged. ``error``: why it failed, if so."""

    name: str
    figures: dict[str, float]
    bars: dict[str, bool | None]
    seconds: float
    error: str = ""


@dataclass(frozen=True, config=CONFIG)
class Report:
    """All that the suite's file holds. ``made_on``: what all its rows share. ``missing``: rows not measured yet."""

    note: str
    made_on: dict[str, str]
    clocks: str
    date: str
    rows: list[RowResult] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)


def run_suite(config: BenchConfig, tell: Callable[[str], None]) -> None:
    """Measure all rows for which there is time, and keep them in --out; every row is told as it comes.

    UserError for a directory that is taken, or of another machine or version; DfmeError where nothing was measured.
    """
    # What cuBLAS has on an H100 anyway, and needs for --deterministic, before CUDA starts.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    device, deadline = choose_device(config.device), time.monotonic() + 60 * config.minutes
    out = Path(config.out) if config.out else RunDirectory.free_name(Path("runs") / "bench-gpu")
    report = _begun(device)
    found = _read(out / DATA, report) if config.resume else {}
    every = {row.name: row for row in rows(Bench(device))}
    with RunDirectory(out) if config.resume else RunDirectory.create(out):
        tell(_heading(report))
        for row in sorted(every.values(), key=lambda row: row.name in found):  # those that failed come last
            if time.monotonic() + row.seconds > deadline or (row.name in found and not found[row.name].error):
                continue
            found[row.name] = outcome(row, device)
            tell(_line(found[row.name]))
            report.rows[:] = [found[name] for name in every if name in found]
            report.missing[:] = [name for name in every if name not in found]
            write_text(out / DATA, json.dumps(asdict(report), indent=1, allow_nan=False) + "\n")
            write_text(out / REPORT, markdown(report))
    if len(found) < len(every):
        tell(f"\n{len(every) - len(found)} rows are left: run.py bench --suite gpu --resume --out {out}")
    if all(each.error for each in found.values()):
        raise DfmeError(f"{out}: nothing could be measured; give more --minutes, or see why in {REPORT}")


def outcome(row: Row, device: torch.device) -> RowResult:
    """Measure one row. Whatever goes wrong is on record, and the next row finds the memory free."""
    started, figures, error, cuda = time.monotonic(), Measured(), "", device.type == "cuda"
    try:
        with torch.random.fork_rng([device] if cuda else []):
            torch.manual_seed(0)
            figures = row.measure()
        json.dumps(figures, allow_nan=False)
    except Exception as problem:  # out of memory, no compiler, a kernel that is not there: no reason to stop
        error = f"{type(problem).__name__}: {' '.join(str(problem).split())[:300]}"
    torch.compiler.reset()
    gc.collect()
    if cuda:
        torch.cuda.empty_cache()
    bars = judged(row.bars, figures if cuda and not error else {})
    return RowResult(row.name, {} if error else figures, bars, round(time.monotonic() - started, 1), error)


def judged(bars: Mapping[str, float], figures: Measured) -> dict[str, bool | None]:
    """Whether each figure reaches its bar; None for one that is not there."""
    return {f"{name} >= {bar:g}": figures[name] >= bar if name in figures else None for name, bar in bars.items()}


def markdown(report: Report) -> str:
    """The table of all rows, under what it was made on."""
    missing = [f"\nNot measured yet: {'; '.join(report.missing)}."] if report.missing else []
    return "\n".join([_heading(report), *map(_line, report.rows), *missing, ""])


def _heading(report: Report) -> str:
    facts = [f"{name} {value}" for name, value in (*report.made_on.items(), ("clocks", report.clocks)) if value]
    return f"{', '.join(facts)}, {report.date}\n\n{report.note}\n\n| row | figures | bars | s |\n|---|---|---|---:|"


def _line(each: RowResult) -> str:
    figures = "; ".join(f"{name} {value:,.4g}" for name, value in each.figures.items())
    text = f"failed: {each.error}".replace("|", "/") if each.error else figures
    words = {True: "met", False: "missed", None: "not judged"}
    bars = "; ".join(f"{bar}: {words[met]}" for bar, met in each.bars.items())
    return printable(f"| {each.name} | {text} | {bars} | {each.seconds:.1f} |")


def _begun(device: torch.device) -> Report:
    """A report without rows."""
    cuda, asked = device.type == "cuda", "driver_version,clocks.sm,clocks.max.sm,clocks.mem,power.limit"
    driver, _, clocks = (said(f"nvidia-smi --format=csv,noheader --query-gpu={asked}") if cuda else "").partition(", ")
    facts = {
        "machine": device_name(device),
        "driver": driver,
        "cores": str(os.cpu_count()),
        "Python": platform.python_version(),
        "torch": torch.__version__,
        "CUDA": f"{torch.version.cuda}, cuDNN {torch.backends.cudnn.version()}" if cuda else "",
        "dfme": __version__,
        "commit": said("git describe --always --dirty") if (PROJECT / ".git").exists() else "",
    }
    return Report(NOTES[device.type], facts, clocks, time.strftime("%Y-%m-%d %H:%M %Z"))


def said(command: str) -> str:
    """The first line that a program says; empty where there is none, or it fails."""
    program, *words = command.split()
    try:
        done = subprocess.run([program, *words], cwd=PROJECT, capture_output=True, text=True, timeout=20)  # noqa: S603
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return "" if done.returncode else done.stdout.partition("\n")[0].strip()


def _read(path: Path, now: Report) -> dict[str, RowResult]:
    """The outcomes so far, by row. UserError for a file that is none of ours, or of another machine or version."""
    try:
        with open_file(path) as file:
            before: Report = reader(Report).validate_json(file.read(MAX_BYTES))
    except (OSError, ValidationError) as error:
        raise UserError(f"--out {path.parent}: expected a suite to go on with, but its {DATA} is none") from error
    for name, value in now.made_on.items():
        if (other := before.made_on.get(name, "")) != value:
            text = f"--out {path.parent}: measured with {name} {other or 'unknown'}, and this is {value or 'unknown'}"
            raise UserError(f"{text}; choose another --out")
    return {each.name: each for each in before.rows}
