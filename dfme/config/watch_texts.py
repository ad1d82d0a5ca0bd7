"""Options of the watch over a teacher's clients: detectors and reactions. No torch."""

from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator

from dfme.config.messages import unknown_choice

DETECTORS = ("prada", "duplicates", "pairs", "labels", "scores", "mahalanobis", "sequential", "sprt")
"""Names of detectors; ``dfme.teachers.watch`` has them."""

NEED_FEATURES = ("mahalanobis", "sequential", "sprt")
"""Those that look into the network, and need one of kind torch."""

OnAlarm = Literal["log", "refuse", "label"]


def _split(given: object) -> object:
    return [name.strip() for name in given.split(",") if name.strip()] if isinstance(given, str) else given


def _known(names: tuple[str, ...]) -> tuple[str, ...]:
    for name in names:
        if name not in DETECTORS:
            raise ValueError(unknown_choice("detector", name, DETECTORS))
    if len(set(names)) < len(names):
        raise ValueError(f"expected every detector once, got {', '.join(names)}")
    return names


WatchText = Annotated[tuple[str, ...], BeforeValidator(_split), AfterValidator(_known)]
"""Detectors, given as ``pairs,sequential``."""
