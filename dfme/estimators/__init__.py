"""Gradients from values: what stands in for the teacher's part of the chain rule."""

from dfme.estimators.base import Estimate, Estimator, Objective
from dfme.estimators.build import MAKERS, make_estimator
from dfme.estimators.differences import FORMS
from dfme.estimators.directions import DIRECTIONS, PerturbedPoint
from dfme.estimators.finite_difference import FiniteDifference
from dfme.estimators.spaces import SPACES

__all__ = [
    "DIRECTIONS",
    "FORMS",
    "MAKERS",
    "SPACES",
    "Estimate",
    "Estimator",
    "FiniteDifference",
    "Objective",
    "PerturbedPoint",
    "make_estimator",
]
