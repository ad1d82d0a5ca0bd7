"""Which steps to try, and how well slopes there follow the true ones: predicted from pairs of
values.

At image i the half difference over the step, s_i(h) = (f(+h) - f(-h)) / 2h, is the true slope t_i
blurred by the answers' resolution and noise (less, the larger h) and bent by curvature (more, the
larger h). The correlation with t, taken as a cosine over the images since that is what reaches the
generator, is predicted to be the least of

    blur      1 / sqrt(1 + w^2 / (2 h^2 E[t^2])), w^2 being the variance of one value
    carried   the cosine between the way intended and the way that the wire carries
    likeness  the cosine with the slopes of a reference, over the reference's own correlation with t

times what classes hidden by the answers leave. The reference is the smaller of two neighbouring
steps whose slopes are the same, in size and sign; since their errors differ, r = 2 <s, s'> / (<s,
s> + <s', s'>) is the square of its correlation and <s, s'> measures E[t^2]. Forward differences
have four times the variance.
"""

import math

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity

from dfme.config.sections import EstimatorConfig
from dfme.estimators.preflight.choose import StepCandidate
from dfme.spec import ImageSpec

LENGTHS = (3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 0.1, 0.3, 1.0, 3.0)
"""Lengths of the ways tried before the squashing, where images are about N(0, 1) per pixel."""

LEVELS = (1, 2, 4, 8, 16)
"""Levels tried on a lattice of 256, in proportion on a finer one."""

INWARDS = 0.125
"""Of the bounds' range: how far at most an image may be moved inwards to leave room for a step."""


def candidate_steps(config: EstimatorConfig, spec: ImageSpec) -> tuple[float, ...]:
    """The steps to try for the settings' space and direction, rising."""
    if config.space == "lattice":
        levels = spec.levels or 2
        unit = max(1, levels // 256)
        fitting = tuple(float(k * unit) for k in LEVELS if k * unit <= INWARDS * (levels - 1))
        return fitting or (1.0,)
    size = math.sqrt(spec.numel) if config.direction == "rademacher" else 1.0
    if config.space == "pre_squash":
        return tuple(float(f"{length / size:.2g}") for length in LENGTHS)
    low, high = spec.bounds
    steps = tuple(float(f"{length / size * (high - low) / 2:.2g}") for length in LENGTHS)
    return tuple(step for step in steps if step <= INWARDS * (high - low)) or steps[:1]


ALIKE = 0.95
"""Pairs of steps that agree at least this much of the best pair do as well for a reference; the
smallest is taken."""

MIN_COSINE = 1e-3
"""Slopes less alike than this have nothing in common."""

TINY = 1e-100
"""Less than any power that a difference can have."""


def predicted(
    steps_J: Tensor,
    plus_JN: Tensor,
    minus_JN: Tensor,
    base_N: Tensor,
    known_noise: float,
    carried_J: Tensor,
    carried_forward_J: Tensor,
    revealed_J: Tensor,
) -> tuple[StepCandidate, ...]:
    """Every step with its correlations, by this module's model: 0 where no value ever differs.

    The objective, in float64, at both ends of every step (J steps, N images) and at the images
    themselves. ``known_noise``: variance of one value, up to what is known. ``carried_J``:
    alignment of the ways between both ends; ``carried_forward_J``: between an end and the image.
    ``revealed_J``: correlation left by classes of which nothing is known.
    """
    h_J1 = steps_J.unsqueeze(1)
    slope_JN = (plus_JN - minus_JN) / (2 * h_J1)
    ahead_JN = (plus_JN - base_N) / h_J1
    known_J = known_noise / (2 * steps_J.square())
    j, truth, own = reference(slope_JN, known_J)
    noise = max(known_noise, residue(slope_JN, steps_J, j))
    blur_J = noise / (2 * steps_J.square()) / truth.clamp_min(TINY)
    other_N = slope_JN[min(j + 1, len(slope_JN) - 1)]
    likeness_J = likeness(slope_JN, slope_JN[j]) / own
    likeness_J[j] = likeness(other_N, slope_JN[j]) / own
    ahead_J = likeness(ahead_JN, slope_JN[j]) / own
    ahead_J[j] = likeness(ahead_JN[j], other_N) / own
    revealed_J = revealed_J * (truth > TINY)
    clear_J = torch.minimum(carried_J, (1 + blur_J).rsqrt())
    ahead_clear_J = torch.minimum(carried_forward_J, (1 + 4 * blur_J).rsqrt())
    signal_J = (plus_JN - minus_JN).square().mean(1).sqrt()
    columns = (
        steps_J,
        signal_J,
        torch.full_like(signal_J, (2 * noise) ** 0.5),
        carried_J,
        torch.minimum(ahead_clear_J, ahead_J) * revealed_J,
        torch.minimum(clear_J, likeness_J) * revealed_J,
        torch.where(steps_J > steps_J[j], likeness_J.clamp_max(1.0), 1.0),
        clear_J * revealed_J,
    )
    rows = zip(*(column.tolist() for column in columns), strict=True)
    return tuple(StepCandidate(*row) for row in rows)


def reference(slope_JN: Tensor, known_J: Tensor) -> tuple[int, Tensor, Tensor]:
    """The reference step, the mean square of true slopes, and the step's correlation with them.

    ``known_J``: variance that the known noise of values gives the slopes of each step: steps that
    it drowns agree by chance only. A single step has nothing to agree with but what noise leaves of
    itself.
    """
    power_J = slope_JN.square().mean(1)
    if len(slope_JN) == 1:
        truth = (power_J[0] - known_J[0]).clamp_min(0.0)
        return 0, truth, (truth / power_J[0].clamp_min(TINY)).sqrt().clamp_min(MIN_COSINE)
    common_J = (slope_JN[:-1] * slope_JN[1:]).mean(1).clamp_min(0.0)
    concord_J = 2 * common_J / (power_J[:-1] + power_J[1:]).clamp_min(TINY)
    trust_J = concord_J / (1 + known_J[:-1] / common_J.clamp_min(TINY)).sqrt()
    j = int((trust_J >= ALIKE * trust_J.max()).float().argmax())
    return j, common_J[j], concord_J[j].sqrt().clamp_min(MIN_COSINE)


def residue(slope_JN: Tensor, steps_J: Tensor, j: int) -> float:
    """Variance of one value from differences smaller than step j's, given the true slopes."""
    if j == 0:
        return 0.0
    left_JN = (slope_JN[:j] - slope_JN[j]) * 2 * steps_J[:j].unsqueeze(1)
    return left_JN.square().mean(1).max().item() / 2


def likeness(slope_JN: Tensor, reference_N: Tensor) -> Tensor:
    """Cosine over the images, not below 0."""
    return cosine_similarity(slope_JN, reference_N, dim=-1, eps=TINY).clamp_min(0.0)
