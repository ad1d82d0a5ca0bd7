"""``run.py gradients``: which estimators are compared, on whose teacher, with which recipe's students."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

from dfme.benchmarks.gradients.candidates import CANDIDATES
from dfme.benchmarks.gradients.conditions import CONDITIONS
from dfme.benchmarks.gradients.options import EVERYTHING, GradientsConfig, require_local
from dfme.cli.arguments import CommandInputs, CommandLine
from dfme.cli.extract import RECIPE_ONLY, default_recipe
from dfme.cli.flags import Flag
from dfme.config.messages import unknown_choice
from dfme.config.options import build, leaves
from dfme.config.ranges import AT_LEAST_ONE, Problem, Rule
from dfme.config.settings import ExtractConfig, Job
from dfme.methods import METHODS, SECTIONS
from dfme.run.checks import find_problems, parse_count
from dfme.run.directory import holds_something
from dfme.spec import LabelMode

_SPREAD = Rule(lambda value: value >= 2, "at least 2, for a spread")
_RULES: dict[str, Rule] = {"batches": _SPREAD, "batch_size": AT_LEAST_ONE}
_OF_THE_RECIPE = {
    "budget",
    "seed",
    "device",
    "channels_last",
    "schedule",
    "student",
    "evaluation",
    "method",
    *SECTIONS,
}


def _recipe(flags: Sequence[Flag]) -> Path | None:
    """The digits' recipe where no teacher is named; --out names no run here."""
    return default_recipe([flag for flag in flags if flag.key != "out"])


LAYOUT = CommandInputs(GradientsConfig, teacher=True, method=True, recipe=_recipe, ignored=RECIPE_ONLY - _OF_THE_RECIPE)


def plan_of(asked: CommandLine) -> tuple[GradientsConfig, Job]:
    """The comparison's own settings, and the job whose teacher and students it is about.

    Raises:
        UserError: one line that names everything wrong.
    """
    require_local(asked.kind)
    reading = asked.read()
    try:
        reading.values["budget"] = parse_count(reading.value("budget"))
    except ValueError as error:
        reading.report([Problem("budget", str(error))])
        reading.values["budget"] = 1
    teacher, options = asked.teacher(reading)
    config = build(GradientsConfig, reading.values)
    recipe = build(ExtractConfig, {key: value for key, value in leaves(config).items() if key != "out"})
    entry = METHODS[asked.method]
    method = build(entry.config, reading.values, "method.")
    sections = {name: build(entry.section(name), reading.values, f"{name}.") for name in SECTIONS}
    job = Job(recipe, teacher, options, asked.method, method, **sections)
    reading.report(problems(config))
    reading.report(problem for problem in find_problems(job) if problem.key != "out")
    reading.report(_label_problems(teacher.label_mode))
    if not hasattr(method, "latent_size"):
        text = f"expected a method with a generator, whose gradients are measured here, got {asked.method}"
        reading.report([Problem("method.name", text)])
    reading.finish()
    return config, job


def problems(config: GradientsConfig) -> Iterator[Problem]:
    """Numbers out of range, unknown names, and a directory that holds something already."""
    for name, rule in _RULES.items():
        value = getattr(config, name)
        if not rule.holds(value):
            yield Problem(name, f"expected {rule.words}, got {value}")
    shares = config.stages
    if not shares or not all(0 <= share <= 1 for share in shares) or not all(a < b for a, b in pairwise(shares)):
        listed = ",".join(f"{share:g}" for share in shares)
        yield Problem("stages", f"expected increasing shares of the budget from 0 to 1, got {listed or 'none'}")
    yield from _unknown("conditions", "condition", config.conditions, [*EVERYTHING, *CONDITIONS])
    yield from _unknown("estimators", "row", config.estimators, [*EVERYTHING, *CANDIDATES])
    if config.out is not None:
        path = Path(config.out)
        if not config.out or (path.exists() and not (path.is_dir() and not holds_something(path))):
            yield Problem("out", f"expected a new or empty directory, got {config.out!r}; choose another --out")


def _unknown(key: str, what: str, names: Sequence[str], known: Sequence[str]) -> Iterator[Problem]:
    if not names:
        yield Problem(key, f"expected at least one {what}, got none")
    for name in names:
        if name not in known:
            yield Problem(key, unknown_choice(what, name, known))


def _label_problems(text: str | None) -> Iterator[Problem]:
    """Answers that no finite difference can use."""
    if text is not None and text.startswith("label") and LabelMode.parse(text).kind == "label":
        yield Problem("teacher.label_mode", "expected scores, whose differences are measured here, got label")
