"""What a row of a comparison is, and problems with a comparison's own options."""

import os
import re
import statistics
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from dfme.audits.compare.plan import OPTIONS, CompareConfig, ComparisonPlan, parse_attacker
from dfme.config.defences import parse_defences
from dfme.config.layers import Author, Layer
from dfme.config.messages import did_you_mean, nearest, unknown_choice
from dfme.config.settings import ExtractConfig, Job
from dfme.config.values import flatten, options_of
from dfme.config.yaml_files import load_yaml
from dfme.errors import Problem, Ref, UserError, flag
from dfme.methods import METHODS, SECTIONS, find_method
from dfme.oracle.ledger_log import read_history
from dfme.run.directory import RunDirectory, holds_something
from dfme.run.job import differing_keys, document, locate, plain
from dfme.run.recipes import Content, beaten, merged, names, shipped, tidy, variants_of, whole
from dfme.spec import LabelMode

OF_A_ROW = ("method", "student", "schedule", "when", *SECTIONS)
"""Sections in which a row may depart; everything else is the same for all."""

EQUAL = {"steps": "student_steps", "arch": "student.arch"}
"""Options of the student that no row may have of its own, and the key that sets them for all."""


class ComparisonFile(NamedTuple):
    """A comparison's or an audit's file: its ``own`` options, its rows, what all rows share, and
    on record the flags of all cells.
    """

    own: Layer
    rows: Content
    shared: Layer
    flags: Layer


def comparison_file(file: Layer, own: Iterable[str]) -> ComparisonFile:
    """The parts of a file with these ``own`` options. UserError if it is damaged."""
    content = dict(file.content)
    sections: dict[str, Content] = {}
    for name in ("rows", "overrides"):
        section = content.pop(name, None) or {}
        if not isinstance(section, Mapping):
            raise UserError(f"{file.file}: {name}: expected a mapping, got {section!r}")
        sections[name] = {str(key): value for key, value in section.items()}
    flags = {key.replace("-", "_"): value for key, value in sections["overrides"].items()}
    written = {name: content.pop(name) for name in [*content] if name in own}
    if "engine_options" in written:  # hosts to connect to, and what runs there
        raise UserError(
            f"{file.file}: engine_options: say --engine-options on the command line; a file cannot"
        )
    return ComparisonFile(
        replace(file, content=written),
        sections["rows"],
        Layer(Author.RECORD, content, file.file),
        Layer(Author.RECORD, flags, file.file),
    )


def row_contents(
    names: Iterable[str], rows: Mapping[str, Any], shared: Content, arch: str | None, file: str
) -> dict[str, Content]:
    """Complete recipe of each row; ``arch``: architecture that a flag names. UserError: all that is
    wrong.
    """
    student = shared.get("student", {})
    if arch and isinstance(student, dict):
        shared = shared | {"student": {**student, "arch": arch}}
    contents = {}
    problems = dict[str, None]()
    for name in names:
        try:
            contents[name] = row_content(name, rows, shared)
        except UserError as error:
            problems[f"{file}: {error}" if str(error).startswith("rows.") else str(error)] = None
    if problems:
        raise UserError("; ".join(problems))
    return contents


def row_content(row: str, rows: Mapping[str, Any], shared: Content) -> Content:
    """Complete recipe of a row, its method named; ``rows`` and ``shared`` come from the file.

    A row of a file, or with a ``recipe``, has that recipe's student, schedule, method and its
    sections, with the comparison's architecture and steps; a row written out departs from the
    shared recipe key by key; a method has its defaults. UserError for a row that is none, or that
    would make the comparison unfair.
    """
    content = rows.get(row)
    if content is None and (row in METHODS or ":" in row):
        content = {}
    elif content is None:
        if row not in shipped():
            choices = dict.fromkeys([*rows, *METHODS, *names()])
            raise UserError(
                unknown_choice("row, method or recipe", row, choices), about=Ref("methods")
            )
        return _of_recipe(row, load_yaml(shipped()[row]), shared)
    elif isinstance(content, str):
        if content not in shipped() and not os.path.isfile(locate(content)):
            raise UserError(
                f"rows.{row}: {unknown_choice('recipe, or its file', content, names())}"
            )
        return _of_recipe(row, load_yaml(shipped().get(content, locate(content))), shared)
    if not isinstance(content, Mapping):
        raise UserError(
            f"rows.{row}: expected sections such as method, or a recipe, got {content!r}"
        )
    if "recipe" in content:
        return _of_recipe(row, content, shared)
    departures = tidy(content)
    _require_fair(row, departures, shared)
    departures["method"] = _named(row, departures.get("method", {}))
    unheeded = {*SECTIONS} - {*find_method(departures["method"]["name"]).sections}
    return merged(
        {name: value for name, value in shared.items() if name not in unheeded}, departures
    )


