"""The honest baseline: queries from a generator as it was initialised. Every comparison must show
it.
"""

from dfme.methods.base import Method


class Static(Method):
    """Spends the whole budget on the student; the generator never learns: cost = B * d images.

    Differences from a paper: none, there is no paper. It equals ``dfme`` with ``generator_steps``
    of zero.
    """
