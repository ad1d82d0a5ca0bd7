"""Run an audit from its plan to its page: two comparisons, then the findings; everything is
stored.
"""

import io
import json
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from dfme.audits.audit import headline
from dfme.audits.audit.document import Measured, parts, tool
from dfme.audits.audit.findings import Findings, has_images, strongest, to_copy
from dfme.audits.audit.forecast import Forecast, forecast, plan_table
from dfme.audits.audit.model import SCHEMA, Entry, check_audit
from dfme.audits.audit.options import (
    CARD,
    DATA,
    OPTIONS,
    PAGE,
    SHARED,
    TWIN_EPOCHS,
    AuditPlan,
    cached,
)
from dfme.audits.audit.phases import record_seconds
from dfme.audits.audit.quota import below
from dfme.audits.compare.engines import STOPPED
from dfme.audits.compare.figures import Outcome
from dfme.audits.compare.picture import draw
from dfme.audits.compare.plan import Cell, ComparisonPlan
from dfme.audits.compare.processes import cores
from dfme.audits.compare.rehearsal import Rehearsal, rehearse
from dfme.audits.compare.session import Session, not_applicable
from dfme.audits.owner import Metering, Owner
from dfme.config.yaml_files import dump_yaml
from dfme.errors import UserError
from dfme.files import make_folder, write_text
from dfme.measured import Bill
from dfme.oracle.ledger_log import Totals
from dfme.oracle.ledger_log import audit as add_up
from dfme.report.summary_file import read_object, read_summary
from dfme.report.terminal import StatusLine, wrapped
from dfme.run.build import is_local
from dfme.run.directory import on_record
from dfme.run.interrupt import Interrupt
from dfme.run.job import resume_command
from dfme.run.lock import DirectoryLock
from dfme.run.student_file import student_facts

FAILS = 4  # exit code where a stated limit fails


def audit(
    plan: AuditPlan,
    owner: Owner,
    line: StatusLine,
    show: Callable[[str], None],
    across: int | None,
) -> int:
    """Run what is left of the audit. Exit code: 0, 4 if a limit fails, 1 if a cell failed, 130 if
    stopped.

    ``line`` says how far it is, ``show`` what was found. UserError for what cannot work, before
    anything is asked, or a directory in use.
    """
    work = Audit(plan, owner, line)
    command = resume_command(plan.out, plan.job, "audit")
    work.check()
    make_folder(plan.out / "examined")
    make_folder(plan.out / SHARED)
    lock = DirectoryLock(plan.out)
    whole = False
    try:
        write_text(plan.out / OPTIONS, on_record(dump_yaml(plan.options), plan.out))
        whole = work.run()
    finally:
        line.close()
        lock.close()
        if not whole:
            remedy = "when no cell runs any more, go on with"
            line.note(f"stopped; all that was paid is kept; {remedy}:\n  {command}")
    if not whole:
        return 0 if plan.config.engine == "commands" else STOPPED
    found = work.found
    lines = [*found["headline"]["sentences"], *(f"- {each['text']}" for each in found["advice"])]
    lines += [f"{headline.JUDGED[each['pass']]}: {each['text']}" for each in found["verdicts"]]
    files = [str(plan.out / name) for name in (PAGE, DATA, CARD)]
    show("\n".join([wrapped("\n".join(lines), across, "  "), "", *files]))
    failed = any(each["state"] == "failed" for each in found["cells"])
    return FAILS if any(each["pass"] is False for each in found["verdicts"]) else int(failed)


def dry_run(plan: AuditPlan, owner: Owner) -> str:
    """Table of what the audit would ask, cost, take and leave out. UserError for what cannot
    work.
    """
    work = Audit(plan, owner, StatusLine(io.StringIO()))
    return plan_table(plan, work.check(dry=True), work.left_out)


