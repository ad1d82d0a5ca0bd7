"""What a row of a comparison is, the shared recipe and where the row departs from it; and what options are wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from dfme.benchmarks.options import CompareConfig
from dfme.config.fields import parse_count
from dfme.config.messages import Problem, did_you_mean, unknown_choice
from dfme.config.yaml_files import load_yaml
from dfme.errors import UserError
from dfme.methods import METHODS, SECTIONS
from dfme.run.job import locate
from dfme.spec import LabelMode

Content = dict[str, Any]
"""A recipe as its file gives it, section by section."""

OF_A_ROW = ("method", "student", "schedule", *SECTIONS)
"""Sections in which a row may depart; everything else is the same for all."""

EQUAL = {"steps": "student_steps", "arch": "student.arch"}
"""Options of the student that no row may have of its own, and the key of the comparison that sets them for all."""


def tidy(content: Mapping[str, Any]) -> Content:
    """Sections as mappings, names with underscores: ``student.lr: 1`` is ``student: {lr: 1}``."""
    result: Content = {}
    for key, value in content.items():
        section, dotted, name = str(key).replace("-", "_").partition(".")
        if dotted:
            value = {name: value}
        if section == "method" and isinstance(value, str):  # short for its name
            value = {"name": value}
        if isinstance(value, Mapping) and isinstance(result.get(section, {}), dict):
            inner = {str(each).replace("-", "_"): item for each, item in value.items()}
            result[section] = result.get(section, {}) | inner
        else:
            result[section] = value
    return result


def row_content(row: str, rows: Mapping[str, Any], shared: Content) -> Content:
    """The complete recipe of a row, its method named; ``rows`` and ``shared`` are as the comparison's file has them.

    A row of a file has that file's student, schedule, method and its sections, with the comparison's architecture and
    steps; a row written out departs from the shared recipe key by key; a method has its defaults.

    Raises:
        UserError: for a row that is none, or that would make the comparison unfair.
    """
    given = rows.get(row)
    if isinstance(given, str):
        return _by_file(row, given, shared)
    if given is None:
        if row not in METHODS:
            raise UserError(f"methods: {unknown_choice('row or method', row, dict.fromkeys([*rows, *METHODS]))}")
        given = {}
    if not isinstance(given, Mapping):
        raise UserError(f"rows.{row}: expected sections such as method, or a recipe's file, got {given!r}")
    own = tidy(given)
    _require_fair(row, own, shared)
    own["method"] = _named(row, own.get("method", {}))
    heeded = METHODS[own["method"]["name"]].sections
    kept = {name: value for name, value in shared.items() if name not in SECTIONS or name in heeded}
    return _merged(kept, own)


def _by_file(row: str, file: str, shared: Content) -> Content:
    recipe = tidy(load_yaml(locate(file)))
    student = recipe.get("student", {})
    if isinstance(student, dict):
        fixed = {name: value for name, value in _section(shared, "student").items() if name in EQUAL}
        recipe["student"] = {name: value for name, value in student.items() if name not in EQUAL} | fixed
    recipe["method"] = _named(row, recipe.get("method", {}))
    equal = {name: value for name, value in shared.items() if name not in OF_A_ROW}
    return equal | {name: value for name, value in recipe.items() if name in OF_A_ROW}


def _require_fair(row: str, own: Content, shared: Content) -> None:
    for name in own:
        if name not in OF_A_ROW:
            hint = did_you_mean(name, OF_A_ROW)
            raise UserError(f"rows.{row}.{name}: expected one of {', '.join(OF_A_ROW)}; the rest is shared{hint}")
    student = own.get("student", {})
    for name, key in EQUAL.items():
        value = student.get(name) if isinstance(student, dict) else None
        if value is not None and value != _section(shared, "student").get(name):
            raise UserError(f"rows.{row}.student.{name}: is equal in every row of a comparison; set {key} instead")


def _named(row: str, method: Any) -> Content:
    """The row's method section with the method's name: its own, or the row's."""
    if not isinstance(method, dict):
        raise UserError(f"rows.{row}.method: expected a method or its options, got {method!r}")
    if "name" not in method and row not in METHODS:
        raise UserError(f"rows.{row}: expected method: {{name: ...}}, one of {', '.join(METHODS)}")
    name = str(method.get("name", row))
    if name not in METHODS:
        raise UserError(f"rows.{row}.method.name: {unknown_choice('method', name, METHODS)}")
    return {"name": name, **method}


def _merged(below: Content, above: Content) -> Content:
    """Both, section by section; what stands above wins."""
    result = dict(below)
    for name, value in above.items():
        under = result.get(name)
        result[name] = {**under, **value} if isinstance(under, dict) and isinstance(value, dict) else value
    return result


def _section(content: Content, name: str) -> Content:
    section = content.get(name)
    return section if isinstance(section, dict) else {}


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
    for row in config.methods or rows:  # a row's name is a part of a directory's
        if not (all(letter.isalnum() or letter in "_-." for letter in row) and row[:1].isalnum()):
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
