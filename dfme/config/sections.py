"""Sections of a run: estimator, queries, answers, a recipe's variants, wandb. No torch."""

import os
from dataclasses import field
from typing import Annotated, Any, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from dfme.config.defences import DefencesText
from dfme.config.values import (
    CONFIG,
    Basic,
    Count,
    Natural,
    Positive,
    Share,
    ShareAboveZero,
    no_auto,
)
from dfme.spec import LabelMode, Shape

ObjectiveName = Literal["student", "l1", "kl"]
Form = Literal["forward", "central"]
Space = Literal["pre_squash", "image", "lattice"]
DirectionName = Literal["sphere", "rademacher", "orthogonal", "dct", "range"]


@dataclass(frozen=True, config=CONFIG)
class EstimatorConfig:
    """Settings of the estimated gradient at the generator's output, by finite differences."""

    kind: Basic[Literal["auto", "finite_difference", "synthetic"]] = "finite_difference"
    """finite_difference; synthetic (a network predicts the gradient between the estimates that are
    paid for); or auto: the pre-flight check chooses all of a finite_difference"""
    objective: ObjectiveName = "student"
    """what the generator drives apart: student (its own loss), l1, or kl, which survives rounded
    answers
    """
    arithmetic: Literal["ieee", "tf32"] = "ieee"
    """of the student's part on a GPU: ieee (fp32) or tf32 (faster, and noise unless the step is
    long)
    """
    directions: Count = 1
    """random directions per image of the estimate (m)"""
    step: Positive | Literal["auto"] = 1e-3
    """length of a finite difference in units of the perturbed space (of the lattice: whole levels),
    or auto: the pre-flight check measures it"""
    form: Form = "forward"
    """forward (m+1 queries per image) or central (antithetic pairs: 2m)"""
    direction: DirectionName = "sphere"
    """sphere, rademacher (+-1 per pixel), orthogonal (m at right angles), dct
    (low-frequency patterns), range (what the generator's last layer can realise)"""
    space: Space = "pre_squash"
    """where to perturb: pre_squash (before the generator's last tanh), image, or lattice (whole
    levels)
    """
    frequencies: ShareAboveZero = 0.125
    """share of the frequencies, the lowest, that dct directions are made of"""
    every: Count = 4
    """of synthetic: one generator step in so many is paid for"""
    synthetic_lr: Positive = 1e-3
    """of synthetic: learning rate of the network's Adam"""


@dataclass(frozen=True, config=CONFIG)
class QueriesConfig:
    """Which images are paid for with the student, of methods that draw them: from what, and which
    of them.
    """

    programs: tuple[str, ...] = ("leaves",)
    """what procedural images are drawn by, evenly: leaves (dead leaves), textured (leaves),
    strokes, pen, character, text, noise (1/f), gradients, generators, things (on a ground); a name
    that stands twice counts twice"""
    domain: Basic[Literal["handwriting", "things", "text", "unknown"]] = "unknown"
    """what the attacker knows that the teacher is for, which sets the programs: handwriting (and
    other writing), text (printed, in a picture), things (on a ground, for what photographs and
    icons show), or unknown"""
    procedural: Share = 0.0
    """share of every batch that a program draws in place of the generator"""
    base: Literal["none", "procedural"] = "none"
    """none, or procedural: the generator transforms such an image, gen_op = base + G(z, base)"""
    evolve: Share = 0.0
    """share of every batch that is bred from images paid for before, seldom answered classes above
    all; times the share of the classes that is missing among the answers so far"""
    pool: Annotated[Count | Literal["all"], no_auto("a number of candidates, or all")] = 1
    """candidates for each image that is paid for, where images are drawn; or all, of a method.pool
    of pictures: as each of student.rounds begins, the students look at all that were not asked"""
    choose: Annotated[
        Literal["entropy", "margin", "random", "kcenter"],
        no_auto("margin, entropy, random or kcenter"),
    ] = "entropy"
    """of a pool, by the students' vote: entropy, margin (between its two likeliest classes),
    kcenter (of a method.pool of pictures: the farthest from what was asked), or random, for balance
    alone to decide; the students' first step comes before any"""
    balance: bool = True
    """choose as evenly as can be over the classes that the students see"""

    @property
    def candidates(self) -> int:
        """Images that are drawn for each one that is paid for."""
        return 1 if self.pool == "all" else self.pool


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


@dataclass(frozen=True, config=CONFIG)
class WandbConfig:
    """Tracking in Weights & Biases, beside the run's own files."""

    mode: Basic[Literal["off", "offline", "online"]] = "off"
    """off, offline, or online (falls back to offline where there is no key or no network)"""
    project: str = "dfme"
    """wandb project; the variable WANDB_PROJECT beats a file, and a flag beats both; so for the
    others
    """
    entity: str | None = None
    """wandb user or team"""
    name: str | None = None
    """name of the run; none: its directory's"""
    group: str | None = None
    """group of the run"""
    tags: tuple[str, ...] = ()
    """tags of the run"""


def wandb_environment(mode: object = "off") -> dict[str, str]:
    """Read wandb's own variables. They change a file's ``mode`` and never turn tracking on."""
    names = {
        "project": "PROJECT",
        "entity": "ENTITY",
        "name": "NAME",
        "group": "RUN_GROUP",
        "tags": "TAGS",
    }
    variables = {name: os.environ.get(f"WANDB_{end}", "") for name, end in names.items()}
    settings = {name: text for name, text in variables.items() if text}
    modes = {"online": "online", "offline": "offline", "dryrun": "offline", "disabled": "off"}
    if mode in ("offline", "online") and (how := modes.get(os.environ.get("WANDB_MODE", ""))):
        settings["mode"] = how
    return settings
