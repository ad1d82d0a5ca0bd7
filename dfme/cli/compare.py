"""``run.py compare``: which rows, seeds, budgets and label modes, and what every cell of them is as a job."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from dfme.benchmarks.compare.plan import OPTIONS, ComparisonPlan, cells_of
from dfme.benchmarks.compare.rows import ELSEWHERE, Content, elsewhere_problems, own_problems, row_content, tidy
from dfme.benchmarks.options import CompareConfig
from dfme.cli import extract
from dfme.cli.arguments import Arguments, CommandInputs, asks_to_resume, read_recipe, resumed
from dfme.cli.flags import Flag, last_text, split_flags
from dfme.cli.teacher_side import check_teacher
from dfme.config.fields import parse_count
from dfme.config.messages import nearest
from dfme.config.settings import ExtractConfig, Job
from dfme.config.values import Option, options_of
from dfme.config.yaml_files import load_yaml
from dfme.errors import UserError
from dfme.methods import METHODS, SECTIONS
from dfme.run.directory import RunDirectory, holds_something
from dfme.run.job import PROJECT, differing_keys
from dfme.spec import LabelMode

SUMMARY = "run methods x seeds x budgets x label modes side by side: one table, one picture"
DEFAULT = PROJECT / "configs" / "compare_digits.yaml"

OWN = {option.key: option for option in options_of(CompareConfig)}
OF_RUNS = [option.key for option in options_of(ExtractConfig) if option.key not in ELSEWHERE]


def options(words: Sequence[str]) -> Iterable[Option]:
    """The comparison's own options, then those that all of its runs share."""
    flags = split_flags(words)
    file, content = read_recipe(flags, _recipe)
    _, _, _, shared = _parted(file, tidy(content))
    of_runs = [flag.word for flag in flags if flag.key not in OWN and flag.key != "config"]
    every = Arguments(of_runs, extract.INPUTS, (file, shared)).options
    taken = {*OWN, *ELSEWHERE, "wandb.name"}
    return [*OWN.values(), *(every[key] for key in every if key not in taken and not key.startswith("method."))]


def run(words: Sequence[str]) -> int:
    """Run what is not finished, and print the table."""
    plan = plan_of(words)
    for job in {cell.mode: cell.job for cell in plan.cells}.values():
        check_teacher(job.teacher, job.teacher_options)
    from dfme.benchmarks.compare.session import compare

    return compare(plan, tell=partial(print, file=sys.stderr, flush=True), show=print)


def plan_of(words: Sequence[str]) -> ComparisonPlan:
    """The comparison that the words after ``compare`` describe, every cell checked as far as that goes without torch.

    Raises:
        UserError: one line that names everything wrong.
    """
    flags = split_flags(words)
    typed = [flag for flag in flags if flag.key != "config"]
    file, content = read_recipe(flags, _recipe)
    rows, before, written, shared = _parted(file, tidy(content))
    config = _own(file, written, [flag for flag in typed if flag.key in OWN], tuple(rows))
    flags = [*before, *(flag for flag in typed if flag.key not in OWN)]
    _require_for_all(file, shared, flags)
    out = _out(config, file)
    names, modes = config.methods or tuple(rows), [str(LabelMode.parse(text)) for text in config.label_modes]
    contents = _contents(names, rows, _with_arch(shared, flags), file)
    jobs = _jobs(contents, modes, [*flags, Flag("student.steps", str(config.student_steps))], file)
    budgets = [parse_count(text) for text in config.budgets]
    plan = ComparisonPlan(
        out=out,
        student_steps=config.student_steps,
        jobs=config.jobs,
        cells=cells_of(jobs, config.seeds, budgets, out),
        options=_paper(config, names, rows, flags) | shared,
        command=("python", "run.py", "compare", *words),
    )
    _require_same(plan)
    return plan


def _recipe(flags: Sequence[Flag]) -> Path:
    """Without --config: a resumed comparison's own file, else the digits'."""
    if not asks_to_resume(flags):
        return DEFAULT
    return resumed(flags, OPTIONS, "the directory of the comparison", "the directory of a comparison")


def _parted(file: str, content: Content) -> tuple[Content, list[Flag], Content, Content]:
    """A comparison's file in its parts: rows, what beats all rows, the comparison's own keys, the shared recipe."""
    parts = {}
    for name in ("rows", "overrides"):
        parts[name] = content.pop(name, None) or {}
        if not isinstance(parts[name], Mapping):
            raise UserError(f"{file}: {name}: expected a mapping, got {parts[name]!r}")
    rows = {str(name): value for name, value in parts["rows"].items()}
    before = [Flag(str(key), str(value)) for key, value in parts["overrides"].items()]
    own = {name: value for name, value in content.items() if name in OWN}
    return rows, before, own, {name: value for name, value in content.items() if name not in OWN}


