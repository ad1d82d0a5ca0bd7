"""Estimators under test and their conditions. No torch: options are checked by them."""

from dataclasses import dataclass, replace
from typing import Literal

from dfme.config.sections import EstimatorConfig as Config
from dfme.config.sections import ObjectiveName

FloatArithmetic = Literal["ieee", "tf32", "bf16"]
Fact = Literal["exact", "inexact", "lattice", "rounded", "unrounded"]


@dataclass(frozen=True)
class Condition:
    """One state of the wire and of the arithmetic on both sides of it.

    ``levels``: values a pixel can have, None: floats. ``mode``: the answers, as ``LabelMode.parse``
    reads it. ``arithmetic``: of student and teacher inside the objective: IEEE fp32, TF32 (CUDA
    only), or bf16 autocast.
    """

    title: str
    levels: int | None = None
    mode: str = "probabilities"
    arithmetic: FloatArithmetic = "ieee"

    @property
    def facts(self) -> frozenset[Fact]:
        """Facts that rows ask for; answers that are in part hidden count as rounded."""
        exact = (self.levels, self.mode, self.arithmetic) == (None, "probabilities", "ieee")
        rounded = self.mode != "probabilities"
        facts: set[Fact] = {"exact" if exact else "inexact", "rounded" if rounded else "unrounded"}
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

PUBLISHED = "sphere"
"""The row that all others are compared with: DFME's own estimator."""

LIMIT = "limit"
"""The row that more queries tend to: the gradient, by autograd, of the loss on the answers as they
are rounded."""

LIMITS = (LIMIT, f"{LIMIT}_l1", f"{LIMIT}_kl")
"""That row for the student's own loss, and for another objective where a row has one."""


def loss_of(objective: ObjectiveName, own: str) -> str:
    """The loss behind an objective's name; ``own``: the student's."""
    return own if objective == "student" else objective


def limit_of(loss: str, own: str) -> str:
    """The name of the row that more queries tend to with this loss."""
    return LIMIT if loss == own else f"{LIMIT}_{loss}"


@dataclass(frozen=True)
class Candidate:
    """One row of the table.

    ``where``: facts that a condition must have for the row to say something under it; none:
    anywhere. ``reuse``: the answer at the point itself is paid for by the student, whose first
    batch it is (``method.reuse``), so it is not among the queries of the estimate. ``drawn``: has
    its place in the picture.
    """

    config: Config
    where: tuple[Fact, ...] = ()
    reuse: bool = False
    drawn: bool = False

    def fits(self, condition: Condition) -> bool:
        """True where the row belongs under the condition."""
        return condition.facts.issuperset(self.where)


_EXACT: tuple[Fact, ...] = ("exact",)
_COARSE: tuple[Fact, ...] = ("inexact", "unrounded")
_LATTICE: tuple[Fact, ...] = ("lattice", "unrounded")
_LEVEL = Config(space="lattice", step=1.0)

CANDIDATES: dict[str, Candidate] = {
    "sphere": Candidate(Config(), drawn=True),
    # What makes more of a query, where nothing is lost. Two queries an image:
    "sphere_central": Candidate(Config(form="central"), _EXACT),
    "sphere_reused": Candidate(Config(directions=2), _EXACT, reuse=True),
    "dct": Candidate(Config(direction="dct"), _EXACT, drawn=True),
    "dct_06": Candidate(Config(direction="dct", frequencies=0.06), _EXACT),
    "dct_reused": Candidate(Config(direction="dct", directions=2), _EXACT, reuse=True),
    "range": Candidate(Config(direction="range"), _EXACT, drawn=True),
    "range_reused": Candidate(Config(direction="range", directions=2), _EXACT, reuse=True),
    # Ten queries an image:
    "sphere_9": Candidate(Config(directions=9), _EXACT),
    "orthogonal_9": Candidate(Config(directions=9, direction="orthogonal"), _EXACT),
    "dct_9": Candidate(Config(direction="dct", directions=9), _EXACT),
    "range_9": Candidate(Config(direction="range", directions=9), _EXACT),
    # What survives a loss of precision: a longer step, whole levels, an objective that hidden
    # answers spare.
    "sphere_step_0.1": Candidate(Config(step=0.1), ("inexact",), drawn=True),
    "dct_step_0.1": Candidate(Config(direction="dct", step=0.1), _COARSE, drawn=True),
    "dct_step_0.1_reused": Candidate(
        Config(direction="dct", step=0.1, directions=2), _COARSE, reuse=True
    ),
    "range_step_0.1": Candidate(Config(direction="range", step=0.1), _COARSE, drawn=True),
    "range_step_0.1_reused": Candidate(
        Config(direction="range", step=0.1, directions=2), _COARSE, reuse=True
    ),
    "lattice": Candidate(_LEVEL, ("lattice",)),
    "lattice_dct": Candidate(replace(_LEVEL, direction="dct"), ("lattice",), drawn=True),
    "lattice_dct_reused": Candidate(
        replace(_LEVEL, direction="dct", directions=2), _LATTICE, reuse=True
    ),
    "lattice_range": Candidate(replace(_LEVEL, direction="range"), _LATTICE, drawn=True),
    "lattice_range_reused": Candidate(
        replace(_LEVEL, direction="range", directions=2), _LATTICE, reuse=True
    ),
    "sphere_kl": Candidate(Config(objective="kl"), ("rounded",)),
    "dct_kl": Candidate(
        Config(objective="kl", direction="dct", step=0.1), ("rounded",), drawn=True
    ),
    "lattice_dct_kl": Candidate(
        replace(_LEVEL, objective="kl", direction="dct"), ("lattice", "rounded"), drawn=True
    ),
    "auto": Candidate(Config(kind="auto", step="auto"), drawn=True),
}
