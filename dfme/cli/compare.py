"""``run.py compare``: which rows, seeds, budgets and label modes, and what every cell of them is as
a job.
"""

import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from dfme import owner_side
from dfme.audits.compare.engines import EXTRAS
from dfme.audits.compare.plan import (
    OPTIONS,
    Attempt,
    Cell,
    CompareConfig,
    ComparisonPlan,
    own_options,
)
from dfme.audits.compare.plan import attempt as attempt_of
from dfme.audits.compare.rows import (
    ELSEWHERE,
    ComparisonFile,
    comparison_file,
    directory_of,
    own_problems,
    require_same,
    require_shared,
    row_contents,
)
from dfme.cli import extract
from dfme.cli.arguments import Arguments, CommandInputs
from dfme.cli.flags import Flag, asks_to_resume, read_file, resumed, split_flags, typed
from dfme.cli.main import main
from dfme.config.imports import find_target
from dfme.config.imports import own_options as parameters_of
from dfme.config.layers import Author, Layer, Settings, value_of
from dfme.config.settings import Job
from dfme.config.values import Option, options_of, read_value
from dfme.errors import UserError
from dfme.methods import SECTIONS, find_method
from dfme.owner_side import check_teacher, price_problems
from dfme.run.checks import find_problems, teacher_problems
from dfme.run.job import PACKAGE
from dfme.run.recipes import Content, fitted
from dfme.spec import LabelMode

SUMMARY = (
    "run methods x seeds x budgets x label modes, defences x attackers, side by side: one table"
)
DEFAULT = PACKAGE / "configs" / "compare_digits.yaml"
OWN = {option.key: option for option in options_of(CompareConfig)}


@dataclass(frozen=True)
class Row:
    """A row's job, of which its cells are variations, and who says each of its options."""

    job: Job
    settings: Settings


@dataclass(frozen=True)
class ComparisonBase:
    """The rows from which comparisons of one teacher are planned.

    ``record``: what the file of options has besides the comparison's own. ``command``: the words
    that asked for it. ``entry``: runs the words of a cell.
    """

    rows: Mapping[str, Row]
    record: Mapping[str, Any]
    command: tuple[str, ...]
    entry: Callable[[Sequence[str]], int]

    @property
    def job(self) -> Job:
        """A job whose teacher and evaluation are those of every row."""
        return next(iter(self.rows.values())).job

    def changed(self, change: Callable[[str, Job], Job]) -> "ComparisonBase":
        """The same with the job of every row changed."""
        rows = {name: replace(row, job=change(name, row.job)) for name, row in self.rows.items()}
        return replace(self, rows=rows)

    def plan(self, config: CompareConfig, out: Path) -> ComparisonPlan:
        """A comparison whose own options have been checked. UserError: all that is wrong."""
        names = config.methods or tuple(self.rows)
        cells = self._cells(config, names, out)
        options = {**own_options(config), "methods": list(names), **self.record}
        at_once = config.jobs or (len(cells) if config.engine in EXTRAS else 1)
        plan = ComparisonPlan(out, config, at_once, cells, options, self.command, self.entry)
        require_same(plan)
        return plan

    def _cells(self, config: CompareConfig, names: tuple[str, ...], out: Path) -> tuple[Cell, ...]:
        """All cells, the first seed of every row first: a table that is not finished is fair."""
        jobs = self._jobs(config, names)
        cells = []
        for seed, budget, (place, job) in product(config.seeds, config.budgets, jobs.items()):
            row, mode, attempt = place
            cell = Cell(row, mode, budget, seed, job, attempt)
            settings = replace(
                job.config,
                seed=seed,
                budget=budget,
                out=str(out / "cells" / cell.name),
                resume=False,
                wandb=replace(
                    job.config.wandb,
                    group=job.config.wandb.group or out.resolve().name,
                    name=cell.name,
                ),
            )
            cells.append(replace(cell, job=fitted(replace(job, config=settings))))
        return tuple(cells)

    def _jobs(
        self, config: CompareConfig, names: tuple[str, ...]
    ) -> dict[tuple[str, str, Attempt], Job]:
        """A job for each label mode, defence, attacker and row. What is wrong with several rows is
        said once.
        """
        jobs = {}
        problems: dict[str, list[str]] = {}
        for text, defence, answers in product(config.label_modes, config.defences, config.answers):
            mode = str(LabelMode.parse(text))
            attempt = attempt_of(defence, answers, mode)
            for name in names:
                row = self.rows[name]
                job = varied(row.job, mode, attempt, config.student_steps)
                jobs[name, mode, attempt] = job
                try:
                    row.settings.finish([*teacher_problems(job.teacher), *find_problems(job)])
                except UserError as error:
                    rows = problems.setdefault(str(error), [])
                    rows += [] if name in rows else [name]
        if problems:
            raise UserError(
                "; ".join(
                    text if len(rows) == len(names) else f"{', '.join(rows)}: {text}"
                    for text, rows in problems.items()
                )
            )
        return jobs


def varied(job: Job, mode: str, attempt: Attempt, student_steps: int) -> Job:
    """The job of a run that answers for a defence and an attacker, in one label mode."""
    student = replace(job.config.student, steps=student_steps)
    config = replace(job.config, student=student, answers=attempt.settings)
    job = with_teacher(replace(job, config=config), label_mode=mode)
    return job if attempt.defences is None else with_teacher(job, defences=attempt.defences)


def with_teacher(job: Job, **changes: Any) -> Job:
    """The job with other common options of its teacher.

    A custom teacher's parameters that are named like them get the same values.
    """
    options = dict(job.teacher_options)
    shared = changes.keys() & options.keys()
    if shared and ":" in job.teacher.kind:
        for option in parameters_of(find_target(job.teacher.kind), {}):
            if option.name in shared:
                options[option.name] = read_value(option, changes[option.name])[0]
    return replace(job, teacher=replace(job.teacher, **changes), teacher_options=options)


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
