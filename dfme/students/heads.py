"""The last layer of a classifier, from frozen features of images and the classifier's answers.

log p_nk = w_k . f_n + b_k - c_n, with one constant per image that log-odds do not have. So each
answer in full precision is K - 1 linear equations, and D + 1 answers name the head (for text
encoders: Zanella-Beguelin et al., ICML 2021). Rounded answers are intervals, and labels say which
score is largest: there a ridge chosen by held-back answers decides. N images, D features, K
classes; float64 inside, no input or output.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from dfme.answers.reading import top_class, unanswered
from dfme.compute.device import derived_seed
from dfme.errors import UserError, say
from dfme.spec import LabelMode
from dfme.students.head_descent import Descent, LeastSquares, Scaling, WeightedSquares
from dfme.students.head_losses import MIN_IMAGES, Entropy, residual, targets, usual
from dfme.students.losses import SMALLEST

EXACT_RIDGES = tuple(10.0**-exponent for exponent in range(2, 17, 2))
"""Shares of the features' mean square norm."""
RIDGES = tuple(10.0**-exponent for exponent in range(3, 9))
LABEL_RIDGES = tuple(10.0**-exponent for exponent in range(2, 7))
RELEVANCE_ROUNDS = 4
MARGIN = 0.05
HELD_BACK = 0.2
STEPS = 30
LAST_STEPS = 100
CONJUGATE_STEPS = 300
SMALL_DEVIATION = 0.01
"""Of a logarithm: smaller ones weigh no more, or the descent would not come near its minimum."""
LARGE_DEVIATION = 0.1


EXACT = 1e-3
"""Residual up to which nothing is left but the rounding of float32: 1e-6 was measured."""

FROZEN = 0.03
"""Residual up to which the owner's model is these features with a linear head, hardly tuned if at
all.

Measured: 2e-6 of such an owner (EfficientNet-Lite0, 224 pixels, 1,664 drawn images), .57 of one
whose last blocks were tuned; of 21 small owners with up to 20 classes none that was tuned by a
tenth, had a hidden layer or came from noise was below, those moved by 1 to 3 % were at .004 to .03.
Answers in 16 bits had .009 to .017 as a share of the spread of the log-odds, which is smaller.
"""


@dataclass(frozen=True)
class Head:
    """Scores of features (N, D): features @ weight_KD.T + bias_K; float32."""

    weight_KD: Tensor
    bias_K: Tensor

    def __call__(self, features_ND: Tensor) -> Tensor:
        return features_ND @ self.weight_KD.T + self.bias_K

    def lowered(self, by_K: Tensor) -> Head:
        """The head whose scores are lower by so much."""
        return replace(self, bias_K=self.bias_K - by_K.to(self.bias_K))


@dataclass(frozen=True)
class Solved:
    """A head, and what its answers say of it.

    ``residual``: median error of held-back answers' log-odds by a head without them, as a share of
    that of a constant answer: 1e-6 where the owner has a linear head on these features, about .5
    where the owner's features differ; infinite where the answers do not differ, or too few are
    held back. It says so only for ``answers_needed`` answers or more, and unrounded.
    ``held_back_agreement``: of the same answers. ``ridge``: as a share of the features' mean square
    norm. ``resolved``: share of the answers' numbers that are more than a bound. ``rank``:
    directions in which the features differ by more than float32's rounding; ``condition``: the
    largest spread along one over the smallest; ``dead``: features that are constant here.
    """

    head: Head
    residual: float
    held_back_agreement: float
    ridge: float
    resolved: float
    rank: int
    condition: float
    dead: int
    answers_needed: int


@dataclass(frozen=True)
class Fitted:
    """A head; ``held_back_agreement`` is that of a head without these answers, by which the ridge
    was chosen. ``ridge``: as a share of the features' mean square norm.
    """

    head: Head
    ridge: float
    held_back_agreement: float


