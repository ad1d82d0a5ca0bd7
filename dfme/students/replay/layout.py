"""The form of a replay's items: how an image is kept, and what lies in a file, byte by byte."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dfme.spec import ImageSpec

SEGMENT_BYTES = 64 << 20
"""Bytes of a whole segment: few files, and little that stays only because a neighbour is needed."""

CRC_BYTES = 4

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

    def item_bytes(self, answer: int) -> int:
        """Bytes of one item in a file, with an answer of so many."""
        return self.image_bytes + answer + CRC_BYTES

    def encode(self, images_BCHW: Tensor) -> Tensor:
        """Images within the bounds, float32, as they are kept."""
        return self.spec.encode(images_BCHW) if self.dtype == torch.uint8 else images_BCHW

    def decode(self, coded_BCHW: Tensor) -> Tensor:
        """Kept images as the float32 that they were."""
        return self.spec.decode(coded_BCHW) if coded_BCHW.dtype == torch.uint8 else coded_BCHW


@dataclass(frozen=True)
class SegmentLayout:
    """One item is its coded image, its answer, and a checksum of both and its number; ``segment`` items are a file.

    There are no gaps. Dtypes are numpy's: ``|u1``, ``<f4``, ``<i8``. ``answer``: () for a label, (K,) for scores.
    """

    shape: tuple[int, ...]
    image_dtype: str
    answer: tuple[int, ...]
    answer_dtype: str

    @classmethod
    def of(cls, coded_BCHW: Tensor, answers: Tensor) -> SegmentLayout:
        """The layout of items such as these."""
        image, answer = tuple(coded_BCHW.shape[1:]), tuple(answers.shape[1:])
        return cls(image, DTYPES[coded_BCHW.dtype], answer, DTYPES[answers.dtype])

    @classmethod
    def from_state(cls, state: list[Any], shape: tuple[int, ...], dtype: torch.dtype) -> SegmentLayout:
        """The layout that ``state`` was made from. ValueError if it is not one of images of this shape and dtype."""
        (image, image_dtype, answer, answer_dtype), checksum = state[:4], state[4:]
        if checksum != ["crc32"]:
            raise ValueError("replay: expected items with checksums, got those of an earlier version, which had none")
        if (tuple(image), image_dtype) != (shape, DTYPES[dtype]) or answer_dtype not in ("<f4", "<i8"):
            raise ValueError(f"replay: expected images {shape} as {DTYPES[dtype]}, got {state}, of another replay")
        return cls(shape, image_dtype, tuple(answer), answer_dtype)

    def state(self) -> list[Any]:
        """The layout in plain values, for a checkpoint."""
        return [list(self.shape), self.image_dtype, list(self.answer), self.answer_dtype, "crc32"]

    @cached_property
    def record(self) -> np.dtype[Any]:
        """An item as numpy reads it, with the fields ``image``, ``answer`` and ``crc``."""
        image, answer = ("image", self.image_dtype, self.shape), ("answer", self.answer_dtype, self.answer)
        return np.dtype([image, answer, ("crc", "<u4")])

    @property
    def item_bytes(self) -> int:
        """Bytes of one item."""
        return int(self.record.itemsize)

    @cached_property
    def segment(self) -> int:
        """Items in a whole file."""
        return segment_items(self.item_bytes)

    def pack(self, first: int, coded_BCHW: Tensor, answers: Tensor) -> np.ndarray[Any, Any]:
        """Items, numbered from ``first`` on, as records."""
        assert tuple(answers.shape[1:]) == self.answer, "answers of one form belong together"
        items = np.empty(len(coded_BCHW), self.record)
        items["image"] = coded_BCHW.detach().cpu().numpy()
        items["answer"] = answers.detach().cpu().numpy()
        contents = items.view("u1").reshape(len(items), self.item_bytes)[:, :-CRC_BYTES]
        items["crc"] = [zlib.crc32(content, number) for number, content in enumerate(contents, first)]
        return items

    def is_whole(self, number: int, item: bytes) -> bool:
        """Whether these bytes are all those that item ``number`` was written as."""
        content, crc = item[:-CRC_BYTES], item[-CRC_BYTES:]
        return len(item) == self.item_bytes and crc == zlib.crc32(content, number).to_bytes(CRC_BYTES, "little")

    def unpack(self, items: bytes) -> tuple[Tensor, Tensor]:
        """The coded images and the answers of whole items."""
        records = np.frombuffer(items, self.record)
        return torch.from_numpy(records["image"].copy()), torch.from_numpy(records["answer"].copy())
