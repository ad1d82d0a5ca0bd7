"""Gradients from values: what stands in for the teacher's part of the chain rule."""

from dfme.estimators.base import Estimate, Estimator, Objective
from dfme.estimators.directions import DIRECTIONS, Direction, DirectionName
from dfme.estimators.finite_difference import FORMS, FiniteDifference, Form

__all__ = [
    "DIRECTIONS",
    "FORMS",
    "Direction",
    "DirectionName",
    "Estimate",
    "Estimator",
    "FiniteDifference",
    "Form",
    "Objective",
]
