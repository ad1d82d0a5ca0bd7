"""The teacher behind a server: one call at a time, in its own thread, answers checked."""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

from dfme.answers.reading import read_answers
from dfme.compute import DeferredChecks
from dfme.errors import Refused, TeacherError
from dfme.spec import Teacher
from dfme.teachers.arrays import Array
from dfme.teachers.serve.meter import Meter

CPU = torch.device("cpu")


class Model:
    """``teacher``, metered by ``meter``. ``threads``: CPU threads of its arithmetic; 0: as many as torch
    uses. ``tell`` hears of the first alarm of each detector of the teacher's watch over an account.
    """

    def __init__(
        self,
        teacher: Teacher,
        meter: Meter,
        threads: int = 0,
        tell: Callable[[str], None] = lambda line: None,
    ) -> None:
        self._teacher = teacher
        self._meter = meter
        self._tell = tell
        self._watch: Any = teacher.info.watch
        self._device = torch.device(teacher.info.device)
        # each thread has its own number
        prepare = (lambda: torch.set_num_threads(threads)) if threads else None
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="model", initializer=prepare)

    async def ask(self, images_BCHW: Array, account: str = "") -> Array:
        """Answers to float32 images, scores (B, K) float32 or labels (B,) int64; counted unless Refused.

        Raises whatever the teacher raises, and TeacherError for answers that its label mode rules out: such
        answers might tell more than it allows.
        """
        return await asyncio.get_running_loop().run_in_executor(
            self._worker, self._timed, images_BCHW, account
        )

    def close(self) -> None:
        """Ask nothing more; a call that is under way ends first."""
        self._worker.shutdown()

    def _timed(self, images_BCHW: Array, account: str) -> Array:
        self._meter.ask(len(images_BCHW))
        if self._watch is not None:
            self._watch.account = account
        started = time.perf_counter()
        try:
            return self._answer(images_BCHW)
        except Refused:
            self._meter.ask(-len(images_BCHW), -1)
            raise
        finally:
            self._meter.seconds += time.perf_counter() - started
            for line in self._watch.drain() if self._watch is not None else ():
                if "alarm" in line:
                    self._meter.alarm(line)
                if line.get("first"):
                    number = f"image {line['images']:,} that it asked, evaluation images included"
                    self._tell(f"ALARM: {line['alarm']}, account {account}, {number}")

    def _answer(self, images_BCHW: Array) -> Array:
        teacher = self._teacher
        mode = self._teacher.label_mode
        images = torch.from_numpy(images_BCHW)
        if teacher.spec.levels is not None:  # what came as FP32 may lie between the lattice's points
            images = teacher.spec.quantise(images)
        try:
            with torch.no_grad(), torch.autocast(self._device.type, enabled=False):
                raw = teacher(images.to(self._device))
        except SystemExit as error:  # it gives up, but the process is not its own here
            raise TeacherError(f"the teacher asked to exit with {error.code!r}") from error
        answers: Array = read_answers(
            raw, len(images), teacher.num_classes, mode, DeferredChecks(), CPU
        ).numpy()
        return answers
