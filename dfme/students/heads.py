"""The last layer of a classifier from frozen features of its images and its answers.

log p_nk = w_k . f_n + b_k - c_n: linear in the features, but for one constant c_n per image. N
images, D features, K classes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from dfme.answers.reading import answered_class, top_class, unanswered
from dfme.compute.device import derived_seed
from dfme.errors import UserError, say
from dfme.spec import LabelMode
from dfme.students.losses import log_probabilities

RIDGES = tuple(10.0**exponent for exponent in range(-16, 1))
"""Ridges that a solve tries, as shares of the features' largest variance."""
FIT_RIDGES = tuple(10.0 ** (-exponent / 2) for exponent in range(2, 13))
MARGIN = 0.05
HELD_BACK = 0.2
DEAD = 1e-7
STEPS = 60


@dataclass(frozen=True)
class Head:
    """Scores of features f: ``weight_KD @ f + bias_K``; float32."""

    weight_KD: Tensor
    bias_K: Tensor

    def __call__(self, features_ND: Tensor) -> Tensor:
        return features_ND @ self.weight_KD.T + self.bias_K


@dataclass(frozen=True)
class Solved:
    """A head, and what its answers say of it.

    ``residual``: of log-odds of held-back answers, as a share of their spread: 1e-6 where the owner
    has a linear head on these features, about .5 where its features differ. ``ridge``: as a share
    of the features' largest variance. ``resolved``: share of the answers' numbers that say more
    than a bound. ``rank``: directions in which the features differ. ``condition``: of the largest
    to the least spread among these. ``dead``: features that are constant. ``answers_needed``: for
    an exact head.
    """

    head: Head
    residual: float
    ridge: float
    resolved: float
    rank: int
    condition: float
    dead: int
    answers_needed: int
    agreement: float


@dataclass(frozen=True)
class Fitted:
    """A head; ``held_back_agreement`` is that of a head without these answers."""

    head: Head
    ridge: float
    held_back_agreement: float


@dataclass(frozen=True)
class _Basis:
    """Directions in which features differ: z = (f - mean) @ directions, uncorrelated."""

    mean_D: Tensor
    directions_DR: Tensor
    variances_R: Tensor

    @classmethod
    def of(cls, features_ND: Tensor) -> _Basis:
        """Eigenvectors of the covariance; of the N x N products where that is smaller."""
        mean_D = features_ND.mean(dim=0)
        centred_ND = features_ND - mean_D
        images = len(centred_ND)
        wide = images < centred_ND.shape[1]
        products = centred_ND @ centred_ND.T if wide else centred_ND.T @ centred_ND
        values, vectors = torch.linalg.eigh(products / images)
        live = values > values[-1].clamp_min(1e-300) * DEAD**2
        variances_R = values[live].flip(0)
        vectors = vectors[:, live].flip(1)
        if wide:
            vectors = centred_ND.T @ vectors / (variances_R * images).sqrt()
        return cls(mean_D, vectors, variances_R)

    def __call__(self, features_ND: Tensor) -> Tensor:
        return (features_ND - self.mean_D) @ self.directions_DR

    def head(self, weight_RK: Tensor, bias_K: Tensor) -> Head:
        """The head on the features themselves."""
        weight_KD = (self.directions_DR @ weight_RK).T
        return Head(weight_KD.float(), (bias_K - weight_KD @ self.mean_D).float())


def answers_needed(features: int) -> int:
    """Answers that an exact head needs: one for each unknown of a class, and a margin."""
    return math.ceil((features + 1) * (1 + MARGIN))


def solve(
    features_ND: Tensor, answers: Tensor, mode: LabelMode, num_classes: int, seed: int = 0
) -> Solved:
    """The head whose log-odds are those of the answers. UserError for labels."""
    if mode.kind in ("label", "top_k"):
        raise UserError(
            say("expected scores of every class to solve for a head, got answers {}", mode)
        )
    features_ND, answers = _answered(features_ND, answers)
    x_ND = features_ND.double()
    y_NK = log_probabilities(answers.double(), mode)
    y_NK = y_NK - y_NK.mean(dim=1, keepdim=True)
    resolved = float((answers > 0).double().mean()) if mode.kind != "logits" else 1.0
    kept, held = _split(len(x_ND), x_ND.shape[1], seed)
    basis = _Basis.of(x_ND[kept])
    held_z = basis(x_ND[held])
    mean_K = y_NK[kept].mean(dim=0)
    products_RK = basis(x_ND[kept]).T @ (y_NK[kept] - mean_K) / len(kept)
    truth = y_NK[held]
    spread = float((truth - mean_K).square().mean().sqrt()) or 1.0
    best = (math.inf, 1.0, 0.0)
    for ridge in RIDGES:
        shrunk_R1 = (basis.variances_R + ridge * basis.variances_R[0])[:, None]
        guess = held_z @ (products_RK / shrunk_R1) + mean_K
        residual = float((guess - truth).square().mean().sqrt()) / spread
        agreement = float((guess.argmax(1) == truth.argmax(1)).double().mean())
        best = min(best, (residual, ridge, agreement))
    basis = _Basis.of(x_ND)
    mean_K = y_NK.mean(dim=0)
    products_RK = basis(x_ND).T @ (y_NK - mean_K) / len(x_ND)
    shrunk_R1 = (basis.variances_R + best[1] * basis.variances_R[0])[:, None]
    rank = len(basis.variances_R)
    return Solved(
        head=basis.head(products_RK / shrunk_R1, mean_K),
        residual=best[0],
        ridge=best[1],
        resolved=resolved,
        rank=rank,
        condition=float((basis.variances_R[0] / basis.variances_R[-1]).sqrt()),
        dead=int((x_ND.amax(0) == x_ND.amin(0)).sum()),
        answers_needed=answers_needed(x_ND.shape[1]),
        agreement=best[2],
    )


