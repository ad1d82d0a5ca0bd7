"""From the tensors of a v2 answer to scores or labels, and from the words of a refusal to a batch limit."""

from __future__ import annotations

import math
import re
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from dfme.errors import Unusable
from dfme.spec import LabelMode
from dfme.teachers.arrays import as_float32
from dfme.teachers.label_modes import two_classes
from dfme.teachers.open_inference.tensors import NamedTensor, datatype_of, short

CLASS = re.compile(rb"([^:]{1,40}):(\d{1,9})(:.*)?", re.DOTALL)  # ``score:index``, and perhaps ``:label``
LIMITS = tuple(
    re.compile(pattern, re.IGNORECASE | re.DOTALL)
    for pattern in (
        rb"batch[- _]?size must be <= ?(\d{1,9})",  # Triton
        rb"batch.{0,80}at most (\d{1,9})",  # run.py serve
        rb"max(?:imum)?[- _](?:allowed )?batch[- _]?size\D{0,20}(\d{1,9})",
        rb"index: 0 Got: \d+ Expected: (\d{1,9})",  # ONNX Runtime, a model with a fixed batch axis
    )
)
SHAPES = re.compile(rb"Expected \[(\d+),([-\d, ]+)\], got \[(\d+),([-\d, ]+)\]", re.IGNORECASE)
"""Triton, of a model with a fixed batch axis."""

TOO_LARGE = re.compile(rb"batch.{0,40}(too (large|big|many)|exceed)|too many images", re.IGNORECASE | re.DOTALL)


def read_scores(tensor: NamedTensor, batch: int, classes: int, mode: LabelMode) -> Tensor:
    """Scores (B, K) float32, or labels (B,) int64 under the label mode label; Unusable for anything else.

    Sizes of 1 at the end of the shape count for nothing; a lone score is that of the second of two classes.
    """
    shape = tensor.array.shape
    while len(shape) > 1 and shape[-1] == 1:
        shape = shape[:-1]
    array = tensor.array.reshape(shape)
    kind = array.dtype.kind
    if mode.kind == "label":
        if array.shape != (batch,) or kind not in "iu":
            raise _unusable(tensor, f"labels [{batch}] as whole numbers")
        return torch.from_numpy(array.astype(np.int64))
    lone = array.shape == (batch,) and classes == 2 and kind == "f"
    if not lone and (array.shape != (batch, classes) or kind not in "iuf"):
        hint = "; if these are labels, say so with --teacher.label-mode label" if kind in "iu" else ""
        raise _unusable(tensor, f"scores [{batch}, {classes}]", hint)
    scores = torch.from_numpy(as_float32(array))
    return two_classes(scores[:, None], mode) if lone else scores


def read_classes(tensor: NamedTensor, batch: int, classes: int, k: int, mode: LabelMode) -> Tensor:
    """Scores (B, K) with NaN for all but the ``k`` classes that texts name for each image, or labels (B,)."""
    if tensor.array.shape != (batch, k) or tensor.array.dtype != object:
        raise _unusable(tensor, f"BYTES [{batch}, {k}] (score:index)")
    found = [[_class(text) for text in row] for row in tensor.array]
    indices_Bk = torch.tensor([[index for _, index in row] for row in found])
    if int(indices_Bk.max()) >= classes or any(len({index for _, index in row}) < k for row in found):
        raise Unusable(
            f"expected {k} of {classes} classes for each image, got a class twice or beyond", "wrong classes"
        )
    if mode.kind == "label":
        return indices_Bk[:, 0]
    scores_Bk = torch.tensor([[score for score, _ in row] for row in found])
    return torch.full((batch, classes), torch.nan).scatter_(1, indices_Bk, scores_Bk)


def batch_limit(refused: bytes) -> int | Literal[False] | None:
    """The most images a request may have, in a server's words; None: fewer; False: they are about something else."""
    for pattern in LIMITS:
        if found := pattern.search(refused):
            return int(found[1])
    shapes = SHAPES.search(refused)
    if shapes and shapes[2] == shapes[4] and len(shapes[1]) < 9 and len(shapes[3]) < 9:
        return int(shapes[1])
    return None if TOO_LARGE.search(refused) else False


def _class(text: bytes) -> tuple[float, int]:
    """Score and number of a class."""
    found = CLASS.fullmatch(text)
    try:
        score = float(found[1]) if found else math.nan
    except ValueError:
        score = math.nan
    if found is None or not math.isfinite(score):
        raise Unusable(f"expected classes as score:index, got {short(text)}", "wrong classes")
    return score, int(found[2])


def _unusable(tensor: NamedTensor, expected: str, hint: str = "") -> Unusable:
    got = f"{datatype_of(tensor.array)} {list(tensor.array.shape)}"
    return Unusable(f"output {short(tensor.name)}: expected {expected}, got {got}{hint}", "wrong shape")
