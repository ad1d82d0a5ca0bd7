"""A drill with a run of its own: the attack learns, as ``run.py extract`` does it."""

import sys
import time
from dataclasses import replace
from pathlib import Path

from dfme.audits.drill.result import DrillResult, Listening
from dfme.audits.drill.session import LEDGER, CopyCurve, Drill, Tell
from dfme.config.settings import Job
from dfme.errors import TeacherError
from dfme.oracle.ledger_log import audit
from dfme.report.classified import baselines
from dfme.report.console import LINE_SECONDS, LINE_TIME, duration
from dfme.run.build import run_job
from dfme.run.directory import RunDirectory
from dfme.run.run import Run


def live(
    job: Job, listening: Listening, accounts: frozenset[str], tell: Tell, announced: bool = False
) -> tuple[DrillResult, Path]:
    """Run the job's attack against its service, and listen; the outcome, and the run's directory.

    ``accounts``: the tags of this client. ``announced``: the run's first line was said. UserError
    before the first query; TeacherError where the service fails other than by a refusal.
    """
    out = Path(job.config.out or RunDirectory.free_name(Path("runs/drill")))
    job = replace(job, config=replace(job.config, out=str(out)))
    runs: list[Run] = []

    def curve() -> CopyCurve:
        constant = None
        if runs and runs[0].examination.answers is not None:
            constant = baselines(runs[0].classified())["constant_agreement"]
        return CopyCurve.of_run(out, constant)

    drill = Drill(job, listening, accounts, tell, curve)
    if drill.earlier is not None and drill.earlier.finished:
        return drill.earlier, out

    def opened(run: Run) -> None:
        def stop() -> None:
            run.recorder.stopped = True

        runs.append(run)
        drill.listener.on_look = Heartbeat(drill, run).tick
        drill.begin(run.oracle.ledger, run.recorder.note, stop)

    with drill.listened():
        refused_at = None
        finished = True
        try:
            result = run_job(
                job,
                resume=bool(job.config.resume),
                announced=announced,
                own_process=True,
                opened=opened,
                command="drill",
            )
            finished = result.finished or drill.is_over
        except TeacherError as error:
            refused_at = drill.refused_at(error)
            if refused_at is None:
                raise
        if not runs:  # it had come to its end in a session before
            drill.begin(audit(out / LEDGER), tell, lambda: None)
        return drill.ended(finished, refused_at, tell), out


class Heartbeat:
    """Says how far a run is where the run itself says less and less; a terminal has its bar."""

    def __init__(self, drill: Drill, run: Run) -> None:
        self._drill = drill
        self._run = run
        self._began = self._said_at = time.monotonic()

    def tick(self) -> None:
        """Say it, where it is time."""
        now = time.monotonic()
        often = now - self._began < LINE_SECONDS / LINE_TIME
        if often or now - self._said_at < LINE_SECONDS or sys.stderr.isatty():
            return
        self._said_at = now
        rang = "it rang" if self._drill.listener.first else "nobody rang"
        seconds = duration(now - self._began)
        self._run.recorder.note(f"{self._run.oracle.ledger.spent:,} queries, {seconds}; {rang}")
