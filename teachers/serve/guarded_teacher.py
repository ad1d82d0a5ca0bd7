"""The teacher of a guard: with defences and a watch, and with scores that an app gave."""

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from torch import Tensor, nn

from dfme.compute.device import choose_device
from dfme.config.imports import name_of
from dfme.config.settings import TeacherConfig
from dfme.config.values import from_mapping
from dfme.spec import Teacher, TeacherInfo
from dfme.teachers.build import make_teacher
from dfme.teachers.label_modes import Wrapper
from dfme.teachers.serve.record import AlarmFile

logger = logging.getLogger("dfme")


class Given(Wrapper):
    """A teacher whose scores an app has given.

    ``heard``: what its last layer was given meanwhile, for a watch that listens to it; None: none
    listens.
    """

    scores: Any = None
    heard: list[Tensor] | None = None

    def _answers(self, images: Tensor, ask: Callable[[Tensor], Tensor]) -> Tensor:
        if self.heard is not None and self.info.network is not None:
            last = [each for each in self.info.network.modules() if isinstance(each, nn.Linear)][-1]
            if sum(map(len, self.heard)) == len(images):
                for each in [*self.heard]:
                    last(each)
            else:  # the app has another network
                ask(images)
        scores: Tensor = self.scores
        return scores


def make_guarded(teacher: Any, options: dict[str, Any], alarm_file: str | None) -> Teacher:
    """The teacher behind defences and a watch, which has maybe no detectors, so that its label mode
    holds.
    """
    if isinstance(getattr(teacher, "info", None), TeacherInfo) and not options:
        return cast(Teacher, teacher)
    of_file = isinstance(teacher, str)
    config = from_mapping(
        TeacherConfig, {"kind": "torch" if of_file else name_of(teacher), **options}
    )
    file = {"checkpoint": teacher} if of_file else {}
    bare = not (config.defences or config.watch)
    made = make_teacher(config, file, choose_device("auto"), bare, own=None if of_file else teacher)
    if made.info.watch:
        to_file = AlarmFile(Path(alarm_file), logger.warning) if alarm_file else None
        made.info.watch.alarmed = to_file or (
            lambda alarm: logger.warning("ALARM %s", json.dumps(alarm))
        )
    return made
