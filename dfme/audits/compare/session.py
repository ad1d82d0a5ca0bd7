"""Run a comparison from plan to files: finished cells are kept, others run, tables written."""

import json
import math
import shlex
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from pkgutil import resolve_name

from dfme.audits.compare.engines import ENGINES, EXTRAS, LOST, STOPPED, Task
from dfme.audits.compare.engines.pool import WorkerPool
from dfme.audits.compare.figures import ComparisonResult, Outcome, cut_off, read_figures
from dfme.audits.compare.plan import OPTIONS, Cell, ComparisonPlan, as_asked
from dfme.audits.compare.processes import last_line
from dfme.audits.compare.rehearsal import Rehearsal, rehearse
from dfme.audits.compare.rows import unequal
from dfme.audits.compare.table import as_csv, as_json, markdown, overview
from dfme.config.yaml_files import dump_yaml, sealed
from dfme.errors import DfmeError, UserError
from dfme.files import make_folder, write_text
from dfme.methods import find_method
from dfme.report.console import LINE_SECONDS, LINE_TIME, duration, teacher_name
from dfme.report.summary_file import read_summary
from dfme.report.terminal import StatusLine, wrapped
from dfme.run.directory import is_run, on_record
from dfme.run.idle_options import POOLS
from dfme.run.images_on_record import digests_on_record
from dfme.run.interrupt import Interrupt
from dfme.run.job import config_hash, consent_flags, document, resume_command, shown_command
from dfme.run.lock import DirectoryLock
from dfme.run.opening import require_same_images
from dfme.run.work import UnitTime, shorter
from dfme.spec import LabelMode
from dfme.students.losses import make_distance


def compare(
    plan: ComparisonPlan, line: StatusLine, show: Callable[[str], None], across: int | None = None
) -> int:
    """Run what is left of the comparison; the exit code: 0, 1 if a cell failed, 130 if it was
    stopped.

    ``line`` says how far it is, ``show`` the tables at the end, whose lines are of ``across``
    letters. Report and data are written after every cell. UserError for what cannot work, before
    any is started.
    """
    session = Session(plan, not_applicable(plan.runs), line)
    rehearsal = session.rehearsal = rehearse(
        plan, session.waiting, line.note, not plan.config.dry_run
    )
    seconds = rehearsal.total(session.waiting, plan.jobs) if rehearsal else 0.0
    about = f"about {duration(seconds)} on this machine for " if seconds else ""
    told = (
        f"{about}{len(session.waiting)} cells of "
        f"{sum(cell.budget for cell in session.waiting):,} images"
    )
    if session.waiting or plan.config.dry_run:
        line.note(
            told
            + shorter(seconds, "smaller --budgets, fewer --student-steps, --methods or --seeds")
        )
    if plan.config.dry_run:
        return 0
    command = resume_command(plan.out, plan.cells[0].job, "compare")
    if plan.config.engine_options:  # which no file keeps
        command += f" --engine-options {shlex.quote(','.join(plan.config.engine_options))}"
    again = f"stopped; all that was paid is kept; go on with:\n  {command}"
    make_folder(plan.out / "cells")
    lock = DirectoryLock(plan.out)
    try:
        if lock.note:
            line.note(lock.note)
        write_text(plan.out / OPTIONS, on_record(dump_yaml(plan.options), plan.out))
        with Interrupt(announce=True) as interrupt:
            stopped = session.run(interrupt.requested)
    except KeyboardInterrupt:
        line.note(again)
        raise
    finally:
        line.close()
        lock.close()
    from dfme.audits.compare.picture import draw

    findings = session.findings()
    draw(findings, plan.files[2])
    text = f"teacher: {findings.facts['teacher']}\n\n{overview(findings, across)}"
    show(
        wrapped(text, across, "  ")
        + "\n\n"
        + "\n".join(str(file) for file in plan.files if file.exists())
    )
    if stopped and plan.config.engine == "commands":
        line.note(f"when they have run, make the table with:\n  {command}")
    elif stopped:
        line.note(again)
        return 130
    return 1 if any(outcome.state == "failed" for outcome in findings.outcomes) else 0


