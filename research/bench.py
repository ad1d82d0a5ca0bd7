"""Time the loop of dfme against the bare kernels of the same work, or measure everything of a GPU."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dfme.cli.arguments import Arguments, CommandInputs
from dfme.config.messages import Problem
from dfme.config.values import options_of
from dfme.run.checks import fresh_directory_problems
from research.options import BenchConfig
from research.script import run_script

SUMMARY = "time the loop against the bare kernels of the same work; --suite gpu: measure everything of a GPU"
INPUTS = CommandInputs(BenchConfig)
OF_THE_SUITE = ("minutes", "out", "resume")


def run(words: Sequence[str]) -> None:
    """Time, and print the tables. UserError: one line that names everything wrong."""
    arguments = Arguments(words, INPUTS)
    config = arguments.settings(BenchConfig)
    named = [option.key for option in options_of(BenchConfig) if arguments.says(option.key)]
    arguments.finish(_problems(config, named))
    if config.suite == "gpu":
        from research.gpu_suite import run_suite

        run_suite(config)
    else:
        from research.speed import run_bench

        print(run_bench(config))


def _problems(config: BenchConfig, named: Sequence[str]) -> Iterator[Problem]:
    """Options of the suite without it, other options with it, and a directory that is taken or not named."""
    for key in named:
        if key in OF_THE_SUITE and config.suite == "none":
            yield Problem(key, "of effect with --suite gpu alone; add that, or leave it out")
        elif key not in (*OF_THE_SUITE, "suite", "device") and config.suite != "none":
            yield Problem(key, f"of no effect with --suite {config.suite}; leave it out")
    if config.resume and config.out is None:
        yield Problem("resume", "expected --out as well: the directory of the suite to go on with")
    if config.suite != "none" and not config.resume:
        yield from fresh_directory_problems(config.out)


if __name__ == "__main__":
    raise SystemExit(run_script("bench", SUMMARY, INPUTS, run))