def unequal(jobs: Mapping[str, Job]) -> str:
    """Options that differ between rows, methods' own aside: ``batch_size 64 (frugal: 32); lr
    0.1``.
    """
    by_row = {
        row: {**dict(flatten(document(job), ())), "student.variants": "; ".join(map(str, job.when))}
        for row, job in jobs.items()
    }
    keys = {"method.batch_size": None}
    for options in by_row.values():
        keys |= dict.fromkeys(key for key in options if key.startswith(("student.", "schedule.")))
    differences = []
    for key in keys:
        values = {row: str(options.get(key) or "none") for row, options in by_row.items()}
        usual = statistics.mode(values.values())
        others = [f"{row}: {value}" for row, value in values.items() if value != usual]
        if others:
            differences.append(f"{key.partition('.')[2]} {usual} ({', '.join(others)})")
    return "; ".join(differences)


def _of_recipe(row: str, given: Mapping[str, Any], shared: Content) -> Content:
    recipe = whole(tidy(given))
    student = recipe.get("student", {})
    if isinstance(student, dict):
        fixed = {
            name: value for name, value in _section(shared, "student").items() if name in EQUAL
        }
        recipe["student"] = {
            name: value for name, value in student.items() if name not in EQUAL
        } | fixed
    recipe["method"] = _named(row, recipe.get("method", {}))
    variants = variants_of(Layer(Author.RECIPE, recipe))
    recipe["when"] = plain(beaten(variants, [f"student.{name}" for name in EQUAL]), "when")
    equal = {name: value for name, value in shared.items() if name not in OF_A_ROW}
    return equal | {name: value for name, value in recipe.items() if name in OF_A_ROW}


def _require_fair(row: str, own: Content, shared: Content) -> None:
    for name in own:
        if name not in OF_A_ROW:
            raise UserError(
                f"rows.{row}.{name}: expected one of {', '.join(OF_A_ROW)}; the rest is "
                f"shared{did_you_mean(name, OF_A_ROW)}"
            )
    for name, key in EQUAL.items():
        value = _section(own, "student").get(name)
        if value is not None and value != _section(shared, "student").get(name):
            raise UserError(f"rows.{row}.student.{name}: is equal in every row; set {key} instead")
        if any(
            f"student.{name}" in variant.set for variant in variants_of(Layer(Author.RECIPE, own))
        ):
            raise UserError(f"rows.{row}.when: student.{name} is equal in every row; set {key}")


def _named(row: str, method: Any) -> Content:
    """The row's method section with the method's name: its own, or the row's."""
    if not isinstance(method, dict):
        raise UserError(f"rows.{row}.method: expected a method or its options, got {method!r}")
    if "name" not in method and row not in METHODS and ":" not in row:
        raise UserError(f"rows.{row}: expected method: {{name: ...}}, one of {', '.join(METHODS)}")
    name = str(method.get("name", row))
    try:
        find_method(name)
    except UserError as error:
        raise UserError(f"rows.{row}.{str(error).removeprefix('--')}") from error
    return {"name": name, **method}


def _section(content: Content, name: str) -> Content:
    section = content.get(name)
    return section if isinstance(section, dict) else {}


ELSEWHERE = {
    "budget": "budgets",
    "seed": "seeds",
    "teacher.label_mode": "label_modes",
    "teacher.defences": "defences",
    "answers": "answers",
    "student.steps": "student_steps",
    "until_agreement": "budgets, of which every row spends all",
    "minutes": "student_steps, since every row takes the same",
    "method": "methods and rows",
    "recipe": "methods and rows",
}
"""Options of a single run, and those of a comparison that say it instead."""


