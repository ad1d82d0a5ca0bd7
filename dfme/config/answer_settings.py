"""The settings of what an attacker makes of a defended teacher's answers. No torch here."""

from typing import Annotated, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from dfme.config.defences import DefencesText
from dfme.config.fields import CONFIG, Count
from dfme.spec import LabelMode


@dataclass(frozen=True, config=CONFIG)
class AnswersConfig:
    """Recovery of what defended answers still reveal, by an attacker who knows the defence.

    Nothing here hides, splits or disguises a client.
    """

    learn: Literal["auto", "scores", "kl", "label"] = "auto"
    """what the students learn: auto (as student.loss says), scores (L1 of logits), kl, label (top
    class)
    """
    repeat: Count = 1
    """times that every image is asked, and charged; answers are averaged, the most frequent label
    counts
    """
    vote: Annotated[int, Field(ge=1, le=9)] = 1
    """shifts by up to a pixel of which every image is asked, and charged, and the answers averaged
    """
    recover: Literal["none", "table", "net"] = "none"
    """undo the defence that knows names: by a table of answers to drawn probabilities, or a trained
    net
    """
    knows: DefencesText = ()
    """the defence that is undone, with its options"""

    @property
    def times(self) -> int:
        """Images that are asked, and charged, for each image."""
        return self.repeat * self.vote

    def loss(self, default: str) -> str:
        """The loss that ``learn`` stands for; the students' ``default`` where it leaves it open."""
        return {"scores": "l1", "kl": "kl", "label": "cross_entropy"}.get(self.learn, default)

    def mode(self, raw: LabelMode) -> LabelMode:
        """Form of the answers that students learn from, for a teacher whose answers have form
        ``raw``.
        """
        if self.learn == "label":
            return LabelMode("label")
        return raw if self.recover == "none" else LabelMode("probabilities")
