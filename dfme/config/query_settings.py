"""Settings of the images that are paid for."""

from dataclasses import replace
from typing import Literal

from pydantic.dataclasses import dataclass

from dfme.config.fields import (
    CONFIG,
    Basic,
    Count,
    Share,
)
from dfme.spec import SMALL_SIDE, LabelMode, Shape


@dataclass(frozen=True, config=CONFIG)
class QueriesConfig:
    """Which images are paid for with the student, of methods that draw them: from what, and which
    of them.
    """

    programs: tuple[str, ...] = ("leaves",)
    """what procedural images are drawn by, evenly: leaves (dead leaves), textured (leaves),
    strokes, pen, text, noise (1/f), gradients, generators; a name that stands twice counts twice"""
    domain: Basic[Literal["handwriting", "things", "text", "unknown"]] = "unknown"
    """what the attacker knows that the teacher is for, which sets the programs: handwriting (and
    other writing), text (printed, in a picture), things (textured leaves for what photographs show,
    worth nothing on the model of strangers that was measured), or unknown"""
    procedural: Share = 0.0
    """share of every batch that a program draws in place of the generator"""
    base: Literal["none", "procedural"] = "none"
    """none, or procedural: the generator transforms such an image, gen_op = base + G(z, base)"""
    evolve: Share = 0.0
    """share of every batch that is bred from images paid for before, seldom answered classes above
    all; times the share of the classes that is missing among the answers so far"""
    pool: Count = 1
    """candidates for each image that is paid for"""
    choose: Literal["auto", "entropy", "margin", "disagreement", "random"] = "entropy"
    """of a pool, by the students' vote: entropy, margin (between its two likeliest classes),
    disagreement (of two students or more), random, for balance alone to decide, or auto: margin,
    but with scores above 16 pixels a side of two candidates at most, and nothing is bred; their
    first step comes before any"""
    balance: bool = True
    """choose as evenly as can be over the classes that the students see"""

    def fitting(self, mode: LabelMode, shape: Shape) -> "QueriesConfig":
        """The settings with a choice of ``auto`` made by the form of the answers and the size of
        the images.

        Heuristic: choice by margin and breeding are worth points with labels and on small images;
        with scores of images of real size breeding and a sharper choice cost some
        (docs/results/real_size.md).
        """
        if self.choose != "auto":
            return self
        by_margin = replace(self, choose="margin")
        if mode.kind == "label" or max(shape[1:]) <= SMALL_SIDE:
            return by_margin
        return replace(by_margin, pool=min(self.pool, 2), evolve=0.0)
