"""How a server asks a teacher: one call at a time in a thread of its own, and answers checked."""

import asyncio
from concurrent.futures import ThreadPoolExecutor

import torch

from dfme.answers.reading import read_answers
from dfme.compute.modules import DeferredChecks
from dfme.errors import TeacherError
from dfme.spec import Teacher
from dfme.teachers.arrays import Array

CPU = torch.device("cpu")


def checked_answers(teacher: Teacher, images_BCHW: Array) -> Array:
    """Answers to float32 images, scores (B, K) float32 or labels (B,) int64.

    Raises whatever the teacher raises, and TeacherError for answers that its label mode rules out:
    such answers might tell more than it allows.
    """
    images = torch.from_numpy(images_BCHW)
    if teacher.spec.levels is not None:  # what came as FP32 may lie between the lattice's points
        images = teacher.spec.quantise(images)
    device = torch.device(teacher.info.device)
    try:
        with torch.no_grad(), torch.autocast(device.type, enabled=False):
            raw = teacher(images.to(device))
    except SystemExit as error:  # it gives up, but the process is not its own here
        raise TeacherError(f"the teacher asked to exit with {error.code!r}") from error
    form = (len(images), teacher.num_classes, teacher.label_mode)
    answers: Array = read_answers(raw, *form, DeferredChecks(), CPU).numpy()
    return answers


def one_thread(threads: int) -> ThreadPoolExecutor:
    """A thread for arithmetic with so many CPU threads; 0: as many as torch uses."""
    # each thread has its own number
    prepare = (lambda: torch.set_num_threads(threads)) if threads else None
    return ThreadPoolExecutor(1, thread_name_prefix="model", initializer=prepare)


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