def _require_same_images(plan: ComparisonPlan) -> None:
    """UserError where cells on record were scored on other images than those here, or asked
    others.
    """
    seen: set[str] = set()
    for cell in plan.runs:
        directory = plan.directory(cell)
        held = digests_on_record(directory)
        pools = [getattr(cell.job.method_config, name, None) for name in POOLS]
        code = repr((held, cell.job.config.evaluation, pools))
        if held and is_run(directory) and code not in seen:
            require_same_images(cell.job, directory, unmoved=True)
            seen.add(code)


class Session:
    """Outcomes of a comparison's cells as they come in; ``reasons``: those of cells that are not
    run.

    ``rehearsal``: what was found for all cells before they run.
    """

    def __init__(self, plan: ComparisonPlan, reasons: dict[str, str], line: StatusLine) -> None:
        self._plan = plan
        self._line = line
        _require_same_images(plan)
        self._unequal = unequal({cell.row: cell.job for cell in plan.cells})
        self._again: Counter[str] = Counter()
        self._due: dict[str, Cell] = {}
        engine = resolve_name(ENGINES[plan.config.engine])
        self._engine: WorkerPool = engine(plan, self._task, line.note)
        self._outcomes = {
            cell.name: self._before(cell, reasons.get(cell.name)) for cell in plan.runs
        }
        self.rehearsal: Rehearsal | None = None
        self._done = dict.fromkeys(self._outcomes, (0, 0.0))
        self._begun: dict[str, tuple[float, float]] = {}
        self._over: dict[str, float] = {}
        self._said = 0.0

    @property
    def runs(self) -> list[Outcome]:
        """State of every run, whatever a quota leaves of it."""
        return [*self._outcomes.values()]

    @property
    def waiting(self) -> list[Cell]:
        """The cells that are still to be run."""
        return [each.cell for each in self.runs if each.state == "waiting"]

    def run(self, stopped: Callable[[], bool]) -> bool:
        """Run every waiting cell; True if stopped before the last had finished."""
        if kept := sum(each.state == "finished" for each in self.runs):
            self._line.note(f"{kept} cells were finished before and are kept")
        self._write()
        self._started = time.monotonic()
        self._due = {cell.name: cell for cell in self.waiting}
        for cell in self.waiting:
            self._look(cell)

        def ended(cell: Cell, code: int) -> bool:
            return self._ended(cell, code, stopped())

        self._engine.run(self.waiting, ended, stopped, self._watch)
        self._watch()
        return bool(self.waiting)

    def _watch(self) -> None:
        """Show how far the cells are that were to be run: by a bar, or a line now and then."""
        now = time.monotonic()
        running = self._engine.running
        silent = now - self._said < max(LINE_SECONDS, LINE_TIME * (now - self._started))
        if not self._due or (not self._line.live and (silent or not running)):
            return
        for cell in running:
            self._look(cell)
        every = sum(cell.budget for cell in self._due.values())
        images = sum(paid for paid, _ in self._done.values())
        ended = len(self._due) - len(self.waiting)
        parts = [f"{ended} of {len(self._due)} cells done, {len(running)} running"]
        parts.append(f"{images:,}/{every:,} images")
        share = images / every
        if (left := self._left(now)) is not None:
            parts += [f"{duration(left)} left"] if self.waiting else []
            share = (now - self._started) / max(now - self._started + left, 1e-9)
        names = [cell.name for cell in running]
        self._said = now
        if self._line.live:
            self._line.show(lambda: (share, parts, names))
        else:
            self._line.note("  ".join(parts))

    def _look(self, cell: Cell) -> None:
        """Note the images that a cell has paid for, and the share of its work that is done.

        By its latest record: of images and of student steps half each (heuristic).
        """
        if figures := self._outcomes[cell.name].figures:
            self._done[cell.name] = figures.spent, 1.0
            return
        with suppress(ValueError, LookupError, TypeError):  # no record yet, or half of one
            record = json.loads(last_line(self._plan.directory(cell) / "metrics.jsonl"))
            images = int(record["queries"])
            steps = int(record.get("student_steps", 0)) / max(1, cell.job.config.student.steps)
            self._done[cell.name] = images, (images / cell.budget + min(1.0, steps)) / 2

    def _left(self, now: float) -> float | None:
        """Seconds to come: those foretold of each cell, else its images, at the pace so far."""
        foretold = self.rehearsal.seconds if self.rehearsal else {}
        seconds = {
            name: foretold.get((cell.row, cell.budget)) or 0.0 for name, cell in self._due.items()
        }
        known = all(seconds.values())
        units = seconds if known else {name: float(cell.budget) for name, cell in self._due.items()}
        # half of a cell counts as much as what was foretold (heuristic): its first record comes
        # late
        pace = UnitTime(1.0 if known else None, max(units.values()) / 2)
        done = {name: share for name, (_, share) in self._done.items()}
        for name, (began, before) in self._begun.items():
            spent = self._over.get(name, now) - began
            if known and done[name] == before:  # as foretold until its first record (heuristic)
                done[name] += min(spent / units[name], 0.9 * (1 - before))
            pace.add(spent, (done[name] - before) * units[name])
        left = [units[cell.name] * (1 - done[cell.name]) for cell in self.waiting]
        if pace.each is None or not left:
            return None if left else 0.0
        return pace.each * max(math.fsum(left) / min(self._plan.jobs, len(left)), *left)

    def _before(self, cell: Cell, reason: str | None) -> Outcome:
        """Facts of a cell before anything runs: it may be finished by an earlier call."""
        if reason is not None:
            return Outcome(cell, "not applicable", reason)
        directory = self._plan.directory(cell)
        waiting = Outcome(cell, "waiting")
        try:
            summary = read_summary(directory / "summary.json")
            known = summary is not None and summary.get("config_hash") == config_hash(cell.job)
            if summary is None or not known or summary["budget"] < cell.budget:
                return waiting
            return Outcome(cell, "finished", figures=read_figures(directory))
        except DfmeError:  # damaged: the run itself says what, or writes it again
            return waiting

    def _task(self, cell: Cell) -> Task:
        self._begun[cell.name] = time.monotonic(), self._done[cell.name][1]
        if not self._line.live and self._plan.config.engine != "commands":
            self._line.note(
                f"{cell.name}: {'begun' if self._plan.config.engine == 'local' else 'queued'}"
            )
        directory = self._plan.directory(cell)
        make_folder(directory)
        recipe = directory.with_name(f"{cell.name}.yaml")
        log = directory.with_name(f"{cell.name}.log")
        sharing = self.rehearsal.sharing if self.rehearsal else 0
        job = as_asked(cell.job, sharing, self._plan.config.engine in EXTRAS)
        write_text(recipe, sealed(dump_yaml(document(job))))
        words = ("extract", "--config", str(recipe), "--out", str(directory), "--resume", "auto")
        consent = consent_flags(cell.job)
        device = cell.job.config.device
        return Task((*words, *consent), log, directory, device, self._plan.entry)

    def _ended(self, cell: Cell, code: int, stopping: bool) -> bool:
        """Read what a cell left and report it; True if it should restart at once, since it was
        killed.
        """
        if code < 0 and not stopping and self._again[cell.name] < self._plan.config.retries:
            self._again[cell.name] += 1
            retry = f"and is gone on with (retry {self._again[cell.name]})"
            self._line.note(f"{cell.name}: {_killed(code)}, {retry}")
            return True
        outcome = self._outcomes[cell.name] = self._after(cell, code, stopping)
        self._look(cell)
        self._over[cell.name] = time.monotonic()
        ended = len(self._due) - len(self.waiting)
        self._line.note(f"[{ended}/{len(self._due)}] {outcome.cell.name}: {_in_a_line(outcome)}")
        self._write()
        return False

    def _after(self, cell: Cell, code: int, stopping: bool) -> Outcome:
        directory = self._plan.directory(cell)
        if code == 0:
            try:
                return Outcome(cell, "finished", figures=read_figures(directory))
            except DfmeError as error:
                return Outcome(cell, "failed", str(error))
        if stopping or code == STOPPED:
            return Outcome(cell, "waiting")
        log = directory.with_name(f"{cell.name}.log")
        ended = f"{_killed(code)}; what was paid is kept" if code < 0 else ""
        said = [text for text in (ended, last_line(log)) if text] or [
            f"exit code {code}, and nothing said"
        ]
        return Outcome(cell, "failed", f"{'; '.join(said)} ({log})")

    def findings(self) -> ComparisonResult:
        plan = self._plan
        steps = _range(cell.job.config.student.steps for cell in plan.cells)
        made_with = dict.fromkeys(
            each.figures.made_with for each in self._outcomes.values() if each.figures
        )
        facts = {
            "teacher": teacher_name(document(plan.cells[0].job)["teacher"]),
            "command": shown_command(plan.command),
            "seeds": ", ".join(dict.fromkeys(str(cell.seed) for cell in plan.cells)),
            "student steps": f"{steps} of each student",
            "machine": self._engine.manner,
            "made with": "; ".join(made_with) or "nothing yet",
        }
        outcomes = tuple(self._seen_by(cell) for cell in plan.cells)
        title = f"Comparison {plan.out.resolve().name}"
        return ComparisonResult(title, facts, outcomes, self._unequal, plan.bills)

    def _seen_by(self, cell: Cell) -> Outcome:
        """State of the cell's run, as far as a quota of the cell lets it come."""
        of_run = self._outcomes[cell.name]
        limit = cell.attempt.limit
        figures = of_run.figures and (cut_off(of_run.figures, limit) if limit else of_run.figures)
        shared = "" if of_run.cell == cell else of_run.cell.attempt.defence
        return replace(of_run, cell=cell, figures=figures, shared=shared)

    def _write(self) -> None:
        findings = self.findings()
        report, data, _, cells = self._plan.files
        write_text(report, markdown(findings))
        write_text(data, as_json(findings))
        write_text(cells, as_csv(findings))


