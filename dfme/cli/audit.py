"""``run.py audit``: what a copy of a model costs, what raises that price, and whether it would be noticed."""

from __future__ import annotations

import copy
import os
import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from typing import Any

from dfme.benchmarks.audit.options import (
    ON_REQUEST,
    OPTIONS,
    PROFILES,
    SERVICE,
    AuditConfig,
    AuditPlan,
    Second,
    modes_of,
    own_problems,
    usual,
)
from dfme.benchmarks.compare.attackers import AS_IT_IS, NO_DEFENCE
from dfme.benchmarks.compare.checks import directory_of
from dfme.benchmarks.compare.plan import ComparisonPlan
from dfme.cli import compare, teacher_side
from dfme.cli.files import Recipe, asks_to_resume, read_recipe, resumed
from dfme.cli.flags import Flag, last_text, split_flags
from dfme.config.messages import Problem
from dfme.config.values import Option, options_of
from dfme.config.watch_texts import DETECTORS, NEED_FEATURES
from dfme.errors import UserError
from dfme.run.job import PACKAGE
from dfme.run.recipes import Content, tidy
from dfme.spec import LabelMode

SUMMARY = "say what a copy of a model costs, which switch raises that price, and whether one would notice: a page"
OWN = {option.key: option for option in options_of(AuditConfig)}
UNKEPT = ("out", "resume", "dry_run", "engine_options")
"""Options that the audit's own file does not have."""

ANSWERS = "auto,kl,table,label"
"""Attackers of each defence, as of run.py compare; those that cannot be are left out with their reason."""


def options(words: Sequence[str]) -> Iterable[Option]:
    """The audit's own options, then those that all of its attacks share."""
    return compare.with_shared(words, OWN, _recipe(split_flags(words)))


def run(words: Sequence[str]) -> int:
    """Run what is not finished, and write the page."""
    plan = plan_of(words)
    teacher_side.check_teacher(plan.job.teacher, plan.job.teacher_options)
    from dfme.benchmarks.audit.session import audit, dry_run
    from dfme.report.terminal import StatusLine, columns

    if plan.config.dry_run:
        print(dry_run(plan, teacher_side))
        return 0
    return audit(plan, teacher_side, StatusLine(sys.stderr), print, columns(sys.stdout))


def plan_of(words: Sequence[str]) -> AuditPlan:
    """The audit that the words after ``audit`` describe. UserError: one line that names everything wrong."""
    flags = split_flags(words)
    file, content = _recipe(flags)
    content = tidy(content)
    written = {name: content.pop(name) for name in [*content] if name in OWN}
    if "engine_options" in written:  # hosts to connect to, and what runs there
        raise UserError(f"{file}: engine_options: say --engine-options on the command line; a file cannot")
    asked = compare.own_arguments(AuditConfig, file, written, flags)
    config, kind = asked.settings(AuditConfig), _said(flags, content, "teacher.kind") or "torch"
    away = _away(kind, config)
    local = not away
    priced = "budget" in written or any(flag.key == "budget" for flag in flags)
    unpriced = () if priced else teacher_side.price_problems(kind, "budget")
    asked.finish([*unpriced, *own_problems(config, away), *_foreign(flags)])
    out = directory_of(config.out, config.resume, "audit", OPTIONS, "an audit")
    config = replace(config, label_modes=tuple(modes_of(config, _said(flags, content, "teacher.label_mode"))))
    _give_pool(content, config.pool)
    ours = (*OWN, "config", "teacher.label_mode")
    watch = _watch(kind, _said(flags, content, "evaluation.dataset") or "none") if local else []
    watch = [flag for flag in watch if _said(flags, content, flag.name) is None]
    passed = [flag.word for flag in (*watch, *(flag for flag in flags if flag.key not in ours))]
    command, (settled, not_run) = ("python", "run.py", "audit", *words), usual(config, away)

    def cells(rows: Sequence[str], modes: Sequence[str], defences: Sequence[str], answers: str) -> ComparisonPlan:
        own: dict[str, Any] = {"methods": rows, "seeds": settled.seeds, "label-modes": modes, "defences": defences}
        own |= {"budgets": [settled.budget], "answers": [answers], "student-steps": [settled.student_steps]}
        own |= {"jobs": [settled.jobs or "none"], "engine": [settled.engine], "retries": [settled.retries]}
        own |= {"engine-options": settled.engine_options, "out": [out]}
        typed = [f"--{name}={','.join(map(str, value))}" for name, value in own.items()]
        return replace(compare.plan_of([*typed, *passed], (file, copy.deepcopy(content))), command=command)

    def second(row: str, defences: Sequence[str]) -> ComparisonPlan:
        return replace(cells([row], settled.label_modes[:1], [NO_DEFENCE, *defences], ANSWERS), stem="defences")

    try:
        first = cells(settled.attackers, settled.label_modes, [NO_DEFENCE], AS_IT_IS)
    except UserError as error:  # a comparison calls its rows methods
        raise UserError(str(error).replace("methods: ", "--attackers: ", 1)) from None
    scores = local and LabelMode.parse(settled.label_modes[0]).kind != "label"
    tried, unfit = _fitting(settled, second) if scores else ((), [])
    if local and not scores:
        unfit.append({"what": "defences", "why": "the teacher answers labels alone: there are no scores to defend"})
    kept = {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(config).items()}
    kept = {name: value for name, value in kept.items() if name not in UNKEPT}
    kept |= {name: value for name, value in first.options.items() if name not in compare.OWN}
    settled = replace(settled, defences=tried)
    return AuditPlan(settled, first, second if tried else None, kept, local, (*not_run, *unfit))


