"""Detection in an audit: alarms beside the copies' worth, and how well a detector separates."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from dfme.audits.audit.attacks import (
    CellResult,
    Interval,
    Separation,
    WatchedAttack,
    WatchedAttacks,
)
from dfme.statistics import auroc


def joined(
    measured: WatchedAttacks,
    cells: Sequence[CellResult],
    watches: Mapping[str, Mapping[str, Any]],
    constant: float | None,
) -> WatchedAttacks:
    """Return ``measured`` with ``attacks`` and ``auroc`` of the cells that were watched.

    ``watches``: by a cell's name, ``watch`` of its summary. At its alarm a copy is worth what its
    last evaluation so far says, and before the first ``constant``, what one answer to everything
    is.
    """
    attacks = list[WatchedAttack]()
    for cell in cells:
        watch = watches.get(cell.name, {"detectors": {}})
        for detector, statistics in watch["detectors"].items():
            attacks.append(_attack(cell, watch["images"], detector, statistics, constant))
    return replace(measured, attacks=attacks, auroc=_separations(measured, attacks))


def _separations(measured: WatchedAttacks, attacks: Sequence[WatchedAttack]) -> list[Separation]:
    sessions = dict[tuple[str, str], dict[int, list[float]]]()
    for attack in attacks:
        if attack.largest_600 is not None:
            seeds = sessions.setdefault((attack.row, attack.detector), {})
            seeds.setdefault(attack.seed, []).append(attack.largest_600)
    separations = list[Separation]()
    for (row, detector), seeds in sessions.items():
        for stream, benign in measured.benign_largest.get(detector, {}).items():
            value, interval = auroc(seeds, benign)
            separations.append(
                Separation(
                    row=row,
                    detector=detector,
                    stream=stream,
                    auroc=value,
                    interval=Interval(*interval),
                    attack_sessions=sum(map(len, seeds.values())),
                    benign_sessions=len(benign),
                )
            )
    return separations


def _attack(
    cell: CellResult,
    images: int,
    detector: str,
    statistics: Mapping[str, Any],
    constant: float | None,
) -> WatchedAttack:
    first = statistics["first_alarm"]
    agreement = None
    if first is not None:
        scored = (point.agreement for point in reversed(cell.curve) if point.queries <= first)
        agreement = next(scored, constant)
    return WatchedAttack(
        cell=cell.name,
        row=cell.row,
        mode=cell.mode,
        defence=cell.defence,
        seed=cell.seed,
        detector=detector,
        images=images,
        first_alarm=first,
        largest=statistics["largest"],
        largest_600=statistics["largest_600"],
        agreement_at_alarm=agreement,
    )
