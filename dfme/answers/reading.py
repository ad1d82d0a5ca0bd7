"""What a teacher may answer: every answer is held to its label mode before anything is learnt from it."""

import hashlib
import math
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor

from dfme.answers.advice import what_to_do
from dfme.compute import DeferredChecks, on_accelerator
from dfme.errors import BudgetExhausted, DfmeError, Misfit, TeacherError, Unusable
from dfme.spec import LabelMode, Teacher

NEGATIVE = 1e-6  # how far below zero a probability may lie: the rounding of a softmax in float32
SUM = 1e-3  # how far from one a row may sum, besides what its dtype and its decimals round off
NO_LABEL = -1  # stands for the label of scores that are NaN; no teacher may answer it
INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)

CHARGED: ContextVar[bool] = ContextVar("charged", default=False)
"""Whether the images that a teacher is asked for now are in a ledger already."""

Verdict = tuple[Tensor, Callable[[], str]]
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

    Scores come back float32 (B, K), labels int64 (B,), detached and copied. Arrays and lists are taken as
    well. Conditions on values go through the deferred. What tells more than ``mode`` reveals is cut to it,
    and on a CPU ``more`` is called. TeacherError, with what was expected and what came, for anything else.
    """
    answers = as_tensor(raw)
    if mode.kind == "label":
        _require_labels(answers, batch, classes)
        answers = answers.detach().to(device, torch.int64, copy=True)
        ok, found = _labels(answers, classes)
        expected = f"labels from 0 to {classes - 1}"
    else:
        _require_scores(answers, batch, classes, mode)
        # rounding down loses up to a whole step of a number, rounding to the nearest half of one
        rounding = classes * 10.0**-mode.decimals if mode.decimals else 0.0
        eps = torch.finfo(answers.dtype).eps if answers.is_floating_point() else 0.0
        tolerance = SUM + rounding + eps
        answers = answers.detach().to(device, torch.float32, copy=True)
        if mode.kind == "logits":
            (ok, found) = _logits(answers)
            expected = "finite logits"
        elif mode.kind == "probabilities":
            (ok, found) = _probabilities(answers, tolerance)
            expected = f"probabilities, none negative and with a sum of one each (within {tolerance:.2g})"
        else:
            hidden = max(classes - (mode.k or classes), 0)
            (ok, found) = _top_k(answers, hidden, tolerance)
            expected = f"at most {hidden} NaN (unrevealed) per row, the others from 0 to 1 in all"
    deferred.expect(ok, lambda: TeacherError(f"teacher: expected {expected}, got {found()}"))
    if mode.decimals is None and mode.k is None:
        return answers
    kept = cut_to(answers, mode)
    if not on_accelerator(device) and _tells_more(answers, kept, eps):
        more()
    return kept


def as_tensor(raw: object) -> Tensor:
    """Return a plain tensor as it is, an array or a list of numbers as a tensor; else raise TeacherError."""
    try:
        if not isinstance(raw, Tensor):
            return torch.as_tensor(raw)
        odd = raw.layout is not torch.strided or raw.is_meta or raw.is_quantized or raw.is_nested
        return torch.as_tensor(raw.tolist()) if odd or type(raw) is not Tensor else raw
    except Exception as error:  # arrays and objects of every sort fail in their own way
        kind = f" ({raw.layout}, {raw.dtype}, on {raw.device})" if isinstance(raw, Tensor) else ""
        raise TeacherError(
            f"teacher: expected a tensor, an array or a list of numbers, got {type(raw).__name__}{kind}; "
            "return the scores or labels alone"
        ) from error


def read_own(call: Callable[..., Any], p_BK: Tensor, *more: Tensor) -> Tensor:
    """Probabilities, float64, that code of the user's own makes of others. ValueError for anything else."""
    y_BK = torch.as_tensor(call(p_BK.clone(), *more)).detach().cpu().double()
    if y_BK.shape != p_BK.shape or not bool(_probabilities(y_BK, SUM)[0]):
        expected = f"expected probabilities {tuple(p_BK.shape)}, none negative, with a sum of one each"
        raise ValueError(f"{expected}; got {tuple(y_BK.shape)} with sums {y_BK.sum(-1).tolist()!s:.80}")
    return y_BK


