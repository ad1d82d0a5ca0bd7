"""How a teacher beyond this process wants to be asked. No torch here."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Wire:
    """What the oracle keeps to when it asks a service; a remote teacher carries one as its ``wire``.

    ``in_flight``: requests at once. ``attempts``: most sends of one request that may have been served, each
    of them paid for. ``unusable``: most sends of one request whose answers cannot be used. ``patience``: seconds
    that one request may take with all its attempts and waits. ``images_per_second`` and ``requests_per_second``:
    most of either, by the client's own clock; None: no limit.
    """

    in_flight: int = 1
    attempts: int = 5
    unusable: int = 3
    patience: float = 300.0
    images_per_second: float | None = None
    requests_per_second: float | None = None
