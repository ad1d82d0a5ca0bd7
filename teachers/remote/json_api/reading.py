"""Reads each image's part of an answer: its class, its scores, or that the service names no class
for it.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from dfme.answers.reading import NO_ANSWER, UNKNOWN_CLASS, PartialAnswers, what_to_do
from dfme.errors import Ref, Unusable, say
from dfme.spec import LabelMode
from dfme.teachers.arrays import Array, as_float32
from dfme.teachers.label_modes import reveal
from dfme.teachers.remote.json_api.adapter_file import ModelSpec
from dfme.teachers.remote.json_api.description import AnswerForm, JsonPath
from dfme.teachers.remote.json_bodies import (
    as_number,
    excerpt,
    lone_scores,
    read_label,
    table,
    two_columns,
)

NONE_OF_THEM = -1  # a class number by which services say that it is none of the classes
UNKNOWN = "unknown class"
LEFT_OUT = (UNKNOWN, "a class twice")
"""Reasons for which one image is left out and the others are read."""


CURE = "; if that stands for no class, name it in answer.no_answer"


@dataclass
class BatchRead:
    """What was read of a batch: a row for each image with a class, and the gaps
    (``PartialAnswers``).
    """

    rows: list[object] = field(default_factory=list)
    gaps: list[int] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    slip: str = ""

    def take(self, row: object) -> None:
        self.rows.append(row)
        self.gaps.append(0)

    def leave_out(self, mark: int, name: str = "") -> None:
        self.gaps.append(mark)
        self.names += [name] if name else []


class AnswerReader:
    """Reads answers of one form, as ``answer`` and ``model`` say."""

    def __init__(self, answer: AnswerForm, model: ModelSpec) -> None:
        self._model = model
        self._label = JsonPath.read(answer.label, "answer.label")
        self._score = JsonPath.read(answer.score, "answer.score")
        self._form = answer.form
        self._scale = answer.scale or 1.0
        self._no_answer = answer.no_answer
        self._logits = model.mode.kind == "logits" or answer.values == "logits"

    def read(self, values: list[object]) -> Tensor | PartialAnswers:
        """The answers to as many images. Unusable, naming the form, for what is none."""
        try:
            reading = BatchRead()
            for value in values:
                self._read_one(value, reading)
            answers = self._tensor(reading.rows)
        except Unusable as error:
            if "answer." in str(error):
                raise
            raise Unusable(f"answer.form {self._form}: " + error.message, error.reason) from None
        if not any(reading.gaps):
            return answers
        slip = f"answer.form {self._form}: {reading.slip}" if reading.slip else ""
        return PartialAnswers(answers, tuple(reading.gaps), tuple(reading.names), slip)

    def _read_one(self, value: object, reading: BatchRead) -> None:
        """Take in one image's class or scores, or its gap."""
        if self._says_none(value):
            return reading.leave_out(NO_ANSWER)
        if self._form == "number" and type(value) is int and value == NONE_OF_THEM:
            return reading.leave_out(UNKNOWN_CLASS, "-1")
        if self._form in ("number", "scores"):
            return reading.take(value)
        classes = self._model.classes
        pairs = [(value, None)] if self._form == "name" else self._named(list(self._pairs(value)))
        if not pairs:
            return reading.leave_out(NO_ANSWER)
        try:
            reading.take(classes.index(value) if self._form == "name" else classes.row(pairs))
        except Unusable as error:
            if error.reason not in LEFT_OUT or not all(
                type(name) in (str, int) for name, _ in pairs
            ):
                raise
            # among names that are classes, or close to one, it is rather a mistake in the adapter
            if "did you mean" in str(error) or any(name in classes for name, _ in pairs):
                reading.slip = f"{error}{CURE if error.reason == UNKNOWN else ''}"
            reading.leave_out(UNKNOWN_CLASS, str(error).rpartition("got ")[2].partition(";")[0])

    def _says_none(self, value: object) -> bool:
        """True for null, for a list, an object or a text with nothing in it, and for
        ``answer.no_answer``.
        """
        if isinstance(value, str | int | float) and value in self._no_answer:
            return True
        return value is None or (isinstance(value, str | list | dict) and not value)

    def _named(self, pairs: list[tuple[object, object]]) -> list[tuple[object, object]]:
        """The pairs without those of ``answer.no_answer``; empty if one of these has the top
        score.
        """
        named = [pair for pair in pairs if not self._says_none(pair[0])]
        if len(named) < len(pairs) and self._says_none(max(pairs, key=_score_of)[0]):
            return []
        return named

    def _pairs(self, value: object) -> Iterable[tuple[object, object]]:
        """Names and scores of one image."""
        if self._form == "lists":
            return self._parallel(value)
        if self._form == "mapping" and isinstance(value, list):
            entries = [item for item in value if isinstance(item, dict) and len(item) == 1]
            if len(entries) == len(value):  # [{"cat": 0.7}, {"dog": 0.3}]
                return [pair for entry in entries for pair in entry.items()]
        if self._form == "mapping" and isinstance(value, dict):
            return value.items()
        if self._form == "pairs" and isinstance(value, list):
            return [(self._label.values(entry)[0], self._score.values(entry)[0]) for entry in value]
        what = "an object" if self._form == "mapping" else "a list of objects"
        raise Unusable(
            f"expected {what} with the scores of an image, got {excerpt(value)}", "no answer"
        )

    def _parallel(self, value: object) -> list[tuple[object, object]]:
        """Names and scores that stand in two lists side by side."""
        names, scores = (_items(path, value) for path in (self._label, self._score))
        if len(names) != len(scores):
            raise Unusable(
                f"expected as many scores as names ({len(names)}), got {len(scores)}", "wrong shape"
            )
        return list(zip(names, scores, strict=True))

    def _tensor(self, rows: list[object]) -> Tensor:
        classes = len(self._model.classes)
        if self._form == "number":
            return torch.tensor([read_label(row, classes) for row in rows], dtype=torch.int64)
        if self._form == "name":
            return torch.tensor(rows, dtype=torch.int64)
        if not rows:
            return torch.empty(0)
        if self._form == "scores" and (lone_B := lone_scores(rows, classes)) is not None:
            scores_BK = two_columns(lone_B, self._logits, self._scale)
        elif self._form == "scores":
            scores_BK = table(rows, classes)
        else:
            scores_BK = self._completed(np.array(rows, np.float64).reshape(len(rows), classes))
        settled = settle(scores_BK / self._scale, self._model.mode)
        self._require_scale(np.nan_to_num(scores_BK, posinf=0.0, neginf=0.0))
        return settled

    def _completed(self, scores_BK: Array) -> Array:
        """Of two classes the one that is not named has the rest of the probability."""
        if scores_BK.shape[1] != 2 or self._logits:
            return scores_BK
        return np.where(np.isnan(scores_BK), self._scale - scores_BK[:, ::-1], scores_BK)

    def _require_scale(self, scores_BK: Array) -> None:
        """Unusable, with a class's name, where the sum of an image's scores is far from
        ``answer.scale``.
        """
        kind = self._model.mode.kind
        scale = self._scale
        sums_B = scores_BK.sum(1)
        odd_B = (sums_B > 1.5 * scale) | ((sums_B < 0.5 * scale) & (kind == "probabilities"))
        if odd_B.any() and kind in ("probabilities", "top_k"):
            row = int(odd_B.argmax())
            top = int(scores_BK[row].argmax())
            cure = "without it" if scale != 1 else "with answer.scale: 100 for percentages"
            instead = what_to_do(torch.from_numpy(scores_BK / scale))
            raise Unusable(
                f"answer.scale: the class {self._model.classes.names[top]!r} has "
                f"{scores_BK[row, top]:g} of "
                f"{sums_B[row]:g}, where scores were expected that add up to {scale:g}; "
                f"start a new run {cure}, or: " + instead,
                "wrong scale",
            )


