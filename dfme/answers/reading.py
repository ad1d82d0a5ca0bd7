"""What a teacher may answer: every answer is held to its label mode before anything is learnt from
it, and a message says what to do about others.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from dfme.compute.device import on_accelerator
from dfme.compute.modules import DeferredChecks
from dfme.errors import Ref, TeacherError, Text, say
from dfme.spec import LabelMode

MAX_DECIMALS = 7  # float32 carries about seven: answers with more are not rounded
FLOAT32 = 2.0**-23  # distance of neighbouring float32 numbers, relative to them
LEVELS = (255, 256)  # parts of one of which 8-bit probabilities are multiples
SLACK = 2e-3  # how far from one a row may sum, besides what rounding takes away


def decimals(scores: Tensor) -> int | None:
    """The fewest decimals that carry the scores exactly (to float32); None if they are not
    rounded.
    """
    finite = scores[torch.isfinite(scores)].double()
    slack = 2 * FLOAT32 * finite.abs()
    for places in range(1, MAX_DECIMALS):
        step = 10.0**-places
        if slack.numel() and slack.max() > step / 4:
            return None
        if (((finite / step).round() * step - finite).abs() <= slack).all():
            return places
    return None


def rounded_to(p_BK: Tensor) -> int | None:
    """Decimals to which probabilities, with other sums than one, were rounded, maybe down; or None.

    Probabilities of 8 bits count as rounded to two decimals.
    """
    places = decimals(p_BK)
    if places is None:
        parts = (p_BK.double() * levels for levels in LEVELS)
        on_a_lattice = any(bool(((part.round() - part).abs() < SLACK).all()) for part in parts)
        places = 2 if on_a_lattice else None
    if places is None:
        return None
    lost = p_BK.shape[1] * 10.0**-places
    over_B = p_BK.double().sum(1) - 1
    within_B = (over_B >= -lost - SLACK) & (over_B <= lost / 2 + SLACK)
    return places if bool(within_B.all()) else None


def add_up_to(scores_BK: Tensor, total: float, slack: float = SLACK) -> bool:
    """True if no score is negative and every image's add up to ``total``, within a share of it."""
    sums_B = scores_BK.double().sum(1)
    return bool((scores_BK >= -slack).all() and ((sums_B / total - 1).abs() <= slack).all())


def what_to_do(scores_BK: Tensor) -> Text:
    """The cure for scores that were taken for probabilities, in words; empty if none is known."""
    if not scores_BK.isfinite().all():
        return ""
    if add_up_to(scores_BK, 100.0):
        return "they add up to 100, as percentages do: divide them by 100"
    if bool((scores_BK < 0).any()) or bool((scores_BK > 1 + SLACK).any()):
        return say("if these are logits, start a new run with {teacher.label_mode:logits}")
    if mode := _cut_mode(scores_BK):
        return say("start a new run with {}", Ref("teacher.label_mode", mode))
    return (
        "each lies within 0 and 1, as where every class has a sigmoid of its own: "
        "answer one softmax over all classes"
    )


def _cut_mode(p_BK: Tensor) -> LabelMode | None:
    """The label mode that reads rounded probabilities, or the largest alone beside zeros."""
    places = rounded_to(p_BK)
    if places is not None:
        return LabelMode("probabilities", places)
    revealed = int((p_BK > 0).sum(1).max())
    if revealed == p_BK.shape[1] or bool((p_BK.double().sum(1) > 1 + SLACK).any()):
        return None
    return LabelMode("top_k", decimals(p_BK), max(revealed, 1))


# Answers, read

NEGATIVE = 1e-6  # how far below zero a probability may lie: the rounding of a softmax in float32
SUM = 1e-3  # how far from one a row may sum, besides what its dtype and its decimals round off
NO_LABEL = -1  # stands for the label of scores that are NaN; no teacher may answer it
NO_ANSWER = -2  # marks an image to which a service named no class; its row of scores is all NaN
UNKNOWN_CLASS = -3  # it named what is none of the classes; its row of scores is all minus infinity
INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)

Verdict = tuple[Tensor, Callable[[], Text]]
"""Whether all is well, a boolean scalar on the answers' device, and what came if it is not."""


