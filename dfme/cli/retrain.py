"""``run.py retrain``: whose answers a fresh student learns from, and how."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from dfme.cli.arguments import CommandInputs, CommandLine
from dfme.cli.extract import RECIPE_ONLY
from dfme.cli.flags import Flag, last_text
from dfme.config.commands import RetrainConfig
from dfme.config.options import build, leaves
from dfme.config.ranges import Problem, out_of_range
from dfme.config.settings import ExtractConfig
from dfme.run.checks import device_problems, evaluation_problems, net_problems, schedule_problems
from dfme.run.directory import holds_something

OWN = {field.name for field in dataclasses.fields(RetrainConfig)} - {"run", "out"}


def _recipe(flags: Sequence[Flag]) -> Path | None:
    """The configuration of the run that paid for the answers."""
    written = Path(last_text(flags, "run") or "") / "config.yaml"
    return written if written.is_file() else None


LAYOUT = CommandInputs(RetrainConfig, recipe=_recipe, ignored=(RECIPE_ONLY | {"teacher"}) - OWN)


def plan_of(asked: CommandLine) -> RetrainConfig:
    """What to train, on what, and where to.

    Raises:
        UserError: one line that names everything wrong.
    """
    reading = asked.read()
    config = build(RetrainConfig, {"run": "", **reading.values})
    reading.report(_problems(config))
    reading.finish()
    return config


def settings(config: RetrainConfig) -> ExtractConfig:
    """The part of a run's settings that its student's training heeds."""
    own = {key: value for key, value in leaves(config).items() if key not in ("run", "out")}
    return build(ExtractConfig, own)


def _problems(config: RetrainConfig) -> Iterator[Problem]:
    yield from out_of_range(leaves(config))
    yield from device_problems(config.device)
    yield from net_problems("student.arch", config.student.arch)
    yield from schedule_problems(config.schedule)
    yield from evaluation_problems(config.evaluation)
    run = Path(config.run)
    if not run.is_dir() or not (run / "config.yaml").is_file():
        yield Problem("run", f"expected a run directory, but {config.run!r} has no config.yaml")
    if config.out is not None:
        out = Path(config.out)
        if not config.out or (out.exists() and not (out.is_dir() and not holds_something(out))):
            yield Problem("out", f"expected a new or empty directory, got {config.out!r}; choose another --out")


def table(summary: Mapping[str, Any], out: Path) -> str:
    """What came of it, beside what the run itself had come to."""
    source = summary["source"]
    shares = [
        (label, f"{summary[name]:.2%}" + (f" (the run's own student: {source[name]:.2%})" if source.get(name) else ""))
        for label, name in (("student accuracy", "accuracy"), ("agreement", "agreement"))
        if summary.get(name) is not None
    ]
    votes = [("agreement of the vote", f"{summary['vote_agreement']:.2%}")] if "vote_agreement" in summary else []
    rows = [
        ("answers", f"{summary['answers']:,} of {source['run']} ({source['method']}); no query was asked"),
        ("student", f"{summary['student_arch']}, {summary['student_steps']:,} steps"),
        *([] if summary["teacher_accuracy"] is None else [("teacher accuracy", f"{summary['teacher_accuracy']:.2%}")]),
        *shares,
        *votes,
        ("time", f"{summary['wall_seconds']:,.1f} s"),
        ("weights", str(out / "student.safetensors")),
    ]
    width = max(len(label) for label, _ in rows)
    return "\n".join(f"{label:<{width}}  {value}" for label, value in rows)
