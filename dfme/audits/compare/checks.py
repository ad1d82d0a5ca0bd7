"""Problems with a comparison's own options, and with single-run options that a comparison replaces."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from dfme.audits.compare.attackers import parse_attacker
from dfme.audits.compare.plan import OPTIONS, CompareConfig, ComparisonPlan
from dfme.config.defences import parse_defences
from dfme.config.fields import parse_count
from dfme.config.messages import Problem
from dfme.config.yaml_files import load_yaml
from dfme.errors import UserError
from dfme.methods import METHODS
from dfme.run.directory import RunDirectory, holds_something
from dfme.run.job import differing_keys
from dfme.spec import LabelMode

ELSEWHERE = {
    "budget": "budgets",
    "seed": "seeds",
    "teacher.label_mode": "label_modes",
    "teacher.defences": "defences",
    "answers": "answers",
    "student.steps": "student_steps",
    "until_agreement": "budgets, of which every row spends all",
    "method": "methods and rows",
    "recipe": "methods and rows",
    "dry_run": "run.py extract --dry-run of one row; nothing is planned",
}
"""Options of a single run, and those of a comparison that say it instead."""


def own_problems(config: CompareConfig, rows: Sequence[str]) -> Iterator[Problem]:
    """Empty or doubled lists, and values that cannot be; ``rows`` are those of the file."""
    if not config.methods and not rows:
        yield Problem("methods", f"expected rows to compare, such as {', '.join(METHODS)}, got none")
    for row in config.methods or rows:
        if not _is_name(row):
            yield Problem("methods", f"expected names of letters, digits, _ - . and :, got {row!r}")
    yield from _list_problems("methods", config.methods or rows)
    wanted = "none with --engine local" if config.engine == "local" else "KEY=VALUE such as partition=gpu"
    for text in config.engine_options:
        if config.engine == "local" or not all(text.partition("=")):
            yield Problem("engine_options", f"expected {wanted}, got {text!r}")
    yield from _list_problems("seeds", config.seeds)
    yield from _list_problems("budgets", config.budgets, parse_count)
    yield from _list_problems("label_modes", config.label_modes, LabelMode.parse)
    for key, parse in (("defences", parse_defences), ("answers", parse_attacker)):
        try:
            yield from _list_problems(key, getattr(config, key), parse)
        except UserError as error:
            yield Problem(key, str(error))


def elsewhere_problems(shared: Mapping[str, Any], flags: Sequence[str]) -> Iterator[str]:
    """Keys of a file and of flags that belong to a single run."""
    for section, value in shared.items():
        keys = [section, *(f"{section}.{name}" for name in (value if isinstance(value, Mapping) else ()))]
        yield from (f"{key}: say {ELSEWHERE[key]} in a comparison" for key in keys if key in ELSEWHERE)
    for key in flags:
        section = key.partition(".")[0]
        known = section if section in ("method", "answers") else key
        if known in ELSEWHERE:
            yield f"--{key.replace('_', '-')}: say {ELSEWHERE[known]} in a comparison"


def directory_of(
    out: str | None, resume: bool, name: str, file: str = OPTIONS, what: str = "a comparison"
) -> Path:
    """The directory of ``what``, which has this ``file``: new or empty, unless it is gone on with."""
    if out is None:
        if resume:
            raise UserError(f"--resume: expected --out as well: the directory of {what} to go on with")
        return RunDirectory.free_name(Path("runs") / name)
    path = Path(out)
    if not out or (path.exists() and not path.is_dir()):
        raise UserError(f"--out: expected a directory, got {out!r}")
    if path.exists() and holds_something(path):
        if not resume:
            remedy = "give another --out, or --resume to go on with what is in it"
            raise UserError(f"--out: {out!r} exists; {remedy}")
        if not (path / file).is_file():
            raise UserError(f"--out: expected the directory of {what}, but {out!r} has no {file}")
    return path


def require_same(plan: ComparisonPlan) -> None:
    """UserError for a cell begun with other values: it is neither resumed nor overwritten."""
    for cell in plan.cells:
        config = plan.directory(cell) / "config.yaml"
        if config.is_file() and (keys := differing_keys(load_yaml(config, own=True), cell.job)):
            raise UserError(
                f"--resume: {config.parent} was run with other values of {', '.join(keys)}; "
                "leave those changes out, or choose another --out"
            )


def _list_problems(key: str, values: Sequence[Any], parse: Callable[[Any], Any] = str) -> Iterator[Problem]:
    parsed = [parse(value) for value in values]
    twice = next((value for value, it in zip(values, parsed, strict=True) if parsed.count(it) > 1), None)
    if twice is not None:
        yield Problem(key, f"expected each once, got {twice} twice")
    if not parsed and key != "methods":
        yield Problem(key, "expected at least one, got none")


def _is_name(row: str) -> bool:
    """True if a row's name can be a part of a directory's."""
    return all(letter.isalnum() or letter in "_-.:" for letter in row) and row[:1].isalnum()
