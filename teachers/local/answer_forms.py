"""What a program answers: which output has the scores, and in which form these are."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from dfme.answers.reading import add_up_to, rounded_to
from dfme.config.messages import did_you_mean
from dfme.errors import OptionError, Ref, UserError, say
from dfme.spec import ImageSpec, LabelMode
from dfme.teachers.options import Answers

DEEPEST = 8  # of outputs within outputs


def by_name(answer: object) -> dict[str, object]:
    """Every output in an answer by its name: a key, a field or a place, as ``0`` and ``1.aux``."""
    return dict(_parts(answer, "", DEEPEST))


def _parts(answer: object, name: str, depth: int) -> Iterator[tuple[str, object]]:
    if isinstance(answer, tuple | list):
        fields = getattr(answer, "_fields", range(len(answer)))
        answer = dict(zip(fields, answer, strict=False))
    if isinstance(answer, Mapping) and depth > 0:
        for key, value in answer.items():
            yield from _parts(value, f"{name}.{key}" if name else str(key), depth - 1)
    elif answer is not None:
        yield name or "0", answer


def choose_output(
    source: str, outputs: Mapping[str, object], batch: int, wanted: str | None, classes: int | None
) -> str:
    """The name of the output with the scores: the wanted one, else the only one that can be meant.

    Without a wanted one: the only output, the only one of floating-point numbers, or the only one
    with a number for each of the user's ``classes``. UserError, with every name and shape, if
    several remain.
    """
    if not outputs:
        raise UserError(f"{source}: answers nothing")
    if wanted is not None:
        if wanted not in outputs:
            hint = did_you_mean(wanted, outputs)
            raise OptionError(
                "teacher.output", f"{source} has {', '.join(outputs)}, got {wanted!r}{hint}"
            )
        return wanted
    floats = [
        name
        for name, value in outputs.items()
        if isinstance(value, Tensor) and value.is_floating_point()
    ]
    widths = (1, 2) if classes == 2 else (classes,)
    fitting = [
        name for name in floats if classes is not None and _width(outputs[name], batch) in widths
    ]
    for candidates in (list(outputs), floats, fitting):
        if len(candidates) == 1:
            return candidates[0]
    described = ", ".join(
        f"{name} {_described(value, batch)}" for name, value in list(outputs.items())[:20]
    )
    raise UserError(
        say(
            "{}: has {} outputs, {}; name the one with the scores: {teacher.output} NAME",
            source,
            len(outputs),
            described,
        )
    )


def rows(source: str, answer: object, batch: int) -> Tensor:
    """Scores (B, K) of an answer to ``batch`` images, without axes of size one. UserError if
    none.
    """
    width = _width(answer, batch)
    if isinstance(answer, Tensor) and width:
        return answer.reshape(batch, width)
    raise UserError(f"{source}: expected scores ({batch}, classes), got {_described(answer)}")


def holds_whole_numbers(value: object) -> bool:
    """True for an output that may be labels."""
    return isinstance(value, Tensor) and not value.is_floating_point()


def _width(value: object, batch: int) -> int | None:
    """How many numbers an output has for each image; None if it has no row of them for each."""
    if not isinstance(value, Tensor):
        return None
    shape = list(value.shape)
    if value.ndim <= 1 and (batch == 1 or shape == [batch]):
        # without an axis for the one image, or for a binary model's one score
        lone = value.ndim == 0 or (shape == [batch] and value.is_floating_point())
        if lone:
            return 1
        return shape[0] if batch == 1 and value.is_floating_point() else None
    long = [size for size in shape[1:] if size != 1]
    if shape[0] != batch or len(long) > 1:
        return None
    return long[0] if long else 1


def _described(value: object, batch: int | None = None) -> str:
    """Shape of an output, with B for the batch, and its type unless that is floating-point."""
    if not isinstance(value, Tensor):
        return value if isinstance(value, str) else f"a {type(value).__name__}"
    shape = str(tuple(value.shape))
    if batch is not None and value.ndim and value.shape[0] == batch:
        shape = f"({', '.join(['B', *map(str, value.shape[1:])])})"
    dtype = str(value.dtype).removeprefix("torch.")
    return shape if value.is_floating_point() else f"{shape} of {dtype}"


# What a program answers: logits, or a form of probabilities, by its last operation and values

End = Literal["sigmoid", "log-sigmoid", "unbounded"]
"""The kind of a program's last operation: ``unbounded`` ones, as a linear map, can give any number;
they tell of logits where an answer lies outside 0 and 1, since they can average sigmoids, too.
"""

CHECK_IMAGES = 16
SUM_TOLERANCE = 2e-3  # of the sum of a row of probabilities, besides what the dtype rounds off
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
    """Images (1, C, H, W): noise, patches and plain colours."""
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


def settle_form(source: str, scores_NK: Tensor, stated: Answers, end: End | None) -> ScoreForm:
    """The form of a program's answers, of which ``scores_NK`` are those to check images.

    A stated form must fit the values. Without one, values and last operation decide; UserError,
    with the choices, where they allow more than one.
    """
    lone = scores_NK.shape[1] == 1
    if lone and stated == "sigmoids":
        stated = "probabilities"
    if not lone and stated == "log-probabilities":
        stated = "logits"  # their softmax is the probabilities
    low, high = (float(value) for value in scores_NK.aminmax())
    values = f"its answers to check images, from {low:.3g} to {high:.3g},"
    possible = _fitting(scores_NK, end)
    if stated == "auto":
        if len(possible) == 1:
            return _form(scores_NK, possible[0])
        choices = " or ".join(possible)
        raise UserError(
            say(
                "{}: {} can be {}; say which: {}",
                source,
                values,
                choices,
                Ref("teacher.answers", choices),
            )
        )
    if stated == "logits" and end == "sigmoid" and stated not in possible:
        raise UserError(
            say("{}: ends in a sigmoid; say {}", source, Ref("teacher.answers", possible[0]))
        )
    fitting = _fitting(scores_NK, None)
    if stated not in fitting:
        raise UserError(
            say(
                "{}: {} are no {}; say {teacher.answers} {}",
                source,
                values,
                stated,
                " or ".join(fitting),
            )
        )
    return _form(scores_NK, stated)


def require_class_order(source: str, scores_NK: Tensor) -> None:
    """UserError for sorted answers: the place of a number no longer tells its class.

    Answers that hardly change can be in order by chance, and then the ranges of the classes do not
    overlap. With ``NEVER_BY_CHANCE`` classes or more there is no such chance.
    """
    classes = scores_NK.shape[1]
    if classes < 3:
        return
    steps_NK = scores_NK.double().diff(dim=1)
    falling = bool((steps_NK < 0).all())
    if not falling and not bool((steps_NK > 0).all()):
        return
    rising_NK = scores_NK.flip(1) if falling else scores_NK
    overlapping = bool((rising_NK.amax(0)[:-1] >= rising_NK.amin(0)[1:]).any())
    if overlapping or classes >= NEVER_BY_CHANCE:
        order = "fall" if falling else "rise"
        raise UserError(
            f"{source}: the {classes} numbers of its answers {order} from the first to the last on "
            "every check image: they are sorted, and which class each is of is lost; expected one "
            "number a class, in one order; save the program without its sort or topk"
        )


def require_of_class_1(source: str, scores_NK: Tensor, name: str) -> None:
    """UserError for a lone score beside a label that may be how certain the label is.

    The score of the label of two classes is never below one half; that of class 1 is for some
    images.
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
    exact = scores_NK.shape[1] == 1 or add_up_to(scores_NK, 1.0, _tolerance(scores_NK))
    decimals = None if exact or name == "log-probabilities" else rounded_to(scores_NK)
    return ScoreForm(name, LabelMode("probabilities", decimals))


