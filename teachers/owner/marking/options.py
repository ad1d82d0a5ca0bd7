"""Options of marking a model, with help, and how it is judged. No torch here."""

from collections.abc import Callable
from dataclasses import field
from typing import TYPE_CHECKING, Annotated, NamedTuple

from pydantic import Field
from pydantic.dataclasses import dataclass

from dfme.config.settings import EvaluationConfig
from dfme.config.values import CONFIG, Basic, Device, NotNegative, Positive, Seed

if TYPE_CHECKING:
    import torch
    from torch import Tensor


@dataclass(frozen=True, config=CONFIG)
class MarkConfig:
    """Marking one model of one's own, before anybody can copy it."""

    out: Basic[str | None] = None
    """directory of the marked model and its key; by default a free name under runs/"""
    resume: Basic[bool] = False
    """go on with the marking in --out; the files are the same in the end"""
    marks: Basic[Annotated[int, Field(ge=10, le=50)]] = 50
    """secret images by which a copy is recognised, and as many beside them that a copy must not
    answer so"""
    share: Basic[Annotated[float, Field(gt=0, le=0.05)]] = 0.008
    """of the training images that are taught a wrong class; about so many of your users' images
    are answered wrongly from then on, always"""
    spare: Basic[tuple[str, ...]] = ()
    """classes, by name or number, that no wrong answer may be of or may name: A,B"""
    candidates: Basic[Annotated[int, Field(ge=1, le=50)]] = 6
    """random rules that are rehearsed, of which the one is taken that copies learn best"""
    max_loss: Basic[NotNegative] = 1.0
    """most points of accuracy that the mark may cost; where it costs more a smaller share is tried,
    and then none"""
    minutes: Basic[Positive | None] = None
    """fit it to so many minutes on this machine; none: as long as it takes, which is said first"""
    seed: Basic[Seed | None] = None
    """seed of everything random, the secret rule among it; none: a secret one, which only the key
    has. Who has your images and guesses the seed knows the rule"""
    device: Basic[Device] = "auto"
    """auto, cpu, cuda or cuda:N"""
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    """your images with labels: the training part teaches, the test part scores"""


DECISIVE = ("marks", "share", "spare", "candidates", "max_loss", "seed")
"""Options that the marked model and its key follow from."""

Weigh = Callable[[int, int, int, int, float], tuple[float, float]]


class MarkTools(NamedTuple):
    """What the auditor's side lends to the owner who marks a model.

    ``augment``: images turned and moved a little, by a generator. ``weigh``: of so many marks, of
    which so many are repeated, and so many controls, of which so many are answered so, beside the
    share that references repeat: the share that a model which is no copy is held to repeat, and
    the e-value; from ``sure`` on one is called a copy. ``show``: a line on how far it is, written
    over the last; ``tell``: one that stays. ``duration``: seconds as people read them.
    """

    augment: "Callable[[Tensor, torch.Generator], Tensor]"
    weigh: "Weigh"
    sure: float
    show: Callable[[str], None]
    tell: Callable[[str], None]
    duration: Callable[[float], str]
