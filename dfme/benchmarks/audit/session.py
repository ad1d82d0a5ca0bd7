"""An audit from its plan to its page: two comparisons, then what can be said of their cells; all of it is kept."""

from __future__ import annotations

import base64
import json
import math
import platform
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from dfme import __version__
from dfme.benchmarks.audit import findings
from dfme.benchmarks.audit.findings import Findings, Row
from dfme.benchmarks.audit.headline import advice, headline
from dfme.benchmarks.audit.model_card import ATLAS, OWASP, model_card, what_it_does_not_tell
from dfme.benchmarks.audit.options import limits
from dfme.benchmarks.audit.plan import CARD, DATA, OPTIONS, PAGE, AuditPlan
from dfme.benchmarks.compare.attackers import NO_DEFENCE
from dfme.benchmarks.compare.figures import Outcome
from dfme.benchmarks.compare.picture import draw
from dfme.benchmarks.compare.plan import ComparisonPlan
from dfme.benchmarks.compare.processes import cores
from dfme.benchmarks.compare.rehearsal import rehearse
from dfme.benchmarks.compare.session import Session, not_applicable
from dfme.config.yaml_files import dump_yaml, sealed
from dfme.errors import UserError
from dfme.files import make_folder, write_text
from dfme.report.console import teacher_name
from dfme.report.summary_file import read_summary
from dfme.report.terminal import StatusLine, wrapped
from dfme.run.interrupt import Interrupt
from dfme.run.job import PROJECT, document, resume_command
from dfme.run.lock import DirectoryLock

SCHEMA = "dfme.audit/1"

FAILS, STOPPED = 4, 130
"""Exit codes: a stated limit fails; stopped and kept."""

MAX_SHEET = 400_000
"""Bytes of a picture that the page carries."""


def audit(
    plan: AuditPlan, owner: ModuleType, line: StatusLine, show: Callable[[str], None], across: int | None = None
) -> int:
    """Run what is left of the audit; the exit code: 0, 4 if a stated limit fails, 1 if a cell did, 130 if stopped.

    ``owner``: the owner's side (``dfme.cli.teacher_side``). ``line`` says how far it is, ``show`` what was found.

    Raises:
        UserError: for what cannot work, before anything is asked, or a directory in use.
    """
    work = Audit(plan, owner, line)
    work.check()
    command = resume_command(plan.out, plan.job, "audit")
    make_folder(plan.out / "cells")
    lock = DirectoryLock(plan.out)
    try:
        write_text(plan.out / OPTIONS, sealed(dump_yaml(plan.options)))
        whole = work.run()
    except KeyboardInterrupt:
        line.note(f"stopped; all that was paid is kept; go on with:\n  {command}")
        raise
    finally:
        line.close()
        lock.close()
    if not whole:
        waits = plan.config.engine == "commands"
        line.note(
            f"{'when they have run, go on with' if waits else 'stopped; all that was paid is kept'}:\n  {command}"
        )
        return 0 if waits else STOPPED
    found = work.found
    lines = [*found["headline"]["sentences"], *(f"- {each['text']}" for each in found["advice"])]
    lines += [f"{'holds' if each['pass'] else 'FAILS'}: {each['text']}" for each in found["verdicts"]]
    show(
        wrapped("\n".join(lines), across, "  ")
        + "\n\n"
        + "\n".join(str(plan.out / name) for name in (PAGE, DATA, CARD))
    )
    if not all(each["pass"] for each in found["verdicts"]):
        return FAILS
    return 1 if any(each["state"] == "failed" for each in found["cells"]) else 0


