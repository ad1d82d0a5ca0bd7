"""Detectors of extraction by name, and what follows their alarms. No torch."""

from typing import Annotated, Literal

from pydantic import BeforeValidator

from dfme.config.fields import accepted_by
from dfme.config.imports import find_target, top_name
from dfme.config.messages import unknown_choice
from dfme.errors import UserError

NEED_FEATURES = ("mahalanobis", "sequential", "sprt")
"""Detectors that look into the network, and need one of kind torch."""


DETECTORS = ("prada", "duplicates", "pairs", "labels", "scores", "coverage", *NEED_FEATURES)
"""Names of detectors; ``dfme.teachers.owner.watch`` has them."""


OnAlarm = Literal["log", "refuse", "label"]


def _names(value: object) -> object:
    if isinstance(value, str):
        return [name.strip() for name in value.split(",") if name.strip()]
    detectors = value if isinstance(value, list | tuple) else [value]
    return [it if isinstance(it, str) else top_name(it, "detector") for it in detectors]


def _known_detectors(names: tuple[str, ...]) -> tuple[str, ...]:
    for name in names:
        if ":" in name:
            find_target(name, "detector")
        elif name not in DETECTORS:
            raise UserError(
                unknown_choice("detector", name, [*DETECTORS, "module:Class of your own"])
            )
    if len(set(names)) < len(names):
        raise UserError(f"expected every detector once, got {', '.join(names)}")
    return names


WatchText = Annotated[
    tuple[str, ...], BeforeValidator(_names), accepted_by(_known_detectors, whole=True)
]
"""Detectors, given as ``pairs,sequential``."""
