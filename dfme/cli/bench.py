"""``run.py bench``: time the loop against the bare kernels of the same work."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from dfme.benchmarks.options import BenchConfig
from dfme.cli import teacher_side
from dfme.cli.arguments import Arguments, CommandInputs
from dfme.cli.extract import parse_extract

SUMMARY = "time the loop against the bare kernels of the same work"
INPUTS = CommandInputs(BenchConfig)


def run(words: Sequence[str]) -> int:
    """Time, and print the tables."""
    config = Arguments(words, INPUTS).settings(BenchConfig, lambda config: ())
    kernels = tuple(case for case in config.cases if case != "http")
    if kernels:
        from dfme.benchmarks.speed import run_bench

        print(run_bench(replace(config, cases=kernels)))
    if kernels != config.cases:
        print(teacher_side.http_ratios(config, parse_extract(["--budget", "60k"])))
    return 0
