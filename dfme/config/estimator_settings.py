"""The settings of a gradient estimator. No torch here."""

from typing import Literal

from pydantic.dataclasses import dataclass

from dfme.config.fields import CONFIG, Basic, Count, Positive, ShareAboveZero

ObjectiveName = Literal["student", "l1", "kl"]
Form = Literal["forward", "central"]
Space = Literal["pre_squash", "image", "lattice"]
DirectionName = Literal["sphere", "rademacher", "orthogonal", "dct", "range"]


@dataclass(frozen=True, config=CONFIG)
class EstimatorConfig:
    """Settings of the estimated gradient at the generator's output, by finite differences."""

    kind: Basic[Literal["auto", "finite_difference", "synthetic"]] = "finite_difference"
    """finite_difference; synthetic (a network predicts the gradient between the estimates that are
    paid for); or auto: the pre-flight check chooses all of a finite_difference"""
    objective: ObjectiveName = "student"
    """what the generator drives apart: student (its own loss), l1, or kl, which survives rounded
    answers
    """
    arithmetic: Literal["ieee", "tf32"] = "ieee"
    """of the student's part on a GPU: ieee (fp32) or tf32 (faster, and noise unless the step is
    long)
    """
    directions: Count = 1
    """random directions per image of the estimate (m)"""
    step: Positive | Literal["auto"] = 1e-3
    """length of a finite difference in units of the perturbed space (of the lattice: whole levels),
    or auto: the pre-flight check measures it"""
    form: Form = "forward"
    """forward (m+1 queries per image) or central (antithetic pairs: 2m)"""
    direction: DirectionName = "sphere"
    """sphere, rademacher (+-1 per pixel), orthogonal (m at right angles), dct
    (low-frequency patterns), range (what the generator's last layer can realise)"""
    space: Space = "pre_squash"
    """where to perturb: pre_squash (before the generator's last tanh), image, or lattice (whole
    levels)
    """
    frequencies: ShareAboveZero = 0.125
    """share of the frequencies, the lowest, that dct directions are made of"""
    every: Count = 4
    """of synthetic: one generator step in so many is paid for"""
    synthetic_lr: Positive = 1e-3
    """of synthetic: learning rate of the network's Adam"""
