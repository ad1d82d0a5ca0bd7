"""``run.py audit``: what a copy of a model costs, what raises that price, and whether it would be
noticed.
"""

import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

from dfme import owner_side
from dfme.audits.audit.accounts import recording
from dfme.audits.audit.ladder import HAVING_LIKE
from dfme.audits.audit.options import (
    ON_REQUEST,
    OPTIONS,
    PROFILES,
    SERVICE,
    AuditConfig,
    held_back,
    ladder_left_out,
    modes_of,
    own_problems,
    usual,
)
from dfme.audits.audit.parts import NotRun
from dfme.audits.audit.plan import AuditPlan, Second
from dfme.audits.audit.result import Halves
from dfme.audits.audit.rows import (
    PublicStudent,
    RowLimits,
    divided,
    images_shape,
    limits_of,
    public_student,
    quick_on_large,
    scored_in_rounds,
    with_half,
    with_pool,
)
from dfme.audits.compare.plan import (
    AS_IT_IS,
    NO_DEFENCE,
    CompareConfig,
    ComparisonPlan,
    own_options,
)
from dfme.audits.compare.rows import EQUAL, ComparisonFile, comparison_file, directory_of
from dfme.audits.compare.rows import own_problems as compare_problems
from dfme.cli import compare
from dfme.cli.flags import Flag, asks_to_resume, read_file, resumed, split_flags, typed
from dfme.cli.verify import recognition_problems
from dfme.config.defences import DETECTORS, NEED_FEATURES
from dfme.config.layers import Layer, value_of
from dfme.config.settings import EvaluationConfig
from dfme.config.values import Option, flatten, options_of
from dfme.data import has_train_part, whole_name
from dfme.errors import Problem, UserError
from dfme.run.job import PACKAGE
from dfme.run.recipes import Content, with_variants
from dfme.spec import LabelMode, Shape

SUMMARY = (
    "say what a copy of a model costs, which switch raises that price, whether one would notice"
)
OWN = {option.key: option for option in options_of(AuditConfig)}
Planned = Callable[[CompareConfig], ComparisonPlan]
FOREIGN = {
    "methods": "--attackers",
    "budgets": "--budget",
    "answers": "nothing: an audit tries several",
    "format": "nothing: an audit's pictures are in its page",
}
"""Options of a comparison, and what an audit says in their place."""
ANSWERS = ("auto", "kl", "table", "label")
"""Attackers of each defence, as of run.py compare; those that cannot be are left out with their
reason.
"""


def options(words: Sequence[str]) -> Iterable[Option]:
    """The audit's own options, then those that all of its attacks share."""
    return compare.with_shared(words, OWN, _file(split_flags(words)))


def run(words: Sequence[str]) -> int:
    """Run what is not finished, and write the page."""
    plan = plan_of(words)
    owner_side.check_teacher(plan.job.teacher, plan.job.teacher_options)
    from dfme.audits.audit.session import audit, dry_run
    from dfme.report.terminal import StatusLine, columns, print_harmless

    owner = owner_side.owner_of(plan.job, plan.owner_evaluation)
    if plan.config.dry_run:
        print(dry_run(plan, owner))
        return 0
    return audit(plan, owner, StatusLine(sys.stderr), print_harmless, columns(sys.stdout))


def plan_of(words: Sequence[str]) -> AuditPlan:
    """The audit that the words after ``audit`` describe. UserError: one line that names everything
    wrong.
    """
    flags = split_flags(words)
    file = comparison_file(_file(flags), OWN)
    asked = compare.own_arguments(AuditConfig, file, flags)
    config: AuditConfig = asked.config
    of_cells = [flag for flag in flags if flag.key not in (*OWN, "config")]
    layers = [file.shared, file.flags, typed(of_cells)]
    public = public_student(file.flags, typed(of_cells))
    kind = str(value_of(layers, "teacher.kind") or "torch")
    away = _away(kind, config)
    if not asked.settings.gives("budget"):
        asked.report(owner_side.price_problems(kind, "budget"))
    foreign = (
        Problem(flag.key, f"unknown flag; say {FOREIGN[flag.key]}")
        for flag in flags
        if flag.key in FOREIGN
    )
    asked.finish(
        [
            *own_problems(config, away),
            *recognition_problems(config.references, config.marks, kind),
            *foreign,
        ]
    )
    out = directory_of(config.out, config.resume, "audit", OPTIONS, "an audit")
    modes = modes_of(config, value_of(layers, "teacher.label_mode"))
    config = replace(config, label_modes=tuple(modes))
    settled, not_run = usual(config, away, public.weights is not None)
    asked.finish(_compared_problems(settled, file.shared))
    dataset = whole_name(str(value_of(layers, "evaluation.dataset") or "none"))
    watch, blind = ({}, []) if away else _watch(kind, dataset)
    blind = [] if value_of(layers, "teacher.watch") else blind
    teacher = {"label_mode": config.label_modes[0], **watch}
    base = _base(settled, file, of_cells, public, ("python", "run.py", "audit", *words), teacher)
    with _rows_as_attackers():  # before any image is read; not in out, which may have other cells
        base.plan(comparison(settled, settled.attackers, settled.label_modes), out / "whole")
    shape = images_shape(base.job)
    settled, halves, lacking = _halved(
        settled, config, replace(base.job.config.evaluation, dataset=dataset)
    )
    if halves:
        base = base.changed(partial(with_half, dataset=dataset))
    limits = limits_of(config, halves, shape)
    settled, too_long = quick_on_large(settled, limits.side)
    planned = partial(base.plan, out=out)
    first, unrecorded = recording(
        _attacks(settled, limits, planned), settled, shape, _says(layers, "record_queries")
    )
    second = partial(_second, settled, limits, first, planned, shape)
    of_rows = [limits.of(settled, row) for row in settled.attackers]
    settled = max(of_rows, key=lambda options: options.budget)
    tried, unfit = _tried(settled, away, second)
    settled = replace(settled, defences=tried)
    not_run += ladder_left_out(settled, limits.side)
    return AuditPlan(
        config=settled,
        first=first,
        second=second if tried else None,
        options={**own_options(config), **base.record},
        local=not away,
        not_run=(*not_run, *lacking, *blind, *unfit, *too_long, *unrecorded),
        planned=planned,
        halves=halves,
        side=limits.side,
    )


