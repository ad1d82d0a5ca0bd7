"""Time the loop of dfme against the bare kernels of the same work, or against the published
loop.
"""

from collections.abc import Sequence

from dfme.cli.arguments import CommandInputs, arguments_of
from research.options import BenchConfig
from research.script import run_script

SUMMARY = "time the loop against the bare kernels of the same work, or against the published loop"
INPUTS = CommandInputs(BenchConfig)


def run(words: Sequence[str]) -> None:
    """Time, and print the table. UserError: one line that names everything wrong."""
    arguments = arguments_of(words, INPUTS)
    config: BenchConfig = arguments.config
    arguments.finish([])
    from research.speed import run_bench

    print(run_bench(config))


if __name__ == "__main__":
    raise SystemExit(run_script("bench", SUMMARY, INPUTS, run))
