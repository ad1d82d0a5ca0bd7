"""The honest baseline: queries from a generator as it was initialised. Every comparison must show it."""

from typing import ClassVar

from dfme.methods.base import Method
from dfme.spec import LABEL_KINDS, LabelKind


class Static(Method):
    """Spends the whole budget on the student; the generator never learns: cost = B * d images.

    Differences from a paper: none, there is no paper. It equals ``dfme`` with ``generator_steps`` of zero.
    """

    label_modes: ClassVar[tuple[LabelKind, ...]] = LABEL_KINDS
