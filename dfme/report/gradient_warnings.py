"""If the estimated gradients are noise, the run prints one warning. No torch here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

IN_A_ROW = 3
"""Logged generator steps in a row that must show a symptom: a single one may by chance."""


class Symptom(NamedTuple):
    """When a metric's value is bad, how it is told, and the likely cause."""

    bad: Callable[[float], bool]
    told: str
    cause: str


SYMPTOMS: dict[str, Symptom] = {
    "difference_zero_share": Symptom(
        lambda share: share > 0.5,
        "{:.0%} of the finite differences are exactly zero",
        "rounded answers or 8-bit images hide so small a step",
    ),
    "probe_alignment": Symptom(
        lambda cosine: cosine < 0.5,
        "the steps that the API's images carry have a cosine of {:.2f} with those intended",
        "8-bit images round so small a step away",
    ),
    "difference_snr": Symptom(
        lambda ratio: ratio < 2.0,
        "finite differences are only {:.2g} times what the answers' rounding hides",
        "the step is too small for answers with so few decimals",
    ),
}

REMEDY = "start a new run with --estimator.kind auto, or see what run.py check recommends"
NO_REMEDY = "the check chose the best there is; more --estimator.directions help, and most of all finer answers"
"""What is left to say where the settings are those of the check already."""


class GradientWatch:
    """Watches the logged metrics and gives one warning, once, after the same symptom in ``IN_A_ROW`` records.

    ``checked``: the settings were chosen by the pre-flight check, which is no remedy then.
    """

    def __init__(self, checked: bool = False) -> None:
        self._remedy = NO_REMEDY if checked else REMEDY
        self._times = dict.fromkeys(SYMPTOMS, 0)
        self._said = False

    def see(self, metrics: Mapping[str, float]) -> str | None:
        """The line to show after these metrics, or None. Records without a symptom's metric do not count."""
        for name, symptom in SYMPTOMS.items():
            if name not in metrics:
                continue
            self._times[name] = self._times[name] + 1 if symptom.bad(metrics[name]) else 0
            if self._times[name] >= IN_A_ROW and not self._said:
                self._said = True
                return f"warning: {symptom.told.format(metrics[name])}; likely cause: {symptom.cause}; {self._remedy}"
        return None