class Audit:
    """An audit on its way; ``found`` is what its audit.json holds."""

    def __init__(self, plan: AuditPlan, owner: ModuleType, line: StatusLine) -> None:
        self._plan, self._owner, self._line = plan, owner, line
        self._sessions = [self._session(plan.first)]
        self._not_run = [*plan.not_run]
        self._utility: list[Row] = []
        self._measured: Row | None = None
        self._examined: Row = {}
        self._began, self._before = time.time(), _read(plan.out / DATA).get("made") or {}
        self.found: Row = {}

    def check(self) -> None:
        """Find what cannot work, and say how much may be asked. UserError for both."""
        plan, first = self._plan, self._sessions[0]
        able = dict.fromkeys(each.cell.row for each in _to_run(first) if each.cell.mode == plan.own)
        then = [self._session(plan.second(row, plan.config.defences)) for row in able] if plan.second else []
        every = {each.cell.name: each.cell for session in (first, *then) for each in _to_run(session)}
        known = {each.cell.name for each in _to_run(first)}
        count = len(known) + max((sum(each.cell.name not in known for each in _to_run(one)) for one in then), default=0)
        images, budget, most = count * plan.config.budget, plan.config.budget, plan.config.total
        if most is not None and images > most:
            raise UserError(
                f"--total: {count} attacks of {budget:,} images may be charged {images:,} in all, more than {most:,}; "
                "give a larger one, a smaller --budget, or fewer attackers, label modes, defences or seeds"
            )
        waiting = {cell.name for session in (first, *then) for cell in session.waiting}
        first.sharing = rehearse(plan.first, [every[name] for name in every if name in waiting], self._line.note)
        self._line.note(f"{count} attacks may be charged {images:,} images in all; evaluations are not counted")

    def run(self) -> bool:
        """Every phase that is not done; whether the last one was reached."""
        plan, note = self._plan, self._line.note
        for phase in (self._bills, self._attack, self._defend, self._detect, self._examine):
            began = time.monotonic()
            note(f"-- {str(phase.__doc__).rstrip('.')} --")
            if phase() is False:
                return False
            self._write(finished=phase == self._examine)
            note(f"   {time.monotonic() - began:.1f} s")
        for session, of in zip(self._sessions, (plan.first, self._tried), strict=False):
            draw(session.findings(), of.files[2])
        return True

    def _session(self, plan: ComparisonPlan) -> Session:
        return Session(plan, not_applicable(plan.runs), self._line)

    def _run(self, session: Session) -> bool:
        with Interrupt(announce=True) as interrupt:
            return not session.run(interrupt.requested)

    def _bills(self) -> None:
        """What honest users pay."""
        plan, job = self._plan, self._plan.job
        modes = [mode for mode in plan.config.label_modes if mode != plan.own]
        texts = [*plan.config.defences, *modes]
        if not plan.local or job.config.evaluation.dataset == "none" or not texts:
            return
        stacks = [tuple(text.split("+")) for text in texts]
        measured = job.teacher, job.teacher_options, stacks, job.config.evaluation, job.config.device

        def bills() -> list[Row]:
            rows = zip((NO_DEFENCE, *texts), self._owner.bills(*measured, tell=self._line.note), strict=True)
            return [{"row": row, **bill} for row, bill in rows]

        self._utility = _kept(plan.out / "utility.json", texts, bills)

    def _attack(self) -> bool:
        """The price of a copy."""
        return self._run(self._sessions[0])

    def _defend(self) -> bool | None:
        """Defences, and attackers who know them."""
        best = findings.strongest(self._lines(), self._plan.own)
        if self._plan.second is None or best is None:
            return None
        counts = [count for count in findings.to_copy(best) if count is not None]
        quota = [f"quota:images={_below(min(counts))}"] if counts and min(counts) > 1 else []
        bills = {row["row"]: row for row in self._utility}
        self._tried = replace(self._plan.second(best["row"], [*self._plan.config.defences, *quota]), bills=bills)
        self._sessions.append(self._session(self._tried))
        return self._run(self._sessions[1])

    def _detect(self) -> None:
        """Would one notice?"""
        job, names = self._plan.job, self._plan.job.teacher.watch
        if not names or not self._plan.local:
            return
        asked = job.teacher, job.teacher_options, names, job.config.evaluation, job.config.device
        try:
            measured = _kept(self._plan.out / "detection.json", [*names], partial(self._owner.detection, *asked))
        except UserError as error:
            self._not_run.append({"what": "detection", "why": str(error)})
            return
        self._measured = measured

    def _examine(self) -> None:
        """What a copy is good for."""
        from dfme.benchmarks.audit.examine import ExaminedCell, examine

        plan, ask, out = self._plan, self._plan.config.transfer, self._plan.out
        done = [each.cell for each in self._sessions[0].runs if each.state == "finished"]
        first = plan.config.seeds[0]
        cells = [
            ExaminedCell(cell.name, cell.row, cell.mode, cell.seed, plan.first.directory(cell), cell.seed == first)
            for cell in done
        ]
        twin = self._twin(plan.first.directory(done[0])) if done else None
        asks = {"auto": None, "true": True, "false": False}[ask]
        key = [*(cell.name for cell in cells), str(twin), ask]
        make_folder(out / "examined")
        if cells:
            found = partial(examine, out, cells, plan.job, twin, asks, self._line.note)
            self._examined = _kept(out / "examined" / "found.json", key, found)

    def _twin(self, run: Path) -> Path | None:
        """A network trained on the owner's own data, if there is one."""
        plan = self._plan
        if plan.config.twin not in ("train", "none"):
            return Path(plan.config.twin)
        why = "--twin none" if plan.config.twin == "none" else ""
        try:
            if not why:
                path: Path = self._owner.train_twin(plan.job, run, plan.out / "twin.safetensors", self._line.note)
                return path
        except UserError as error:
            why = str(error)
        self._not_run.append({"what": "a twin, trained on your own data", "why": why})
        return None

    def _of(self) -> Findings:
        plan, told = self._plan, [session.findings() for session in self._sessions]
        runs = [each for session in self._sessions for each in session.runs]
        cells = [each.cell for each in runs if each.figures]
        summaries = {cell.name: read_summary(plan.first.directory(cell) / "summary.json") or {} for cell in cells}
        known = (plan.own, plan.config.budget, plan.config.seeds, plan.price)
        return Findings(*known, told[0], told[1] if told[1:] else None, runs, summaries, self._utility)

    def _lines(self) -> list[Row]:
        return findings.price(self._of())

    def _write(self, finished: bool) -> None:
        """audit.json, and from it the page and the card."""
        of, plan = self._of(), self._plan
        found = self.found = document_of(of, plan, self._measured, self._examined, self._not_run)
        wall = float(self._before.get("wall_seconds", 0.0)) + time.time() - self._began
        started = self._before.get("started") or time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self._began))
        found["made"] = {"command": plan.command, "started": started, "wall_seconds": round(wall, 1)}
        found["made"] |= {"machine": f"{platform.machine()}, {cores()} cores", "finished": finished}
        found["made"] |= {"directory": str(plan.out)}
        write_text(plan.out / DATA, json.dumps(found, indent=1, allow_nan=False) + "\n")
        if finished:
            from dfme.benchmarks.audit.page import write_page

            write_page(found, plan.out / PAGE)
            write_text(plan.out / CARD, model_card(found))


