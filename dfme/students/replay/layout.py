"""The form of a replay's items: how an image is kept, and what lies in a file, byte by byte."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dfme.errors import RunError
from dfme.files import open_file, replacing
from dfme.spec import ImageSpec

HEADER = "layout.json"
VERSION = 1
MAX_BYTES = 1 << 16
"""Bytes of the longest header; ours have a few hundred."""

SEGMENT_BYTES = 64 << 20
"""Bytes of a whole segment: few files, and little that stays only because a neighbour is needed."""

DTYPES = {torch.uint8: "|u1", torch.float32: "<f4", torch.int64: "<i8"}
"""How each kind of number stands in a file: little-endian, on every machine."""


def segment_items(item_bytes: int) -> int:
    """Items in a whole segment."""
    return max(SEGMENT_BYTES // item_bytes, 1)


@dataclass(frozen=True)
class Coding:
    """The form in which images of ``spec`` are kept: numbers of levels up to 256 levels, else as they are."""

    spec: ImageSpec

    @property
    def dtype(self) -> torch.dtype:
        """Of a kept image."""
        return torch.uint8 if self.spec.levels is not None and self.spec.levels <= 256 else torch.float32

    @property
    def image_bytes(self) -> int:
        """Bytes of one kept image."""
        return self.spec.numel * self.dtype.itemsize

    def encode(self, images_BCHW: Tensor) -> Tensor:
        """Images within the bounds, float32, as they are kept."""
        return self.spec.encode(images_BCHW) if self.dtype == torch.uint8 else images_BCHW

    def decode(self, coded_BCHW: Tensor) -> Tensor:
        """Kept images as the float32 that they were."""
        return self.spec.decode(coded_BCHW) if coded_BCHW.dtype == torch.uint8 else coded_BCHW


@dataclass(frozen=True)
class SegmentLayout:
    """One item is its coded image, then its answer, without gaps; ``segment`` items are a whole file.

    Dtypes as numpy writes them: ``|u1``, ``<f4``, ``<i8``. ``answer``: () for a label, (K,) for scores.
    """

    shape: tuple[int, ...]
    image_dtype: str
    answer: tuple[int, ...]
    answer_dtype: str
    segment: int
    version: int = VERSION

    @classmethod
    def of(cls, coded_BCHW: Tensor, answers: Tensor) -> SegmentLayout:
        """The layout of items such as these."""
        image, answer = tuple(coded_BCHW.shape[1:]), tuple(answers.shape[1:])
        drafted = cls(image, DTYPES[coded_BCHW.dtype], answer, DTYPES[answers.dtype], 1)
        return cls(image, drafted.image_dtype, answer, drafted.answer_dtype, segment_items(drafted.item_bytes))

    @cached_property
    def record(self) -> np.dtype[Any]:
        """An item as numpy reads it, with the fields ``image`` and ``answer``."""
        return np.dtype([("image", self.image_dtype, self.shape), ("answer", self.answer_dtype, self.answer)])

    @property
    def item_bytes(self) -> int:
        """Bytes of one item."""
        return int(self.record.itemsize)

    def pack(self, coded_BCHW: Tensor, answers: Tensor) -> np.ndarray[Any, Any]:
        """Items as records."""
        assert tuple(answers.shape[1:]) == self.answer, "answers of one form belong together"
        items = np.empty(len(coded_BCHW), self.record)
        items["image"] = coded_BCHW.detach().cpu().numpy()
        items["answer"] = answers.detach().cpu().numpy()
        return items

    def unpack(self, items: bytes) -> tuple[Tensor, Tensor]:
        """The coded images and the answers of whole items."""
        records = np.frombuffer(items, self.record)
        return torch.from_numpy(records["image"].copy()), torch.from_numpy(records["answer"].copy())

    def save(self, folder: Path) -> None:
        """Write the header, whole or not at all. RunError where the disk refuses."""
        with replacing(folder / HEADER) as file:
            file.write((json.dumps(asdict(self), indent=2) + "\n").encode())


def load_layout(folder: Path, shape: tuple[int, ...], dtype: torch.dtype) -> SegmentLayout:
    """The header in ``folder``. RunError where there is none, or one of other images than these."""
    path = folder / HEADER
    advice = "restore the folder as the run left it, or start a new run in another --out"
    try:
        with open_file(path) as file:
            found = json.loads(file.read(MAX_BYTES))
        layout = SegmentLayout(**{**found, "shape": tuple(found["shape"]), "answer": tuple(found["answer"])})
        known = layout.answer_dtype in ("<f4", "<i8") and all(type(size) is int and size > 0 for size in layout.answer)
        known = known and layout.item_bytes > 0 and type(layout.segment) is int and layout.segment > 0
        if layout.version != VERSION or not known:
            raise ValueError(f"it says {json.dumps(found)[:200]}")
    except OSError as error:
        raise RunError(f"{path}: cannot read the paid answers kept for replay: {error.strerror}; {advice}") from error
    except (ValueError, TypeError, KeyError, ArithmeticError, RecursionError) as error:
        raise RunError(f"{path}: expected the header of kept answers, but {error}; {advice}") from error
    if (layout.shape, layout.image_dtype) != (shape, DTYPES[dtype]):
        expected, got = f"images {shape} as {DTYPES[dtype]}", f"{layout.shape} as {layout.image_dtype}"
        raise RunError(f"{path}: expected {expected}, got {got}, of another run; {advice}")
    return layout
