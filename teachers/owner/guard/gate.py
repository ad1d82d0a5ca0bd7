"""The gate: a teacher asked in a thread of its own, and what stands between its scores and clients.

Defences and watch are called in one thread, which alone knows the state.
"""

import asyncio
import json
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from dfme.answers.reading import read_answers
from dfme.compute.device import choose_device
from dfme.compute.modules import DeferredChecks
from dfme.config.imports import name_of
from dfme.config.settings import TeacherConfig
from dfme.config.values import from_mapping
from dfme.errors import TeacherError
from dfme.spec import LabelMode, Teacher, TeacherInfo
from dfme.teachers.arrays import Array
from dfme.teachers.build import Recorded, make_teacher
from dfme.teachers.label_modes import Wrapper
from dfme.teachers.owner.defences.wrapper import Defended, behind
from dfme.teachers.owner.features import CPU, Mahalanobis
from dfme.teachers.owner.guard.meter import Meter
from dfme.teachers.owner.watch.alarms import ALL, Alarm, AlarmFile
from dfme.teachers.owner.watch.watch import Watch


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
    answers: Array = read_answers(
        raw, len(images), teacher.num_classes, teacher.label_mode, DeferredChecks(), CPU
    ).numpy()
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
        return await asyncio.get_running_loop().run_in_executor(
            self._worker, checked_answers, self._teacher, images_BCHW
        )

    def close(self) -> None:
        """Ask nothing more; a call that is under way ends first."""
        self._worker.shutdown()


# The defences and the watch around the scores of an app

logger = logging.getLogger("dfme")


class AppScores(Wrapper):
    """A teacher whose answers are the ``scores`` that an app has given.

    ``heard``: what its last layer was given meanwhile, for a watch that listens to it; None: none
    listens.
    """

    scores: Tensor
    heard: list[Tensor] | None = None

    def _answers(self, images: Tensor, ask: Callable[[Tensor], Tensor]) -> Tensor:
        network = self.info.network
        if self.heard is not None and network is not None:
            *_, last = (layer for layer in network.modules() if isinstance(layer, nn.Linear))
            if sum(map(len, self.heard)) == len(images):
                for features in [*self.heard]:
                    last(features)
            else:  # the app has another network
                ask(images)
        return self.scores


class Gate:
    """Defences and a watch around the scores of an app.

    ``answers``: what these are, where they are other than the teacher's. ``tell`` hears of each
    detector's first alarm.
    """

    def __init__(
        self, teacher: Teacher, answers: str | None, meter: Meter, tell: Callable[[str], None]
    ) -> None:
        self._meter = meter
        self._tell = tell
        self._defended: Defended | None = None
        self._watch: Watch | None = None
        if isinstance(teacher, Defended):
            self._scores = AppScores(behind(teacher))
            if answers:
                self._scores.label_mode = LabelMode.parse(answers)
            self._defended = teacher.around(self._scores)
            self._watch = teacher.watch
        if self._watch is not None:
            meter.alarms.update(dict.fromkeys(self._watch.names, 0))

    @property
    def features(self) -> Mahalanobis | None:
        """What listens to the network while the app uses it, if anything."""
        return self._watch.features if self._watch is not None else None

    def admit(self, account: str, images: int) -> None:
        """Refused where alarm or defence say so before the app is asked; nobody unknown has an
        alarm.
        """
        if self._watch is not None:
            self._watch.account = account
            if self._watch.knows:
                self._watch.admit()
        if self._defended is not None:
            self._defended.admit(images)

    def defend(
        self, account: str, images: Array, scores: Array, heard: list[Tensor] | None
    ) -> Array:
        """Answers in place of the scores. Refused where alarm or defence say so now."""
        if self._defended is None:
            return scores
        if self._watch is not None:
            self._watch.account = account
        self._scores.scores = torch.from_numpy(scores)
        self._scores.heard = heard
        try:
            return checked_answers(self._defended, images)
        finally:
            self.count_alarms()

    def count_alarms(self) -> None:
        """Count the watch's alarms since the last time."""
        if self._watch is None:
            return
        for event in self._watch.take_events():
            if not isinstance(event, Alarm):
                continue
            self._meter.alarm(event.detector, event.image)
            if event.is_first:
                who = f"account {event.account}, image {event.image:,} that it asked"
                if event.account == ALL:
                    who = f"all traffic, image {event.image:,} of all accounts"
                self._tell(f"ALARM: {event.detector}, {who}, evaluation images included")


def make_guarded(
    teacher: Teacher | Callable[..., Any] | str, options: dict[str, Any], alarm_file: str | None
) -> Teacher:
    """The teacher behind defences and a watch, which has maybe no detectors, so that its label mode
    holds.
    """
    if isinstance(getattr(teacher, "info", None), TeacherInfo) and not options:
        return cast(Teacher, teacher)
    if isinstance(teacher, str):
        kind, file, model = "torch", {"checkpoint": teacher}, None
    else:
        kind, file, model = name_of(teacher), {}, teacher
    config = from_mapping(TeacherConfig, {"kind": kind, **options})
    recorded: Recorded | None = None if config.defences or config.watch else "log"
    guarded = make_teacher(config, file, choose_device("auto"), recorded, own=model)
    if guarded.info.watch:
        guarded.info.watch.alarmed = (
            AlarmFile(Path(alarm_file), logger.warning)
            if alarm_file
            else lambda alarm: logger.warning("ALARM %s", json.dumps(alarm.entry()))
        )
    return guarded