@dataclass(frozen=True)
class _Trial:
    """A head within scaled features, and its agreement with held-back answers."""

    agreement: float
    ridge: float
    weight_DK: Tensor
    bias_K: Tensor
    scaling: Scaling

    def scores(self, features_ND: Tensor) -> Tensor:
        scores_NK: Tensor = self.scaling(features_ND) @ self.weight_DK + self.bias_K
        return scores_NK

    @property
    def head(self) -> Head:
        weight_KD = (self.weight_DK * self.scaling.scale_D[:, None]).T
        return Head(weight_KD.float(), (self.bias_K - weight_KD @ self.scaling.mean_D).float())


@dataclass(frozen=True)
class _HeldBack:
    """Features and answers, all of them, with the indices of what is learnt from and held back."""

    features_ND: Tensor
    answers: Tensor
    mode: LabelMode
    target_NK: Tensor
    kept: Tensor
    held: Tensor

    @classmethod
    def of(
        cls, features_ND: Tensor, answers: Tensor, mode: LabelMode, num_classes: int, seed: int
    ) -> _HeldBack:
        """Without images that have no answer. UserError for what cannot be learnt from."""
        if len(features_ND) != len(answers):
            raise ValueError(f"{len(features_ND)} features and {len(answers)} answers")
        answered = answers >= 0 if mode.kind == "label" else ~unanswered(answers)
        features_ND = features_ND[answered].detach().double()
        answers = answers[answered].detach()
        if len(answers) < 2:
            raise UserError(say("expected two answers or more, got {}", len(answers)))
        if not bool(features_ND.isfinite().all()):
            raise UserError("expected finite features, got NaN or infinity: another backbone?")
        target_NK = targets(answers, mode, num_classes)
        kept, held = _split(features_ND, seed)
        return cls(features_ND, answers, mode, target_NK, kept, held)

    def agreement(self, scores_NK: Tensor) -> float:
        """Share of the held-back answers whose class has the largest score."""
        same = scores_NK.argmax(dim=1) == top_class(self.answers[self.held])
        return float(same.double().mean())

    def entropy(self, indices: Tensor) -> Entropy:
        return Entropy(self.target_NK[indices], self.mode.kind == "label")

    def residual(self, scores_NK: Tensor) -> float:
        """Error of the held-back answers' scores: see ``head_losses.residual``."""
        odds_NK = _log_scores(self.answers, self.mode)
        known_NK = _weights(self.answers, self.mode) > 0
        constant_K = usual(odds_NK[self.kept], known_NK[self.kept])
        return residual(scores_NK, odds_NK[self.held], known_NK[self.held], constant_K)

    @property
    def half_deviation(self) -> float:
        """Half a standard deviation of an agreement of 80 % on the held-back answers."""
        return 0.5 * math.sqrt(0.8 * 0.2 / len(self.held))

    def search(self, scaling: Scaling, ridges: Iterable[float]) -> _Trial:
        """The least ridge whose head agrees with held-back answers as well as the best.

        As well: within half a deviation. The least: what is copied differs from what is asked, and
        there smaller ridges do better (measured).
        """
        scaled_ND = scaling(self.features_ND)
        descent = Descent(scaled_ND[self.kept], self.entropy(self.kept), torch.float32)
        weight_DK = scaled_ND.new_zeros(scaled_ND.shape[1], self.target_NK.shape[1])
        bias_K = (self.target_NK.mean(dim=0) + 1.0 / len(scaled_ND)).log()
        trials = []
        for ridge in ridges:
            weight_DK, bias_K = descent(ridge, weight_DK, bias_K, STEPS)
            agreement = self.agreement(scaled_ND[self.held] @ weight_DK + bias_K)
            trials.append(_Trial(agreement, ridge, weight_DK, bias_K, scaling))
        best = max(trial.agreement for trial in trials) - self.half_deviation
        return [trial for trial in trials if trial.agreement >= best][-1]

    def refit(self, trial: _Trial, steps: int) -> _Trial:
        """The same from all answers."""
        everything = torch.arange(len(self.features_ND))
        descent = Descent(trial.scaling(self.features_ND), self.entropy(everything), torch.float32)
        weight_DK, bias_K = descent(trial.ridge, trial.weight_DK, trial.bias_K, steps)
        return _Trial(trial.agreement, trial.ridge, weight_DK, bias_K, trial.scaling)


