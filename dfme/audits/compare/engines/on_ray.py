"""Cells as tasks of Ray: a cluster made by hand, by KubeRay or in a cloud, or this machine
alone.
"""

import logging
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import ray

from dfme.audits.compare.engines.pool import Call, Shipped, WorkerPool, surroundings, threads_each
from dfme.audits.compare.plan import Cell
from dfme.errors import UserError

STORE_BYTES = 100_000_000  # of Ray's store of objects on this machine; cells have none


class OnRay(WorkerPool):
    """A task per cell, each in a process of its own, so that none finds another's GPU memory."""

    poll_seconds = 0.2

    def _prepare(self) -> str:
        self._options = dict(self._plan.engine_options)
        self._address = self._options.pop("address", "") or os.environ.get("RAY_ADDRESS") or "local"
        cpus = self._options.get("num_cpus", "1")
        self._threads = threads_each(1, int(cpus) if cpus.isdecimal() else 1)
        try:
            counts = {name: float(text) for name, text in self._options.items()}
            # Retried by the comparison, as with every engine
            remote = ray.remote(**{"num_cpus": self._threads, **counts}, max_calls=1, max_retries=0)
            self._call = remote(lambda call: call())
        except ValueError as error:
            texts = ",".join(self._plan.config.engine_options)
            raise UserError(
                "--engine-options: expected address=HOST:PORT and numbers as "
                f"num_cpus=2,num_gpus=0.5, got {texts!r}"
            ) from error
        return f"Ray, each run of {self._threads} threads"

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Ray, at the address that the user names, or started on this machine for the time of the
        run.
        """
        os.environ.setdefault(
            "RAY_USAGE_STATS_ENABLED", "0"
        )  # a comparison tells nobody that it runs
        quiet = {"include_dashboard": False, "log_to_driver": False, "logging_level": logging.ERROR}
        options: dict[str, Any] = {"runtime_env": {"env_vars": surroundings(self._threads)}}
        if self._address == "local":
            options["object_store_memory"] = STORE_BYTES
        handler = signal.getsignal(signal.SIGTERM)
        try:
            ray.init(self._address, **quiet, **options)
            signal.signal(signal.SIGTERM, handler)  # Ray would end this process
            self._has_gpus = ray.cluster_resources().get("GPU", 0) > 0
        except (ConnectionError, RuntimeError, ValueError, OSError) as error:
            reason = " ".join(str(error).split())[:300]
            raise UserError(
                f"--engine ray ({self._address}): {reason}; see --engine-options"
            ) from error
        try:
            yield
        finally:
            ray.shutdown()

    def _begin(self, cell: Cell, slot: int) -> Shipped:
        task = self._task(cell)
        gpus = int(task.device != "cpu" and (task.device != "auto" or self._has_gpus))
        resources = {} if "num_gpus" in self._options else {"num_gpus": gpus}
        ref = self._call.options(**resources).remote(Call(task))

        def over(_: bool) -> bool:
            return bool(ray.wait([ref], timeout=0, fetch_local=False)[0])

        return Shipped(task.log, over, lambda at_once: ray.cancel(ref, force=at_once))
