"""What the output in a v2 model's metadata says of classes, and of the form that answers have."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dfme.config.settings import TeacherConfig
from dfme.errors import UserError
from dfme.spec import LabelMode
from teachers.open_inference.tensors import short
from teachers.remote.teacher import answered_mode

ANNOUNCEMENT = re.compile(r"[a-z_]{1,20}(:[0-9]{1,6}){0,2}")
"""A label mode as text: short, so that whatever a stranger announces can be read."""

MOST_CLASSES = 1_000_000


@dataclass(frozen=True)
class TensorFacts:
    """A tensor of the model; ``name`` and ``shape`` are None where nothing says them, sizes that vary are -1."""

    name: str | None
    datatype: str
    shape: tuple[int, ...] | None

    def __str__(self) -> str:
        shape = "of unknown shape" if self.shape is None else short(list(self.shape))
        return f"{short(self.name)} {short(self.datatype)} {shape}" if self.name else f"unnamed {shape}"


def number_of_classes(output: TensorFacts, given: int | None, own: Mapping[str, Any]) -> int:
    """The number of classes: the user's, the metadata's, or the announced one; a lone score is that of two classes.

    UserError where two of them disagree, or where nothing tells.
    """
    columns = _columns(output)
    shown = None if columns is None or is_label(output) else max(columns, 2)
    announced = own.get("num_classes")
    known = shown or (announced if type(announced) is int and announced > 1 else None)
    classes = given or known
    if classes is None:
        raise UserError(f"--teacher.num-classes: give it, since the metadata do not tell (output {output})")
    if known not in (None, classes):
        raise UserError(f"--teacher.num-classes: expected {known} (output {output}), got {given}")
    if classes > MOST_CLASSES:
        raise UserError(f"--teacher.num-classes: expected at most {MOST_CLASSES:,}, got {classes:,} (output {output})")
    return classes


def form_of_answers(
    output: TensorFacts, k: int, classes: int, config: TeacherConfig, own: Mapping[str, Any], extensions: list[Any]
) -> LabelMode:
    """The form that answers have before anything is cut from them; ``k``: of the best so many classes, 0: of all.

    UserError for a classification that the server cannot give.
    """
    text = own.get("label_mode")
    announced = LabelMode.parse(text) if isinstance(text, str) and ANNOUNCEMENT.fullmatch(text) else None
    if k:
        _require_classification(output, k, classes, announced, extensions)
        if k == 1 and config.label_mode == "label":
            return LabelMode("label")
        return LabelMode("top_k", k=k, decimals=announced.decimals if announced else None)
    if announced is not None:
        return announced
    if is_label(output) and (_columns(output) == 1 or config.label_mode == "label"):
        return LabelMode("label")
    return answered_mode(config)


def is_label(output: TensorFacts) -> bool:
    """Whether the output may be one whole number per image."""
    return output.datatype.startswith(("INT", "UINT")) and _columns(output) in (1, None)


def _columns(output: TensorFacts) -> int | None:
    """Numbers per image as the metadata have them; None where they do not say."""
    if output.shape is None:
        return None
    sizes = list(output.shape[1:])
    while sizes and sizes[-1] == 1:
        sizes.pop()
    if len(sizes) > 1:
        raise UserError(f"--teacher.output: expected a row of scores per image, or one label, got the output {output}")
    if not sizes:
        return 1
    return sizes[0] if sizes[0] > 0 else None


def _require_classification(
    output: TensorFacts, k: int, classes: int, announced: LabelMode | None, extensions: list[Any]
) -> None:
    """UserError unless the server has the extension and the model reveals so many probabilities."""
    flag = "--teacher.classification"
    if "classification" not in extensions:
        raise UserError(f"{flag}: the server does not have this extension; it announces {short(extensions)}")
    if announced is not None and announced.kind in ("logits", "label"):
        raise UserError(f"{flag}: expected a model that reveals probabilities, got one that reveals {announced}")
    most = min(classes, (announced.k if announced else None) or classes)
    if not 0 < k <= most:
        raise UserError(f"{flag}: expected a number of classes from 1 to {most}, or 0 for the scores, got {k}")
    if output.name is None:
        raise UserError(f"{flag}: the metadata name no outputs; give --teacher.output")
