"""The settings of a gradient estimator. No torch here."""

from __future__ import annotations

from typing import Literal

from pydantic.dataclasses import dataclass

from dfme.config.fields import CONFIG, Basic, Count, Positive, ShareAboveZero

ArithmeticName = Literal["ieee", "tf32", "auto"]
ObjectiveName = Literal["student", "l1", "kl"]


@dataclass(frozen=True, config=CONFIG)
class EstimatorConfig:
    """How a method that trains its generator by finite differences estimates the gradient at its output."""

    kind: Basic[Literal["auto", "finite_difference", "prior_guided", "synthetic"]] = "finite_difference"
    """finite_difference; prior_guided (directions that lean to a prior); synthetic (a network learns to predict the
    gradient, one step in ``every`` is paid); or auto: the pre-flight check chooses objective, space, form, direction
    and step of a finite_difference"""
    objective: ObjectiveName = "student"
    """what the generator drives apart: student (the student's own loss), l1 or kl; kl survives rounded answers, where
    l1's differences are mostly hidden"""
    arithmetic: ArithmeticName = "ieee"
    """of the student's part of a difference, on a GPU: ieee (fp32), tf32 (faster, and noise unless the step is long) or
    auto (tf32 while it keeps 95 % of ieee's correlation with true slopes, measured in the run without a query)"""
    directions: Count = 1
    """random directions per image of the estimate (m)"""
    step: Basic[Positive | Literal["auto"]] = 1e-3
    """length of a finite difference in units of the perturbed space (of the lattice: whole levels), or auto: the
    pre-flight check measures it"""
    form: Literal["forward", "central"] = "forward"
    """forward differences cost m+1 queries per image, central ones (antithetic pairs) 2m; of kind prior_guided 2m+1"""
    direction: Literal["sphere", "gaussian", "rademacher", "orthogonal", "dct", "range"] = "sphere"
    """sphere (uniform on the unit sphere), gaussian, rademacher (+-1 per pixel), orthogonal (m random directions at
    right angles), dct (random low-frequency patterns), range (what the generator's last layer can realise)"""
    space: Literal["pre_squash", "image", "lattice"] = "pre_squash"
    """where to perturb: pre_squash (before the generator's last tanh), image, or lattice (+- whole levels per pixel,
    which 8-bit images carry exactly)"""
    frequencies: ShareAboveZero = 0.125
    """share of the frequencies, the lowest, that dct directions are made of"""
    prior: Literal["student", "neighbours"] = "student"
    """of prior_guided: student (its own gradient at the last answer) or neighbours (slopes towards images that were
    paid for before)"""
    every: Count = 4
    """of synthetic: one generator step in so many is paid for"""
    synthetic_lr: Positive = 1e-3
    """of synthetic: learning rate of the network's Adam"""
