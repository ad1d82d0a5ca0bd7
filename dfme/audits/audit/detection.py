"""Detection in an audit: alarms beside the copies' worth, and how well a detector separates."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dfme.statistics import auroc


def joined(measured: Mapping[str, Any], cells: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return ``measured`` with ``attacks`` and ``auroc`` of the cells that were watched.

    A cell is that of ``Findings``, its ``watch`` as in its summary, or None. At its alarm a copy is
    worth what its last evaluation so far says, and before the first ``constant``, what one answer
    to everything is.
    """
    attacks = list[dict[str, Any]]()
    sessions = dict[tuple[str, str], dict[Any, list[float]]]()
    for cell, name, largest in _watched(cells):
        attacks.append(_attack(cell, name, largest))
        if largest["largest_600"] is not None:
            seeds = sessions.setdefault((cell["row"], name), {})
            seeds.setdefault(cell["seed"], []).append(largest["largest_600"])
    rows = list[dict[str, Any]]()
    for (row, name), seeds in sessions.items():
        for stream, benign in measured["benign_largest"].get(name, {}).items():
            value, interval = auroc(seeds, benign)
            rows.append(
                {
                    "row": row,
                    "detector": name,
                    "stream": stream,
                    "auroc": value,
                    "interval": interval,
                    "attack_sessions": sum(map(len, seeds.values())),
                    "benign_sessions": len(benign),
                }
            )
    return {**measured, "attacks": attacks, "auroc": rows}


def _watched(
    cells: Sequence[Mapping[str, Any]],
) -> Iterator[tuple[Mapping[str, Any], str, Mapping[str, Any]]]:
    """Each watched cell with the name of a detector and what it says."""
    for cell in cells:
        if cell["watch"]:
            for name, statistics in cell["watch"]["detectors"].items():
                yield cell, name, statistics


def _attack(
    cell: Mapping[str, Any], detector: str, statistics: Mapping[str, Any]
) -> dict[str, Any]:
    first = statistics["first_alarm"]
    known = (worth for queries, worth in reversed(cell["curve"]) if queries <= (first or 0))
    return {
        "cell": cell["name"],
        "row": cell["row"],
        "mode": cell["mode"],
        "defence": cell["defence"],
        "seed": cell["seed"],
        "detector": detector,
        "images": cell["watch"]["images"],
        "first_alarm": first,
        "largest": statistics["largest"],
        "largest_600": statistics["largest_600"],
        "agreement_at_alarm": None if first is None else next(known, cell["constant"]),
    }