def _own(file: str, written: Content, flags: Sequence[Flag], rows: Sequence[str]) -> CompareConfig:
    """The comparison's own options. In a file a list may be a single value: ``seeds: 0``, ``budgets: 30k``."""
    listed = {name: _as_list(OWN[name], value) for name, value in written.items()}
    asked = Arguments([flag.word for flag in flags], CommandInputs(CompareConfig), (file, listed))
    config = asked.settings(CompareConfig)
    asked.finish(own_problems(config, rows))
    return config


def _as_list(option: Option, value: Any) -> Any:
    return [value] if isinstance(option.default, tuple) and isinstance(value, int | float) else value


def _require_for_all(file: str, shared: Content, flags: Sequence[Flag]) -> None:
    """UserError for options that a comparison says otherwise, and for flags whose nearest name is one of its own."""
    said = elsewhere_problems(shared, [flag.key for flag in flags])
    problems = [text if text.startswith("--") else f"{file}: {text}" for text in said]
    for flag in flags:
        close = nearest(flag.key, [*OWN, *OF_RUNS]) if "." not in flag.key else None
        if close in OWN and flag.key not in ELSEWHERE:
            problems.append(f"--{flag.name}: unknown flag; did you mean --{close.replace('_', '-')}?")
    if problems:
        raise UserError("; ".join(problems))


def _out(config: CompareConfig, file: str) -> Path:
    """The comparison's directory: new or empty, unless it is gone on with."""
    if config.out is None:
        if config.resume:
            raise UserError("--resume: expected --out as well: the directory of the comparison to go on with")
        return RunDirectory.free_name(Path("runs") / (Path(file).stem or "compare"))
    path = Path(config.out)
    if not config.out or (path.exists() and not path.is_dir()):
        raise UserError(f"--out: expected a directory, got {config.out!r}")
    if path.exists() and holds_something(path):
        if not config.resume:
            raise UserError(
                f"--out: {config.out!r} exists; give another --out, or --resume to go on with what is in it"
            )
        if not (path / OPTIONS).is_file():
            raise UserError(f"--out: expected the directory of a comparison, but {config.out!r} has no {OPTIONS}")
    return path


def _with_arch(shared: Content, flags: Sequence[Flag]) -> Content:
    """The shared recipe with the architecture that a flag names, which all rows are held to."""
    arch, student = last_text(flags, "student.arch"), shared.get("student", {})
    return shared | {"student": {**student, "arch": arch}} if arch and isinstance(student, dict) else shared


def _contents(names: Sequence[str], rows: Mapping[str, Any], shared: Content, file: str) -> dict[str, Content]:
    contents, problems = {}, []
    for name in names:
        try:
            contents[name] = row_content(name, rows, shared)
        except UserError as error:
            problems.append(f"{file}: {error}" if str(error).startswith("rows.") else str(error))
    if problems:
        raise UserError("; ".join(dict.fromkeys(problems)))
    return contents


def _jobs(
    contents: Mapping[str, Content], modes: Sequence[str], flags: Sequence[Flag], file: str
) -> dict[tuple[str, str], Job]:
    """A job per row and label mode. What is wrong with several of them is said once."""
    jobs: dict[tuple[str, str], Job] = {}
    problems: dict[str, dict[str, None]] = {}
    for mode in modes:
        for row, content in contents.items():
            others = set(SECTIONS) - set(METHODS[content["method"]["name"]].sections)
            words = [flag.word for flag in flags if flag.key.partition(".")[0] not in others]
            try:
                asked = Arguments([*words, f"--teacher.label-mode={mode}"], extract.INPUTS, (file, dict(content)))
                jobs[row, mode] = extract.job_of(asked)
            except UserError as error:
                problems.setdefault(str(error), {})[row] = None
    if problems:
        shown = [
            (text, "" if len(rows) == len(contents) else f"{', '.join(rows)}: ") for text, rows in problems.items()
        ]
        raise UserError("; ".join(rows + text for text, rows in shown))
    return jobs


def _paper(config: CompareConfig, names: Sequence[str], rows: Content, flags: Sequence[Flag]) -> Content:
    """The comparison's own part of its file, in which the flags of its runs stand as what beats every row."""
    lists = {key: list(getattr(config, key)) for key in ("seeds", "budgets", "label_modes")}
    overrides = {flag.key: "true" if flag.text is None else flag.text for flag in flags}
    numbers = {"student_steps": config.student_steps, "jobs": config.jobs}
    return {"methods": list(names), **lists, **numbers, "rows": rows, "overrides": overrides}


def _require_same(plan: ComparisonPlan) -> None:
    """UserError for a cell that was begun with other values: it is neither kept nor resumed, nor overwritten."""
    for cell in plan.cells:
        config = plan.directory(cell) / "config.yaml"
        if config.is_file() and (keys := differing_keys(load_yaml(config), cell.job)):
            raise UserError(
                f"--resume: {config.parent} was run with other values of {', '.join(keys)}; "
                "leave those changes out, or choose another --out"
            )