def fit(
    features_ND: Tensor, answers: Tensor, mode: LabelMode, num_classes: int, seed: int = 0
) -> Fitted:
    """The head of least cross-entropy to answers of any mode, with the ridge that held-back answers
    prefer.
    """
    features_ND, answers = _answered(features_ND, answers)
    x_ND = features_ND.double()
    target_NK = _targets(answers, mode, num_classes)
    top_N = top_class(answers)
    kept, held = _split(len(x_ND), 0, seed)
    basis = _Basis.of(x_ND[kept])
    (train_z, held_z) = (basis(x_ND[kept]), basis(x_ND[held]))
    weight = None
    best = (-1.0, -math.inf, 1.0)
    for ridge in FIT_RIDGES:
        weight, bias = _logistic(train_z, target_NK[kept], basis.variances_R, ridge, weight)
        scores = held_z @ weight + bias
        agreement = float((scores.argmax(1) == top_N[held]).double().mean())
        likelihood = float((target_NK[held] * scores.log_softmax(1)).sum(1).mean())
        best = max(best, (agreement, likelihood, ridge))
    basis = _Basis.of(x_ND)
    weight, bias = _logistic(basis(x_ND), target_NK, basis.variances_R, best[2], None)
    return Fitted(basis.head(weight, bias), best[2], best[0])


def _answered(features_ND: Tensor, answers: Tensor) -> tuple[Tensor, Tensor]:
    """What has an answer."""
    with_one = ~unanswered(answers)
    return features_ND[with_one].detach(), answers[with_one].detach()


def _split(images: int, features: int, seed: int) -> tuple[Tensor, Tensor]:
    """Indices to learn from and to hold back: a fifth, or less where that leaves too few for an
    exact head.
    """
    rng = torch.Generator().manual_seed(derived_seed(seed, "held back"))
    order = torch.randperm(images, generator=rng)
    held = max(1, round(HELD_BACK * images))
    spare = images - answers_needed(features)
    if 0 < spare < held:
        held = spare
    return order[held:], order[:held]


def _targets(answers: Tensor, mode: LabelMode, num_classes: int) -> Tensor:
    """Probabilities (N, K)."""
    if mode.kind == "label":
        return torch.nn.functional.one_hot(answered_class(answers), num_classes).double()
    p_NK = log_probabilities(answers.double(), mode).exp()
    return p_NK / p_NK.sum(dim=1, keepdim=True)


def _logistic(
    z_NR: Tensor, target_NK: Tensor, variances_R: Tensor, ridge: float, start: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Weight and bias of least cross-entropy plus ridge, by L-BFGS on preconditioned unknowns."""
    scale_R1 = (0.1 * variances_R + ridge * variances_R[0]).rsqrt()[:, None]
    z_NR = z_NR * scale_R1.T
    start_RK = torch.zeros(len(scale_R1), target_NK.shape[1], dtype=torch.float64)
    if start is not None:
        start_RK = start / scale_R1
    u_RK = start_RK.requires_grad_()
    mean_K = target_NK.mean(dim=0).clamp_min(0.5 / len(z_NR))
    bias_K = mean_K.log().requires_grad_()
    penalty_R1 = 0.5 * ridge * variances_R[0] * scale_R1.square()
    optimizer = torch.optim.LBFGS(
        [u_RK, bias_K], max_iter=STEPS, history_size=10, line_search_fn="strong_wolfe"
    )

    def closure() -> Tensor:
        optimizer.zero_grad()
        log_NK = (z_NR @ u_RK + bias_K).log_softmax(dim=1)
        loss = -(target_NK * log_NK).sum(dim=1).mean() + (penalty_R1 * u_RK.square()).sum()
        loss.backward()
        return loss

    with torch.enable_grad():
        optimizer.step(closure)
    return (u_RK * scale_R1).detach(), bias_K.detach()