def read_answers(
    raw: object,
    batch: int,
    classes: int,
    mode: LabelMode,
    deferred: DeferredChecks,
    device: torch.device,
    more: Callable[[], None] = lambda: None,
) -> Tensor:
    """A teacher's raw answer to ``batch`` images as a tensor of our own on ``device``.

    Scores come back float32 (B, K), labels int64 (B,), detached and copied. Arrays and lists are
    taken as well. Conditions on values go through the deferred. What tells more than ``mode``
    reveals is cut to it, and on a CPU ``more`` is called. TeacherError, with what was expected and
    what came, for anything else.
    """
    answers = as_tensor(raw)
    if mode.kind == "label":
        _require_labels(answers, batch, classes)
        answers = answers.detach().to(device, torch.int64, copy=True)
        ok, describe = _labels(answers, classes)
        expected = f"labels from 0 to {classes - 1}"
    else:
        _require_scores(answers, batch, classes, mode)
        # rounding down loses up to a whole step of a number, rounding to the nearest half of one
        rounding = classes * 10.0**-mode.decimals if mode.decimals else 0.0
        eps = torch.finfo(answers.dtype).eps if answers.is_floating_point() else 0.0
        tolerance = SUM + rounding + eps
        answers = answers.detach().to(device, torch.float32, copy=True)
        if mode.kind == "logits":
            ok, describe = _logits(answers)
            expected = "finite logits"
        elif mode.kind == "probabilities":
            ok, describe = _probabilities(answers, tolerance)
            expected = (
                f"probabilities, none negative and with a sum of one each (within {tolerance:.2g})"
            )
        else:
            hidden = max(classes - (mode.k or classes), 0)
            ok, describe = _top_k(answers, hidden, tolerance)
            expected = f"at most {hidden} NaN (unrevealed) per row, the others from 0 to 1 in all"
    deferred.expect(
        ok, lambda: TeacherError(say("teacher: expected {}, got {}", expected, describe()))
    )
    if mode.decimals is None and mode.k is None:
        return answers
    cut = cut_to(answers, mode)
    if not on_accelerator(device) and _tells_more(answers, cut, eps):
        more()
    return cut


def as_tensor(raw: object) -> Tensor:
    """Return a plain tensor as it is, an array or a list of numbers as a tensor; else raise
    TeacherError.
    """
    try:
        if not isinstance(raw, Tensor):
            return torch.as_tensor(raw)
        odd = raw.layout is not torch.strided or raw.is_meta or raw.is_quantized or raw.is_nested
        return torch.as_tensor(raw.tolist()) if odd or type(raw) is not Tensor else raw
    except Exception as error:  # arrays and objects of every sort fail in their own way
        kind = f" ({raw.layout}, {raw.dtype}, on {raw.device})" if isinstance(raw, Tensor) else ""
        raise TeacherError(
            "teacher: expected a tensor, an array or a list of numbers, got "
            f"{type(raw).__name__}{kind}; "
            "return the scores or labels alone"
        ) from error


def read_custom(call: Callable[..., Any], p_BK: Tensor, *more: Tensor) -> Tensor:
    """Probabilities, float64, that a user's code makes of others. ValueError for anything
    else.
    """
    y_BK = torch.as_tensor(call(p_BK.clone(), *more)).detach().cpu().double()
    if y_BK.shape != p_BK.shape or not bool(_probabilities(y_BK, SUM)[0]):
        expected = (
            f"expected probabilities {tuple(p_BK.shape)}, none negative, with a sum of one each"
        )
        raise ValueError(
            f"{expected}; got {tuple(y_BK.shape)} with sums {y_BK.sum(-1).tolist()!s:.80}"
        )
    return y_BK


