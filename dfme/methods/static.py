"""The honest baselines, which train no generator. Every comparison must show them."""

from dfme.methods.base import Method


class Static(Method):
    """Spends the whole budget on the student; the generator never learns: cost = B * d images.

    Differences from a paper: none, there is no paper. It equals ``dfme`` with ``generator_steps``
    of zero.
    """


class Procedural(Method):
    """Spends the whole budget on the student, on images of ``queries.programs``: cost = B * d
    images.

    Differences from a paper: none, this is our baseline. That images drawn by simple programs can
    stand in for real ones is shown, for pre-training, by Baradad et al. 2021 (Learning to see by
    looking at noise, arXiv 2106.05963).
    """