def _says(layers: Sequence[Layer], key: str) -> bool:
    """Whether somebody gives this option."""
    return value_of(layers, key) is not None


def _base(
    config: AuditConfig,
    file: ComparisonFile,
    flags: Sequence[Flag],
    public: PublicStudent,
    command: tuple[str, ...],
    teacher: Content,
) -> compare.ComparisonBase:
    """The rows of the attackers, each with the weights and the pictures that it has."""
    flags = [flag for flag in flags if flag.key != "teacher.label_mode"]
    having, free = divided(config.attackers)
    without = file._replace(flags=file.flags.without(*public.said))
    fewer = [flag for flag in flags if flag.key not in public.said]
    rows = dict[str, compare.Row]()
    with _rows_as_attackers():
        base = compare.base_of(having or free, file, flags, command, teacher, OWN)
        for names, source, given in ((free, without, fewer), (having, file, flags)):
            if names:
                rows |= compare.base_of(names, source, given, command, teacher, OWN).rows
    rows = {row: rows[row] for row in config.attackers}
    if problems := [*public.problems(config, {name: row.job for name, row in rows.items()})]:
        raise UserError(*problems)
    base = replace(base, rows=rows).changed(scored_in_rounds)
    return base.changed(partial(with_pool, pool=config.pool, public_pool=config.public_pool))


@contextmanager
def _rows_as_attackers() -> Iterator[None]:
    """A comparison calls its rows methods."""
    try:
        yield
    except UserError as error:
        raise UserError(re.sub("(--)?methods: ", "--attackers: ", str(error), count=1)) from None


def _halved(
    settled: AuditConfig, config: AuditConfig, on: EvaluationConfig
) -> tuple[AuditConfig, Halves | None, list[NotRun]]:
    """The options, the facts of the halves, and what is left out where an attacker cannot have
    one.
    """
    if config.pool is not None:
        return settled, None, []
    lacking = "--like-images none" if config.like_images == "none" else "--attackers names others"
    having = [row for row in settled.attackers if row in HAVING_LIKE]
    halves, why = held_back(on) if having else (None, lacking)
    if halves:
        return settled, halves, []
    if having and config.attackers:
        raise UserError(
            f"--attackers: expected --pool as well, the images that {having[0]} asks: {why}"
        )
    free = tuple(row for row in settled.attackers if row not in HAVING_LIKE)
    not_run = [NotRun("somebody with images like yours", why)]
    return replace(settled, attackers=free), None, not_run


def _attacks(config: AuditConfig, limits: RowLimits, planned: Planned) -> ComparisonPlan:
    """Attackers and label modes, each attacker with no more images than it has."""
    plans = [
        planned(comparison(of_rows, rows, config.label_modes))
        for of_rows, rows in limits.groups(config, config.attackers)
    ]
    cells = tuple(cell for plan in plans for cell in plan.cells)
    return replace(plans[0], cells=cells)


def _second(
    config: AuditConfig,
    limits: RowLimits,
    first: ComparisonPlan,
    planned: Planned,
    shape: Shape | None,
    row: str,
    defences: Sequence[str],
) -> ComparisonPlan:
    """The comparison of a row's attackers against these defences, after the ``first``."""
    asked = comparison(
        limits.of(config, row),
        [row],
        config.label_modes[:1],
        [NO_DEFENCE, *defences],
        _answers(first, row, shape),
    )
    return _sharing(replace(planned(asked), stem="defences"), first)