def answers_needed(features: int) -> int:
    """Answers in full precision that name a head: one for each unknown of a class, and a margin."""
    return math.ceil((features + 1) * (1 + MARGIN))


def solve(
    features_ND: Tensor, answers: Tensor, mode: LabelMode, num_classes: int, seed: int = 0
) -> Solved:
    """The head whose log-odds are those of the answers. UserError for labels.

    Five decimals and more: weighted least squares. Three and fewer: least entropy, with the
    features' scales that held-back answers prefer. Four: the better of the two by these answers.
    """
    if mode.kind == "label":
        raise UserError("expected scores to solve for a head, got labels; fit one instead")
    task = _HeldBack.of(features_ND, answers, mode, num_classes, seed)
    resolved = float((~_bounds(task.answers, mode)).double().mean())
    trials = [recover(task) for recover in _recoveries(mode)]
    trial, final = max(trials, key=lambda pair: pair[0].agreement)
    held_NK = trial.scores(task.features_ND[task.held])
    variances_D = _variances(task.features_ND)
    live_R = variances_D[variances_D > 1e-14 * variances_D.max()]
    return Solved(
        head=final.head,
        residual=task.residual(held_NK),
        held_back_agreement=trial.agreement,
        ridge=trial.ridge,
        resolved=resolved,
        rank=len(live_R),
        condition=float((live_R.max() / live_R.min()).sqrt()) if len(live_R) else 1.0,
        dead=int((task.features_ND.amax(dim=0) == task.features_ND.amin(dim=0)).sum()),
        answers_needed=answers_needed(features_ND.shape[1]),
    )


def fit(
    features_ND: Tensor, answers: Tensor, mode: LabelMode, num_classes: int, seed: int = 0
) -> Fitted:
    """The head of least cross-entropy to answers of any mode, with the ridge that held-back answers
    prefer; for owners whose head is not linear in these features, too.
    """
    task = _HeldBack.of(features_ND, answers, mode, num_classes, seed)
    ridges = RIDGES if mode.soft else LABEL_RIDGES
    trial = task.search(Scaling.plain(task.features_ND), ridges)
    final = task.refit(trial, STEPS)
    return Fitted(final.head, trial.ridge, trial.agreement)


def _recoveries(mode: LabelMode) -> list[Callable[[_HeldBack], tuple[_Trial, _Trial]]]:
    """What can recover a head from answers so fine."""
    if mode.decimals is None or mode.decimals >= 5:
        return [_linear]
    return [_descended] if mode.decimals <= 3 else [_linear, _descended]


def _descended(task: _HeldBack) -> tuple[_Trial, _Trial]:
    """The head of least entropy without the held-back answers, and the same with them.

    First on the features as they are, then with more room for the features that it weighs, while
    held-back answers say that it helps.
    """
    plain = Scaling.plain(task.features_ND)
    trial = task.search(plain, RIDGES)
    for _ in range(RELEVANCE_ROUNDS):
        scaling = plain.relevance(trial.scaling.undone(trial.weight_DK))
        relevant = task.search(scaling, RIDGES[2:])
        if relevant.agreement <= trial.agreement + task.half_deviation:
            break
        trial = relevant
    return trial, task.refit(trial, LAST_STEPS)


