"""From a finding to settings: what is left open is chosen, in two lines that say so and one that warns."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from dfme.config.settings import EstimatorConfig
from dfme.estimators.preflight.finding import Finding, StepCandidate
from dfme.spec import ImageSpec, LabelMode

FINEST_LATTICE = 65_536
COARSEST_LATTICE = 9
"""Levels of a lattice that is walked on: beyond it floats will do, and below it a step crosses too much."""

WITHIN_OF_BEST = 0.98
"""Steps whose predicted correlation is at least this share of the best are as good as it."""

ENOUGH = 0.9
"""Predicted correlation that noise alone, or curvature alone, may leave of a step that is said to do."""

DOUBTFUL = 0.5
"""Predicted correlation below which a run is warned."""

Form = Literal["forward", "central"]


def needs_preflight(config: EstimatorConfig) -> bool:
    """Whether the settings leave something to the pre-flight check."""
    return config.kind == "auto" or config.step == "auto"


def default_settings(config: EstimatorConfig, spec: ImageSpec) -> EstimatorConfig:
    """The settings with all chosen that needs no query: of kind auto, the space and the directions.

    8-bit images are walked on as the lattice they are; dct directions, since the parameters of a convolutional
    generator follow low frequencies best (docs/results/estimators.md has the figures).
    """
    if config.kind != "auto":
        return config
    lattice = spec.levels is not None and COARSEST_LATTICE <= spec.levels <= FINEST_LATTICE
    return replace(config, kind="finite_difference", space="lattice" if lattice else "pre_squash", direction="dct")


def choose(config: EstimatorConfig, finding: Finding, spec: ImageSpec, reuse: bool) -> EstimatorConfig:
    """Settings that leave nothing open. ``step: auto`` sets the step alone, ``kind: auto`` all but ``directions``.

    ``reuse``: the answer at the point itself costs nothing, so that forward differences do not pay for it. The
    step is the middle of those that are predicted to do about as well as the best. Where none is predicted to
    do anything, it is still the best there is.
    """
    chosen = default_settings(config, spec)
    if config.kind == "auto":
        form = best_form(finding, config.directions, reuse)
        chosen = replace(chosen, form=form, objective=finding.objective)
    return replace(chosen, step=best_step(finding, chosen.form)) if needs_preflight(config) else chosen


def best_form(finding: Finding, directions: int, reuse: bool) -> Form:
    """Central where it costs no more, or where forward differences lose more by curvature than it costs.

    At equal queries central differences have (m + 1) / 2 directions to m forward ones, and the cosine of an
    estimate grows with the root of their number.
    """
    if reuse:
        return "forward"
    forward, central = (max((rung.of(form) for rung in finding.rungs), default=0.0) for form in ("forward", "central"))
    return "central" if central * ((directions + 1) / (2 * directions)) ** 0.5 >= forward else "forward"


def best_step(finding: Finding, form: Form) -> float:
    """The middle, in proportion, of the steps around the best that are nearly as good: room on both sides."""
    if not finding.rungs:
        return 1.0 if finding.space == "lattice" else 1e-3
    worth = [rung.of(form) for rung in finding.rungs]
    best = max(range(len(worth)), key=lambda j: (worth[j], finding.rungs[j].clear, finding.rungs[j].step))
    low = high = best
    while low > 0 and worth[low - 1] >= WITHIN_OF_BEST * worth[best]:
        low -= 1
    while high < len(worth) - 1 and worth[high + 1] >= WITHIN_OF_BEST * worth[best]:
        high += 1
    return finding.rungs[(low + high) // 2].step


def explain(finding: Finding, chosen: EstimatorConfig) -> tuple[str, str]:
    """Two lines for the user: what was chosen, and the measured reasons."""
    cost = 2 * chosen.directions if chosen.form == "central" else chosen.directions + 1
    what = (
        f"estimator: {chosen.kind}, {chosen.form}, step {_step(chosen)} in space {chosen.space}, direction "
        f"{chosen.direction}, objective {chosen.objective} ({cost} images a point); "
        f"the check took {finding.images} images"
    )
    if not finding.rungs:
        return what, f"because: {_answers(finding)}, which differences see nothing of"
    rung = finding.rung(float(chosen.step))
    why = (
        f"because: {_answers(finding)}; {_images(finding)}; at this step a difference is {_ratio(rung)} the noise "
        f"and its predicted correlation with the true slope {rung.of(chosen.form):.2f}; {_window(finding)}"
    )
    return what, why


def warning(finding: Finding, chosen: EstimatorConfig) -> str | None:
    """One line where the gradients will be little but noise: how little, the likely cause, the remedy."""
    rung = finding.rung(float(chosen.step)) if finding.rungs else None
    found = 0.0 if rung is None else rung.of(chosen.form)
    if found >= DOUBTFUL:
        return None
    cause, remedy = _diagnosis(finding, chosen, rung)
    return (
        f"warning: the predicted correlation of a difference with the true slope is {found:.2f}: the generator will "
        f"mostly follow noise; likely cause: {cause}; {remedy}"
    )


def flags(chosen: EstimatorConfig) -> str:
    """The command line's words for what was chosen."""
    words = ["kind", "objective", "space", "direction", "form"]
    return " ".join(
        [*(f"--estimator.{name} {getattr(chosen, name)}" for name in words), f"--estimator.step {_step(chosen)}"]
    )


