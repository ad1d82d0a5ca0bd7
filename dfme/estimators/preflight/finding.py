"""What a pre-flight probe found out: plain numbers and words, for a checkpoint or a JSON file. No torch here."""

from __future__ import annotations

from dataclasses import dataclass

from dfme.config.settings import ObjectiveName


@dataclass(frozen=True)
class StepCandidate:
    """One candidate step, and what a difference along it is predicted to be worth.

    ``step`` is in units of the perturbed space (of a lattice: levels). ``signal``: rms of central differences;
    ``noise``: rms of what they owe to the answers' resolution and to noise. ``carried``: cosine between the way
    intended and the way the wire carries. ``forward`` and ``central``: predicted correlation of the difference
    with the true slope along its direction. ``steady``: that correlation if curvature were all; ``clear``: if
    noise and rounding were all (both of central differences).
    """

    step: float
    signal: float
    noise: float
    carried: float
    forward: float
    central: float
    steady: float
    clear: float

    def of(self, form: str) -> float:
        """The predicted correlation of differences of this form."""
        return self.central if form == "central" else self.forward


@dataclass(frozen=True)
class Finding:
    """What a few hundred images said about a teacher's answers and the steps that survive them.

    ``declared``: its label mode; ``answers``: the form seen. ``decimals``: that the scores are rounded to, none if
    they are not; ``relative``: their resolution as floats. ``levels``: pixel values the wire carries. ``repeat``
    and ``batch``: largest change of an answer when the same images come again, and when they come among others.
    ``hidden``: share of the scores that were answered as exactly zero, or not at all. ``objective``, ``space`` and
    ``direction``: of what, where and along what the steps were tried; no ``rungs`` where the answers have no
    scores. ``images``: charged.
    """

    declared: str
    answers: str
    decimals: int | None
    relative: float
    levels: int | None
    repeat: float
    batch: float
    hidden: float
    objective: ObjectiveName
    space: str
    direction: str
    rungs: tuple[StepCandidate, ...]
    images: int

    def rung(self, step: float) -> StepCandidate:
        """The candidate nearest to a step, in proportion."""
        return min(self.rungs, key=lambda each: max(each.step / step, step / each.step))