def _linear(task: _HeldBack) -> tuple[_Trial, _Trial]:
    """The best head by least squares without the held-back answers, and the same with them."""
    scaling = Scaling.plain(task.features_ND)
    scaled_ND = scaling(task.features_ND)
    odds_NK = _log_scores(task.answers, task.mode)
    sure_NK = _weights(task.answers, task.mode)
    kept = _squares(scaled_ND[task.kept], odds_NK[task.kept], sure_NK[task.kept])
    weight_DK = scaled_ND.new_zeros(scaled_ND.shape[1], odds_NK.shape[1])
    bias_K = weight_DK.new_zeros(odds_NK.shape[1])
    trials = []
    for ridge in EXACT_RIDGES:
        weight_DK, bias_K = kept(ridge, weight_DK, bias_K, 2 * STEPS)
        scores_NK = scaled_ND[task.held] @ weight_DK + bias_K
        trial = _Trial(task.agreement(scores_NK), ridge, weight_DK, bias_K, scaling)
        trials.append((task.residual(scores_NK), -trial.agreement, trial))
    *_, trial = min(trials, key=lambda row: row[:2])
    everything = _squares(scaled_ND, odds_NK, sure_NK)
    weight_DK, bias_K = everything(trial.ridge, trial.weight_DK, trial.bias_K, CONJUGATE_STEPS)
    return trial, _Trial(trial.agreement, trial.ridge, weight_DK, bias_K, scaling)


def _squares(
    features_ND: Tensor, odds_NK: Tensor, weight_NK: Tensor
) -> LeastSquares | WeightedSquares:
    """Least squares at once where all log-odds are known alike."""
    if bool((weight_NK > 0.999).all()):
        return LeastSquares(features_ND, odds_NK)
    return WeightedSquares(features_ND, odds_NK, weight_NK)


def _weights(answers_NK: Tensor, mode: LabelMode) -> Tensor:
    """Weights (N, K) of log-odds, 1 to 0, by what rounding leaves of them: 1 / (1 + (s / S)^2) for
    a deviation s of log p, and 0 for bounds and where s is so large that log p is biased.
    """
    known_NK = (~_bounds(answers_NK, mode)).double()
    if mode.decimals is None:
        return known_NK
    step = 10.0**-mode.decimals
    p_NK = answers_NK.double().nan_to_num(nan=0.0).clamp_min(0.1 * step)
    share_NK = step / (math.sqrt(12) * p_NK)
    weight_NK = known_NK / (1 + (share_NK / SMALL_DEVIATION).square())
    return weight_NK.masked_fill(share_NK > LARGE_DEVIATION, 0.0)


def _bounds(answers_NK: Tensor, mode: LabelMode) -> Tensor:
    """Mask (N, K) of answers that are only bounds; below its least normal number float32 has fewer
    digits.
    """
    if mode.kind == "logits":
        return torch.zeros_like(answers_NK, dtype=torch.bool)
    return ~(answers_NK >= torch.finfo(torch.float32).tiny)


def _log_scores(answers_NK: Tensor, mode: LabelMode) -> Tensor:
    """Scores (N, K) up to a constant per image, with a mean of zero."""
    scores_NK = answers_NK.double()
    if mode.kind != "logits":
        scores_NK = scores_NK.nan_to_num(nan=1.0).clamp_min(SMALLEST).log()
    return scores_NK - scores_NK.mean(dim=1, keepdim=True)


def _variances(features_ND: Tensor) -> Tensor:
    """Along the directions in which features differ; as many as there are features or images."""
    centred_ND = features_ND - features_ND.mean(dim=0)
    if len(centred_ND) < centred_ND.shape[1]:
        centred_ND = centred_ND.T
    variances: Tensor = torch.linalg.eigvalsh(centred_ND.T @ centred_ND)
    return variances.clamp_min(0.0)


def _split(features_ND: Tensor, seed: int) -> tuple[Tensor, Tensor]:
    """Indices to learn from and to hold back: a fifth, or half of what an exact head can spare."""
    images = len(features_ND)
    rng = torch.Generator().manual_seed(derived_seed(seed, "held back"))
    order = torch.randperm(images, generator=rng)
    held = max(1, round(HELD_BACK * images))
    spare = images - answers_needed(features_ND.shape[1])
    if spare > 0:
        unneeded = images - features_ND.shape[1] - 2
        held = min(held, max((spare + 1) // 2, min(MIN_IMAGES, unneeded)))
    return order[held:], order[:held]