def _killed(code: int) -> str:
    """End of a cell that has no exit code."""
    if code == LOST:
        return "lost with its worker, which was killed or preempted, or whose node is gone"
    why = " (the system does that when memory runs out)" if code == -signal.SIGKILL else ""
    return f"killed by signal {-code}{why}"


def _in_a_line(outcome: Outcome) -> str:
    if outcome.figures is None:
        return {"waiting": "stopped and kept", "failed": f"FAILED: {outcome.reason}"}[outcome.state]
    found = outcome.figures
    known = []
    if found.agreement is not None:
        known.append(f"agreement {found.beside.text(found.agreement, found.agreement_balanced)}")
    if found.accuracy is not None:
        known.append(f"accuracy {found.accuracy:.2%}")
    return ", ".join([*known, f"{found.seconds:,.1f} s"])


def not_applicable(cells: Iterable[Cell]) -> dict[str, str]:
    """Names and reasons of cells whose method or attacker cannot learn from such answers.

    UserError for a loss that does not fit a row's answers, or where nothing is left to run.
    """
    reasons: dict[str, str] = {}
    problems: dict[str, None] = {}
    for cell in (every := list(cells)):
        able = find_method(cell.job.method).load().label_modes
        config = cell.job.config
        form = config.answers.mode(LabelMode.parse(cell.job.teacher.label_mode or cell.mode))
        if cell.attempt.reason or form.kind not in able:
            needed = f"{cell.job.method} needs answers of {' or '.join(able)}"
            reasons[cell.name] = cell.attempt.reason or needed
            continue
        try:
            make_distance(config.answers.loss(config.student.loss), form)
        except UserError as error:
            problems[f"row {cell.row}: {error}"] = None
    if len(reasons) == len(every):
        problems |= dict.fromkeys(f"row {cell.row}: {reasons[cell.name]}" for cell in every)
    if problems:
        raise UserError("; ".join(problems))
    return reasons


def _range(counts: Iterable[int]) -> str:
    """The least and the largest of some counts."""
    known = [*counts]
    least = min(known)
    most = max(known)
    return f"{least:,}" if least == most else f"{least:,} to {most:,}"
