"""A drill by recorded queries: the images of an attack are sent again, and nothing is trained."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path

import torch

from dfme.answers.reading import NO_ANSWER, answered_class
from dfme.audits.audit.result import recorded
from dfme.audits.drill.options import MAX_BUDGET
from dfme.audits.drill.result import DrillResult, Listening
from dfme.audits.drill.session import CopyCurve, Drill, Tell, share_or_none
from dfme.compute.device import choose_device
from dfme.compute.modules import DeferredChecks
from dfme.config.messages import printable
from dfme.config.settings import Job
from dfme.config.yaml_files import dump_yaml, load_yaml
from dfme.data.recorded_queries import RecordedQueries
from dfme.errors import BudgetExhausted, TeacherError, UserError
from dfme.oracle.oracle import Oracle
from dfme.report.console import duration
from dfme.report.run_files import read_summary
from dfme.report.terminal import StatusLine
from dfme.run.build import build_oracle, build_teacher, facts_of
from dfme.run.directory import QUERIES, RunDirectory
from dfme.run.job import document, resume_command
from dfme.run.loop import Interrupt
from dfme.run.recipes import plain_name
from dfme.spec import Teacher

AT_ONCE = 64
"""Images of up to 64x64 pixels in a request, unless the service takes fewer."""
LINE_SECONDS = 2.0
"""Between two lines about the asking, where there is no terminal."""


class RecordedAttack:
    """The queries of a run in ``folder``, or of the attack in the headline of the audit there.

    ``folder``: the run's. ``curve``: of its copy. UserError where none are recorded.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = _run_of(folder)
        self.queries = RecordedQueries(self.folder / QUERIES)
        if not len(self.queries):
            raise UserError(f"--from: expected recorded queries, got none in {self.folder}")
        summary = read_summary(self.folder / "summary.json") or {}
        baselines = summary.get("baselines")
        constant = baselines.get("constant_agreement") if isinstance(baselines, dict) else None
        self.curve = CopyCurve.of_run(self.folder, share_or_none(constant))
        config = load_yaml(self.folder / "config.yaml")
        method = config.get("method")
        name = method.get("name") if isinstance(method, dict) else method
        self.attack = printable(plain_name(config.get("recipe")) or str(name))[:80]

    def require_fit(self, teacher: Teacher) -> None:
        """UserError unless the service takes images such as these, and has as many classes."""
        form = self.queries.form
        theirs = form.spec
        if (theirs, form.classes) == (teacher.spec, teacher.num_classes):
            return
        raise UserError(
            f"--from: expected queries of {teacher.spec} and {teacher.num_classes} classes, as the "
            f"service takes them, got {theirs} and {form.classes} classes; record an attack on a "
            "model of this form (--teacher.levels and --teacher.bounds are part of it)"
        )


def _run_of(folder: Path) -> Path:
    """The run whose queries are meant. UserError where there is none."""
    if (folder / QUERIES).is_dir():
        return folder
    audit = recorded(folder / "audit.json")
    if audit is None:
        raise UserError(
            f"--from: expected the directory of an audit, or of a run with {QUERIES}/, got "
            f"{folder}; a run records its queries by --record-queries true"
        )
    attacker = audit.headline.attacker
    lines = [line for line in audit.price if line.row == attacker]
    own = [line for line in lines if line.mode == audit.headline.mode]
    names = [name for line in (own or lines) for name in line.cells]
    places = {cell.name: folder / cell.dir for cell in audit.cells}
    for name in names:
        place = places.get(name)
        if place is not None and _within(place, folder) and (place / QUERIES).is_dir():
            return place
    raise UserError(
        f"--from: no run of the attack in the audit's headline ({attacker}) has recorded queries "
        f"in {folder}: audit a model on this machine, which records them"
    )


def _within(place: Path, folder: Path) -> bool:
    """Whether a directory that a file names lies in another one."""
    return place.resolve().is_relative_to(folder.resolve())


def _prepared(job: Job, teacher: Teacher, attack: RecordedAttack) -> Job:
    """The job with a budget, of as many images as are recorded where none is given."""
    attack.require_fit(teacher)
    if int(job.config.budget) < MAX_BUDGET:
        return job
    return replace(job, config=replace(job.config, budget=len(attack.queries)))


def plan(job: Job, listening: Listening) -> str:
    """What would be sent, in lines; no image is asked."""
    attack = RecordedAttack(Path(listening.recorded or ""))
    with ExitStack() as held:
        teacher = build_teacher(job, None, choose_device(job.config.device))
        held.callback(teacher.info.close)
        job = _prepared(job, teacher, attack)
        facts = _facts(job, teacher, attack)
        return f"plan: the teacher was asked no image, nothing was written\n{facts}"


def _facts(job: Job, teacher: Teacher, attack: RecordedAttack) -> str:
    """What is sent, what it costs and how long it takes at least, in a line."""
    count = min(int(job.config.budget), len(attack.queries))
    price = job.teacher.price_per_1000
    cost = "" if price is None else f", {count * price / 1000:,.2f} at the price given"
    rate = teacher.info.wire.images_per_second
    paced = "" if rate is None else f"; at least {duration(count / rate)} at the rate given"
    return (
        f"{count:,} recorded images of {attack.attack} are sent again and charged (check){cost}"
        f"{paced}; nothing is trained"
    )