def largest(scores_BK: Tensor, k: int) -> Tensor:
    """Where the ``k`` largest known scores of a row are; among equal ones the first classes win."""
    known_BK = scores_BK.nan_to_num(nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf)
    least_B1 = known_BK.topk(k, dim=1).values[:, -1:]  # its indices follow no order among equal scores
    above_BK = known_BK > least_B1
    level_BK = known_BK == least_B1
    return above_BK | (level_BK & (level_BK.cumsum(1) <= k - above_BK.sum(1, keepdim=True)))


def keep_largest(scores_BK: Tensor, k: int, values_BK: Tensor) -> Tensor:
    """``values_BK`` where the ``k`` largest known scores of a row are, NaN elsewhere."""
    return values_BK.masked_fill(~largest(scores_BK, k), torch.nan)


def top_class(answers: Tensor) -> Tensor:
    """The class a teacher answered, (B,), from labels or scores of any mode; among equal ones the first."""
    return answers if answers.ndim == 1 else answers.nan_to_num(nan=-math.inf).argmax(dim=1)


def cut_to(scores_BK: Tensor, mode: LabelMode) -> Tensor:
    """Cut probabilities to what ``mode`` reveals; unchanged, bit by bit, if it reveals everything."""
    cut_BK = scores_BK
    if mode.decimals is not None and mode.decimals <= 45:  # beyond them a float32 has none
        scale = 10.0**mode.decimals  # in double precision: a float32 times 10^7 has no decimals left to round
        cut_BK = scores_BK.double().mul_(scale).round_().div_(scale).float()
    return cut_BK if mode.k is None else keep_largest(scores_BK, min(mode.k, scores_BK.shape[1]), cut_BK)


def _tells_more(scores_BK: Tensor, cut_BK: Tensor, eps: float) -> bool:
    """True if more was cut than numbers of this precision round off."""
    hidden_BK = scores_BK.isnan() != cut_BK.isnan()
    return bool((hidden_BK | ((scores_BK - cut_BK).abs() > 4 * eps * scores_BK.abs())).any())


def _require_labels(answers: Tensor, batch: int, classes: int) -> None:
    if answers.ndim == 2 and tuple(answers.shape) == (batch, classes):
        raise TeacherError(
            f"teacher: expected labels ({batch},), got scores {tuple(answers.shape)}; "
            "if they are meant, start a new run with --teacher.label-mode logits or probabilities"
        )
    if tuple(answers.shape) != (batch,):
        raise TeacherError(f"teacher: expected labels ({batch},), one per image, got {tuple(answers.shape)}")
    if answers.dtype not in INTEGERS:
        raise TeacherError(f"teacher: expected labels as integers, got {answers.dtype}")


def _require_scores(answers: Tensor, batch: int, classes: int, mode: LabelMode) -> None:
    shape = tuple(answers.shape)
    if shape != (batch, classes):
        hint = ""
        if shape == (batch,):
            hint = "; if these are labels, start a new run with --teacher.label-mode label"
        elif shape == (batch, 1):
            two = "; if it is a binary model, start a new run with --teacher.num-classes 2"
            hint = two if classes != 2 else ""
        elif len(shape) == 2 and shape[0] == batch:
            hint = f"; if it has {shape[1]} classes, start a new run with --teacher.num-classes {shape[1]}"
        raise TeacherError(
            f"teacher: expected {mode.kind} ({batch}, {classes}), a row per image and a column per class, "
            f"got {shape}{hint}"
        )
    if not answers.is_floating_point() and answers.dtype not in INTEGERS:
        raise TeacherError(f"teacher: expected {mode.kind} as floating-point numbers, got {answers.dtype}")


