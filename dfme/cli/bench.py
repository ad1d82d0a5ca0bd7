"""``run.py bench``: time the loop against the bare kernels of the same work, or all that a GPU is to show."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

from dfme.benchmarks.options import BenchConfig
from dfme.cli.arguments import Arguments, CommandInputs
from dfme.config.messages import Problem
from dfme.config.values import options_of
from dfme.run.checks import fresh_directory_problems

SUMMARY = "time the loop against the bare kernels of the same work; --suite gpu: measure everything of a GPU"
INPUTS = CommandInputs(BenchConfig)
OF_THE_SUITE = ("minutes", "out", "resume")


def run(words: Sequence[str]) -> int:
    """Time, and print the tables."""
    asked = Arguments(words, INPUTS)
    config = asked.settings(BenchConfig)
    asked.finish(_problems(config, asked.says))
    if config.suite == "gpu":
        from dfme.benchmarks.gpu_suite import run_suite

        run_suite(config, partial(print, flush=True))
        return 0
    from dfme.benchmarks.speed import run_bench

    print(run_bench(config))
    return 0


def _problems(config: BenchConfig, says: Callable[[str], bool]) -> Iterator[Problem]:
    """Options that are the suite's, or everybody else's, alone; a directory that is taken, or not named."""
    for key in (option.key for option in options_of(BenchConfig) if says(option.key)):
        if key in OF_THE_SUITE and config.suite == "none":
            yield Problem(key, "of effect with --suite gpu alone; add that, or leave it out")
        elif key not in (*OF_THE_SUITE, "suite", "device") and config.suite != "none":
            yield Problem(key, f"of no effect with --suite {config.suite}; leave it out")
    if config.resume and config.out is None:
        yield Problem("resume", "expected --out as well: the directory of the suite to go on with")
    if config.suite != "none" and not config.resume:
        yield from fresh_directory_problems(config.out)
