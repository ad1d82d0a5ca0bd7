"""Cells as SLURM jobs, through submitit: it asks for USR2 before a time limit or preemption, and requeues the job."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

import cloudpickle
import submitit

from dfme.benchmarks.compare.engines import LOST, Terms, require_options, shipped
from dfme.benchmarks.compare.engines.pool import WorkerPool
from dfme.benchmarks.compare.processes import threads_each
from dfme.errors import UserError
from dfme.files import remove
from dfme.run.job import PROJECT

T = TypeVar("T")

POLL_SECONDS = 1.0
MINUTES = 60
"""A job's limit unless ``time`` is said; at its end the job is queued again and goes on."""

NUMBERS = ("time", "gpus_per_node", "cpus_per_task", "signal_delay_s")
TEXTS = ("partition", "account", "qos", "constraint", "gres", "mem", "nodelist", "exclude", "comment")
CLUSTERS = ("slurm", "local")
"""``cluster=local``: submitit's processes on this machine, to try it where there is no SLURM."""


class Job(shipped.Shipped):
    """A cell's job."""

    def __init__(self, log: Path, job: Any) -> None:
        super().__init__(log)
        self._job = job

    def over(self) -> bool:
        return bool(self._job.done(force_check=self.asked))

    def cancel(self, at_once: bool) -> None:
        self._job.cancel(check=False)


class Slurm(WorkerPool[T]):
    """A job per cell, and ``jobs`` of them in the queue at once; SLURM decides which run."""

    def __init__(self, terms: Terms[T]) -> None:
        super().__init__(self._submit, terms.jobs, POLL_SECONDS)
        require_options("slurm", terms.options, (*NUMBERS, *TEXTS, "cluster"))
        options: dict[str, Any] = {"cluster": "slurm", **terms.options}
        for name in (name for name in NUMBERS if name in options):
            if not options[name].isdecimal():
                minutes = " of minutes" if name == "time" else ""
                raise UserError(f"--engine-options {name}: expected a number{minutes}, got {options[name]!r}")
            options[name] = int(options[name])
        if options["cluster"] not in CLUSTERS:
            raise UserError(f"--engine-options cluster: expected slurm or local, got {options['cluster']!r}")
        self._terms, self._options, self._cluster = terms, options, options.pop("cluster")
        if self._cluster == "slurm" and shutil.which("srun") is None:
            raise UserError("--engine slurm: expected SLURM's srun and sbatch on the PATH, found none; try commands")
        self._threads = threads_each(1, options.get("cpus_per_task", 1))
        said = ", ".join(f"{name}={value}" for name, value in options.items())
        self.manner = f"{self._cluster} jobs ({said or 'as SLURM has it'}), each of {self._threads} threads"
        cloudpickle.register_pickle_by_value(shipped)

    def run(
        self,
        tasks: Iterable[T],
        ended: Callable[[T, int], bool],
        stopped: Callable[[], bool],
        watch: Callable[[], None] = lambda: None,
    ) -> None:
        """As ``Engine.run``. submitit's files lie in a new folder that others cannot write to, on a shared disk."""
        lost: list[T] = []

        def heard(cell: T, code: int) -> bool:
            if code == LOST:
                lost.append(cell)
            return ended(cell, code)

        place = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dfme"
        place.mkdir(parents=True, exist_ok=True)
        self._folder = tempfile.mkdtemp(prefix="submitit-", dir=place)
        try:
            super().run(tasks, heard, stopped, watch)
        finally:
            if lost:
                self._terms.tell(f"what submitit has on record of jobs that were lost: {self._folder}")
            else:
                shutil.rmtree(self._folder, ignore_errors=True)

    def _submit(self, cell: T, slot: int) -> Job:
        task, retries = self._terms.task(cell), self._terms.retries
        gpus = 0 if task.device == "cpu" or "gres" in self._options else 1
        options = {"time": MINUTES, "cpus_per_task": self._threads, "gpus_per_node": gpus, **self._options}
        remove(shipped.outcome_file(task.log))
        number = getattr(signal, f"SIG{submitit.JobEnvironment.USR_SIG}")
        place = str(Path.cwd()), str(PROJECT), self._threads
        try:
            made = submitit.AutoExecutor(
                self._folder, cluster=self._cluster, slurm_max_num_timeout=retries, local_max_num_timeout=retries
            )
            made.update_parameters(
                timeout_min=options.pop("time"),
                cpus_per_task=options.pop("cpus_per_task"),
                gpus_per_node=options.pop("gpus_per_node") or None,
                **{f"slurm_{name}": value for name, value in options.items()},
            )
            return Job(task.log, made.submit(shipped.Resumable(list(task.words), str(task.log), place, number)))
        except (RuntimeError, OSError) as error:
            said = " ".join(str(error).split())[-300:]
            raise UserError(f"--engine slurm: no job could be queued: {said}; see --engine-options") from error
