"""Detection in figures: when the bell rang, what the copy was then worth, and how well sessions are told apart."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from typing import Any

from dfme.report.facts import wilson_interval

RESAMPLES, SEED = 1_000, 0
"""Of the bootstrap over sessions."""


def share_at_most(events: int, trials: int, units: int) -> float:
    """What the rate ``events / trials`` can be (95 %), with so many independent units behind the trials.

    None at all means less than 3 / units; else the upper end of Wilson's interval, as if the rate were of the units.
    """
    return min(1.0, 3 / units) if not events else wilson_interval(events / trials, units)[1]


def auroc(attacks: Sequence[float], benign: Sequence[float]) -> float:
    """P(the statistic of an attack's session > that of an honest one), equal ones half (Mann and Whitney, 1947)."""
    below = sorted(benign)
    places = sum(bisect_left(below, each) + bisect_right(below, each) for each in attacks)
    return places / (2 * len(attacks) * len(below))


def auroc_interval(attacks: Mapping[Any, Sequence[float]], benign: Sequence[float]) -> tuple[float, float]:
    """The 95 % interval of ``auroc`` by the bootstrap: honest sessions are drawn again, and of attacks the seeds.

    ``attacks``: sessions by seed, since those of one seed begin with the same images. Of one seed, or of sessions that
    are all told apart, it is narrower than the truth: the counts stand beside it.
    """
    import numpy as np

    rng, flat = np.random.default_rng(SEED), [each for own in attacks.values() for each in own]
    above_AB = np.greater.outer(flat, benign) + np.equal.outer(flat, benign) / 2
    times_RG = rng.multinomial(len(attacks), [1 / len(attacks)] * len(attacks), RESAMPLES)
    times_RA = times_RG.repeat([len(own) for own in attacks.values()], axis=1)
    times_RB = rng.multinomial(len(benign), [1 / len(benign)] * len(benign), RESAMPLES)
    found_R = ((times_RA @ above_AB) * times_RB).sum(1) / (times_RA.sum(1) * len(benign))
    low, high = np.quantile(found_R, (0.025, 0.975))
    return float(low), float(high)


def joined(measured: Mapping[str, Any], cells: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """``measured`` (``teacher_side.detection``) with ``attacks`` and ``auroc``, of the cells that were watched.

    A cell has name, row, mode, defence, seed, curve ((images, agreement) of each evaluation), constant (the agreement
    of one answer to everything) and watch (as in its summary, or None).
    """
    watched = [(cell, each) for cell in cells for each in _of_detectors(cell)]
    sessions: dict[tuple[str, str], dict[Any, list[float]]] = {}
    for cell, attack in watched:
        if attack["largest_600"] is not None:
            of_seeds = sessions.setdefault((cell["row"], attack["detector"]), {})
            of_seeds.setdefault(cell["seed"], []).append(attack["largest_600"])
    told = [
        {
            **{"row": row, "detector": detector, "stream": stream},
            "auroc": auroc(flat := [each for own in of_seeds.values() for each in own], benign),
            "interval": [*auroc_interval(of_seeds, benign)],
            **{"attack_sessions": len(flat), "benign_sessions": len(benign)},
        }
        for (row, detector), of_seeds in sessions.items()
        for stream, benign in measured["benign_largest"].get(detector, {}).items()
    ]
    return {**measured, "attacks": [attack for _, attack in watched], "auroc": told}


def _of_detectors(cell: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What each detector of a cell's watch said."""
    watch = cell.get("watch") or {"detectors": {}}
    same = {name: cell[name] for name in ("row", "mode", "defence", "seed")}
    return [
        {
            **{"cell": cell["name"], **same, "detector": detector, "images": watch["images"]},
            **{name: found[name] for name in ("first_alarm", "largest", "largest_600")},
            "agreement_at_alarm": agreement_at(found["first_alarm"], cell["curve"], cell["constant"]),
        }
        for detector, found in watch["detectors"].items()
    ]


def agreement_at(images: int | None, curve: Sequence[Sequence[float]], constant: float | None) -> float | None:
    """The copy at the alarm: its last evaluation so far, else one answer to everything; None: it never rang."""
    if images is None:
        return None
    return next((agreement for queries, agreement in reversed(curve) if queries <= images), constant)
