"""Gradients from values: what stands in for the teacher's part of the chain rule."""

from dfme.estimators.finite_difference import FiniteDifference as FiniteDifference
