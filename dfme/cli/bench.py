"""``run.py bench``: time the loop against the bare kernels of the same work."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from dfme.benchmarks.options import BenchConfig
from dfme.cli import teacher_side
from dfme.cli.arguments import Arguments, CommandInputs
from dfme.cli.extract import parse_extract
from dfme.config.settings import Job, TeacherConfig

SUMMARY = "time the loop against the bare kernels of the same work"
INPUTS = CommandInputs(BenchConfig)


def run(words: Sequence[str]) -> int:
    """Time, and print the tables."""
    asked = Arguments(words, INPUTS)
    config = asked.settings(BenchConfig)
    asked.finish()
    kernels = tuple(case for case in config.cases if case != "http")
    if kernels:
        from dfme.benchmarks.speed import run_bench

        print(run_bench(replace(config, cases=kernels)))
    if kernels != config.cases:
        job = parse_extract(["--budget", "60k"])
        print(teacher_side.http_ratios(job, config.rounds, partial(_seconds, job)))
    return 0


def _seconds(job: Job, teacher: TeacherConfig, options: dict[str, Any], out: Path) -> float:
    """How long the job takes from another teacher."""
    from dfme.run.build import run_job

    one = replace(job, config=replace(job.config, out=str(out)), teacher=teacher, teacher_options=options)
    return float(run_job(one, console=False).summary["wall_seconds"])
