"""Run a comparison from plan to files: finished cells are kept, others run, tables written."""

import json
import math
import shlex
import signal
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from pkgutil import resolve_name
from typing import NamedTuple

from dfme.audits.compare.engines import ENGINES, EXTRAS, LOST, STOPPED, Task
from dfme.audits.compare.engines.pool import WorkerPool, last_line
from dfme.audits.compare.figures import ComparisonResult, Outcome, cut_off, read_figures
from dfme.audits.compare.plan import OPTIONS, Cell, ComparisonPlan, as_asked
from dfme.audits.compare.rehearsal import Rehearsal, not_applicable, rehearse
from dfme.audits.compare.rows import unequal
from dfme.audits.compare.table import as_csv, as_json, markdown, overview
from dfme.config.yaml_files import dump_yaml, load_yaml, sealed
from dfme.errors import DfmeError
from dfme.files import make_folder, write_text
from dfme.report.console import LINE_SECONDS, LINE_TIME, duration, teacher_name
from dfme.report.run_files import read_summary
from dfme.report.terminal import StatusLine, wrapped
from dfme.run.directory import DirectoryLock, is_run, on_record
from dfme.run.job import (
    POOLS,
    consent_flags,
    differing_keys,
    document,
    resume_command,
    shown_command,
)
from dfme.run.loop import Interrupt
from dfme.run.opening import digests_on_record, require_same_images
from dfme.run.work import UnitTime, shorter


class CellProgress(NamedTuple):
    """Images that a cell has paid for, and the share of its work that is done."""

    images: int = 0
    share: float = 0.0


@dataclass
class Begun:
    """When a cell was begun by this call, at which share of its work, and when it ended."""

    time: float
    share: float
    ended: float | None = None


def killed(code: int) -> str:
    """End of a cell that has no exit code."""
    if code == LOST:
        return "lost with its worker, which was killed or preempted, or whose node is gone"
    why = " (the system does that when memory runs out)" if code == -signal.SIGKILL else ""
    return f"killed by signal {-code}{why}"


def in_a_line(outcome: Outcome) -> str:
    """What became of a cell."""
    figures = outcome.figures
    if figures is None:
        return "stopped and kept" if outcome.state == "waiting" else f"FAILED: {outcome.reason}"
    parts = []
    if figures.agreement is not None:
        parts.append(
            f"agreement {figures.beside.text(figures.agreement, figures.agreement_balanced)}"
        )
    if figures.accuracy is not None:
        parts.append(f"accuracy {figures.accuracy:.2%}")
    return ", ".join([*parts, f"{figures.seconds:,.1f} s"])


def compare(
    plan: ComparisonPlan, line: StatusLine, show: Callable[[str], None], across: int | None = None
) -> int:
    """Run what is left of the comparison; the exit code: 0, 1 if a cell failed, 130 if it was
    stopped.

    ``line`` shows progress, ``show`` the tables at the end, whose lines are of ``across`` letters.
    Report and data are written after every cell. UserError for what cannot work, before any is
    started.
    """
    session = Session(plan, not_applicable(plan.runs), line)
    session.rehearsal = rehearse(plan, session.waiting, line.note, not plan.config.dry_run)
    if session.waiting or plan.config.dry_run:
        line.note(session.forecast())
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

    result = session.findings()
    draw(result, plan.files[2])
    text = f"teacher: {result.facts['teacher']}\n\n{overview(result, across)}"
    files = "\n".join(str(file) for file in plan.files if file.exists())
    show(f"{wrapped(text, across, '  ')}\n\n{files}")
    if stopped and plan.config.engine == "commands":
        line.note(f"when they have run, make the table with:\n  {command}")
    elif stopped:
        line.note(again)
        return 130
    return 1 if any(outcome.state == "failed" for outcome in result.outcomes) else 0


def _require_same_images(plan: ComparisonPlan) -> None:
    """UserError where cells on record were scored on other images than those here, or asked
    others.
    """
    checked: set[str] = set()
    for cell in plan.runs:
        directory = plan.directory(cell)
        digests = digests_on_record(directory)
        pools = [getattr(cell.job.method_config, name, None) for name in POOLS]
        code = repr((digests, cell.job.config.evaluation, pools))
        if digests and is_run(directory) and code not in checked:
            require_same_images(cell.job, directory, unmoved=True)
            checked.add(code)