def _logits(scores_BK: Tensor) -> Verdict:
    low, high = scores_BK.aminmax()
    return (low > -math.inf) & (high < math.inf), lambda: f"values from {float(low)} to {float(high)}"


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

    def found() -> str:
        known = f"a smallest value of {float(low):.4g} and a largest sum of {float(total):.4g}"
        return f"{int(fewest)} to {int(most)} NaN per row, {known}"

    return (most <= hidden) & (low >= -NEGATIVE) & (total <= 1 + tolerance), found


def _labels(labels_B: Tensor, classes: int) -> Verdict:
    low, high = labels_B.aminmax()

    def found() -> str:
        hint = f" ({NO_LABEL}: its scores were NaN)" if low == NO_LABEL else ""
        return f"labels from {int(low)} to {int(high)}{hint}"

    return (low >= 0) & (high < classes), found


def _describe(scores_BK: Tensor, low: float, off: float) -> str:
    if not (math.isfinite(low) and math.isfinite(off)):
        return "NaN or infinite values"
    came = f"a smallest value of {low:.4g} and a sum that is {off:.4g} away from one"
    cure = what_to_do(scores_BK)
    return f"{came}; {cure}" if cure else came


class TeacherCall:
    """Asks ``teacher``, also from several threads; answers come to ``device``, checked.

    ``run`` names the run, for the keys of its requests. ``tells_more``: an answer told more than its mode.
    """

    tells_more = False

    def __init__(self, teacher: Teacher, deferred: DeferredChecks, run: str, device: torch.device) -> None:
        self._teacher = teacher
        self._deferred = deferred
        self._run = run
        self._device = device
        self._remote = teacher.info.remote
        self.needs_key = self._remote is not None

    def __call__(self, query_BCHW: Tensor, position: int, code: bytes) -> Tensor:
        """The answers to the images that follow ``position`` others of the run and have the digest ``code``.

        Raises:
            Refused, Unanswered: as the teacher does; Unusable also for an answer of a service that its label
                mode rules out.
            TeacherError: for such an answer of any other teacher, and for whatever it raises.
        """
        raw = self._call(query_BCHW, position, code)
        teacher = self._teacher
        mode = teacher.label_mode
        try:
            shape = len(query_BCHW), teacher.num_classes
            return read_answers(raw, *shape, mode, self._deferred, self._device, self._more)
        except TeacherError as error:
            if self._remote:
                whole = isinstance(raw, Tensor) and bool(raw.isfinite().all())
                raise (Misfit if whole else Unusable)(str(error), error.reason) from error
            raise
        except Exception as error:  # there are dtypes that nothing can be done with
            what = f"what none can be read from ({type(error).__name__})"
            raise TeacherError(f"teacher: expected {mode.kind}, got {what}") from error

    def _more(self) -> None:
        self.tells_more = True

    def _call(self, query_BCHW: Tensor, position: int, code: bytes) -> object:
        before = CHARGED.set(True)
        try:
            with torch.no_grad(), torch.autocast(query_BCHW.device.type, enabled=False):
                asked_BCHW = query_BCHW.clone()  # a teacher may write into it, and be asked again
                if self._remote is None:
                    return self._teacher(asked_BCHW)
                return self._remote.ask(asked_BCHW, self._key(position, code))
        except BaseException as error:  # a client may give up the whole process: it is not its own here
            if isinstance(error, DfmeError | KeyboardInterrupt) and not isinstance(error, BudgetExhausted):
                raise
            name = type(error).__name__[:80]
            raise TeacherError(
                f"teacher: expected answers to {len(query_BCHW)} images {tuple(query_BCHW.shape)}, but it "
                f"raised {name}: {' '.join(str(error).split())[:500]}",
                f"raised {name}",
            ) from error
        finally:
            CHARGED.reset(before)

    def _key(self, position: int, code: bytes) -> str:
        """Seed that is the same for every attempt at the same images at the same place of the same run."""
        return hashlib.sha256(f"{self._run} {position} {code.hex()}".encode()).hexdigest()[:32]
