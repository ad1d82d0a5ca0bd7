"""``run.py compare``: which rows, seeds, budgets and label modes, and what every cell of them is as
a job.
"""

import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from dfme import owner_side
from dfme.audits.compare.base import ComparisonBase, Row
from dfme.audits.compare.plan import OPTIONS, CompareConfig, ComparisonPlan
from dfme.audits.compare.rows import (
    ELSEWHERE,
    ComparisonFile,
    comparison_file,
    directory_of,
    own_problems,
    require_shared,
    row_contents,
)
from dfme.cli import extract
from dfme.cli.arguments import Arguments, CommandInputs
from dfme.cli.flags import Flag, asks_to_resume, read_file, resumed, split_flags, typed
from dfme.cli.main import main
from dfme.config.layers import Author, Layer, value_of
from dfme.config.values import Option, options_of
from dfme.errors import UserError
from dfme.methods import SECTIONS, find_method
from dfme.owner_side import check_teacher, price_problems
from dfme.run.job import PACKAGE
from dfme.run.recipes import Content

SUMMARY = (
    "run methods x seeds x budgets x label modes, defences x attackers, side by side: one table"
)
DEFAULT = PACKAGE / "configs" / "compare_digits.yaml"
OWN = {option.key: option for option in options_of(CompareConfig)}


def options(words: Sequence[str]) -> Iterable[Option]:
    """The comparison's own options, then those that all of its runs share."""
    return with_shared(words, OWN, read_file(split_flags(words), _recipe))


def with_shared(words: Sequence[str], own: Mapping[str, Option], file: Layer) -> list[Option]:
    """Options of a command's ``own``, then those that all of the cells of its ``file`` share."""
    flags = [flag for flag in split_flags(words) if flag.key not in own]
    every = Arguments(flags, extract.INPUTS, [comparison_file(file, own).shared]).options
    elsewhere = {*own, *ELSEWHERE, "wandb.name"}
    return [
        *own.values(),
        *(
            option
            for key, option in every.items()
            if key not in elsewhere and key.partition(".")[0] not in ("method", "answers")
        ),
    ]


def run(words: Sequence[str]) -> int:
    """Run what is not finished, and print the table."""
    plan = plan_of(words)
    job = plan.cells[0].job  # whose teacher is every cell's
    check_teacher(job.teacher, job.teacher_options)
    plan = replace(plan, bills={} if plan.config.dry_run else _bills(plan))
    from dfme.audits.compare.session import compare
    from dfme.report.terminal import StatusLine, columns, print_harmless

    return compare(plan, StatusLine(sys.stderr), print_harmless, columns(sys.stdout))


def _bills(plan: ComparisonPlan) -> dict[str, Mapping[str, Any]]:
    """Cost of every stack of defences to honest users; empty without defences or honest images."""
    job = plan.cells[0].job
    stacks = [
        *dict.fromkeys(cell.attempt.stack for cell in plan.cells if cell.attempt.stack != "none")
    ]
    if not stacks or job.config.evaluation.dataset == "none":
        return {}
    tell = partial(print, "honest users:", file=sys.stderr)
    if job.teacher.kind not in owner_side.KINDS:
        tell(
            "not measured of a teacher of your own; run.py utility --own-teacher local measures it"
        )
        return {}
    texts = [tuple(stack.split("+")) for stack in stacks]
    return {bill.defence: bill.to_json() for bill in owner_side.owner_of(job).bills(texts, tell)}


def plan_of(words: Sequence[str]) -> ComparisonPlan:
    """Build the comparison described after ``compare``, and check every cell without torch."""
    flags = split_flags(words)
    file = comparison_file(read_file(flags, _recipe), OWN)
    arguments = own_arguments(CompareConfig, file, flags)
    config: CompareConfig = arguments.config
    arguments.finish(own_problems(config, tuple(file.rows)))
    of_cells = [flag for flag in flags if flag.key not in (*OWN, "config")]
    if file.own.author is Author.SHIPPED and not any(flag.key == "budgets" for flag in flags):
        kind = str(value_of([file.shared, file.flags, typed(of_cells)], "teacher.kind") or "")
        for problem in price_problems(kind, "budgets"):
            raise UserError(f"--budgets: {problem.text}")
    out = directory_of(config.out, config.resume, Path(file.own.file).stem or "compare")
    command = ("python", "run.py", "compare", *words)
    return base_of(
        config.methods, file, of_cells, command, {"label_mode": config.label_modes[0]}, OWN
    ).plan(config, out)


def base_of(
    methods: Sequence[str],
    file: ComparisonFile,
    flags: Sequence[Flag],
    command: tuple[str, ...],
    teacher: Content,
    own: Collection[str],
) -> ComparisonBase:
    """The rows of a file, or those that ``methods`` names, with these flags of all cells.

    ``teacher``: options of the teacher where the user says nothing. ``own``: options of the command
    itself. What is wrong with a row's options is said once its cells are planned; UserError for
    what is no row.
    """
    require_shared([file.shared, file.flags, typed(flags)], own)
    arch = value_of([file.flags, typed(flags)], "student.arch")
    names = methods or tuple(file.rows)
    rows = {}
    contents = row_contents(names, file.rows, dict(file.shared.content), arch, file.own.file)
    for name, content in contents.items():
        unheeded = {*SECTIONS} - {*find_method(content["method"]["name"]).sections}
        layers = [
            Layer(Author.DEFAULT, {"teacher": teacher}),
            Layer(Author.RECORD, {**content, "recipe": name}, file.own.file),
            file.flags.without(*unheeded),
        ]
        heeded = [flag for flag in flags if flag.key.partition(".")[0] not in unheeded]
        arguments = Arguments(heeded, extract.INPUTS, layers)
        rows[name] = Row(arguments.job(extract.settled(arguments)), arguments.settings)
    overrides = dict(file.flags.content)
    for flag in flags:
        overrides[flag.key] = "true" if flag.text is None else flag.text
    return ComparisonBase(
        rows, {"rows": file.rows, "overrides": overrides, **file.shared.content}, command, main
    )


def _recipe(flags: Sequence[Flag]) -> Path:
    """Without --config: a resumed comparison's own file, else the digits'."""
    if asks_to_resume(flags):
        return resumed(flags, OPTIONS, "the directory of a comparison")
    return DEFAULT


def own_arguments(model: type[Any], file: ComparisonFile, flags: Sequence[Flag]) -> Arguments:
    """A command's own options. In a file a list may be a single value: ``seeds: 0``, ``budgets:
    30k``.
    """
    lists = {option.key: isinstance(option.default, tuple) for option in options_of(model)}
    content = {
        name: [value] if lists[name] and isinstance(value, int | float) else value
        for name, value in file.own.content.items()
    }
    return Arguments(
        [flag for flag in flags if flag.key in lists],
        CommandInputs(model),
        [replace(file.own, content=content)],
    )
