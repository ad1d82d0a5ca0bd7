"""Gradients from values: what stands in for the teacher's part of the chain rule."""

from dfme.estimators.differences import FiniteDifference as FiniteDifference
