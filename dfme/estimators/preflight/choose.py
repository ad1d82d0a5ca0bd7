"""From a finding to settings: what is left open is chosen, in two lines that say so and one that
warns.
"""

from dataclasses import dataclass, replace

from dfme.config.sections import EstimatorConfig, Form, ObjectiveName
from dfme.errors import flag
from dfme.estimators.build import default_settings, needs_preflight
from dfme.spec import ImageSpec, LabelMode

WITHIN_OF_BEST = 0.98
"""Steps whose predicted correlation is at least this share of the best are as good as it."""

TIE = 1e-4
"""Predicted correlations that differ by less differ by what machines round, which must decide
nothing.
"""

ENOUGH = 0.9
"""Predicted correlation that noise alone, or curvature alone, may leave of a step that is said to
do.
"""

DOUBTFUL = 0.5
"""Predicted correlation below which a run is warned."""


@dataclass(frozen=True)
class StepCandidate:
    """One candidate step, and what a difference along it is predicted to say.

    ``step`` is in units of the perturbed space (of a lattice: levels). ``signal``: rms of central
    differences; ``noise``: rms of what they owe to the answers' resolution and to noise.
    ``carried``: cosine between the way intended and the way the wire carries. ``forward`` and
    ``central``: predicted correlation of the difference with the true slope along its direction.
    ``steady``: that correlation if curvature were all; ``clear``: if noise and rounding were all
    (both of central differences).
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
    """Findings of a few hundred images about a teacher's answers and the steps that survive them.

    ``declared``: its label mode; ``answers``: the form seen. ``decimals``: that the scores are
    rounded to, none if they are not; ``relative``: their resolution as floats. ``levels``: pixel
    values the wire carries. ``repeat`` and ``batch``: largest change of an answer when the same
    images come again, and when they come among others. ``hidden``: share of the scores that were
    answered as exactly zero, or not at all. ``objective``, ``space`` and ``direction``: of what,
    where and along what the steps were tried; no ``candidates`` where answers have no scores.
    ``images``: charged.
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
    candidates: tuple[StepCandidate, ...]
    images: int

    def candidate(self, step: float) -> StepCandidate:
        """The candidate nearest to a step, in proportion."""
        return min(
            self.candidates, key=lambda candidate: max(candidate.step / step, step / candidate.step)
        )


def choose(
    config: EstimatorConfig, finding: Finding, spec: ImageSpec, reuse: bool
) -> EstimatorConfig:
    """Settings without ``auto``. ``step: auto`` sets the step, ``kind: auto`` all but
    ``directions``.

    ``reuse``: the answer at the point itself costs nothing, so that forward differences do not pay
    for it.
    """
    chosen = default_settings(config, spec)
    if config.kind == "auto":
        form = best_form(finding, config.directions, reuse)
        chosen = replace(chosen, form=form, objective=finding.objective)
    return (
        replace(chosen, step=best_step(finding, chosen.form)) if needs_preflight(config) else chosen
    )


def best_form(finding: Finding, directions: int, reuse: bool) -> Form:
    """Central where it costs no more, or where forward differences lose more by curvature than it
    costs.

    At equal queries central differences have (m + 1) / 2 directions to m forward ones, and the
    cosine of an estimate grows with the root of their number.
    """
    if reuse:
        return "forward"
    forward = max((candidate.forward for candidate in finding.candidates), default=0.0)
    central = max((candidate.central for candidate in finding.candidates), default=0.0)
    return (
        "central"
        if central * ((directions + 1) / (2 * directions)) ** 0.5 >= forward - TIE
        else "forward"
    )


