"""Audits of which each has the price lines that a test gives, and what one says beside another."""

from typing import Any

from audit_pages import audit

from dfme.audits.audit.beside_parts import AuditHistory
from dfme.audits.audit.history import history
from dfme.audits.audit.result import audit_result

LEVELS = ("0.5", "0.8", "0.9", "0.95")
ATTACK = {"method.name": "frugal", "student.steps": "400"}


def line(
    shares: list[float | None],
    queries: list[int | None] | None = None,
    row: str = "frugal",
    mode: str = "probabilities",
    **changed: Any,
) -> dict[str, Any]:
    """A price line of the sample with these agreements and queries to 90 % of its seeds."""
    known = [share for share in shares if share is not None]
    mean = sum(known) / len(known)
    deviation = None
    if len(known) > 1:
        deviation = (sum((share - mean) ** 2 for share in known) / (len(known) - 1)) ** 0.5
    counts = queries or [None] * len(shares)
    like = audit()["price"][0]
    own = {"row": row, "mode": mode, "agreement": shares, "mean": mean, "sd": deviation}
    reached = dict.fromkeys(LEVELS, [None] * len(shares)) | {"0.9": counts}
    return like | own | {"queries_to": reached, "attack": ATTACK} | changed


def audited(*lines: dict[str, Any], images: int = 359, **changed: Any) -> dict[str, Any]:
    content = audit() | {"price": [*lines], "verdicts": [], "controls": []} | changed
    content["target"]["evaluation"]["images"] = images
    content["target"]["files"] = {"checkpoint": "a" * 64}
    content["target"]["evaluation"]["sha256"] = "b" * 64
    return content


def beside(now: dict[str, Any], before: dict[str, Any]) -> AuditHistory:
    return history(audit_result(now), audit_result(before))