def _answers(first: ComparisonPlan, row: str, shape: Shape | None) -> tuple[str, ...]:
    """Attackers of each defence; without ``kl`` where ``auto`` is the same for images of this
    shape.
    """
    job = next(cell.job for cell in first.cells if cell.row == row)
    mode = LabelMode.parse(job.teacher.label_mode or "probabilities")
    alike = shape is not None and with_variants(job, mode, shape)[0].config.student.loss == "kl"
    return tuple(answers for answers in ANSWERS if not (alike and answers == "kl"))


def _sharing(second: ComparisonPlan, first: ComparisonPlan) -> ComparisonPlan:
    """The second comparison, whose undefended attackers by labels are the first one's on labels."""
    places = {
        (cell.row, cell.seed, cell.budget): cell for cell in first.cells if cell.mode == "label"
    }
    cells = []
    for cell in second.cells:
        first_cell = places.get((cell.row, cell.seed, cell.budget))
        attempt = cell.attempt
        on_labels = attempt.runs == NO_DEFENCE and attempt.answers == "label"
        is_rounded = LabelMode.parse(cell.mode).decimals is not None
        if first_cell and on_labels and not attempt.reason and not is_rounded:
            cell = replace(cell, job=first_cell.job, run=first_cell.name)
        cells.append(cell)
    return replace(second, cells=tuple(cells))


def comparison(
    config: AuditConfig,
    rows: Sequence[str],
    modes: Sequence[str],
    defences: Sequence[str] = (NO_DEFENCE,),
    answers: Sequence[str] = (AS_IT_IS,),
) -> CompareConfig:
    """The options of one of an audit's comparisons."""
    axes = (
        tuple(rows),
        config.seeds,
        (config.budget,),
        tuple(modes),
        tuple(defences),
        tuple(answers),
    )
    return CompareConfig(
        *axes,
        student_steps=config.student_steps,
        jobs=config.jobs,
        engine=config.engine,
        engine_options=config.engine_options,
        retries=config.retries,
    )


def _compared_problems(config: AuditConfig, shared: Layer) -> Iterator[Problem]:
    """Problems that a comparison would find in an audit's options, and what recipes do not heed of
    a file.
    """
    for key, _ in flatten(shared.content, ()):
        if key.startswith(("student.", "schedule.")) and key.partition(".")[2] not in EQUAL:
            yield Problem(
                key, "expected this flag: attackers that are recipes do not heed a file's section"
            )
    defences = [NO_DEFENCE, *(text for text in config.defences if text != NO_DEFENCE)]
    compared = comparison(config, config.attackers, config.label_modes, defences)
    for problem in compare_problems(compared, ()):
        yield replace(problem, key="attackers") if problem.key == "methods" else problem


def _away(kind: str, config: AuditConfig) -> str:
    """Why defences and detectors are not measured of a teacher of this kind; nothing where they
    are.
    """
    if kind in owner_side.KINDS:
        return "" if owner_side.KINDS[kind].is_local else SERVICE
    return "" if config.own_teacher == "local" else ON_REQUEST


def _file(flags: Sequence[Flag]) -> Layer:
    """File of --config; without, that of the audit being resumed, or the one that comes with
    dfme.
    """

    def find(flags: Sequence[Flag]) -> Path:
        if asks_to_resume(flags):
            return resumed(flags, OPTIONS, "the directory of an audit")
        return PACKAGE / "configs" / OPTIONS

    return read_file(flags, find)


def _watch(kind: str, dataset: str) -> tuple[Content, list[NotRun]]:
    """Options that let every detector which teacher and data can feed see what the cells ask; the
    others.
    """
    if dataset == "none":
        return {}, []
    blind = NEED_FEATURES if kind != "torch" or not has_train_part(dataset) else ()
    why = (
        "their means are of a labelled train part (train_images, train_labels), which "
        f"{dataset} has not"
    )
    lacking = [NotRun(f"detectors {', '.join(blind)}", why)] if blind and kind == "torch" else []
    return {"watch": [name for name in DETECTORS if name not in blind], "benign": dataset}, lacking


def _tried(config: AuditConfig, away: str, second: Second) -> tuple[tuple[str, ...], list[NotRun]]:
    """The defences that are tried, and those of a profile that this teacher, or a missing key,
    rules out.
    """
    if away:
        return (), []
    if LabelMode.parse(config.label_modes[0]).kind == "label":
        return (), [
            NotRun("defences", "the teacher answers labels alone: there are no scores to defend")
        ]
    fits = []
    not_run = []
    asked = [text for text in config.defences if text != NO_DEFENCE]
    for text in asked if config.defences else PROFILES[config.profile].defences:
        unset = [name for name in re.findall(r"key_env=(\w+)", text) if not os.environ.get(name)]
        try:
            if unset:
                raise UserError(f"it needs a key: set the variable {unset[0]} to a random one")
            for cell in second(config.attackers[0], [text]).cells:
                owner_side.check_teacher(cell.job.teacher, cell.job.teacher_options)
        except UserError as error:
            if config.defences:
                raise
            not_run.append(NotRun(f"defence {text}", str(error)))
        else:
            fits.append(text)
    return tuple(fits), not_run
