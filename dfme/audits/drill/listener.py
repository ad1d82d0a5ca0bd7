"""Whoever listens at the channel while the service is asked, and notes when it first rang."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from dfme.audits.drill.channel import MAX_READ, AlarmChannel, HeardAlarm, Tail
from dfme.audits.drill.result import Remarks

POLL_SECONDS = 0.02
"""Between two looks at the channel: as much later an alarm is seen at most."""
MAX_LOOK = 4 * MAX_READ
"""Bytes of the channel that one look takes, about: a flood does not hold up what asks."""


class ChargedImages(Protocol):
    """How far the asking is: ``spent`` images are charged, ``evaluation_queries`` came before."""

    @property
    def spent(self) -> int: ...

    @property
    def evaluation_queries(self) -> int: ...


@dataclass(frozen=True)
class Ring:
    """The first alarm that counted, and the images that were charged when it was seen."""

    images: int
    alarm: HeardAlarm


class Listener:
    """Looks at the channel, in a thread of its own from ``start`` to ``stop``.

    An alarm counts once the attack's first image is charged: one that came ``early`` is of honest
    images. ``on_begin`` is called then, ``on_ring`` hears of the first alarm, and ``on_look`` is
    called after each look, in that thread.
    """

    def __init__(
        self, tail: Tail, channel: AlarmChannel, first: Ring | None = None, early: int = 0
    ) -> None:
        self.tail = tail
        self.channel = channel
        self.first = first
        self.early = early
        self.on_begin: Callable[[], None] = lambda: None
        self.on_look: Callable[[], None] = lambda: None
        self.on_ring: Callable[[Ring], None] = lambda ring: None
        self.error: Exception | None = None
        self._meter: ChargedImages | None = None
        self._spent = 0
        self._floor = 0
        self._lock = threading.RLock()
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, meter: ChargedImages, charged: int = 0) -> None:
        """Listen while images are charged on this meter; ``charged``: by sessions before, of which
        some may be counted again.
        """
        self._meter = meter
        self._floor = charged
        self._spent = self._charged(meter)
        self._thread = threading.Thread(target=self._listen, name="dfme-drill", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Look a last time, and listen no more. Raises what went wrong in the thread."""
        self._over.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self.error is not None:
            raise self.error
        if self._meter is not None:
            self.look()

    def look(self) -> None:
        """Take what has come to the channel by now."""
        with self._lock:
            assert self._meter is not None, "start() comes first"
            taken = 0
            while taken < MAX_LOOK and (lines := self.tail.read()):
                for line in lines:
                    taken += len(line)
                    if (alarm := self.channel.hear(line)) is not None:
                        self._take(alarm, self._meter)
            begins = not self._spent
            self._spent = self._charged(self._meter)
            if begins and self._spent:
                self.on_begin()

    def _charged(self, meter: ChargedImages) -> int:
        return max(meter.spent, self._floor)

    def _take(self, alarm: HeardAlarm, meter: ChargedImages) -> None:
        spent = self._charged(meter)
        number = alarm.image
        # it may have come before, and be seen only now
        before = not self._spent and number is not None and number <= meter.evaluation_queries
        if not spent or before:
            self.early += 1
            return
        if self.first is None:
            self.first = Ring(spent, alarm)
            self.on_ring(self.first)

    def _listen(self) -> None:
        try:
            while not self._over.wait(POLL_SECONDS):
                self.look()
                self.on_look()
        except Exception as error:  # is raised where the drill ends
            self.error = error

    def remarks(self, within: int | None) -> Remarks:
        """What the drill's sentence says besides its result."""
        others = self.channel.others
        alarm = None if self.first is None else self.first.alarm
        missing = self.tail.trouble and f"the channel cannot be read: {self.tail.trouble}"
        if not missing and not self.tail.exists and self.first is None:
            missing = "the channel's file was never there: do the service's alarms go to it?"
        return Remarks(
            evaluation=self._meter.evaluation_queries if self._meter else 0,
            image=alarm.image if alarm else None,
            detector=alarm.detector if alarm else "",
            of_all=alarm is not None and alarm.of_all,
            early=self.early,
            others=tuple(others),
            of_others=others.total(),
            unreadable=self.channel.unreadable,
            missing=missing,
            within=within,
        )
