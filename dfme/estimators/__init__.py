"""Gradients from values: what stands in for the teacher's part of the chain rule."""

from dfme.estimators.base import Estimate, Estimator, ImageFunction, Objective
from dfme.estimators.build import MAKERS, make_estimator
from dfme.estimators.differences import FORMS, Form, Probe, Probing
from dfme.estimators.directions import DIRECTIONS, Direction, DirectionName, PerturbedPoint
from dfme.estimators.finite_difference import FiniteDifference
from dfme.estimators.spaces import SPACES, AfterSquash, BeforeSquash, Space

__all__ = [
    "DIRECTIONS",
    "FORMS",
    "MAKERS",
    "SPACES",
    "AfterSquash",
    "BeforeSquash",
    "Direction",
    "DirectionName",
    "Estimate",
    "Estimator",
    "FiniteDifference",
    "Form",
    "ImageFunction",
    "Objective",
    "PerturbedPoint",
    "Probe",
    "Probing",
    "Space",
    "make_estimator",
]