def own_problems(config: CompareConfig, rows: Sequence[str]) -> Iterator[Problem]:
    """Empty or doubled lists, and values that cannot be; ``rows`` are those of the file."""
    if not config.methods and not rows:
        yield Problem(
            "methods", f"expected rows to compare, such as {', '.join(METHODS)}, got none"
        )
    for row in config.methods or rows:
        if not re.fullmatch(r"[^\W_][\w.:-]*", row):
            yield Problem("methods", f"expected names of letters, digits, _ - . and :, got {row!r}")
    yield from _list_problems("methods", config.methods or rows)
    wanted = (
        "none with --engine local"
        if config.engine == "local"
        else "KEY=VALUE such as partition=gpu"
    )
    for text in config.engine_options:
        if config.engine == "local" or not all(text.partition("=")):
            yield Problem("engine_options", f"expected {wanted}, got {text!r}")
    yield from _list_problems("seeds", config.seeds)
    yield from _list_problems("budgets", config.budgets)
    yield from _list_problems("label_modes", config.label_modes, LabelMode.parse)
    for key, parse in (("defences", parse_defences), ("answers", parse_attacker)):
        try:
            yield from _list_problems(key, getattr(config, key), parse)
        except UserError as error:
            yield Problem(key, str(error))


def require_shared(layers: Iterable[Layer], own: Collection[str]) -> None:
    """UserError for options of a single run, and for flags that misspell one of these ``own``."""
    of_a_run = [option.key for option in options_of(ExtractConfig) if option.key not in ELSEWHERE]
    problems = []
    for layer in layers:
        for key, _ in flatten(layer.content, ()):
            section = key.partition(".")[0]
            instead = ELSEWHERE.get(section) or ELSEWHERE.get(key)
            if instead:
                problems.append(f"{layer.name_of(key)}: say {instead} in a comparison")
            elif layer.author is Author.FLAG and section == key:
                close = nearest(key, [*own, *of_a_run])
                if close and close in own:
                    problems.append(
                        f"{layer.name_of(key)}: unknown flag; did you mean {flag(close)}?"
                    )
    if problems:
        raise UserError("; ".join(problems))


def directory_of(
    out: str | None, resume: bool, name: str, file: str = OPTIONS, what: str = "a comparison"
) -> Path:
    """The directory of ``what``, which has this ``file``: new or empty, unless it is gone on
    with.
    """
    if out is None:
        if resume:
            raise UserError(
                f"--resume: expected --out as well: the directory of {what} to go on with"
            )
        return RunDirectory.free_name(Path("runs") / name)
    path = Path(out)
    if not out or (path.exists() and not path.is_dir()):
        raise UserError(f"--out: expected a directory, got {out!r}")
    if path.exists() and holds_something(path):
        if not resume:
            raise UserError(
                f"--out: {out!r} exists; give another --out, or --resume to go on with it"
            )
        if not (path / file).is_file():
            raise UserError(f"--out: expected the directory of {what}, but {out!r} has no {file}")
    return path


def require_same(plan: ComparisonPlan) -> None:
    """UserError for a cell begun with other values: it is neither resumed nor overwritten."""
    for cell in plan.cells:
        config = plan.directory(cell) / "config.yaml"
        keys = differing_keys(load_yaml(config, own=True), cell.job) if config.is_file() else []
        if keys and (keys := [key for key in keys if key not in _held_to_digests(config.parent)]):
            raise UserError(
                f"--resume: {config.parent} was run with other values of {', '.join(keys)}; leave "
                "those out, or choose another --out"
            )


def _held_to_digests(run_dir: Path) -> set[str]:
    """Keys of what a cell takes from files, which may have moved and are held to their digests."""
    ledger = run_dir / "ledger.jsonl"
    teacher = (read_history(ledger).teacher if ledger.is_file() else None) or {}
    from dfme.run.opening import may_have_moved

    return may_have_moved(run_dir) | {f"teacher.{name}" for name in teacher.get("files", ())}


def _list_problems(
    key: str, values: Sequence[Any], parse: Callable[[Any], Any] = str
) -> Iterator[Problem]:
    parsed = [parse(value) for value in values]
    twice = [value for value in values if parsed.count(parse(value)) > 1]
    if twice:
        yield Problem(key, f"expected each once, got {twice[0]} twice")
    if not values and key != "methods":
        yield Problem(key, "expected at least one, got none")
