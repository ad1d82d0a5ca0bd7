"""How detectors fare on honest accounts, each stream by itself, and on the accounts of a log."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from dfme.config.settings import TeacherConfig
from dfme.errors import UserError
from dfme.teachers.defences.defence import taken
from dfme.teachers.watch.offline import Log
from dfme.teachers.watch.streams import SESSION, STREAMS, held_out, session

SESSIONS = 20  # of each stream
ROW = ("stream", "detector", "sessions", "units", "sessions_with_alarm", "queries", "alarms")
Tell = Callable[[str], None]


def detect(
    make: Callable[[TeacherConfig], Any], config: TeacherConfig, other: str | None, seed: int, tell: Tell, log: Log | None
) -> dict[str, Any]:
    """What the detectors of ``config`` say of honest accounts, and of those of a log.

    ``benign`` has a ``ROW`` per stream and detector, ``benign_largest`` the largest statistic of each session. Alarms
    are counted per image, but honest images are no more independent than ``units``, those that all are drawn from.
    UserError for a teacher without scores, a service, and images that do not do.
    """
    left_out, data = log.unfed(config.watch) if log else {}, str(config.benign)
    fed = tuple(name for name in config.watch if name not in left_out)
    if not fed:
        raise UserError(f"--watch: expected a detector that can be fed: {'; '.join(sorted({*left_out.values()}))}")
    teacher = make(replace(config, watch=fed, defences=(), on_alarm="log", label_mode=None))
    if log:
        log.fit(teacher)
        teacher.watch.see_through(log.as_written)
    sizes = map(len, held_out(data, teacher.spec)[1:])
    found = {"session": SESSION, **dict(zip(("calibration_images", "measuring_images"), sizes, strict=True))}
    told = teacher.watch.report()["detectors"].items()
    found["detectors"] = [
        {"name": name, **{key: each[key] for key in ("statistic", "threshold", "memory_mb")}} for name, each in told
    ]
    found |= _benign(teacher, data, other, seed, tell)
    return found | ({"left_out": left_out, **log.seen_by(teacher.watch)} if log else {})


def _benign(teacher: Any, data: str, other: str | None, seed: int, tell: Tell) -> dict[str, Any]:
    """``benign`` and ``benign_largest``; a stream that the images do not allow is left out."""
    images, _, places_N = held_out(data, teacher.spec)
    rows, largest = list[dict[str, Any]](), {name: dict[str, list[float]]() for name in teacher.watch.names}
    cannot = ("skewed" if images.labels is None else "", "other data" if other is None else "")
    for stream in (each for each in STREAMS if each not in cannot):
        if stream == "other data":
            images = held_out(str(other), teacher.spec)[0]
            places_N = torch.arange(len(images))
        accounts = list[dict[str, Any]]()
        for number in range(SESSIONS):
            teacher.watch.load_state_dict({})  # nobody has asked yet
            for x_BCHW in session(stream, images, places_N, torch.Generator().manual_seed(seed * SESSIONS + number)):
                for part_BCHW in taken(x_BCHW, teacher).split(getattr(teacher, "max_batch", None) or len(x_BCHW)):
                    teacher(part_BCHW)
            accounts.append(teacher.watch.report()["detectors"])
        teacher.watch.drain()
        for name in largest:
            alarms = [each[name]["alarms"] for each in accounts]
            largest[name][stream] = [each[name]["largest"] for each in accounts]
            counts = (SESSIONS, len(places_N), sum(map(bool, alarms)), SESSIONS * SESSION, sum(alarms))
            rows.append(dict(zip(ROW, (stream, name, *counts), strict=True)))
        tell(f"watched {SESSIONS} honest accounts: {stream}")
    return {"benign": rows, "benign_largest": largest}
