"""A service's meter: what it served, what it refused, and its rate limits."""

import math
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

Clock = Callable[[], float]

ROUNDING = 1e-6  # seconds that rounding makes of a wait that is over


class ServedRate:
    """At most ``rate`` units per second over any length of time, besides the first second's worth.

    A request of more units than that passes once a second's worth is there; the next ones wait until it is
    paid off.
    """

    def __init__(self, rate: float, clock: Clock = time.monotonic) -> None:
        self._rate = rate
        self._clock = clock
        self._balance = rate
        self._at = clock()

    def wait(self, units: int) -> float:
        """Seconds until a request of so many units may pass; 0: now."""
        now = self._clock()
        self._balance = min(self._rate, self._balance + (now - self._at) * self._rate)
        self._at = now
        return max(0.0, (min(units, self._rate) - self._balance) / self._rate)

    def spend(self, units: int) -> None:
        """Let a request of so many units pass."""
        self._balance -= units


class Meter:
    """Counts of one service. ``images`` counts what the model was asked for; a refused request adds none.

    ``images`` and ``seconds`` are written by the thread that asks the model, the others by the event loop's.
    """

    def __init__(
        self,
        images_per_second: float | None = None,
        requests_per_second: float | None = None,
        clock: Clock = time.monotonic,
    ) -> None:
        self.images = 0
        self.requests = 0
        self.seconds = 0.0
        self.answered = 0
        self.failed = 0
        self.refused: Counter[str] = Counter()
        self.alarms: Counter[str] = Counter()
        self.first_alarms: dict[str, int] = {}
        self._images = ServedRate(images_per_second, clock) if images_per_second else None
        self._requests = ServedRate(requests_per_second, clock) if requests_per_second else None

    def admit(self, images: int) -> int:
        """Let a request of so many images pass, with 0, or say in how many whole seconds to come again."""
        limits = [(rate, units) for rate, units in ((self._images, images), (self._requests, 1)) if rate]
        seconds = max((rate.wait(units) for rate, units in limits), default=0.0)
        if seconds > ROUNDING:
            return math.ceil(seconds - ROUNDING)
        for rate, units in limits:
            rate.spend(units)
        return 0

    def ask(self, images: int, requests: int = 1) -> None:
        """The model is asked for so many images, now; negative numbers where it refused them."""
        self.images += images
        self.requests += requests

    def alarm(self, line: Mapping[str, Any]) -> None:
        """Count an alarm, as the watch says it."""
        self.alarms[line["alarm"]] += 1
        self.first_alarms[line["alarm"]] = min(
            self.first_alarms.get(line["alarm"], line["images"]), line["images"]
        )

    def summary(self) -> str:
        """One line for a person."""
        lines = [
            f"served {self.images:,} images in {self.requests:,} requests ({self.seconds:.1f} s of the model)"
        ]
        if self.failed:
            lines.append(f"{self.failed:,} of them failed")
        if self.refused:
            reasons = ", ".join(f"{reason} {count:,}" for reason, count in sorted(self.refused.items()))
            lines.append(f"refused {self.refused.total():,} requests ({reasons})")
        lines += [f"{count:,} alarms of {name}" for name, count in self.alarms.items()]
        return "; ".join(lines)

    def exposition(self, model: str) -> str:
        """All counts in Prometheus' text format."""
        reasons = {f',reason="{each}"': count for each, count in sorted(self.refused.items())}
        alarms = {f',detector="{each}"': count for each, count in self.alarms.items()}
        first = {f',detector="{each}"': image for each, image in self.first_alarms.items()}
        lines = []
        for name, text, values in (
            ("images_served_total", "Images the model was asked for.", {"": self.images}),
            ("requests_served_total", "Requests the model was asked for.", {"": self.requests}),
            ("requests_answered_total", "Requests with an answer of the model.", {"": self.answered}),
            ("requests_failed_total", "Requests on which the model failed.", {"": self.failed}),
            ("model_seconds_total", "Seconds that the model took.", {"": self.seconds}),
            ("requests_refused_total", "Requests refused before the model was asked, by reason.", reasons),
            ("watch_alarms_total", "Alarms of a detector, of all accounts.", alarms),
            ("watch_first_alarm", "Fewest images (evaluation too) at an alarm.", first),
        ):
            kind = "counter" if name.endswith("_total") else "gauge"
            if values or not name.startswith("watch"):
                lines += [f"# HELP dfme_{name} {text}", f"# TYPE dfme_{name} {kind}"]
            lines += [f'dfme_{name}{{model="{model}"{label}}} {value!r}' for label, value in values.items()]
        return "\n".join([*lines, ""])
