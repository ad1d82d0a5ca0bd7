"""The teacher behind a server: one call at a time, in its own thread, answers checked; and the
meter.
"""

import asyncio
import math
import time
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from starlette.responses import JSONResponse, Response

from dfme.answers.reading import read_answers
from dfme.compute.deferred import DeferredChecks
from dfme.errors import Refused, TeacherError
from dfme.spec import Teacher
from dfme.teachers.arrays import Array

CPU = torch.device("cpu")
Clock = Callable[[], float]

ROUNDING = 1e-6  # seconds that rounding makes of a wait that is over


class Rejected(Exception):  # noqa: N818 (an outcome, not an error of ours)
    """A request without an answer of the model: status, text, reason on the meter."""

    def __init__(
        self, status: int, text: str, reason: str, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(text)
        self.status = status
        self.reason = reason
        self.headers = headers


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

    def alarm(self, line: Mapping[str, Any]) -> None:
        """Count an alarm, as the watch says it."""
        self.alarms[line["alarm"]] += 1
        earlier = self.first_alarms.get(line["alarm"], line["images"])
        self.first_alarms[line["alarm"]] = min(earlier, line["images"])

    def summary(self) -> str:
        """One line for a person."""
        seconds = f"{self.seconds:.1f} s of the model"
        lines = [f"served {self.images:,} images in {self.requests:,} requests ({seconds})"]
        if self.failed:
            lines.append(f"{self.failed:,} of them failed")
        if self.refused:
            reasons = ", ".join(
                f"{reason} {count:,}" for reason, count in sorted(self.refused.items())
            )
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
            (
                "requests_answered_total",
                "Requests with an answer of the model.",
                {"": self.answered},
            ),
            ("requests_failed_total", "Requests on which the model failed.", {"": self.failed}),
            ("model_seconds_total", "Seconds that the model took.", {"": self.seconds}),
            (
                "requests_refused_total",
                "Requests refused before the model was asked, by reason.",
                reasons,
            ),
            ("watch_alarms_total", "Alarms of a detector, of all accounts.", alarms),
            ("watch_first_alarm", "Fewest images (evaluation too) at an alarm.", first),
        ):
            kind = "counter" if name.endswith("_total") else "gauge"
            if values or not name.startswith("watch"):
                lines += [f"# HELP dfme_{name} {text}", f"# TYPE dfme_{name} {kind}"]
            lines += [
                f'dfme_{name}{{model="{model}"{label}}} {value!r}'
                for label, value in values.items()
            ]
        return "\n".join([*lines, ""])


def refuse(meter: Meter, refused: Rejected) -> Response:
    """Words in place of an answer; counted."""
    meter.failed += refused.status == 500
    if refused.status != 500:
        meter.refused[refused.reason] += 1
    return JSONResponse({"error": str(refused)}, refused.status, refused.headers)


def rejected(refused: Refused) -> Rejected:
    """What a client is told where a teacher, a defence or the watch refuses."""
    reason = refused.reason if refused.reason in ("quota", "watch") else "by the teacher"
    headers = {"Retry-After": str(math.ceil(refused.retry_after or 0))} if refused.retry else None
    return Rejected(429 if refused.retry else 403, f"refused: {reason}", reason, headers)


def asked(teacher: Teacher, images_BCHW: Array) -> Array:
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
    form = (len(images), teacher.num_classes, teacher.label_mode)
    answers: Array = read_answers(raw, *form, DeferredChecks(), CPU).numpy()
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
        """Like ``asked``."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._worker, asked, self._teacher, images_BCHW)

    def close(self) -> None:
        """Ask nothing more; a call that is under way ends first."""
        self._worker.shutdown()