class Session:
    """Outcomes of a comparison's cells as they come in; ``reasons``: those of cells that are not
    run.

    ``rehearsal``: what was found for all cells before they run. ``shared_answers``: a folder in
    which all cells share the teacher's answers.
    """

    def __init__(
        self,
        plan: ComparisonPlan,
        reasons: dict[str, str],
        line: StatusLine,
        shared_answers: Path | None = None,
    ) -> None:
        self._shared_answers = shared_answers
        self._plan = plan
        self._line = line
        _require_same_images(plan)
        self._unequal = unequal({cell.row: cell.job for cell in plan.cells})
        self._retries: Counter[str] = Counter()
        self._due: dict[str, Cell] = {}
        engine = resolve_name(ENGINES[plan.config.engine])
        self._engine: WorkerPool = engine(plan, self._task, line.note)
        self._outcomes = {
            cell.name: self._before(cell, reasons.get(cell.name)) for cell in plan.runs
        }
        self.rehearsal: Rehearsal | None = None
        self._progress = dict.fromkeys(self._outcomes, CellProgress())
        self._begun: dict[str, Begun] = {}
        self._shown_at = 0.0

    @property
    def runs(self) -> list[Outcome]:
        """State of every run, whatever a quota leaves of it."""
        return [*self._outcomes.values()]

    @property
    def waiting(self) -> list[Cell]:
        """The cells that are still to be run."""
        return [outcome.cell for outcome in self.runs if outcome.state == "waiting"]

    def forecast(self) -> str:
        """What the waiting cells will ask and take."""
        cells = self.waiting
        text = f"{len(cells)} cells of {sum(cell.budget for cell in cells):,} images"
        seconds = self.rehearsal.total(cells, self._plan.jobs) if self.rehearsal else 0.0
        if seconds:
            text = f"about {duration(seconds)} on this machine for {text}"
        return text + shorter(
            seconds, "smaller --budgets, fewer --student-steps, --methods or --seeds"
        )

    def run(self, stopped: Callable[[], bool]) -> bool:
        """Run every waiting cell; True if stopped before the last had finished."""
        if finished := sum(outcome.state == "finished" for outcome in self.runs):
            self._line.note(f"{finished} cells were finished before and are kept")
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
        """Show the progress of the cells that were to be run: by a bar, or a line now and then."""
        now = time.monotonic()
        running = self._engine.running
        silence = max(LINE_SECONDS, LINE_TIME * (now - self._started))
        is_early = not running or now - self._shown_at < silence
        if not self._due or (not self._line.live and is_early):
            return
        for cell in running:
            self._look(cell)
        budget = sum(cell.budget for cell in self._due.values())
        images = sum(progress.images for progress in self._progress.values())
        ended = len(self._due) - len(self.waiting)
        parts = [
            f"{ended} of {len(self._due)} cells done, {len(running)} running",
            f"{images:,}/{budget:,} images",
        ]
        share = images / budget
        seconds = self._seconds_left(now)
        if seconds is not None:
            share = (now - self._started) / max(now - self._started + seconds, 1e-9)
            if self.waiting:
                parts.append(f"{duration(seconds)} left")
        self._shown_at = now
        if self._line.live:
            self._line.show(lambda: (share, parts, [cell.name for cell in running]))
        else:
            self._line.note("  ".join(parts))

    def _look(self, cell: Cell) -> None:
        """Note a cell's progress, by its latest record: of images and of student steps half each
        (heuristic).
        """
        if figures := self._outcomes[cell.name].figures:
            self._progress[cell.name] = CellProgress(figures.spent, 1.0)
            return
        with suppress(ValueError, LookupError, TypeError):  # no record yet, or half of one
            record = json.loads(last_line(self._plan.directory(cell) / "metrics.jsonl"))
            images = int(record["queries"])
            steps = int(record.get("student_steps", 0)) / max(1, cell.job.config.student.steps)
            self._progress[cell.name] = CellProgress(
                images, (images / cell.budget + min(1.0, steps)) / 2
            )

    def _seconds_left(self, now: float) -> float | None:
        """Seconds to come: those foretold of each cell, else its images, at the pace so far."""
        if not self.waiting:
            return 0.0
        foretold = self.rehearsal.seconds if self.rehearsal else {}
        units = {
            name: foretold.get((cell.row, cell.budget)) or 0.0 for name, cell in self._due.items()
        }
        is_foretold = all(units.values())
        if not is_foretold:
            units = {name: float(cell.budget) for name, cell in self._due.items()}
        # half of a cell counts as much as what was foretold (heuristic): its first record comes
        # late
        pace = UnitTime(1.0 if is_foretold else None, max(units.values()) / 2)
        shares = {name: progress.share for name, progress in self._progress.items()}
        for name, begun in self._begun.items():
            seconds = (begun.ended or now) - begun.time
            if is_foretold and shares[name] == begun.share:
                # as foretold until its first record (heuristic)
                shares[name] += min(seconds / units[name], 0.9 * (1 - begun.share))
            pace.add(seconds, (shares[name] - begun.share) * units[name])
        if pace.mean is None:
            return None
        rest = [units[cell.name] * (1 - shares[cell.name]) for cell in self.waiting]
        return pace.mean * max(math.fsum(rest) / min(self._plan.jobs, len(rest)), *rest)

    def _before(self, cell: Cell, reason: str | None) -> Outcome:
        """Facts of a cell before anything runs: it may be finished by an earlier call."""
        if reason is not None:
            return Outcome(cell, "not applicable", reason)
        directory = self._plan.directory(cell)
        waiting = Outcome(cell, "waiting")
        try:
            summary = read_summary(directory / "summary.json")
            if summary is None or summary["budget"] < cell.budget:
                return waiting
            if differing_keys(load_yaml(directory / "config.yaml", own=True), cell.job):
                return waiting
            return Outcome(cell, "finished", figures=read_figures(directory))
        except DfmeError:  # damaged: the run itself says what, or writes it again
            return waiting

    def _task(self, cell: Cell) -> Task:
        """A cell for a worker: its job is written, and read by the process that runs it."""
        engine = self._plan.config.engine
        self._begun[cell.name] = Begun(time.monotonic(), self._progress[cell.name].share)
        if not self._line.live and engine != "commands":
            self._line.note(f"{cell.name}: {'begun' if engine == 'local' else 'queued'}")
        directory = self._plan.directory(cell)
        make_folder(directory)
        recipe = directory.with_name(f"{cell.name}.yaml")
        log = directory.with_name(f"{cell.name}.log")
        job = as_asked(cell.job, self.rehearsal.sharing if self.rehearsal else 0, engine in EXTRAS)
        if self._shared_answers is not None:
            job = replace(job, config=replace(job.config, shared_answers=str(self._shared_answers)))
        write_text(recipe, sealed(dump_yaml(document(job))))
        words = ("extract", "--config", str(recipe), "--out", str(directory), "--resume", "auto")
        consent = consent_flags(cell.job)
        return Task((*words, *consent), log, directory, cell.job.config.device, self._plan.entry)

    def _ended(self, cell: Cell, code: int, stopping: bool) -> bool:
        """Read what a cell left and report it; True if it should restart at once, since it was
        killed.
        """
        if code < 0 and not stopping and self._retries[cell.name] < self._plan.config.retries:
            self._retries[cell.name] += 1
            self._line.note(
                f"{cell.name}: {killed(code)}, and is gone on with (retry "
                f"{self._retries[cell.name]})"
            )
            return True
        outcome = self._outcomes[cell.name] = self._after(cell, code, stopping)
        self._look(cell)
        if cell.name in self._begun:
            self._begun[cell.name].ended = time.monotonic()
        ended = len(self._due) - len(self.waiting)
        self._line.note(f"[{ended}/{len(self._due)}] {outcome.cell.name}: {in_a_line(outcome)}")
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
        reason = last_line(log)
        if code < 0:
            reason = f"{killed(code)}; what was paid is kept; {reason}".removesuffix("; ")
        return Outcome(cell, "failed", f"{reason or f'exit code {code}, and nothing said'} ({log})")

    def findings(self) -> ComparisonResult:
        """All that is known so far."""
        plan = self._plan
        steps = [cell.job.config.student.steps for cell in plan.cells]
        steps_text = " to ".join(dict.fromkeys(f"{count:,}" for count in (min(steps), max(steps))))
        made_with = dict.fromkeys(
            outcome.figures.made_with for outcome in self.runs if outcome.figures
        )
        facts = {
            "teacher": teacher_name(document(plan.cells[0].job)["teacher"]),
            "command": shown_command(plan.command),
            "seeds": ", ".join(dict.fromkeys(str(cell.seed) for cell in plan.cells)),
            "student steps": f"{steps_text} of each student",
            "machine": self._engine.manner,
            "made with": "; ".join(made_with) or "nothing yet",
        }
        outcomes = tuple(self._within_quota(cell) for cell in plan.cells)
        return ComparisonResult(
            f"Comparison {plan.out.resolve().name}", facts, outcomes, self._unequal, plan.bills
        )

    def _within_quota(self, cell: Cell) -> Outcome:
        """State of the cell's run, cut off where a quota of the cell ends it."""
        outcome = self._outcomes[cell.name]
        figures = outcome.figures
        if figures and cell.attempt.limit:
            figures = cut_off(figures, cell.attempt.limit)
        shared = "" if outcome.cell == cell else outcome.cell.attempt.defence
        return replace(outcome, cell=cell, figures=figures, shared=shared)

    def _write(self) -> None:
        result = self.findings()
        report, data, _, cells = self._plan.files
        write_text(report, markdown(result))
        write_text(data, as_json(result))
        write_text(cells, as_csv(result))
