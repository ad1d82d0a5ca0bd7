"""A recipe's variant: settings that hold for some images and answers alone. No torch."""

from dataclasses import field
from typing import Any, Literal

from pydantic.dataclasses import dataclass

from dfme.config.fields import CONFIG, Natural
from dfme.spec import LabelMode, Shape


@dataclass(frozen=True, config=CONFIG)
class Variant:
    """One block of a recipe's ``when``: it holds where all of its conditions do."""

    side_above: Natural = 0
    """images whose longer side has more pixels than this"""
    answers: Literal["any", "scores", "label"] = "any"
    """what the students learn from: labels alone, or anything that says more"""
    unless_given: tuple[str, ...] = ()
    """options of which the user, or a file above the recipe, gives none"""
    set: dict[str, Any] = field(default_factory=dict)
    """the values that hold, by section or dotted key"""

    def holds(self, mode: LabelMode, shape: Shape) -> bool:
        """True for answers of this form to images of this shape."""
        answers = "label" if mode.kind == "label" else "scores"
        return max(shape[1:]) > self.side_above and self.answers in ("any", answers)

    def __str__(self) -> str:
        """Its conditions, as the recipe has them."""
        side = [f"side_above {self.side_above}"] if self.side_above else []
        answers = [f"answers {self.answers}"] if self.answers != "any" else []
        return " and ".join([*side, *answers]) or "always"