class Audit:
    """An audit on its way; ``found`` is what its audit.json holds."""

    def __init__(self, plan: AuditPlan, owner: Owner, line: StatusLine) -> None:
        self._plan = plan
        self._owner = owner
        self._line = line
        self._plans, self._sessions = [plan.first], [self._session(plan.first)]
        self._under = list[Session]()  # of an attack under the quota
        self._not_run = [*plan.not_run]
        self._utility = list[Entry]()
        self._measured: Entry | None = None
        self._examined: Entry = {}
        self._recognised: Entry | None = None
        self._meter: Metering | None = None
        self._rehearsal: Rehearsal | None = None
        self._began = time.time()
        self._before, self._halves = (
            each if isinstance(each, dict) else {}
            for each in map(read_object(plan.out / DATA).get, ("made", "halves"))
        )
        self.found: Entry = {}

    def check(self, dry: bool = False) -> Forecast:
        """Find problems and forecast the images asked; print them unless ``dry``. UserError for
        problems.
        """
        plan = self._plan
        first = self._sessions[0]
        if plan.halves and self._halves and plan.halves != self._halves:
            wanted = (
                "expected the evaluation images of which a half was held back as the audit began"
            )
            raise UserError(
                f"--evaluation.dataset: {wanted}, got others; restore them, or give a new --out"
            )
        own = [each.cell for each in _to_run(first) if each.cell.mode == plan.own]
        able = dict.fromkeys(
            cell.row for cell in [each for each in own if not has_images(each)] or own
        )
        then = (
            [self._session(plan.second(row, plan.config.defences)) for row in able]
            if plan.second
            else []
        )
        known = {each.cell.name: each.cell for each in _to_run(first)}
        defended = [{each.cell.name: each.cell for each in _to_run(one)} for one in then]
        cells = max((known | more for more in defended), key=len, default=known)
        waiting = dict[str, Cell]()
        for session in (first, *then):
            waiting |= {cell.name: cell for cell in session.waiting}
        # any other teacher's count is to be that of the ledgers
        free = is_local(plan.job) and not dry
        facts: list[str] = []  # a refusal stands alone
        rehearsal = rehearse(plan.first, [*waiting.values()], facts.append, ask=free)
        found = forecast(plan, [*cells.values()], waiting, rehearsal, self._owner)
        for fact in facts:
            self._line.note(fact)
        self._rehearsal = rehearsal
        if not dry:
            self._line.note(found.line)
            self._line.note(found.time)
            for each in self.left_out:
                self._line.note(f"left out: {each['what']}: {each['why']}")
        return found

    @property
    def left_out(self) -> list[Entry]:
        """Parts that are known not to run, and why."""
        never = [each for each in self._sessions[0].runs if each.state == "not applicable"]
        cells = {f"{each.cell.label} with {each.cell.mode}": each.reason for each in never}
        return [*self._not_run, *({"what": what, "why": why} for what, why in cells.items())]

    def run(self) -> bool:
        """Every phase that is not done; whether none was stopped."""
        with self._owner.benign_meter(self._plan.out / "benign") as self._meter:
            for phase in (
                self._bill,
                self._attack,
                self._defend,
                self._check,
                self._detect,
                self._examine,
            ):
                began = time.monotonic()
                self._line.note(f"-- {phase.__doc__}")
                done = phase()
                record_seconds(self._plan.out, str(phase.__doc__), time.monotonic() - began)
                if done is False:
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
        """what honest users pay"""
        texts = self._plan.texts
        if not texts:
            return
        stacks = [tuple(text.split("+")) for text in texts]

        def measure() -> list[Entry]:
            bills = self._owner.bills(stacks, self._line.note, self._meter)
            return [bill.to_json() for bill in bills]

        # A meter's journal gives answers again in the order in which they came: detection's come
        # after these.
        anew = self._meter is not None and not (self._plan.out / "detection.json").exists()
        bills = cached(self._plan.out / "utility.json", texts, measure, anew)
        self._utility = [Bill.from_json(bill).to_json() for bill in bills]

    def _attack(self) -> bool:
        """the price of a copy"""
        return self._run(self._sessions[0])

    def _defend(self) -> bool | None:
        """defences, and attackers who know them"""
        best = strongest(self._of().free, self._plan.own)
        if self._plan.second is None or best is None:
            return None
        least = min((count for count in to_copy(best) if count is not None), default=0)
        quota = [f"quota:images={below(least)}"] if least > 1 else []
        bills = {row["row"]: row for row in self._utility}
        second = self._plan.second(best["row"], [*self._plan.config.defences, *quota])
        self._plans.append(replace(second, bills=bills))
        self._sessions.append(self._session(self._plans[1]))
        return self._run(self._sessions[1])

    def _check(self) -> bool | None:
        """does the quota hold?"""
        quota = self.found["quota"]
        plan = self._plan
        if quota is None or quota["open"] or not quota["images"]:
            return None
        cell = next(each for each in self.found["cells"] if each["name"] == quota["cell"])
        answers = cell["answers"] if cell["mode"] == plan.own else cell["mode"]
        asked = replace(
            plan.first.config,
            methods=(cell["row"],),
            seeds=(cell["seed"],),
            answers=(answers,),
            label_modes=(plan.own,),
            budgets=(quota["images"],),
        )

        def make() -> Session:
            return self._session(replace(plan.planned(asked), stem="quota"))

        session = self._tried("the quota, by an attack under it", make)
        self._under = [session] if session else []
        return self._run(session) if session else None

    def _detect(self) -> None:
        """would one notice?"""
        plan = self._plan
        if not plan.watch:
            return

        def measure() -> Entry:
            note = self._line.note
            return self._owner.detection(plan.watch, note, self._meter, plan.accounts).to_json()

        file = plan.out / "detection.json"
        self._measured = self._tried("detection", lambda: cached(file, plan.watch, measure))

    def _examine(self) -> None:
        """what a copy is good for"""
        from dfme.audits.audit.examine import ExaminedCell, examine

        plan = self._plan
        config = self._plan.config
        out = self._plan.out
        done = [each.cell for each in self._sessions[0].runs if each.state == "finished"]
        if not done:
            return
        best = strongest(self._of().free, plan.own)
        names = {cell.name for cell in done}
        pictured = next((name for name in (best["cells"] if best else ()) if name in names), None)
        cells = []
        for cell in done:
            run = cell.name, cell.row, cell.mode, cell.seed, plan.first.directory(cell)
            cells.append(ExaminedCell(*run, cell.seed == config.seeds[0], cell.name == pictured))
        twin = None if config.twin in ("none", "train") else Path(config.twin)
        if config.twin == "train":

            def train() -> Path:
                arch, spec, _ = student_facts(cells[0].directory)
                path = out / "twin.safetensors"
                self._owner.train_twin(arch, spec.shape, TWIN_EPOCHS, path, self._line.note)
                return path

            twin = self._tried("a twin, trained on your own data", train)
        asks = {"auto": None, "true": True, "false": False}[config.transfer]
        key = [*(cell.name for cell in done), str(pictured), str(twin), config.transfer]
        found = partial(examine, out, cells, plan.job, twin, asks, self._line.note, plan.brief)
        self._examined = cached(out / "examined" / "found.json", key, found)
        self._recognised = self._recognise(cells) if config.references else None

    def _recognise(self, cells: Sequence[Any]) -> Entry | None:
        """The test of every copy by the owner's mistakes; None where the images tell nothing."""
        from dfme.audits.audit.recognition import recognise

        plan = self._plan
        references = plan.config.references
        file = plan.out / "examined" / "recognised.json"
        make = partial(recognise, plan.job, references, cells, self._line.note)
        asked = partial(cached, file, [*references, *(cell.name for cell in cells)], make)
        found: Entry | None = self._tried("whether you would recognise a copy", asked)
        return found

    def _tried(self, what: str, make: Callable[[], Any]) -> Any:
        """Result of ``make``, or None if the data do not allow it, which is noted."""
        try:
            return make()
        except UserError as error:
            self._not_run.append({"what": what, "why": str(error)})
            return None

    def _of(self) -> Findings:
        plan = self._plan
        told = [session.findings() for session in self._sessions]
        runs = [each for session in (*self._sessions, *self._under) for each in session.runs]
        done = {
            each.cell.name: plan.first.directory(each.cell)
            for each in runs
            if each.state == "finished"
        }
        summaries = {
            name: read_summary(folder / "summary.json") or {} for name, folder in done.items()
        }
        known = plan.own, plan.config.budget, plan.job.teacher.price_per_1000
        ledgers = {path.parent.name: totals for path, totals in self._ledgers("cells/*")}
        second = told[1] if told[1:] else None
        return Findings(*known, told[0], second, runs, summaries, self._utility, ledgers)

    def _ledgers(self, place: str) -> list[tuple[Path, Totals]]:
        """Every ledger in such a place of the audit's directory, added up."""
        return [
            (path, add_up(path)) for path in sorted(self._plan.out.glob(f"{place}/ledger.jsonl"))
        ]

    def _write(self, finished: bool) -> None:
        """audit.json, and of a finished audit the page and the card."""
        plan = self._plan
        began = self._began
        before = self._before.get("wall_seconds")
        wall = time.time() - began + (before if isinstance(before, float) else 0.0)
        started = str(
            self._before.get("started") or time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(began))
        )
        command = headline.commands(str(self._before.get("command") or ""), plan.first.command)
        machine = f"{platform.machine()}, {cores()} cores"
        made = {
            "command": command,
            "started": started,
            "wall_seconds": round(wall, 1),
            "machine": machine,
            "finished": finished,
            "directory": str(plan.out),
        }
        self.found = {"schema": SCHEMA, "tool": tool(), "made": made, **self._findings()}
        check_audit(self.found)
        write_text(plan.out / DATA, json.dumps(self.found, indent=1, allow_nan=False) + "\n")
        if finished:
            from dfme.audits.audit.exports import write_all

            write_all(self.found, plan.out)
            write_text(plan.out / CARD, headline.model_card(self.found))

    def _findings(self) -> Entry:
        beside = [*self._ledgers("benign"), *self._ledgers("examined*")]
        under = [run for session in self._under for run in session.runs]
        measured = Measured(
            of=self._of(),
            utility=self._utility,
            detection=self._measured,
            examined=self._examined,
            recognised=self._recognised,
            not_run=self._not_run,
            beside=[totals for _, totals in beside],
            under=under[0].cell.name if under else None,
        )
        return parts(self._plan, measured)


def _to_run(session: Session) -> list[Outcome]:
    return [each for each in session.runs if each.state != "not applicable"]
