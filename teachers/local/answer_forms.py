"""What a program answers: logits, or a form of probabilities, told by its end and its values."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from dfme.answers.advice import add_up_to, rounded_to
from dfme.errors import Ref, UserError, say
from dfme.spec import ImageSpec, LabelMode
from dfme.teachers.options import Answers

End = Literal["sigmoid", "log-sigmoid", "unbounded"]
"""The kind of a program's last operation: ``unbounded`` ones, as a linear map, can give any number;
they tell of logits where an answer lies outside 0 and 1, since they can average sigmoids, too.
"""

CHECK_IMAGES = 16
SUM_TOLERANCE = (
    2e-3  # how far from one a row of probabilities may sum, besides what the dtype rounds off
)
NEVER_BY_CHANCE = 8  # classes that a constant answer has in order once in 20,000 networks
SATURATED = 1e-7  # nearer to 0 or 1 than this, a sigmoid in float32 tells nothing more


@dataclass(frozen=True)
class ScoreForm:
    """How answers become scores in ``mode``: divided by ``scale``, then as ``name`` says."""

    name: Answers
    mode: LabelMode
    scale: float = 1.0

    def __str__(self) -> str:
        return self.name if self.scale == 1 else "percentages"

    def read(self, scores_BK: Tensor) -> Tensor:
        """Logits or probabilities, in float32."""
        scores_BK = scores_BK.float()
        if self.scale != 1:
            scores_BK = scores_BK / self.scale
        if self.name == "sigmoids":
            return scores_BK.logit(eps=SATURATED)
        return scores_BK.exp() if self.name == "log-probabilities" else scores_BK


def check_images(spec: ImageSpec) -> Iterator[Tensor]:
    """Images (1, C, H, W) that differ as much as noise, patches and plain colours do."""
    rng = torch.Generator().manual_seed(0)
    channels, *size = spec.shape
    low, high = spec.bounds
    for number in range(CHECK_IMAGES):
        if number % 4 == 0:
            x_BCHW = torch.rand(1, *spec.shape, generator=rng)
        else:
            side = (1, 2, 4)[number % 4 - 1]  # one colour, four of them, or sixteen
            patches = (torch.rand(1, channels, side, side, generator=rng) - 0.5) * number / 4 + 0.5
            x_BCHW = interpolate(patches.clamp(0, 1), size=size, mode="nearest")
        yield spec.quantise(x_BCHW * (high - low) + low)


def settle_form(source: str, scores_NK: Tensor, given: Answers, end: End | None) -> ScoreForm:
    """The form of a program's answers, of which ``scores_NK`` are those to check images.

    A given form must fit the values. Else it is what both the values and the end leave; UserError,
    with the choices, where they leave more than one.
    """
    lone = scores_NK.shape[1] == 1
    if lone and given == "sigmoids":
        given = "probabilities"
    if not lone and given == "log-probabilities":
        given = "logits"  # their softmax is the probabilities
    low, high = (float(value) for value in scores_NK.aminmax())
    values = f"its answers to check images, from {low:.3g} to {high:.3g},"
    told = _fitting(scores_NK, end)
    if given == "auto":
        if len(told) == 1:
            return _form(scores_NK, told[0])
        choices = " or ".join(told)
        raise UserError(
            say(
                "{}: {} can be {}; say which: {}",
                source,
                values,
                choices,
                Ref("teacher.answers", choices),
            )
        )
    if given == "logits" and end == "sigmoid" and given not in told:
        raise UserError(
            say("{}: ends in a sigmoid; say {}", source, Ref("teacher.answers", told[0]))
        )
    fitting = _fitting(scores_NK, None)
    if given not in fitting:
        raise UserError(
            say(
                "{}: {} are no {}; say {teacher.answers} {}",
                source,
                values,
                given,
                " or ".join(fitting),
            )
        )
    return _form(scores_NK, given)


def require_class_order(source: str, scores_NK: Tensor) -> None:
    """UserError for answers that were sorted: a number's place no longer tells its class.

    A network whose answers hardly change has them in one order by chance. Its classes lie apart on
    all images, unless there are so many of them that the chance is none.
    """
    classes = scores_NK.shape[1]
    if classes < 3:
        return
    steps_NK = scores_NK.double().diff(dim=1)
    falling = bool((steps_NK < 0).all())
    if not falling and not bool((steps_NK > 0).all()):
        return
    least_K = scores_NK.amin(0)
    most_K = scores_NK.amax(0)
    if falling:
        overlapping = bool((most_K[1:] >= least_K[:-1]).any())
    else:
        overlapping = bool((most_K[:-1] >= least_K[1:]).any())
    if overlapping or classes >= NEVER_BY_CHANCE:
        order = "fall" if falling else "rise"
        raise UserError(
            f"{source}: the {classes} numbers of its answers {order} from the first to the last on "
            "every check image: they are sorted, and which class each is of is lost; expected one "
            "number a class, in one order; save the program without its sort or topk"
        )


def require_of_class_1(source: str, scores_NK: Tensor, name: str) -> None:
    """UserError for a lone score beside a label that may be how certain the label is.

    That is never below one half of two classes, which a score of class 1 is of some images.
    """
    low, high = (float(value) for value in scores_NK.aminmax())
    of_label = (low >= 0.5 and high <= 1) or (low >= 50 and high <= 100)
    if scores_NK.shape[1] == 1 and of_label:
        raise UserError(
            say(
                "{}: its output {}, from {:.3g} to {:.3g} on check images, stands beside one of "
                "whole numbers and may be the score of that label; if it is that of class 1, say "
                "{teacher.output} {}; else save the program with a score for each class",
                source,
                name,
                low,
                high,
                name,
            )
        )


def _form(scores_NK: Tensor, name: Answers) -> ScoreForm:
    if name == "percentages":
        shares_NK = scores_NK.double() / 100
        inner = _form(shares_NK, _fitting(shares_NK, "sigmoid")[0])
        return ScoreForm(inner.name, inner.mode, 100.0)
    if name in ("logits", "sigmoids"):
        return ScoreForm(name, LabelMode("logits"))
    if name == "log-probabilities" or scores_NK.shape[1] == 1:
        return ScoreForm(name, LabelMode("probabilities"))
    exact = add_up_to(scores_NK, 1.0, _tolerance(scores_NK))
    return ScoreForm(name, LabelMode("probabilities", None if exact else rounded_to(scores_NK)))


def _tolerance(scores_NK: Tensor) -> float:
    return float(SUM_TOLERANCE + torch.finfo(scores_NK.dtype).eps * scores_NK.shape[1] ** 0.5)


def _is_rounded(scores_NK: Tensor) -> bool:
    """True if these are probabilities that were rounded, to two decimals or more."""
    sums_N = scores_NK.double().sum(1)
    near = bool(((sums_N > 0.5) & (sums_N < 1.25)).all())
    return near and (rounded_to(scores_NK) or 0) > 1


def _fitting(scores_NK: Tensor, end: End | None) -> list[Answers]:
    """The forms that values and end allow."""
    slack = _tolerance(scores_NK)
    low = float(scores_NK.min())
    high = float(scores_NK.max())
    if scores_NK.shape[1] > 1:
        if low < -slack:
            return ["logits"]
        if add_up_to(scores_NK, 1.0, slack) or _is_rounded(scores_NK):
            return ["probabilities"]
        if add_up_to(scores_NK, 100.0, slack):
            return ["percentages"]
        return _of_many(end, high, slack)
    if low < -slack:
        return _of_negative_one(end, high, slack)
    if high <= 1 + slack:  # a linear map can also average probabilities
        return ["probabilities"] if end == "sigmoid" else ["probabilities", "logits"]
    if end == "unbounded":
        return ["logits"]
    return ["logits", "percentages"] if high <= 100 * (1 + slack) else ["logits"]


def _of_many(end: End | None, high: float, slack: float) -> list[Answers]:
    """Forms of several numbers an image, none negative, that add up to nothing."""
    if high <= 1 + slack:
        return ["sigmoids"] if end == "sigmoid" else ["logits", "sigmoids"]
    if end == "unbounded":
        return ["logits"]
    return ["logits", "percentages"] if high <= 100 * (1 + slack) else ["logits"]


def _of_negative_one(end: End | None, high: float, slack: float) -> list[Answers]:
    """Forms of one number an image, which is negative for some."""
    if end == "unbounded" or high > slack:
        return ["logits"]
    return ["log-probabilities"] if end == "log-sigmoid" else ["logits", "log-probabilities"]