@dataclass(frozen=True)
class PartialAnswers:
    """What a service answered to a batch, of which some images have no class.

    ``answers``: of the other images alone, in their order. ``gaps``: for each image of the batch 0
    where it has an answer, or ``NO_ANSWER`` or ``UNKNOWN_CLASS``. ``names``: what stood in place of
    a class. ``slip``: that this is rather a fault of the adapter, in words; it is refused while the
    service has never answered as is read.
    """

    answers: Any
    gaps: tuple[int, ...]
    names: tuple[str, ...] = ()
    slip: str = ""

    def mapped(self, change: Callable[[Tensor], Tensor]) -> "PartialAnswers":
        """The same with its answers changed, where it has any."""
        return replace(self, answers=change(self.answers)) if 0 in self.gaps else self

    def whole(self, answers: Tensor, classes: int, mode: LabelMode) -> Tensor:
        """Answers to the whole batch: ``answers``, which were checked, and a mark for each gap."""
        gaps_B = torch.tensor(self.gaps, device=answers.device)
        if mode.kind == "label":
            filled = gaps_B.clone()
        else:
            marks_B = torch.where(gaps_B == UNKNOWN_CLASS, -torch.inf, torch.nan)
            filled = marks_B[:, None].repeat(1, classes)
        if len(answers):
            filled[gaps_B == 0] = answers
        return filled


def gaps_of(answers: Tensor) -> Tensor:
    """For each image (B,) 0, or ``NO_ANSWER`` or ``UNKNOWN_CLASS`` by the marks of
    ``PartialAnswers``.
    """
    if answers.ndim == 1:
        return answers.clamp(max=0).masked_fill(answers > NO_ANSWER, 0)
    none_B = answers.isnan().all(1)
    unknown_B = (answers == -torch.inf).all(1)
    return none_B * NO_ANSWER + unknown_B * UNKNOWN_CLASS


def unmarked(answers: Tensor) -> Tensor:
    """The answers with one mark for whatever is no answer, a label ``NO_ANSWER`` or a row of
    NaN.
    """
    gaps_B = gaps_of(answers)
    if not bool(gaps_B.any()):
        return answers
    mark = NO_ANSWER if answers.ndim == 1 else torch.nan
    return torch.where(gaps_B.view(-1, *[1] * (answers.ndim - 1)) == 0, answers, mark)


def unanswered(answers: Tensor) -> Tensor:
    """Which images (B,) a service answered without a class; nothing can be learnt from these
    rows.
    """
    return gaps_of(answers) != 0


def with_answers(images_BCHW: Tensor, answers: Tensor) -> tuple[Tensor, Tensor]:
    """The images that have an answer, with their answers; both unchanged where all have one."""
    known_B = ~unanswered(answers)
    if bool(known_B.all()):
        return images_BCHW, answers
    return images_BCHW[known_B.to(images_BCHW.device)], answers[known_B]


def largest(scores_BK: Tensor, k: int) -> Tensor:
    """Where the ``k`` largest known scores of a row are; among equal ones the first classes win."""
    known_BK = scores_BK.nan_to_num(nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf)
    least_B1 = known_BK.topk(k, dim=1).values[
        :, -1:
    ]  # its indices follow no order among equal scores
    above_BK = known_BK > least_B1
    level_BK = known_BK == least_B1
    return above_BK | (level_BK & (level_BK.cumsum(1) <= k - above_BK.sum(1, keepdim=True)))


def keep_largest(scores_BK: Tensor, k: int, values_BK: Tensor) -> Tensor:
    """``values_BK`` where the ``k`` largest known scores of a row are, NaN elsewhere."""
    return values_BK.masked_fill(~largest(scores_BK, k), torch.nan)


def top_class(answers: Tensor) -> Tensor:
    """The class a teacher answered, (B,), from labels or scores of any mode; among equal ones the
    first.
    """
    return answers if answers.ndim == 1 else answers.nan_to_num(nan=-math.inf).argmax(dim=1)


def answered_class(answers: Tensor) -> Tensor:
    """The class of each image (B,), or ``NO_ANSWER`` where a service named none."""
    return top_class(answers).masked_fill(unanswered(answers), NO_ANSWER)


def cut_to(scores_BK: Tensor, mode: LabelMode) -> Tensor:
    """Cut probabilities to what ``mode`` reveals; unchanged, bit by bit, if it reveals
    everything.
    """
    cut_BK = scores_BK
    if mode.decimals is not None and mode.decimals <= 45:  # beyond them a float32 has none
        scale = (
            10.0**mode.decimals
        )  # in double precision: a float32 times 10^7 has no decimals left to round
        cut_BK = scores_BK.double().mul_(scale).round_().div_(scale).float()
    return (
        cut_BK
        if mode.k is None
        else keep_largest(scores_BK, min(mode.k, scores_BK.shape[1]), cut_BK)
    )


