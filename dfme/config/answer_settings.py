"""The settings of what an attacker makes of a defended teacher's answers. No torch here."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from dfme.config.defence_texts import DefencesText
from dfme.config.fields import CONFIG, Count


@dataclass(frozen=True, config=CONFIG)
class AnswersConfig:
    """What an attacker who knows the defence makes of its answers: recovery of what they still tell, nothing else.

    Nothing here hides, splits or disguises a client.
    """

    learn: Literal["auto", "scores", "kl", "label"] = "auto"
    """what the students learn: auto (as student.loss says), scores (L1 of logits), kl, or label (the top class)"""
    repeat: Count = 1
    """times that every image is asked, and charged; the answers are averaged, of labels the most frequent counts"""
    vote: Annotated[int, Field(ge=1, le=9)] = 1
    """shifts by up to a pixel of which every image is asked, and charged, and the answers averaged"""
    recover: Literal["none", "table", "net"] = "none"
    """undo the defence that knows names: by a table of answers to probabilities that were drawn, or a trained net"""
    knows: DefencesText = ()
    """the defence that is undone, with its options"""
