"""The meter: how much a service was asked, answered and refused, and how much it admits."""

import math
import time
from collections import Counter
from collections.abc import Callable, Mapping

Clock = Callable[[], float]

ROUNDING = 1e-6  # seconds that rounding makes of a wait that is over


class ServedRate:
    """At most ``rate`` units per second over any length of time, besides the first second's worth.

    A request of more units than that passes once a second's worth is there; the next ones wait
    until it is paid off.
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
    """Counts of one service. ``images`` counts what the model was asked for; a refused request adds
    none.
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
        """Let a request of so many images pass, with 0, or say in how many whole seconds to come
        again.
        """
        limits = [
            (rate, units) for rate, units in ((self._images, images), (self._requests, 1)) if rate
        ]
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

    def took(self, since: float) -> None:
        """The model, or the app before it, was asked at ``since`` and is done."""
        self.seconds += time.perf_counter() - since

    def alarm(self, detector: str, image: int) -> None:
        """Count an alarm, raised at the ``image``-th image of some account."""
        self.alarms[detector] += 1
        self.first_alarms[detector] = min(image, self.first_alarms.get(detector, image))

    def summary(self) -> str:
        """One line for a person."""
        seconds = f"{self.seconds:.1f} s of the model"
        parts = [f"served {self.images:,} images in {self.requests:,} requests ({seconds})"]
        if self.failed:
            parts.append(f"{self.failed:,} of them failed")
        if self.refused:
            reasons = ", ".join(
                f"{reason} {count:,}" for reason, count in sorted(self.refused.items())
            )
            parts.append(f"refused {self.refused.total():,} requests ({reasons})")
        parts += [f"{count:,} alarms of {name}" for name, count in self.alarms.items()]
        return "; ".join(parts)

    def exposition(self, model: str) -> str:
        """All counts in Prometheus' text format."""
        counts: dict[str, tuple[str, dict[str, float]]] = {
            "images_served_total": ("Images the model was asked for.", {"": self.images}),
            "requests_served_total": ("Requests the model was asked for.", {"": self.requests}),
            "requests_answered_total": (
                "Requests with an answer of the model.",
                {"": self.answered},
            ),
            "requests_failed_total": ("Requests on which the model failed.", {"": self.failed}),
            "model_seconds_total": ("Seconds that the model took.", {"": self.seconds}),
            "requests_refused_total": (
                "Requests refused before the model was asked, by reason.",
                _labelled("reason", dict(sorted(self.refused.items()))),
            ),
            "watch_alarms_total": (
                "Alarms of a detector, of all accounts.",
                _labelled("detector", self.alarms),
            ),
            "watch_first_alarm": (
                "Fewest images (evaluation too) at an alarm.",
                _labelled("detector", self.first_alarms),
            ),
        }
        lines = []
        for name, (text, values) in counts.items():
            kind = "counter" if name.endswith("_total") else "gauge"
            if values or not name.startswith("watch"):
                lines += [f"# HELP dfme_{name} {text}", f"# TYPE dfme_{name} {kind}"]
            lines += [
                f'dfme_{name}{{model="{model}"{label}}} {value!r}'
                for label, value in values.items()
            ]
        return "\n".join([*lines, ""])


def _labelled(label: str, counts: Mapping[str, int]) -> dict[str, float]:
    return {f',{label}="{name}"': counts[name] for name in counts}
