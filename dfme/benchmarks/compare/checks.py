"""What is wrong with a comparison's own options, and with options of a single run where a comparison has others."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from dfme.benchmarks.options import CompareConfig
from dfme.config.fields import parse_count
from dfme.config.messages import Problem
from dfme.methods import METHODS
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
    if not config.methods and not rows:
        yield Problem("methods", f"expected rows to compare, such as {', '.join(METHODS)}, got none")
    for row in config.methods or rows:
        if not _is_name(row):
            yield Problem("methods", f"expected names of letters, digits, _ - and ., got {row!r}")
    yield from _list_problems("methods", config.methods or rows)
    yield from _list_problems("seeds", config.seeds)
    yield from _list_problems("budgets", config.budgets, parse_count)
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


def _list_problems(key: str, values: Sequence[Any], parse: Callable[[Any], Any] = str) -> Iterator[Problem]:
    parsed = [parse(value) for value in values]
    twice = next((value for value in parsed if parsed.count(value) > 1), None)
    if twice is not None:
        yield Problem(key, f"expected each once, got {twice} twice")
    if not parsed and key != "methods":
        yield Problem(key, "expected at least one, got none")


def _is_name(row: str) -> bool:
    """Whether a row's name can be a part of a directory's."""
    return all(letter.isalnum() or letter in "_-." for letter in row) and row[:1].isalnum()
