"""``research.bench --suite gpu``: rows measured one by one, and kept as they come."""

from __future__ import annotations

import gc
import json
import os
import platform
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from dfme import __version__
from dfme.benchmarks.audit.facts import commit, first_line
from dfme.compute import choose_device, device_name
from dfme.config.messages import printable
from dfme.errors import DfmeError, UserError
from dfme.files import write_text
from dfme.run.directory import RunDirectory
from research.gpu_rows import Bench, Measured, Row, rows
from research.options import BenchConfig

DATA = "gpu.json"
REPORT = "gpu.md"
NOTES = {
    "cuda": "Batches of 256, unless a row says otherwise. A bar is the least that its figure should be.",
    "cpu": "At toy size, on a CPU, to try the suite itself: these figures say nothing about a GPU; no bar is judged. "
    "CUDA graphs need CUDA.",
}

Report = dict[str, Any]
"""Content of the suite's file. ``made_on``: facts that all rows share. ``missing``: rows not measured yet."""
RowResult = dict[str, Any]
"""A row of it. ``bars``: None where nothing is judged. ``error``: the reason of a failure, or empty."""


def run_suite(config: BenchConfig) -> None:
    """Measure all rows for which there is time, keep them in --out, and print every row as it comes.

    UserError for a directory that is taken, or of another machine or version; DfmeError where nothing was measured.
    """
    # What cuBLAS has on an H100 anyway, and needs for --deterministic, before CUDA starts.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    device = choose_device(config.device)
    deadline = time.monotonic() + 60 * config.minutes
    out = Path(config.out) if config.out else RunDirectory.free_name(Path("runs") / "bench-gpu")
    report = _new_report(device)
    results = _read(out / DATA, report["made_on"]) if config.resume else {}
    planned = {row.name: row for row in rows(Bench(device))}
    with RunDirectory(out) if config.resume else RunDirectory.create(out):
        print(_heading(report), flush=True)
        for row in sorted(planned.values(), key=lambda row: row.name in results):  # those that failed come last
            is_done = row.name in results and not results[row.name]["error"]
            if is_done or time.monotonic() + row.seconds > deadline:
                continue
            results[row.name] = outcome(row, device)
            print(_line(results[row.name]), flush=True)
            report["rows"] = [results[name] for name in planned if name in results]
            report["missing"] = [name for name in planned if name not in results]
            write_text(out / DATA, json.dumps(report, indent=1, allow_nan=False) + "\n")
            write_text(out / REPORT, markdown(report))
    if len(results) < len(planned):
        command = f"python -m research.bench --suite gpu --resume --out {out}"
        print(f"\n{len(planned) - len(results)} rows are left: {command}")
    if all(result["error"] for result in results.values()):
        raise DfmeError(f"{out}: nothing could be measured; give more --minutes, or see why in {REPORT}")


def outcome(row: Row, device: torch.device) -> RowResult:
    """Measure one row. An error of any kind is on record, and the next row finds the memory free."""
    started = time.monotonic()
    gpus = [device] if device.type == "cuda" else []
    figures: Measured = {}
    error = ""
    try:
        with torch.random.fork_rng(gpus):
            torch.manual_seed(0)
            figures = row.measure()
        json.dumps(figures, allow_nan=False)
    except Exception as problem:  # out of memory, no compiler, a kernel that is not there: no reason to stop
        error = f"{type(problem).__name__}: {' '.join(str(problem).split())[:300]}"
        figures = {}
    torch.compiler.reset()
    gc.collect()
    if gpus:
        torch.cuda.empty_cache()
    bars = judged(row.bars, figures if gpus else {})
    seconds = round(time.monotonic() - started, 1)
    return {"name": row.name, "figures": figures, "bars": bars, "seconds": seconds, "error": error}


def judged(bars: Mapping[str, float], figures: Measured) -> dict[str, bool | None]:
    """True for a figure that reaches its bar, False for one that does not, None for one that is not there."""
    return {f"{name} >= {bar:g}": figures[name] >= bar if name in figures else None for name, bar in bars.items()}


def markdown(report: Report) -> str:
    """The table of all rows, under the facts that it was made on."""
    missing = [f"\nNot measured yet: {'; '.join(report['missing'])}."] if report["missing"] else []
    return "\n".join([_heading(report), *map(_line, report["rows"]), *missing, ""])


def _heading(report: Report) -> str:
    named = [*report["made_on"].items(), ("clocks", report["clocks"])]
    facts = ", ".join(f"{name} {value}" for name, value in named if value)
    return f"{facts}, {report['date']}\n\n{report['note']}\n\n| row | figures | bars | s |\n|---|---|---|---:|"


def _line(result: RowResult) -> str:
    text = "; ".join(f"{name} {value:,.4g}" for name, value in result["figures"].items())
    if result["error"]:
        text = f"failed: {result['error']}".replace("|", "/")
    words = {True: "met", False: "missed", None: "not judged"}
    bars = "; ".join(f"{bar}: {words[met]}" for bar, met in result["bars"].items())
    return printable(f"| {result['name']} | {text} | {bars} | {result['seconds']:.1f} |")


def _new_report(device: torch.device) -> Report:
    query = "nvidia-smi --format=csv,noheader --query-gpu=driver_version,clocks.sm,clocks.max.sm,clocks.mem,power.limit"
    driver, _, clocks = (first_line(query) if device.type == "cuda" else "").partition(", ")
    cuda = f"{torch.version.cuda}, cuDNN {torch.backends.cudnn.version()}" if driver else ""
    facts = {"machine": device_name(device), "driver": driver, "cores": str(os.cpu_count())}
    facts |= {"Python": platform.python_version(), "torch": torch.__version__, "CUDA": cuda}
    facts |= {"dfme": __version__, "commit": commit()}
    date = time.strftime("%Y-%m-%d %H:%M %Z")
    return {"note": NOTES[device.type], "made_on": facts, "clocks": clocks, "date": date, "rows": [], "missing": []}


def _read(path: Path, made_on: Mapping[str, str]) -> dict[str, RowResult]:
    """The results by row. UserError for a file that no suite wrote, or of another machine or version."""
    try:
        report = json.loads(path.read_bytes())
        results = {result["name"]: result for result in report["rows"]}
        list(map(_line, results.values()))
        before = dict(report["made_on"])
    except (OSError, LookupError, TypeError, ValueError, AttributeError) as error:
        raise UserError(f"--out {path.parent}: expected a suite to go on with, but its {DATA} is none") from error
    for name, value in made_on.items():
        other = before.get(name) or "unknown"
        if other != (value or "unknown"):
            text = f"--out {path.parent}: measured with {name} {other}, and this is {value or 'unknown'}"
            raise UserError(f"{text}; choose another --out")
    return results