def replay(
    job: Job, listening: Listening, accounts: frozenset[str], tell: Tell
) -> tuple[DrillResult, Path]:
    """Send recorded queries to the job's service, in their order, and listen; the outcome, and the
    directory of the ledger.

    ``accounts``: the tags of this client. UserError before the first query; TeacherError where the
    service fails other than by a refusal.
    """
    out = Path(job.config.out or RunDirectory.free_name(Path("runs/drill")))
    attack = RecordedAttack(Path(listening.recorded or ""))
    job = replace(job, config=replace(job.config, out=str(out)))
    drill = Drill(job, listening, accounts, tell, lambda: attack.curve)
    drill.attack = attack.attack
    if drill.earlier is not None and drill.earlier.finished:
        return drill.earlier, out
    with ExitStack() as held:
        held.enter_context(drill.listened())
        teacher = build_teacher(job, None, choose_device(job.config.device))
        held.callback(teacher.info.close)
        job = _prepared(job, teacher, attack)
        directory = held.enter_context(_directory(job))
        checks = DeferredChecks()
        oracle = build_oracle(job, teacher, directory, {}, checks, facts_of(job, teacher))
        line = held.enter_context(closing(StatusLine(sys.stderr)))
        held.enter_context(closing(oracle)).report_to(line.note)
        line.note(f"{_facts(job, teacher, attack)}; recorded in {printable(str(out))}")
        drill.begin(oracle.ledger, line.note, lambda: None)
        refused_at = None
        finished = True
        again = resume_command(out, job, "drill")
        try:
            with Interrupt(announce=True) as interrupt:
                finished = _send(oracle, attack.queries, drill, line, interrupt.requested)
        except TeacherError as error:
            refused_at = drill.refused_at(error)
            if refused_at is None:
                kept = f"{error.message}; all that was paid is kept: {again}"
                raise TeacherError(kept) from error
        except KeyboardInterrupt:
            line.note(f"stopped at once, all that was paid is kept; go on with:\n  {again}")
            raise
        checks.verify()
        return drill.ended(finished, refused_at, line.note), out


def _directory(job: Job) -> RunDirectory:
    """A new directory, or that of the drill which is gone on with."""
    path = Path(job.config.out or "")
    if job.config.resume:
        return RunDirectory.open_for_resume(path)
    directory = RunDirectory.create(path)
    directory.is_new_run = True
    settings = document(job)
    directory.write_config(dump_yaml({name: settings[name] for name in KEPT}))
    return directory


KEPT = ("budget", "device", "fsync", "teacher")
"""Sections of a job that decide what is sent, and to whom."""


def _parts(oracle: Oracle, total: int) -> Iterator[tuple[int, int]]:
    """The images of each request."""
    most = oracle.spec.at_once(AT_ONCE)
    for start in range(0, total, most):
        yield start, min(start + most, total)


def _send(
    oracle: Oracle,
    queries: RecordedQueries,
    drill: Drill,
    line: StatusLine,
    stopped: Callable[[], bool],
) -> bool:
    """Send the images, to the end of the budget, or to the alarm where nothing more is asked; False
    where it was ``stopped`` on the way.
    """
    total = min(oracle.ledger.budget, len(queries))
    progress = SendingProgress(drill, line, total)
    drill.listener.on_look = progress.tick
    same = 0
    answered = 0
    with torch.no_grad():
        for start, stop in _parts(oracle, total):
            if drill.is_over:
                break
            if stopped():
                return False
            try:
                answers = oracle(queries.images(start, stop), purpose="check")
            except BudgetExhausted:  # what a service failed to answer is charged too
                break
            class_B = answered_class(answers)
            answered += int((class_B != NO_ANSWER).sum())
            same += int((class_B == queries.scores(start, stop).argmax(1)).sum())
            drill.same = same / answered if answered else None
            drill.listener.look()
            progress.sent(stop)
    return True


class SendingProgress:
    """How far the asking is: a bar in a terminal, elsewhere a line now and then, by ``tick``."""

    def __init__(self, drill: Drill, line: StatusLine, total: int) -> None:
        self._drill = drill
        self._line = line
        self._total = total
        self._done = 0
        self._said_at = time.monotonic()
        line.show(lambda: (self._done / total, [self._text], []))

    @property
    def _text(self) -> str:
        rang = "it rang" if self._drill.listener.first else "nobody rang"
        return f"{self._done:,} of {self._total:,} images sent; {rang}"

    def sent(self, done: int) -> None:
        """So many images are answered."""
        self._done = done
        if done == self._total and not self._line.live:
            self._line.note(self._text)

    def tick(self) -> None:
        """Say it again, where nothing was said for ``LINE_SECONDS``."""
        now = time.monotonic()
        if not self._line.live and now - self._said_at >= LINE_SECONDS and self._done < self._total:
            self._said_at = now
            self._line.note(self._text)
