"""Label modes: what is cut from a teacher's answers before anybody sees them.

A mode only ever reveals less: logits > probabilities > rounded probabilities > top_k > label.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from dfme.answers.reading import NO_LABEL, PartialAnswers, keep_largest
from dfme.errors import UserError
from dfme.spec import LABEL_KINDS, LabelMode, Teacher

PROBABILITIES = LabelMode("probabilities")
LOGITS = LabelMode("logits")


def reveal(scores_BK: Tensor, mode: LabelMode, wanted: LabelMode) -> Tensor:
    """Cut an answer of the form ``mode`` to what ``wanted`` reveals.

    Probabilities are the softmax of logits. Under top_k the classes not revealed are NaN: unknown,
    not zero. The k revealed are chosen before softmax and rounding, which make more scores equal.
    Labels are int64. Among equal scores the first classes win, in every mode. An image whose scores
    are NaN, though all should be known, has the label ``NO_LABEL``, which no oracle takes.
    """
    if mode == wanted:
        return scores_BK
    if wanted.kind == "label":
        known_BK = scores_BK.nan_to_num(nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf)
        labels_B = known_BK.argmax(1)
        if mode.kind == "top_k":
            return labels_B
        return labels_B.masked_fill(scores_BK.isnan().any(1), NO_LABEL)
    p_BK = scores_BK.float().softmax(1) if mode.kind == "logits" else scores_BK
    answer_BK = p_BK if wanted.decimals is None else p_BK.round(decimals=wanted.decimals)
    if wanted.k is None:
        return answer_BK
    return keep_largest(scores_BK, wanted.k, answer_BK)


def as_classes(scores: Tensor, num_classes: int, mode: LabelMode) -> Tensor:
    """Scores as they are; a binary model's (B, 1), (B,) or number as two classes.

    A logit z stands for (0, z), a probability p for (1 - p, p).
    """
    lone = scores.ndim < 2 or (scores.ndim == 2 and scores.shape[1] == 1)
    if num_classes != 2 or not lone or not scores.is_floating_point():
        return scores
    score_B1 = scores.reshape(-1, 1)
    other_B1 = torch.zeros_like(score_B1) if mode.kind == "logits" else 1 - score_B1
    return torch.cat([other_B1, score_B1], dim=1)


class Wrapper:
    """A teacher with all that the one it wraps has; a subclass changes its answers, or its
    images.
    """

    def __init__(self, teacher: Teacher) -> None:
        if teacher.info.stateful:
            raise UserError(
                "the teacher's own defences come last: leave out the label mode, mean, std and "
                "other defences"
            )
        self._teacher = teacher
        self.spec = teacher.spec
        self.num_classes = teacher.num_classes
        self.label_mode = teacher.label_mode
        charged = teacher.info.charged
        self.info = replace(
            teacher.info,
            remote=self if teacher.info.remote else None,
            charged=partial(self._answers, ask=charged) if charged else None,
        )
        self.wire = teacher.info.wire
        self.close = teacher.info.close

    def __call__(self, images: Tensor, /) -> Any:
        return self._answers(images, self._teacher)

    def ask(self, images: Tensor, key: str, /) -> Any:
        remote = self._teacher.info.remote
        assert remote is not None, "only a service is asked with a key"
        return self._answers(images, lambda asked_BCHW: remote.ask(asked_BCHW, key))

    def _answers(self, images: Tensor, ask: Callable[[Tensor], Any]) -> Any:
        """The answers to images, which ``ask`` gets of the wrapped teacher."""
        raise NotImplementedError


class Restricted(Wrapper):
    """A teacher that answers in ``label_mode``, which must reveal no more than the teacher it wraps
    does.

    Answers that are labels already pass as they are; so do the probabilities of a service, which
    the oracle cuts.
    """

    def __init__(self, teacher: Teacher, label_mode: LabelMode) -> None:
        if not _reveals_less(teacher.label_mode, label_mode):
            raise UserError(f"label mode {label_mode}: the teacher gives only {teacher.label_mode}")
        if label_mode.k is not None and label_mode.k > teacher.num_classes:
            raise UserError(
                f"label mode {label_mode}: the teacher has only {teacher.num_classes} classes"
            )
        super().__init__(teacher)
        self.label_mode = label_mode
        self.info = replace(self.info, uncut_mode=teacher.info.uncut_mode or teacher.label_mode)

    def _answers(self, images: Tensor, ask: Callable[[Tensor], Any]) -> Any:
        scores_BK = ask(images)
        if isinstance(scores_BK, PartialAnswers):
            return scores_BK.mapped(self._cut)
        return self._cut(scores_BK)

    def _cut(self, scores_BK: Tensor) -> Tensor:
        mode = self._teacher.label_mode
        wanted = self.label_mode
        as_it_is = self.info.remote and mode.kind != "logits" and wanted.kind != "label"
        return scores_BK if scores_BK.ndim == 1 or as_it_is else reveal(scores_BK, mode, wanted)


def restrict(teacher: Teacher, mode: LabelMode) -> Teacher:
    """The teacher as ``mode`` lets it be seen: itself if it answers so already. UserError if that
    is more.
    """
    return teacher if teacher.label_mode == mode else Restricted(teacher, mode)


def _reveals_less(mode: LabelMode, wanted: LabelMode) -> bool:
    """True if ``wanted`` can be computed from ``mode`` without knowing more."""
    fewer_decimals = (wanted.decimals or math.inf) <= (mode.decimals or math.inf)
    fewer_classes = (wanted.k or math.inf) <= (mode.k or math.inf)
    kind_tells_less = LABEL_KINDS.index(wanted.kind) >= LABEL_KINDS.index(mode.kind)
    return wanted.kind == "label" or (kind_tells_less and fewer_decimals and fewer_classes)
