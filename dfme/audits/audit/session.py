"""Run an audit from its plan to its page: two comparisons, then the findings; everything is
stored.
"""

import io
import json
import platform
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from dfme.audits.audit import headline
from dfme.audits.audit.accounts import ON_FILE, WHAT, is_scored, key_of, recorded_runs
from dfme.audits.audit.document import Measured, audit_of, cached, record_seconds
from dfme.audits.audit.ending import exit_code, last_words
from dfme.audits.audit.fidelity import ExaminedCell
from dfme.audits.audit.findings import Findings, not_run
from dfme.audits.audit.forecast import Forecast, forecast, plan_table
from dfme.audits.audit.ladder import parse_rate
from dfme.audits.audit.options import CARD, DATA, OPTIONS, PAGE, SHARED, TWIN_EPOCHS
from dfme.audits.audit.parts import CopyExamination, NotRun, WatchedAttacks
from dfme.audits.audit.plan import AuditPlan
from dfme.audits.audit.price_lines import has_images
from dfme.audits.audit.prices import strongest, to_copy
from dfme.audits.audit.result import (
    AuditResult,
    Made,
    audit_result,
    document,
    recorded,
)
from dfme.audits.audit.sheets import below
from dfme.audits.compare.engines import STOPPED
from dfme.audits.compare.engines.pool import cores
from dfme.audits.compare.picture import draw
from dfme.audits.compare.plan import Cell, ComparisonPlan
from dfme.audits.compare.rehearsal import Rehearsal, not_applicable, rehearse
from dfme.audits.compare.session import Session
from dfme.audits.owner import Metering, Owner
from dfme.config.yaml_files import dump_yaml
from dfme.errors import UserError
from dfme.files import make_folder, write_text
from dfme.measured import Bill, Detection, SplitAttack
from dfme.oracle.ledger_log import audit as add_up
from dfme.report.run_files import read_summary
from dfme.report.terminal import StatusLine, wrapped
from dfme.run.build import is_local
from dfme.run.directory import DirectoryLock, on_record
from dfme.run.job import resume_command
from dfme.run.loop import Interrupt
from dfme.run.student_file import student_facts


def audit(
    plan: AuditPlan,
    owner: Owner,
    line: StatusLine,
    show: Callable[[str], None],
    across: int | None,
) -> int:
    """Run what is left of the audit. Exit code: 0, 4 if a limit fails or a copy became cheaper, 1
    if a cell failed, 130 if stopped.

    ``line`` says how far it is, ``show`` hears the result. UserError for what cannot work, before
    anything is asked, or a directory in use.
    """
    work = Audit(plan, owner, line)
    command = resume_command(plan.out, plan.job, "audit")
    work.check()
    make_folder(plan.out / "examined")
    make_folder(plan.out / SHARED)
    lock = DirectoryLock(plan.out)
    finished = False
    try:
        write_text(plan.out / OPTIONS, on_record(dump_yaml(plan.options), plan.out))
        finished = work.run()
    finally:
        line.close()
        lock.close()
        if not finished:
            line.note(
                "stopped; all that was paid is kept; when no cell runs any more, go on "
                f"with:\n  {command}"
            )
    if not finished:
        return 0 if plan.config.engine == "commands" else STOPPED
    result = work.result
    files = [str(plan.out / name) for name in (PAGE, DATA, CARD)]
    show("\n".join([wrapped("\n".join(last_words(result)), across, "  "), "", *files]))
    return exit_code(result)


def dry_run(plan: AuditPlan, owner: Owner) -> str:
    """Table of what the audit would ask, cost, take and leave out. UserError for what cannot
    work.
    """
    work = Audit(plan, owner, StatusLine(io.StringIO()))
    return plan_table(plan, work.check(dry=True), work.left_out)