def document_of(of: Findings, plan: AuditPlan, measured: Row | None, examined: Row, not_run: Sequence[Row]) -> Row:
    """All that audit.json holds but how it was made."""
    config, example = plan.config, of.example
    lines, tried = findings.price(of), findings.defences(of)
    found: Row = {"schema": SCHEMA, "tool": _tool(), "options": _options(plan), "target": _target(plan, example)}
    found |= {"headline": headline(of, lines), "price": lines, "defences": tried, "utility": [*of.utility]}
    found["verdicts"] = findings.verdicts(limits(config.acceptable, config.budget), lines, plan.own)
    found |= {"games": findings.games(of, lines, examined.get("twin")), "pareto": findings.pareto(of, lines, tried)}
    found |= {"cells": findings.cells(of), "detection": None}
    if measured is not None:
        from dfme.benchmarks.audit.detection import joined

        constant = found["games"]["constant"]
        watched = [
            {**cell, "constant": constant, "watch": (of.summaries.get(cell["name"]) or {}).get("watch")}
            for cell in found["cells"]
        ]
        found["detection"] = joined(measured, watched)
    found |= {name: examined.get(name, []) for name in ("fidelity", "fidelity_seeds")}
    found |= {"transfer": examined.get("transfer"), "ledger": findings.ledger(of, examined)}
    found["not_run"] = [*not_run, *examined.get("not_run", []), *findings.not_run(of)]
    found |= {"limits": what_it_does_not_tell(of, plan.local), "pictures": _pictures(plan, found["headline"], lines)}
    found |= {"taxonomy": {"atlas": [{"id": name, "name": text} for name, text in ATLAS.items()], "owasp": [OWASP]}}
    return found | {"advice": advice(of, found)}