def _score_of(pair: tuple[object, object]) -> float:
    score = as_number(pair[1])
    return score if isinstance(score, int | float) else -np.inf


def _items(path: JsonPath, value: object) -> list[object]:
    """The list at a path, or what its [*] leads to."""
    items = path.values(value)
    if path.each:
        return items
    if not isinstance(items[0], list):
        raise Unusable(
            f"{path.key}: expected a list at {path.text!r}, got {excerpt(items[0])}", "no answer"
        )
    return items[0]


def settle(scores_BK: Array, mode: LabelMode) -> Tensor:
    """Scores, NaN where not revealed, float32 (B, K), or for ``mode`` label int64 (B,).

    Unusable if a row reveals fewer classes than the mode needs: all, the k of top_k, or one for a
    label.
    """
    classes = scores_BK.shape[1]
    needed = {"top_k": mode.k or 0, "label": 1}.get(mode.kind, classes)
    revealed = int((~np.isnan(scores_BK)).sum(1).min(initial=classes))
    if revealed < needed:
        hint = say("")
        if revealed and mode.kind != "logits":
            hint = say(
                "; if that is all it reveals, start a new run with {}",
                Ref("teacher.label_mode", f"top_k:{revealed}"),
            )
        expected = f"expected scores of {needed} classes for each image, got {revealed}"
        raise Unusable(expected + hint, "too few scores")
    scores = torch.from_numpy(as_float32(scores_BK))
    return reveal(scores, LabelMode("top_k", k=classes), mode) if mode.kind == "label" else scores
