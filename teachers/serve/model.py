"""The model behind a server, in a thread of its own."""

import asyncio

from dfme.spec import Teacher
from dfme.teachers.arrays import Array
from dfme.teachers.guard.asking import checked_answers, one_thread


class Model:
    """``teacher`` in a thread of its own, with so many CPU threads for its arithmetic."""

    def __init__(self, teacher: Teacher, threads: int) -> None:
        self._teacher = teacher
        self._worker = one_thread(threads)

    async def ask(self, images_BCHW: Array) -> Array:
        """Like ``checked_answers``."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._worker, checked_answers, self._teacher, images_BCHW)

    def close(self) -> None:
        """Ask nothing more; a call that is under way ends first."""
        self._worker.shutdown()