def best_step(finding: Finding, form: Form) -> float:
    """The middle of the steps around the best that are nearly as good: room on both sides."""
    if not finding.candidates:
        return 1.0 if finding.space == "lattice" else 1e-3
    tried = finding.candidates
    correlations = [candidate.of(form) for candidate in tried]
    best = max(range(len(tried)), key=lambda j: (correlations[j], tried[j].clear, tried[j].step))
    enough = WITHIN_OF_BEST * correlations[best]
    low = best
    high = best
    while low > 0 and correlations[low - 1] >= enough:
        low -= 1
    while high < len(tried) - 1 and correlations[high + 1] >= enough:
        high += 1
    return tried[(low + high) // 2].step


def explain(finding: Finding, chosen: EstimatorConfig) -> tuple[str, str]:
    """Two lines for the user: what was chosen, and the measured reasons."""
    cost = 2 * chosen.directions if chosen.form == "central" else chosen.directions + 1
    what = (
        f"estimator: {chosen.kind}, {chosen.form}, step {float(chosen.step):g} in space "
        f"{chosen.space}, "
        f"direction {chosen.direction}, objective {chosen.objective} ({cost} images a point); "
        f"the check took {finding.images} images"
    )
    if not finding.candidates:
        return what, f"because: {_answers(finding)}, which differences see nothing of"
    candidate = finding.candidate(float(chosen.step))
    images = "images as floats" if finding.levels is None else f"images of {finding.levels} levels"
    why = (
        f"because: {_answers(finding)}; {images}; at this step a difference is {_ratio(candidate)} "
        "the noise "
        f"and its predicted correlation with the true slope {candidate.of(chosen.form):.2f}; "
        f"{_window(finding)}"
    )
    return what, why


def warning(finding: Finding, chosen: EstimatorConfig) -> str | None:
    """One line where the gradients will be little but noise: how little, the likely cause, the
    remedy.
    """
    candidate = finding.candidate(float(chosen.step)) if finding.candidates else None
    correlation = 0.0 if candidate is None else candidate.of(chosen.form)
    if correlation >= DOUBTFUL:
        return None
    cause, remedy = _diagnosis(finding, chosen, candidate)
    return (
        f"warning: the predicted correlation of a difference with the true slope is "
        f"{correlation:.2f}: "
        "the "
        f"generator will mostly follow noise; likely cause: {cause}; {remedy}"
    )


def flags(chosen: EstimatorConfig) -> str:
    """The command line's words for what was chosen."""
    words = {
        name: getattr(chosen, name) for name in ("kind", "objective", "space", "direction", "form")
    }
    words["step"] = f"{float(chosen.step):g}"
    return " ".join(flag(f"estimator.{name}", value) for name, value in words.items())


def _diagnosis(
    finding: Finding, chosen: EstimatorConfig, candidate: StepCandidate | None
) -> tuple[str, str]:
    """The likely cause of differences that say nothing, and what would help."""
    no_queries = (
        f"take a method whose generator needs no such differences ({flag('method.name', 'static')})"
    )
    if finding.answers in ("labels", "one-hot") or candidate is None:
        return f"the answers are {finding.answers} and change in jumps only", no_queries
    if candidate.carried < DOUBTFUL:
        return (
            f"images travel as {finding.levels} levels, which {1 - candidate.carried:.0%} of the "
            "step is "
            "lost to",
            f"try {flag('estimator.space', 'lattice')} {flag('estimator.step', 'auto')}, or "
            f"{flag('estimator.kind', 'auto')}",
        )
    if max(finding.repeat, finding.batch) > _quantum(finding):
        return (
            f"the same image's answers differ by up to {max(finding.repeat, finding.batch):.2g}",
            f"more {flag('estimator.directions')} average noise out; ask for answers that repeat "
            "exactly",
        )
    if finding.decimals is not None:
        share = f", {finding.hidden:.0%} of them to zero" if finding.hidden > 0 else ""
        return (
            f"scores rounded to {finding.decimals} decimals{share}",
            f"{flag('estimator.objective', 'kl')} hardly depends on scores near zero "
            f"({flag('estimator.kind', 'auto')} takes it), and more decimals would help most",
        )
    return (
        "noise in the answers, or a teacher that computes in low precision",
        f"have it compute in float32, take more {flag('estimator.directions')}, or {no_queries}",
    )


def _quantum(finding: Finding) -> float:
    return finding.relative * 16 if finding.decimals is None else 10.0**-finding.decimals / 2


def _answers(finding: Finding) -> str:
    if finding.answers == "labels":
        return "answers are labels"
    rounded = (
        "not rounded" if finding.decimals is None else f"rounded to {finding.decimals} decimals"
    )
    hidden = f" ({finding.hidden:.0%} of them zero or not told)" if finding.hidden >= 0.01 else ""
    steady = "" if max(finding.repeat, finding.batch) <= _quantum(finding) else ", not repeatable"
    declared = LabelMode.parse(finding.declared)
    otherwise = "" if finding.decimals == declared.decimals else f", declared as {declared}"
    return f"{finding.answers} {rounded}{otherwise}{hidden}{steady}"


def _ratio(candidate: StepCandidate) -> str:
    if candidate.noise == 0:
        return "all signal, with no sign of" if candidate.signal > 0 else "as small as"
    times = candidate.signal / candidate.noise
    return f"{times:.2g} times" if times < 1000 else "over 1,000 times"


def _window(finding: Finding) -> str:
    """Smallest step with enough signal and largest before curvature, among the candidates."""
    clear = [candidate.step for candidate in finding.candidates if candidate.clear >= ENOUGH]
    steady = [candidate.step for candidate in finding.candidates if candidate.steady >= ENOUGH]
    low = f"enough signal from {min(clear):g} on" if clear else "no step tried has enough signal"
    return f"{low}, curvature " + (f"beyond {max(steady):g}" if steady else "at every step tried")
