"""Queries drawn by a program, with no data and no training. Every comparison must show it."""

from dfme.methods.base import Method


class Procedural(Method):
    """Spends the whole budget on the student, on images of ``queries.programs``: cost = B * d
    images.

    Differences from a paper: none, this is our baseline. That images drawn by simple programs can
    stand in for real ones is shown, for pre-training, by Baradad et al. 2021 (Learning to see by
    looking at noise, arXiv 2106.05963).
    """
