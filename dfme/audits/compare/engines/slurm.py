"""Cells as SLURM jobs through submitit: USR2 before a time limit or preemption, then a requeue."""

import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import submitit

from dfme.audits.compare.engines.pool import Call, Shipped, WorkerPool, surroundings, threads_each
from dfme.audits.compare.plan import Cell
from dfme.errors import UserError

GENERAL = ("cpus_per_task", "gpus_per_node")
"""Options that submitit has for any cluster; the others are SLURM's own."""


class Slurm(WorkerPool):
    """A job per cell. ``time`` is in minutes; ``cluster=local`` is submitit on this machine, to try
    it.
    """

    poll_seconds = 1.0

    def _prepare(self) -> str:
        self._options: dict[str, Any] = {"time": 60, "cluster": "slurm"}
        for name, text in self._plan.engine_options.items():
            self._options[name] = int(text) if text.isdecimal() else text
        self._cluster = self._options.pop("cluster")
        if self._cluster == "slurm" and shutil.which("srun") is None:
            raise UserError(
                "--engine slurm: expected srun and sbatch on the PATH, found none; try commands"
            )
        cpus = self._options.get("cpus_per_task", 1)
        self._threads = threads_each(1, cpus if isinstance(cpus, int) else 1)
        return f"{self._cluster} jobs, each of {self._threads} threads"

    @contextmanager
    def opened(self) -> Iterator[None]:
        """A new folder for submitit, which others cannot write to, on a disk that nodes share."""
        place = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dfme"
        place.mkdir(parents=True, exist_ok=True)
        self._folder = tempfile.mkdtemp(prefix="submitit-", dir=place)
        self._tell(f"what submitit has on record of the jobs: {self._folder}")
        os.environ.update(surroundings(self._threads))  # which jobs inherit
        yield

    def _begin(self, cell: Cell, slot: int) -> Shipped:
        task = self._task(cell)
        tries = self._plan.config.retries
        requested = {
            "cpus_per_task": self._threads,
            "gpus_per_node": int(task.device != "cpu"),
            **self._options,
        }
        options: dict[str, Any] = {"timeout_min": requested.pop("time")}
        for name, value in requested.items():
            options[name if name in GENERAL else f"slurm_{name}"] = value
        for name in GENERAL:
            options[name] = options[name] or None
        call = Call(task, getattr(signal, f"SIG{submitit.JobEnvironment.USR_SIG}"))
        limits = {"slurm_max_num_timeout": tries, "local_max_num_timeout": tries}
        try:
            executor = submitit.AutoExecutor(self._folder, cluster=self._cluster, **limits)
            executor.update_parameters(**options)
            job = executor.submit(call)
        except (RuntimeError, OSError, ValueError, NameError, AssertionError) as error:
            reason = " ".join(str(error).split())[:300]
            raise UserError(
                f"--engine slurm: no job was queued: {reason}; see --engine-options"
            ) from error
        return Shipped(
            task.log,
            lambda stopping: job.done(force_check=stopping),
            lambda _: job.cancel(check=False),
        )
