"""Threads in which bodies are read, so that the event loop serves others meanwhile."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import TypeVar

from dfme.teachers.owner.guard.refusals import Rejected

SMALL = 2**16  # bytes of a body that is read at once
LARGE = 2**20  # bytes of a body that waits for its turn
MAX_WAITING = 8  # requests with a large body that wait to be read

Value = TypeVar("Value")


class BodyReaders:
    """Large bodies have a thread of their own: however many come, others do not wait for them."""

    def __init__(self) -> None:
        self._threads = [
            ThreadPoolExecutor(1, thread_name_prefix=name) for name in ("bodies", "large bodies")
        ]
        self._waiting = 0

    async def read(self, body: bytes, call: Callable[[], Value]) -> Value:
        """What ``call`` makes of a body."""
        if len(body) <= SMALL:
            return call()
        thread = self._threads[len(body) > LARGE]
        return await asyncio.get_running_loop().run_in_executor(thread, copy_context().run, call)

    async def read_request(self, body: bytes, call: Callable[[], Value]) -> Value:
        """The same for a request's body. Rejected where too many large ones wait."""
        large = len(body) > LARGE
        if large and self._waiting >= MAX_WAITING:
            text = f"expected at most {MAX_WAITING} large requests at a time; come again"
            raise Rejected(503, text, "busy", {"Retry-After": "5"})
        self._waiting += large
        try:
            return await self.read(body, call)
        finally:
            self._waiting -= large

    def close(self) -> None:
        for thread in self._threads:
            thread.shutdown()
