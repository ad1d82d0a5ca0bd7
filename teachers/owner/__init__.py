"""What an owner measures of a teacher: the price of its defences, and what its detectors see."""

from collections.abc import Sequence

from dfme.spec import LABEL_KINDS, LabelMode


def label_mode_of(stack: Sequence[str]) -> LabelMode | None:
    """Label mode that stands in the place of a stack of defences, or None."""
    modes = (text for text in stack if text.partition(":")[0].replace("-", "_") in LABEL_KINDS)
    return next(map(LabelMode.parse, modes), None)