def _away(kind: str, config: AuditConfig) -> str:
    """Why defences and detectors are not measured of a teacher of this kind; nothing where they are."""
    if kind in teacher_side.KINDS:
        return "" if teacher_side.KINDS[kind].is_local else SERVICE
    return "" if config.own_teacher == "local" else ON_REQUEST


def _recipe(flags: Sequence[Flag]) -> Recipe:
    """Of --config; without, a resumed audit's own file, or the one that comes with dfme."""
    where = "the directory of the audit", "the directory of an audit"
    own = PACKAGE / "configs" / OPTIONS
    return read_recipe(flags, lambda flags: resumed(flags, OPTIONS, *where) if asks_to_resume(flags) else own)


def _said(flags: Sequence[Flag], content: Content, key: str) -> str | None:
    """What the last flag, or the file, says of an option that all cells share."""
    section, _, name = key.partition(".")
    places = ((content.get("overrides"), key), (content.get(section), name))
    written = (place.get(part) for place, part in places if isinstance(place, dict))
    found = next((text for text in (last_text(flags, key), *written) if text is not None), None)
    return None if found is None else str(found)


def _foreign(flags: Sequence[Flag]) -> Iterable[Problem]:
    """Options of a comparison that an audit says otherwise."""
    other = {"methods": "--attackers", "budgets": "--budget", "answers": "nothing: an audit tries several"}
    return (Problem(flag.key, f"unknown flag; say {other[flag.key]}") for flag in flags if flag.key in other)


def _watch(kind: str, dataset: str) -> list[Flag]:
    """Flags that let every detector which such a teacher can feed see what the cells ask."""
    names = [name for name in DETECTORS if kind == "torch" or name not in NEED_FEATURES]
    named = [Flag("teacher.watch", ",".join(names)), Flag("teacher.benign", dataset)]
    return [] if dataset == "none" else named


def _give_pool(content: Content, pool: str | None) -> None:
    """Let the row knockoff ask the images of a pool."""
    row = content.setdefault("rows", {}).setdefault("knockoff", {"method": {"name": "knockoff"}}) if pool else None
    if isinstance(row, dict) and isinstance(row.get("method"), dict):
        row["method"]["pool"] = pool


def _fitting(config: AuditConfig, second: Second) -> tuple[tuple[str, ...], list[dict[str, str]]]:
    """The defences that are tried, and those of a profile that this teacher, or a missing key, rules out."""
    fits, not_run = [], []
    asked = [text for text in config.defences if text != NO_DEFENCE]
    for text in asked if config.defences else PROFILES[config.profile].defences:
        unset = [name for name in re.findall(r"key_env=(\w+)", text) if not os.environ.get(name)]
        try:
            if unset:
                raise UserError(f"it needs a key: set the variable {unset[0]} to a random one")
            for cell in second(config.attackers[0], [text]).cells:
                teacher_side.check_teacher(cell.job.teacher, cell.job.teacher_options)
        except UserError as error:
            if config.defences:
                raise
            not_run.append({"what": f"defence {text}", "why": str(error)})
        else:
            fits.append(text)
    return tuple(fits), not_run
