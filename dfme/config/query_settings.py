"""Settings of the images that are paid for."""

from typing import Annotated, Literal

from pydantic.dataclasses import dataclass

from dfme.config.fields import CONFIG, Basic, Count, Share
from dfme.config.gone import no_auto


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
    choose: Annotated[
        Literal["entropy", "margin", "random"], no_auto("margin, entropy or random")
    ] = "entropy"
    """of a pool, by the students' vote: entropy, margin (between its two likeliest classes) or
    random, for balance alone to decide; the students' first step comes before any"""
    balance: bool = True
    """choose as evenly as can be over the classes that the students see"""
