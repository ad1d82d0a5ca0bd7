"""A request that gets no answer of the model: why, and what its client is told."""

import math
from collections.abc import Mapping

from starlette.responses import JSONResponse, Response

from dfme.errors import Refused
from dfme.teachers.owner.guard.meter import Meter

FAILED = "the model failed on this request; it has been counted"


class Rejected(Exception):  # noqa: N818 (an outcome, not an error of ours)
    """A request without an answer of the model: status, text, reason on the meter."""

    def __init__(
        self, status: int, text: str, reason: str, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(text)
        self.status = status
        self.reason = reason
        self.headers = headers


def failure() -> Rejected:
    """What a client is told where the owner's side fails: nothing about it."""
    return Rejected(500, FAILED, "failed")


def rejected(refused: Refused) -> Rejected:
    """What a client is told where a teacher, a defence or the watch refuses."""
    reason = refused.reason if refused.reason in ("quota", "watch") else "by the teacher"
    headers = {"Retry-After": str(math.ceil(refused.retry_after or 0))} if refused.retry else None
    return Rejected(429 if refused.retry else 403, f"refused: {reason}", reason, headers)


def refuse(meter: Meter, refused: Rejected) -> Response:
    """Words in place of an answer; counted."""
    if refused.status == 500:
        meter.failed += 1
    else:
        meter.refused[refused.reason] += 1
    return JSONResponse({"error": str(refused)}, refused.status, refused.headers)