def _tolerance(scores_NK: Tensor) -> float:
    return float(SUM_TOLERANCE + torch.finfo(scores_NK.dtype).eps * scores_NK.shape[1] ** 0.5)


def _is_rounded(scores_NK: Tensor) -> bool:
    """True if these are probabilities that were rounded, to two decimals or more."""
    sums_N = scores_NK.double().sum(1)
    return bool(((sums_N > 0.5) & (sums_N < 1.25)).all()) and (rounded_to(scores_NK) or 0) > 1


def _fitting(scores_NK: Tensor, end: End | None) -> list[Answers]:
    """The forms that values and last operation allow."""
    slack = _tolerance(scores_NK)
    low, high = (float(value) for value in scores_NK.aminmax())
    lone = scores_NK.shape[1] == 1
    if lone and low < -slack:
        if end == "unbounded" or high > slack:
            return ["logits"]
        return ["log-probabilities"] if end == "log-sigmoid" else ["logits", "log-probabilities"]
    if low < -slack:
        return ["logits"]
    if not lone and (by_sums := _by_sums(scores_NK, slack)):
        return [by_sums]
    if high > 1 + slack:
        certain = end == "unbounded" or high > 100 * (1 + slack)
        return ["logits"] if certain else ["logits", "percentages"]
    # a linear map can also average probabilities
    if lone:
        return ["probabilities"] if end == "sigmoid" else ["probabilities", "logits"]
    return ["sigmoids"] if end == "sigmoid" else ["logits", "sigmoids"]


def _by_sums(scores_NK: Tensor, slack: float) -> Answers | None:
    """The form of several numbers an image that their sums tell; None if they tell none."""
    if add_up_to(scores_NK, 1.0, slack) or _is_rounded(scores_NK):
        return "probabilities"
    return "percentages" if add_up_to(scores_NK, 100.0, slack) else None