def _options(plan: AuditPlan) -> Row:
    names = ("profile", "budget", "total", "transfer", "seeds", "attackers", "label_modes", "defences")
    told = {name: getattr(plan.config, name) for name in names}
    told = {name: list(value) if isinstance(value, tuple) else value for name, value in told.items()}
    return told | {"price_per_1000": plan.price, "acceptable": limits(plan.config.acceptable, plan.config.budget)}


def _target(plan: AuditPlan, example: Row) -> Row:
    teacher, scored = example.get("teacher") or {}, example.get("evaluation") or {}
    accuracy = example.get("teacher_accuracy")
    evaluation = {"name": scored.get("name"), "images": scored.get("images"), "labelled": accuracy is not None}
    return {
        **{"kind": plan.job.teacher.kind, "name": teacher_name(document(plan.job)["teacher"]), "local": plan.local},
        **{"label_mode": plan.own, **{name: teacher.get(name) for name in ("shape", "num_classes", "levels")}},
        **{"defences": [*plan.job.teacher.defences], "authorised_by": example.get("authorised_by")},
        **{"accuracy": accuracy, "evaluation": evaluation},
    }


def _tool() -> Row:
    words = ["git", "-C", str(PROJECT), "rev-parse", "--short", "HEAD"]
    commit = None
    with suppress(OSError, subprocess.SubprocessError):
        if (PROJECT / ".git").exists():
            commit = subprocess.run(words, capture_output=True, text=True, timeout=20, check=True).stdout.strip()  # noqa: S603
    return {"dfme": __version__, "torch": torch.__version__, "python": platform.python_version(), "commit": commit}


def _pictures(plan: AuditPlan, best: Row, lines: Sequence[Row]) -> Row:
    """The sheet of the strongest attacker's queries."""
    names = [
        name for each in lines if (each["row"], each["mode"]) == (best["attacker"], plan.own) for name in each["cells"]
    ]
    for sheet in (plan.out / "cells" / name / "samples.png" for name in names):
        if sheet.is_file() and sheet.stat().st_size <= MAX_SHEET:
            return {"samples": "data:image/png;base64," + base64.b64encode(sheet.read_bytes()).decode()}
    return {}


def _to_run(session: Session) -> list[Outcome]:
    return [each for each in session.runs if each.state != "not applicable"]


def _below(queries: float) -> int:
    """A round number of images, to two digits, below so many."""
    unit = 10 ** max(0, math.floor(math.log10(queries - 1)) - 1)
    return int((queries - 1) // unit * unit)


def _read(path: Path) -> Row:
    with suppress(OSError, ValueError, RecursionError):
        found = json.loads(path.read_text(encoding="utf-8"))
        return found if isinstance(found, dict) else {}
    return {}


def _kept(path: Path, of: Sequence[str], make: Callable[[], Any]) -> Any:
    """What was made for the same before, where it is on file; else what is made now."""
    if _read(path).get("of") != [*of]:
        write_text(path, json.dumps({"of": [*of], "found": make()}, indent=1, allow_nan=False) + "\n")
    return _read(path)["found"]