class Audit:
    """An audit on its way; ``result`` is what its audit.json holds, once a phase is done."""

    result: AuditResult

    def __init__(self, plan: AuditPlan, owner: Owner, line: StatusLine) -> None:
        self._plan = plan
        self._owner = owner
        self._line = line
        self._plans = [plan.first]
        self._sessions = [self._session(plan.first)]
        self._under_quota = list[Session]()
        self._measured = Measured([*plan.not_run])
        self._meter: Metering | None = None
        self._rehearsal: Rehearsal | None = None
        self._began = time.time()
        self._before = recorded(plan.out / DATA)

    def check(self, dry: bool = False) -> Forecast:
        """Find problems and forecast the images asked; print them unless ``dry``. UserError for
        problems.
        """
        plan = self._plan
        plan.read_given()
        first = self._sessions[0]
        halves = self._before.halves if self._before else None
        if plan.halves and halves and plan.halves != halves:
            raise UserError(
                "--evaluation.dataset: expected the evaluation images of which a half was "
                "held back as the audit began, got others; restore them, or give a new "
                "--out"
            )
        then = list[Session]()
        if plan.second:
            bare = [cell for cell in _to_run(first).values() if cell.mode == plan.label_mode]
            able = [cell for cell in bare if not has_images(cell)] or bare
            for row in dict.fromkeys(cell.row for cell in able):
                then.append(self._session(plan.second(row, plan.config.defences)))
        cells = _to_run(first)
        cells = max((cells | _to_run(session) for session in then), key=len, default=cells)
        waiting = dict[str, Cell]()
        for session in (first, *then):
            waiting |= {cell.name: cell for cell in session.waiting}
        # any other teacher's count is to be that of the ledgers
        free = is_local(plan.job) and not dry
        facts: list[str] = []  # a refusal stands alone
        rehearsal = rehearse(plan.first, [*waiting.values()], facts.append, ask=free)
        expected = forecast(plan, [*cells.values()], waiting, rehearsal, self._owner)
        for fact in facts:
            self._line.note(fact)
        self._rehearsal = rehearsal
        if not dry:
            self._line.note(expected.line)
            for text in filter(None, (expected.time, expected.disk)):
                self._line.note(text)
            for part in self.left_out:
                self._line.note(f"left out: {part.what}: {part.why}")
        return expected

    @property
    def left_out(self) -> list[NotRun]:
        """Parts that are known not to run, and why."""
        return [*self._measured.not_run, *not_run(self._sessions[0].runs)]

    def run(self) -> bool:
        """Every phase that is not done; whether none was stopped."""
        phases: dict[str, Callable[[], bool | None]] = {
            "what honest users pay": self._bill,
            "the price of a copy": self._attack,
            "defences, and attackers who know them": self._defend,
            "does the quota hold?": self._check_quota,
            "would one notice?": self._detect,
            "what a copy is good for": self._examine,
        }
        with self._owner.benign_meter(self._plan.out / "benign") as self._meter:
            for name, phase in phases.items():
                began = time.monotonic()
                self._line.note(f"-- {name}")
                outcome = phase()
                record_seconds(self._plan.out, name, time.monotonic() - began)
                if outcome is False:
                    return False
                self._write(finished=phase == self._examine)
                self._line.note(f"   {time.monotonic() - began:.1f} s")
        for plan, session in zip(self._plans, self._sessions, strict=True):
            draw(session.findings(), plan.files[2])
        return True

    def _session(self, plan: ComparisonPlan) -> Session:
        return Session(plan, not_applicable(plan.runs), self._line, self._plan.out / SHARED)

    def _run(self, session: Session) -> bool:
        session.rehearsal = self._rehearsal
        with Interrupt(announce=True) as interrupt:
            return not session.run(interrupt.requested)

    def _bill(self) -> None:
        texts = self._plan.texts
        if not texts:
            return
        stacks = [tuple(text.split("+")) for text in texts]

        def measure() -> list[dict[str, Any]]:
            bills = self._owner.bills(stacks, self._line.note, self._meter)
            return [bill.to_json() for bill in bills]

        self._measured.utility = cached(
            self._plan.out / "utility.json", list[Bill], texts, measure, self._asks_anew
        )

    @property
    def _asks_anew(self) -> bool:
        """A meter's journal gives answers again in the order in which they came: those of the bill,
        of detection, and of what the attacks from many accounts are scored by.
        """
        out = self._plan.out
        done = (out / "detection.json").exists() and is_scored(out, self._plan.first)
        return self._meter is not None and not done

    def _attack(self) -> bool:
        return self._run(self._sessions[0])

    def _defend(self) -> bool | None:
        best = strongest(self._findings().without_images, self._plan.label_mode)
        if self._plan.second is None or best is None:
            return None
        least = min((count for count in to_copy(best) if count is not None), default=0)
        quota = [f"quota:images={below(least)}"] if least > 1 else []
        bills = {bill.row: bill.to_json() for bill in self._measured.utility}
        self._plans.append(
            replace(self._plan.second(best.row, [*self._plan.config.defences, *quota]), bills=bills)
        )
        self._sessions.append(self._session(self._plans[1]))
        return self._run(self._sessions[1])

    def _check_quota(self) -> bool | None:
        """An attack under the quota that the curves promise."""
        quota = self.result.quota
        plan = self._plan
        if quota is None or quota.open or not quota.images:
            return None
        cell = next(cell for cell in self.result.cells if cell.name == quota.cell)
        images = quota.images
        steps = self._steps_of(quota.cell)

        def make() -> Session:
            return self._session(plan.under_quota(cell, images, steps))

        session = self._measured.tried("the quota, by an attack under it", make)
        if session is None:
            return None
        self._under_quota = [session]
        self._measured.under_quota = session.runs[0].cell.name
        return self._run(session)

    def _steps_of(self, name: str) -> int:
        """Steps of a cell's students."""
        cells = (run.cell for run in self._findings().runs)
        return next(cell.job.config.student.steps for cell in cells if cell.name == name)

    def _detect(self) -> None:
        plan = self._plan
        if not plan.watch:
            return

        def measure() -> Detection:
            return self._owner.detection(plan.watch, self._line.note, self._meter, plan.accounts)

        stored = partial(cached, plan.out / "detection.json", WatchedAttacks, plan.watch)
        detect = partial(stored, measure, self._asks_anew)
        self._measured.detection = self._measured.tried("detection", detect)
        self._split()

    def _split(self) -> None:
        """Score the attacks on the model's own answers as if many accounts had sent them."""
        plan = self._plan
        if not (recorded := recorded_runs(plan.first, self._sessions[0].runs, plan.config)):
            return
        ask = partial(self._owner.split, plan.watch, recorded, self._line.note, self._meter)
        key = key_of(plan.out, plan.watch, recorded)
        result = partial(cached, plan.out / ON_FILE, list[SplitAttack], key, ask)
        self._measured.split = self._measured.tried(WHAT, result) or ()

    def _examine(self) -> None:
        from dfme.audits.audit.examine import examine

        plan = self._plan
        config = plan.config
        finished = [run.cell for run in self._sessions[0].runs if run.state == "finished"]
        if not finished:
            return
        best = strongest(self._findings().without_images, plan.label_mode)
        names = {cell.name for cell in finished}
        pictured = next((name for name in (best.cells if best else ()) if name in names), None)
        cells = [
            ExaminedCell(
                name=cell.name,
                row=cell.row,
                mode=cell.mode,
                seed=cell.seed,
                directory=plan.first.directory(cell),
                examined_in_full=cell.seed == config.seeds[0],
                pictured=cell.name == pictured,
            )
            for cell in finished
        ]
        twin = None if config.twin in ("none", "train") else Path(config.twin)
        if config.twin == "train":

            def train() -> Path:
                arch, spec, _ = student_facts(cells[0].directory)
                path = plan.out / "twin.safetensors"
                self._owner.train_twin(arch, spec.shape, TWIN_EPOCHS, path, self._line.note)
                return path

            twin = self._measured.tried("a twin, trained on your own data", train)
        asks = {"auto": None, "true": True, "false": False}[config.transfer]
        key = [*(cell.name for cell in finished), str(pictured), str(twin), config.transfer]
        ask = partial(examine, plan.out, cells, plan.job, twin, asks, self._line.note, plan.brief)
        self._measured.examination = cached(
            plan.out / "examined" / "found.json", CopyExamination, key, ask
        )
        if config.references:
            from dfme.audits.audit.recognition import recognised

            test = partial(recognised, plan, cells, self._line.note)
            what = "whether you would recognise a copy"
            self._measured.recognition = self._measured.tried(what, test)
        if config.marks:
            from dfme.audits.audit.marks import recognised_by_marks

            by_marks = partial(recognised_by_marks, plan, self._owner, cells, self._line.note)
            what = "whether you would by a mark"
            self._measured.marks = self._measured.tried(what, by_marks)

    def _findings(self) -> Findings:
        plan = self._plan
        compared = [session.findings() for session in self._sessions]
        runs = [run for session in (*self._sessions, *self._under_quota) for run in session.runs]
        folders = {
            run.cell.name: plan.first.directory(run.cell) for run in runs if run.state == "finished"
        }
        return Findings(
            mode=plan.label_mode,
            budget=plan.config.budget,
            price_per_1000=plan.job.teacher.price_per_1000,
            rate=None if plan.config.rate is None else parse_rate(plan.config.rate),
            first=compared[0],
            second=compared[1] if compared[1:] else None,
            runs=runs,
            summaries={
                name: read_summary(folder / "summary.json") or {}
                for name, folder in folders.items()
            },
            utility=self._measured.utility,
            ledgers={path.parent.name: add_up(path) for path in self._ledgers("cells/*")},
        )

    def _ledgers(self, place: str) -> list[Path]:
        """Every ledger in such a place of the audit's directory."""
        return sorted(self._plan.out.glob(f"{place}/ledger.jsonl"))

    def _write(self, finished: bool) -> None:
        """audit.json, and of a finished audit the page and the card."""
        plan = self._plan
        before = self._before.made if self._before else None
        started = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self._began))
        seconds = time.time() - self._began + (before.wall_seconds if before else 0.0)
        made = Made(
            command=headline.commands(before.command if before else "", plan.first.command),
            started=before.started if before else started,
            wall_seconds=round(seconds, 1),
            machine=f"{platform.machine()}, {cores()} cores",
            finished=finished,
            directory=str(plan.out),
        )
        others = [*self._ledgers("benign"), *self._ledgers("examined*")]
        ledgers = [add_up(path) for path in others]
        self.result = audit_of(plan, self._findings(), self._measured, ledgers, made)
        content = document(self.result)
        audit_result(content)  # what is written can be read
        write_text(plan.out / DATA, json.dumps(content, indent=1, allow_nan=False) + "\n")
        if finished:
            from dfme.audits.audit.exports import write_all

            write_all(self.result, plan.out)
            write_text(plan.out / CARD, headline.model_card(self.result))


def _to_run(session: Session) -> dict[str, Cell]:
    return {run.cell.name: run.cell for run in session.runs if run.state != "not applicable"}
