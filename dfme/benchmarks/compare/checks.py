"""What is wrong with a comparison's own options, and with options of a single run where a comparison has others."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from dfme.config.commands import CompareConfig
from dfme.config.ranges import AT_LEAST_ONE, SEED, Problem
from dfme.errors import UserError
from dfme.methods import METHODS
from dfme.run.checks import parse_count
from dfme.spec import LabelMode

ELSEWHERE = {
    "budget": "budgets",
    "seed": "seeds",
    "teacher.label_mode": "label_modes",
    "student.steps": "student_steps",
    "method": "methods and rows",
}
"""Options of a single run, and those of a comparison that say it instead."""


def own_problems(config: CompareConfig, rows: Sequence[str]) -> Iterator[Problem]:
    """Empty or doubled lists, and values that cannot be; ``rows`` are those of the file."""
    for key in ("student_steps", "jobs"):
        if not AT_LEAST_ONE.holds(getattr(config, key)):
            yield Problem(key, f"expected {AT_LEAST_ONE.words}, got {getattr(config, key)}")
    if not config.methods and not rows:
        yield Problem("methods", f"expected rows to compare, such as {', '.join(METHODS)}, got none")
    yield from _list_problems("methods", config.methods or rows, _name)
    yield from _list_problems("seeds", config.seeds, _seed)
    yield from _list_problems("budgets", config.budgets, _budget)
    yield from _list_problems("label_modes", config.label_modes, LabelMode.parse)


def elsewhere_problems(shared: Mapping[str, Any], flags: Sequence[str]) -> Iterator[str]:
    """Keys of a file and of flags that belong to a single run."""
    for section, value in shared.items():
        keys = [section, *(f"{section}.{name}" for name in (value if isinstance(value, Mapping) else ()))]
        yield from (f"{key}: say {ELSEWHERE[key]} in a comparison" for key in keys if key in ELSEWHERE)
    for key in flags:
        known = "method" if key.startswith("method.") else key
        if known in ELSEWHERE:
            yield f"--{key.replace('_', '-')}: say {ELSEWHERE[known]} in a comparison"


def _list_problems(key: str, values: Sequence[Any], parse: Callable[[Any], Any]) -> Iterator[Problem]:
    try:
        parsed = [parse(value) for value in values]
    except (ValueError, UserError) as error:
        yield Problem(key, str(error).removeprefix("label mode: "))
        return
    twice = next((value for value in parsed if parsed.count(value) > 1), None)
    if twice is not None:
        yield Problem(key, f"expected each once, got {twice} twice")
    if not parsed and key != "methods":
        yield Problem(key, "expected at least one, got none")


def _seed(seed: int) -> int:
    if not SEED.holds(seed):
        raise ValueError(f"expected {SEED.words} each, got {seed}")
    return seed


def _budget(text: str) -> int:
    count = parse_count(text)
    if not AT_LEAST_ONE.holds(count):
        raise ValueError(f"expected {AT_LEAST_ONE.words} each, got {text}")
    return count


def _name(row: str) -> str:
    """A row's name, which is part of a directory's."""
    if not all(letter.isalnum() or letter in "_-." for letter in row) or not row[:1].isalnum():
        raise ValueError(f"expected names of letters, digits, _ - and ., got {row!r}")
    return row
