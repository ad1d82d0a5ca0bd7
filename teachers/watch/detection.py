"""How detectors fare on honest accounts: each stream by itself, in sessions of an account each."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch

from dfme.data import ImageSet
from dfme.spec import ImageSpec
from dfme.teachers.watch.detector import Detector, Seen
from dfme.teachers.watch.streams import SESSION, session

SESSIONS = 20  # of each stream


class Tally:
    """What a detector said of one account so far."""

    def __init__(self, detector: Detector) -> None:
        self._detector, self.images, self.alarms = detector, 0, 0
        self.first_alarm: int | None = None
        self.largest = -math.inf

    def see(self, seen: Seen) -> None:
        if not len(seen):
            return
        statistic_B, alarm_B = self._detector.see(seen)
        if self.first_alarm is None and alarm_B.any():
            self.first_alarm = self.images + int(alarm_B.int().argmax()) + 1
        self.images, self.alarms = self.images + len(seen), self.alarms + int(alarm_B.sum())
        self.largest = max(self.largest, float(statistic_B.max()))


def measure(
    make: Mapping[str, Callable[[], Detector]],
    look: Callable[[torch.Tensor], Seen],
    streams: Mapping[str, tuple[ImageSet, torch.Tensor]],
    spec: ImageSpec,
    seed: int,
    tell: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """``benign``, a row per stream and detector, and ``benign_largest``, the largest statistic of each session.

    ``make``: new detectors by name; ``look``: what they see of images; ``streams``: images with their classes. Alarms
    are counted per image, but honest images are no more independent than ``units``, the images that all are drawn from.
    """
    rows, largest = list[dict[str, Any]](), {name: dict[str, list[float]]() for name in make}
    for stream, (data, labels_N) in streams.items():
        tallies = {name: [Tally(new()) for _ in range(SESSIONS)] for name, new in make.items()}
        for number in range(SESSIONS):
            rng = torch.Generator().manual_seed(seed * SESSIONS + number)
            for x_BCHW in session(stream, data, labels_N, spec, rng):
                seen = look(x_BCHW)
                for name in make:
                    tallies[name][number].see(seen)
        for name, found in tallies.items():
            alarms, queries = sum(each.alarms for each in found), SESSIONS * SESSION
            largest[name][stream] = [each.largest for each in found]
            of = {"stream": stream, "detector": name, "sessions": SESSIONS, "units": len(data), "queries": queries}
            rung = {"sessions_with_alarm": sum(each.alarms > 0 for each in found), "alarms": alarms}
            rows.append(of | rung | {"per_10000": 10_000 * alarms / queries})
        tell(f"detectors over {SESSIONS} honest accounts: {stream}")
    return {"benign": rows, "benign_largest": largest}
