"""Cells as tasks of Ray: a cluster made by hand, by KubeRay or in a cloud, or this machine alone."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

import ray

from dfme.benchmarks.compare.engines import Terms, require_options, shipped
from dfme.benchmarks.compare.engines.pool import WorkerPool
from dfme.benchmarks.compare.processes import threads_each
from dfme.errors import UserError
from dfme.files import remove
from dfme.run.job import PROJECT

T = TypeVar("T")

POLL_SECONDS = 0.2
STORE_BYTES = 100_000_000
"""Of Ray's store of objects on this machine; cells have none."""


class RayTask(shipped.Shipped):
    """A cell's task."""

    def __init__(self, log: Path, ref: Any) -> None:
        super().__init__(log)
        self._ref = ref

    def over(self) -> bool:
        return bool(ray.wait([self._ref], timeout=0, fetch_local=False)[0])

    def cancel(self, at_once: bool) -> None:
        ray.cancel(self._ref, force=at_once)


class OnRay(WorkerPool[T]):
    """A task per cell, each in a process of its own; Ray decides which run."""

    def __init__(self, terms: Terms[T]) -> None:
        super().__init__(self._submit, terms.jobs, POLL_SECONDS)
        require_options("ray", terms.options, ("address", "num_cpus", "num_gpus"))
        self._terms, self._counts = terms, dict[str, float]()
        ray.cloudpickle.register_pickle_by_value(shipped)
        for name in ("num_cpus", "num_gpus"):
            if name in terms.options:
                self._counts[name] = _count(name, terms.options[name])
        self._address = terms.options.get("address") or os.environ.get("RAY_ADDRESS") or "local"
        self._threads = threads_each(1, max(1, int(self._counts.get("num_cpus", 1))))
        self.manner = f"Ray at {self._address}, each run of {self._threads} threads"

    def run(
        self,
        tasks: Iterable[T],
        ended: Callable[[T, int], bool],
        stopped: Callable[[], bool],
        watch: Callable[[], None] = lambda: None,
    ) -> None:
        """As ``Engine.run``. Ray is reached, or begun on this machine, for as long as this takes."""
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # a comparison tells nobody that it runs
        own: dict[str, Any] = {"object_store_memory": STORE_BYTES} if self._address == "local" else {}
        ours = signal.getsignal(signal.SIGTERM)
        try:
            ray.init(self._address, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR, **own)
        except (ConnectionError, RuntimeError, ValueError, OSError) as error:
            said = " ".join(str(error).split())[:300]
            raise UserError(f"--engine ray: {self._address} cannot be reached: {said}") from error
        try:
            signal.signal(signal.SIGTERM, ours)  # Ray would end this process
            self._has_gpus = ray.cluster_resources().get("GPU", 0) > 0
            super().run(tasks, ended, stopped, watch)
        finally:
            ray.shutdown()

    def _submit(self, cell: T, slot: int) -> RayTask:
        task = self._terms.task(cell)
        gpus = 0 if task.device == "cpu" or (task.device == "auto" and not self._has_gpus) else 1
        remove(shipped.outcome_file(task.log))
        place = str(Path.cwd()), str(PROJECT), self._threads
        # Retried by the comparison, as with every engine; a process per cell, so that none finds another's GPU memory
        counts = {"num_cpus": self._threads, "num_gpus": gpus, **self._counts}
        remote = ray.remote(**counts, max_calls=1, max_retries=0)(shipped.work)
        return RayTask(task.log, remote.remote(list(task.words), str(task.log), place))


def _count(name: str, text: str) -> float:
    """CPUs or GPUs of one cell: a share of one, or whole ones."""
    try:
        count = float(text)
    except ValueError:
        count = -1.0
    if 0 <= count <= 1 or (count > 1 and count.is_integer()):
        return count
    raise UserError(f"--engine-options {name}: expected a share of one such as 0.25, or whole ones, got {text!r}")
