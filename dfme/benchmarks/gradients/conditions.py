"""What can stand between an estimate and the truth: pixels, answers and arithmetic that lose precision. No torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

FloatArithmetic = Literal["ieee", "tf32", "bf16"]
Fact = Literal["exact", "inexact", "lattice", "rounded", "unrounded"]


@dataclass(frozen=True)
class Condition:
    """One state of the wire and of the arithmetic on both sides of it.

    ``levels``: values a pixel can have, None: floats. ``mode``: the answers, as ``LabelMode.parse`` reads it.
    ``arithmetic``: of student and teacher inside the objective: IEEE fp32, TF32 (CUDA only), or bf16 autocast.
    """

    title: str
    levels: int | None = None
    mode: str = "probabilities"
    arithmetic: FloatArithmetic = "ieee"

    @property
    def exact(self) -> bool:
        """Whether nothing is lost that float32 carries."""
        return (self.levels, self.mode, self.arithmetic) == (None, "probabilities", "ieee")

    @property
    def facts(self) -> frozenset[Fact]:
        """What rows ask for; answers that are in part hidden count as rounded."""
        facts: set[Fact] = {"exact" if self.exact else "inexact"}
        facts.add("unrounded" if self.mode == "probabilities" else "rounded")
        return frozenset(facts | ({"lattice"} if self.levels is not None else set()))


CONDITIONS: dict[str, Condition] = {
    "exact": Condition("exact"),
    "8bit": Condition("8-bit images", levels=256),
    "6decimals": Condition("6 decimals", mode="probabilities:6"),
    "4decimals": Condition("4 decimals", mode="probabilities:4"),
    "3decimals": Condition("3 decimals", mode="probabilities:3"),
    "2decimals": Condition("2 decimals", mode="probabilities:2"),
    "8bit_4decimals": Condition("8-bit, 4 decimals", levels=256, mode="probabilities:4"),
    "top3": Condition("top 3", mode="top_k:3"),
    "tf32": Condition("TF32", arithmetic="tf32"),
    "bf16": Condition("bf16", arithmetic="bf16"),
}
