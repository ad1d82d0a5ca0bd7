"""What answers and differences show without another query: resolution, alignment, signal to
noise.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity

from dfme.answers.reading import FLOAT32, decimals
from dfme.config.sections import EstimatorConfig
from dfme.estimators.base import Objective, Squash
from dfme.estimators.build import make_estimator
from dfme.spec import ImageSpec

DOUBT = 0.3
"""Spread of the factors, in logarithms, that the weight of hidden classes in the objective is felt
with.
"""

DRAWS = 8
"""Draws of such factors for each image."""

FORMATS = {torch.bfloat16: 2.0**-7, torch.float16: 2.0**-10}
"""The same of the short formats that an answer may have been cast from, the coarsest first."""

ObjectiveOfAnswers = Callable[[Tensor, Tensor], Tensor]
"""Our own side of an objective: images (N, C, H, W) and their answers -> (N,)."""


@dataclass(frozen=True)
class Resolution:
    """Distance of two answers that the wire loses: a rounding step of ``decimals``, or
    ``relative``.
    """

    decimals: int | None = None
    relative: float = FLOAT32

    @classmethod
    def seen(cls, answers_NK: Tensor) -> Resolution:
        """Resolution that scores show: decimals, or a short floating-point format that carries them
        all.
        """
        places = decimals(answers_NK)
        finite = answers_NK[torch.isfinite(answers_NK)]
        if places is None:
            for dtype, relative in FORMATS.items():
                if torch.equal(finite.to(dtype).to(finite.dtype), finite):
                    return cls(None, relative)
        return cls(places)

    def jitter(self, answers_NK: Tensor, rng: torch.Generator) -> Tensor:
        """Scores (N, K) with the same answer: moved by up to half a step; unknown ones stay.

        Answers of exactly 0 stay too: how small they were is not known to within anything
        (``hidden_weight``).
        """
        part_NK = torch.rand(answers_NK.shape, generator=rng, device=answers_NK.device) - 0.5
        if self.decimals is None:
            return answers_NK + part_NK * self.relative * answers_NK.abs()
        return torch.where(answers_NK == 0, answers_NK, answers_NK + part_NK * 10.0**-self.decimals)


def rms(values: Tensor) -> Tensor:
    """Root of the mean square, in float64."""
    return values.double().square().mean().sqrt()


def pair_of_images(
    config: EstimatorConfig,
    spec: ImageSpec,
    squash: Squash,
    u_BCHW: Tensor,
    rng: torch.Generator,
    features_BFHW: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Both images per point of one difference of these settings, before the wire rounds them.

    (plus, minus) of central differences, (plus, base) of forward ones: what the estimator itself
    would ask for along its first direction. ``features_BFHW``: for the direction range.
    """
    single = replace(config, kind="finite_difference", directions=1)
    # lattice probes are never rounded
    floats = spec if config.space == "lattice" else replace(spec, levels=None)
    objective = Objective(
        lambda x_NCHW: x_NCHW.new_zeros(len(x_NCHW)), lambda _, answers: answers, features_BFHW
    )
    make_estimator(single, floats, squash, None, 0).estimate(objective, u_BCHW, rng)
    first, second = torch.cat([x_NCHW for x_NCHW, _ in objective.asked]).split(len(u_BCHW))
    return (first, second) if config.form == "central" else (second, first)


@torch.no_grad()
def alignment(plus_BCHW: Tensor, minus_BCHW: Tensor, spec: ImageSpec) -> Tensor:
    """Cosine, per image, of the way from minus to plus before and after the wire's rounding.

    0 where the wire makes the same image of both, and 1 everywhere where it carries floats.
    """
    if spec.levels is None:
        return plus_BCHW.new_ones(len(plus_BCHW))
    intended_BD = (plus_BCHW - minus_BCHW).flatten(1)
    carried_BD = (spec.quantise(plus_BCHW) - spec.quantise(minus_BCHW)).flatten(1)
    return cosine_similarity(intended_BD, carried_BD, dim=1)


def probe_alignment(
    config: EstimatorConfig,
    spec: ImageSpec,
    squash: Squash,
    u_BCHW: Tensor,
    rng: torch.Generator,
    features_BFHW: Tensor | None = None,
) -> Tensor:
    """The metric: mean alignment of the settings' differences at the points u, a scalar; 1 for
    floats.
    """
    if spec.levels is None:
        return u_BCHW.new_ones(())
    return alignment(*pair_of_images(config, spec, squash, u_BCHW, rng, features_BFHW), spec).mean()


def difference_snr(
    differences_BM: Tensor,
    value: ObjectiveOfAnswers,
    images_NCHW: Tensor,
    answers: Tensor,
    resolution: Resolution,
    rng: torch.Generator,
) -> Tensor:
    """The metric: rms of the differences over the rms of what the answers' resolution hides in one,
    a scalar.

    ``images_NCHW`` and ``answers``: any of those that the differences were made of.
    """
    return rms(differences_BM) / (2**0.5 * hidden_rms(value, images_NCHW, answers, resolution, rng))


@torch.no_grad()
def hidden_rms(
    value: ObjectiveOfAnswers,
    images_NCHW: Tensor,
    answers: Tensor,
    resolution: Resolution,
    rng: torch.Generator,
) -> Tensor:
    """Rms, a scalar, of what the answers' resolution hides in one value of the objective; 0 of
    labels.
    """
    if answers.ndim == 1:
        return torch.zeros((), dtype=torch.float64, device=answers.device)
    return rms(value(images_NCHW, resolution.jitter(answers, rng)) - value(images_NCHW, answers))


@torch.no_grad()
def revealed_share(
    value: ObjectiveOfAnswers,
    images_NCHW: Tensor,
    answers_NK: Tensor,
    hidden_NK: Tensor,
    resolution: Resolution,
    rng: torch.Generator,
) -> float:
    """Correlation of the objective's changes with and without the hidden classes (heuristic).

    All scores are moved at random, by factors before they are normalised again; of the hidden ones,
    which stand at one rounding step here, nobody hears.
    """
    if not hidden_NK.any():
        return 1.0
    least = 10.0**-resolution.decimals if resolution.decimals is not None else resolution.relative
    base_NK = answers_NK.nan_to_num(nan=least).clamp_min(least).repeat(DRAWS, 1)
    noise_NK = torch.randn(base_NK.shape, generator=rng, device=base_NK.device)
    moved_NK = (base_NK.log() + DOUBT * noise_NK).softmax(dim=1)
    heard_NK = torch.where(hidden_NK.repeat(DRAWS, 1), base_NK, moved_NK)
    images_NCHW = images_NCHW.repeat(DRAWS, 1, 1, 1)
    before_N, true_N, heard_N = (
        value(images_NCHW, each_NK) for each_NK in (base_NK, moved_NK, heard_NK)
    )
    return max(0.0, cosine_similarity(true_N - before_N, heard_N - before_N, dim=0).item())
