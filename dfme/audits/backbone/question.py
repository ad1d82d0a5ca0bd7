"""One look: which backbone's features, and which form of the images, explain a teacher's
answers?
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import sub

import torch
from torch import Tensor

from dfme.answers.reading import cut_to, decimals, top_class, unanswered
from dfme.audits.backbone.features import SCREENED, Backbone, FormFeatures
from dfme.audits.backbone.images import ImagesAt, StepHeard
from dfme.audits.backbone.verdict import (
    AS_GIVEN,
    LABELS,
    BackboneVerdict,
    CandidateVerdict,
    Leak,
    VerdictKind,
)
from dfme.spec import ImageSpec, LabelMode
from dfme.students.heads import FROZEN, answers_needed, fit, solve
from dfme.students.losses import log_probabilities

HELD_BACK = 5
"""One of so many is held back where forms are compared."""
RIDGES = tuple(10.0**exponent for exponent in range(-9, 1))
ROUNDINGS = (6, 4, 2)
LEAD = 0.025
"""Share of the variance by which one form of the images has to lead in every fifth of them for the
backbone to be in the teacher. Measured on random weights, 125 and 160 images: .06 of owners hardly
tuned, .04 of a tuned one, .02 and less of ten others. In a single fifth those had up to .16.
"""


def backbone_question(
    candidates: Sequence[Backbone],
    images: ImagesAt,
    answers: Tensor,
    mode: LabelMode,
    spec: ImageSpec,
    num_classes: int,
    progress: StepHeard,
    seed: int = 0,
) -> BackboneVerdict:
    """What answers in ``mode`` to the first of the images say of the candidates; nothing is asked.

    ``answers``: (N, K) scores or (N,) labels, as an oracle gives them; ``images`` has the N images
    within the bounds of ``spec``. UserError for a candidate that cannot take such images.
    """
    answered = ~unanswered(answers)
    look = _Look(images, answers, mode, spec, num_classes, progress, seed)
    seen = [look.candidate(backbone) for backbone in candidates]
    seen.sort(key=lambda pair: pair[0].explained, reverse=True)
    best, features = seen[0]
    top_N = top_class(answers[answered])
    counts = top_N.bincount(minlength=num_classes)
    return BackboneVerdict(
        images=str(spec),
        answers=look.words,
        asked=len(answers),
        requests=0,
        answered=int(answered.sum()),
        classes=int((counts > 0).sum()),
        of_classes=num_classes,
        constant=float(counts.max()) / len(top_N),
        candidates=tuple(candidate for candidate, _ in seen),
        leaks=tuple(look.leaks(best, features)),
    )


class _Look:
    """The answers of one teacher, and what they say of one candidate after the other."""

    def __init__(
        self,
        images: ImagesAt,
        answers: Tensor,
        mode: LabelMode,
        spec: ImageSpec,
        num_classes: int,
        progress: StepHeard,
        seed: int,
    ) -> None:
        self._images = images
        self._count = len(answers)
        self._answered = ~unanswered(answers)
        self._answers = answers[self._answered]
        self._mode = mode
        self._num_classes = num_classes
        self._progress = progress
        self._seed = seed
        self._decimals = None
        if mode.kind == "probabilities":
            self._decimals = decimals(self._answers) or mode.decimals
        self.targets = _targets(self._answers, mode, num_classes)

    @property
    def words(self) -> str:
        """The form of the answers."""
        if self._mode.kind == "label":
            return "labels"
        rounded = "not rounded" if self._decimals is None else f"of {self._decimals} decimals"
        return f"{self._mode.kind}, {rounded}"

    def candidate(self, backbone: Backbone) -> tuple[CandidateVerdict, Tensor]:
        """The verdict of one candidate, and its features in the best form."""
        weights = backbone.weights
        forms = [FormFeatures(backbone, form, self._images) for form in backbone.forms]
        best, lead = self._best(forms)
        self._progress(f"solving for a head on {weights.name}", self._count, self._count)
        features_ND = best.first(self._count, self._progress)[self._answered]
        width = features_ND.shape[1]
        if self._by_scores:
            solved = solve(features_ND, self._answers, self._mode, self._num_classes, self._seed)
            residual = solved.residual if math.isfinite(solved.residual) else None
            agreement = solved.held_back_agreement
        else:
            residual = None
            agreement = self._fitted(features_ND, self._answers, self._mode)
        share = explained(features_ND, self.targets)
        kind, reason = self._judge(residual, lead, width)
        candidate = CandidateVerdict(
            name=weights.name,
            arch=weights.arch,
            digest=weights.digest,
            width=width,
            form=best.form.name,
            kind=kind,
            reason=reason,
            lead=lead,
            residual=residual,
            explained=share,
            agreement=agreement,
            needed=answers_needed(width),
        )
        return candidate, features_ND

    @property
    def _by_scores(self) -> bool:
        return self._mode.soft

    def _best(self, forms: Sequence[FormFeatures]) -> tuple[FormFeatures, float]:
        """The form whose features explain most of the first answers, and by how much more than
        under any other mean and standard deviation, in the fifth of them where that is least.

        An owner who trained on these weights saw images in one form; to other owners the forms are
        alike.
        """
        count = min(SCREENED, self._count)
        answered = self._answered[:count]
        targets = self.targets[: int(answered.sum())]
        shares = [_by_fifth(form.first(count, self._progress)[answered], targets) for form in forms]
        at = max(range(len(forms)), key=lambda at: sum(shares[at]))
        scale = forms[at].form.scale
        others = [
            share for form, share in zip(forms, shares, strict=True) if form.form.scale != scale
        ]
        second = max(others, key=sum)
        return forms[at], min(map(sub, shares[at], second))

    def _judge(self, residual: float | None, lead: float, width: int) -> tuple[VerdictKind, str]:
        """The verdict, and what its sentence adds."""
        if residual is not None and residual < FROZEN:
            return "frozen", ""
        needed = answers_needed(width)
        made = "; made of this backbone, frozen or tuned" if lead > LEAD else ""
        if not self._by_scores:
            return "unknown", f"{self.words} give no equations{made}"
        if len(self._answers) < needed:
            got = f"{len(self._answers):,} answers of the {needed:,} that an exact copy needs"
            return "unknown", f"{got}{made}"
        if residual is None:
            return "unknown", "all images have nearly the same answer, or few scores above 0"
        if self._decimals is not None:
            return "unknown", f"{self._decimals} decimals give no exact copy{made}"
        return ("tuned" if lead > LEAD else "other"), ""

    def leaks(self, best: CandidateVerdict, features_ND: Tensor) -> list[Leak]:
        """What the same answers give in coarser forms, to somebody with the best candidate."""
        rows = [Leak(AS_GIVEN, best.agreement)]
        if not self._by_scores:
            return rows
        for places in ROUNDINGS if best.kind == "frozen" else ROUNDINGS[-1:]:
            if self._decimals is None or places < self._decimals:
                mode = LabelMode("probabilities", places)
                p_NK = self._answers
                if self._mode.kind == "logits":
                    p_NK = p_NK.softmax(dim=1)
                rounded = cut_to(p_NK, mode)
                self._progress(f"solving, {places} decimals", len(p_NK), len(p_NK))
                solved = solve(features_ND, rounded, mode, self._num_classes, self._seed)
                rows.append(Leak(f"{places} decimals", solved.held_back_agreement))
        label = LabelMode("label")
        self._progress("fitting, labels", len(self._answers), len(self._answers))
        rows.append(Leak(LABELS, self._fitted(features_ND, top_class(self._answers), label)))
        return rows

    def _fitted(self, features_ND: Tensor, answers: Tensor, mode: LabelMode) -> float:
        fitted = fit(features_ND, answers, mode, self._num_classes, self._seed)
        return fitted.held_back_agreement


def _targets(answers: Tensor, mode: LabelMode, num_classes: int) -> Tensor:
    """What a linear head would have to give, (N, K) float64: log-odds, or the class named."""
    if not mode.soft:
        return torch.nn.functional.one_hot(top_class(answers), num_classes).double()
    log_NK = log_probabilities(answers.double(), mode)
    if mode.kind == "probabilities" and mode.decimals is not None:
        log_NK = log_NK.clamp_min(-mode.decimals * 2.302585 - 1)
    return log_NK - log_NK.mean(dim=1, keepdim=True)


def _by_fifth(features_ND: Tensor, targets_NK: Tensor) -> list[float]:
    """The share that is ``explained`` of each fifth by the other four."""
    size = len(features_ND) // HELD_BACK
    moved = [fifth * size for fifth in range(HELD_BACK)]
    return [explained(features_ND.roll(by, 0), targets_NK.roll(by, 0)) for by in moved]


def explained(features_ND: Tensor, targets_NK: Tensor) -> float:
    """Share of the variance of the last fifth's targets that a ridge head from the others explains.

    0 at least. Of several ridges the one that does best there: forms are compared by it, no copy is
    judged.
    """
    x_ND = features_ND.double()
    kept = len(x_ND) - max(1, len(x_ND) // HELD_BACK)
    if kept < 2:
        return 0.0
    mean_D = x_ND[:kept].mean(dim=0)
    mean_K = targets_NK[:kept].mean(dim=0)
    centred_ND = x_ND[:kept] - mean_D
    held = targets_NK[kept:] - mean_K
    values_N, vectors_NN = torch.linalg.eigh(centred_ND @ centred_ND.T)
    seen_NK = vectors_NN.T @ (targets_NK[:kept] - mean_K)
    basis = (x_ND[kept:] - mean_D) @ centred_ND.T @ vectors_NN
    best = 0.0
    for ridge in RIDGES:
        shrunk_N1 = (values_N.clamp_min(0) + ridge * values_N[-1]).unsqueeze(1)
        left = (held - basis @ (seen_NK / shrunk_N1)).square().sum()
        best = max(best, 1 - float(left / held.square().sum().clamp_min(1e-300)))
    return best