def _diagnosis(finding: Finding, chosen: EstimatorConfig, rung: StepCandidate | None) -> tuple[str, str]:
    """The likely cause of differences that say nothing, and what would help."""
    no_queries = "take a method whose generator needs no such differences (--method.name static)"
    if finding.answers in ("labels", "one-hot") or rung is None:
        return f"the answers are {finding.answers} and change in jumps only", no_queries
    if rung.carried < DOUBTFUL:
        return (
            f"images travel as {finding.levels} levels, which {1 - rung.carried:.0%} of the step is lost to",
            "try --estimator.space lattice --estimator.step auto, or --estimator.kind auto",
        )
    if max(finding.repeat, finding.batch) > _quantum(finding):
        return (
            f"the same image's answers differ by up to {max(finding.repeat, finding.batch):.2g}",
            "more --estimator.directions average noise out; ask for answers that repeat exactly",
        )
    if finding.decimals is not None:
        share = f", {finding.hidden:.0%} of them to zero" if finding.hidden > 0 else ""
        return (
            f"scores rounded to {finding.decimals} decimals{share}",
            "--estimator.objective kl hardly depends on scores near zero (--estimator.kind auto takes it), and more "
            "decimals would help most",
        )
    return (
        "noise in the answers, or a teacher that computes in low precision",
        f"have it compute in float32, take more --estimator.directions, or {no_queries}",
    )


def _quantum(finding: Finding) -> float:
    return finding.relative * 16 if finding.decimals is None else 10.0**-finding.decimals / 2


def _answers(finding: Finding) -> str:
    if finding.answers == "labels":
        return "answers are labels"
    rounded = "not rounded" if finding.decimals is None else f"rounded to {finding.decimals} decimals"
    hidden = f" ({finding.hidden:.0%} of them zero or not told)" if finding.hidden >= 0.01 else ""
    steady = "" if max(finding.repeat, finding.batch) <= _quantum(finding) else ", not repeatable"
    declared = LabelMode.parse(finding.declared)
    told = "" if finding.decimals == declared.decimals else f", declared as {declared}"
    return f"{finding.answers} {rounded}{told}{hidden}{steady}"


def _images(finding: Finding) -> str:
    return "images as floats" if finding.levels is None else f"images of {finding.levels} levels"


def _step(chosen: EstimatorConfig) -> str:
    return f"{chosen.step:g}" if isinstance(chosen.step, float) else str(chosen.step)


def _ratio(rung: StepCandidate) -> str:
    if rung.noise == 0:
        return "all signal, with no sign of" if rung.signal > 0 else "as small as"
    times = rung.signal / rung.noise
    return f"{times:.2g} times" if times < 1000 else "over 1,000 times"


def _window(finding: Finding) -> str:
    """The smallest step with enough signal and the largest before curvature, as far as the candidates tell."""
    clear = [rung.step for rung in finding.rungs if rung.clear >= ENOUGH]
    steady = [rung.step for rung in finding.rungs if rung.steady >= ENOUGH]
    low = f"enough signal from {min(clear):g} on" if clear else "no step tried has enough signal"
    return f"{low}, curvature " + (f"beyond {max(steady):g}" if steady else "at every step tried")
