"""Options that no longer exist, and what to write instead."""

from typing import Any

from pydantic import BeforeValidator

from dfme.errors import Text, say

GONE: dict[str, Text] = {
    "estimator.prior": "leave it out: there is no kind prior_guided any more (docs/gradients.md)",
    "graphs": "leave it out: there are no CUDA graphs any more (docs/gpu.md has their figures)",
    "student.final_share": say(
        "no longer an option: {student.rounds:1} takes all {student.steps} once the budget is spent"
    ),
}
"""By dotted key."""


def no_auto(instead: str) -> BeforeValidator:
    """The value as it came; ``auto``, which it could be once, is refused with what to write."""

    def validate(value: Any) -> Any:
        if value == "auto":
            raise ValueError(
                f"expected {instead}, no longer auto: blocks `when` of a recipe say what holds for "
                "larger images or labels (configs/README.md)"
            )
        return value

    return BeforeValidator(validate)