def _tells_more(scores_BK: Tensor, cut_BK: Tensor, eps: float) -> bool:
    """True if more was cut than numbers of this precision round off."""
    hidden_BK = scores_BK.isnan() != cut_BK.isnan()
    return bool((hidden_BK | ((scores_BK - cut_BK).abs() > 4 * eps * scores_BK.abs())).any())


def _require_labels(answers: Tensor, batch: int, classes: int) -> None:
    if answers.ndim == 2 and tuple(answers.shape) == (batch, classes):
        raise TeacherError(
            say(
                "teacher: expected labels ({},), got scores {}; if they are meant, start a new "
                "run with {teacher.label_mode:logits} or probabilities",
                batch,
                tuple(answers.shape),
            )
        )
    if tuple(answers.shape) != (batch,):
        raise TeacherError(
            f"teacher: expected labels ({batch},), one per image, got {tuple(answers.shape)}"
        )
    if answers.dtype not in INTEGERS:
        raise TeacherError(f"teacher: expected labels as integers, got {answers.dtype}")


def _require_scores(answers: Tensor, batch: int, classes: int, mode: LabelMode) -> None:
    shape = tuple(answers.shape)
    if shape != (batch, classes):
        hint: Text = ""
        if shape == (batch,):
            hint = say("; if these are labels, start a new run with {teacher.label_mode:label}")
        elif shape == (batch, 1) and classes != 2:
            hint = say("; if it is a binary model, start a new run with {teacher.num_classes:2}")
        elif len(shape) == 2 and shape[0] == batch and shape[1] != 1:
            hint = say(
                "; if it has {} classes, start a new run with {}",
                shape[1],
                Ref("teacher.num_classes", shape[1]),
            )
        raise TeacherError(
            say(
                "teacher: expected {} ({}, {}), a row per image and a column per class, got {}{}",
                mode.kind,
                batch,
                classes,
                shape,
                hint,
            )
        )
    if not answers.is_floating_point() and answers.dtype not in INTEGERS:
        raise TeacherError(
            f"teacher: expected {mode.kind} as floating-point numbers, got {answers.dtype}"
        )


def _logits(scores_BK: Tensor) -> Verdict:
    low, high = scores_BK.aminmax()
    return (low > -math.inf) & (
        high < math.inf
    ), lambda: f"values from {float(low)} to {float(high)}"


def _probabilities(scores_BK: Tensor, tolerance: float) -> Verdict:
    low = scores_BK.amin()
    off = (scores_BK.sum(1) - 1).abs_().amax()
    right = (low >= -NEGATIVE) & (off <= tolerance)
    return right, lambda: _describe(scores_BK, float(low), float(off))


def _top_k(scores_BK: Tensor, hidden: int, tolerance: float) -> Verdict:
    unknown = scores_BK.isnan()
    fewest, most = unknown.sum(1).aminmax()
    revealed = scores_BK.masked_fill(unknown, 0.0)
    low = revealed.amin()
    total = revealed.sum(1).amax()

    def describe() -> str:
        extremes = f"a smallest value of {float(low):.4g} and a largest sum of {float(total):.4g}"
        return f"{int(fewest)} to {int(most)} NaN per row, {extremes}"

    return (most <= hidden) & (low >= -NEGATIVE) & (total <= 1 + tolerance), describe


def _labels(labels_B: Tensor, classes: int) -> Verdict:
    low, high = labels_B.aminmax()

    def describe() -> str:
        hint = f" ({NO_LABEL}: its scores were NaN)" if low == NO_LABEL else ""
        return f"labels from {int(low)} to {int(high)}{hint}"

    return (low >= 0) & (high < classes), describe


def _describe(scores_BK: Tensor, low: float, off: float) -> Text:
    if not (math.isfinite(low) and math.isfinite(off)):
        return "NaN or infinite values"
    came = f"a smallest value of {low:.4g} and a sum that is {off:.4g} away from one"
    cure = what_to_do(scores_BK)
    return f"{came}; " + cure if cure else came
