"""Images and answers that are paid for, kept to train on again: the last ones, in memory or on
disk, and changed a little then: mirrored, moved, or affinely mapped.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import affine_grid, grid_sample

from dfme.config.settings import Augmentation
from dfme.errors import RunError, say
from dfme.files import disk_error, make_folder, open_file, replacing
from dfme.spec import ImageSpec

TURN = (
    0.2  # most radians that an affine map turns an image by; the other bounds of such a map follow
)
SHEAR = 0.2
STRETCH = 0.15  # of each axis by itself
MOVE = 0.075  # of the image's side


def augment(x_BCHW: Tensor, how: Augmentation, rng: torch.Generator) -> Tensor:
    """Images mirrored with probability 1/2, moved by -1, 0 or 1 pixel per axis, both, or affinely
    mapped.

    What moves in from outside repeats the edge. ``none`` gives the same tensor and draws nothing;
    else it is a new one, of any dtype, with the draws made on the device of ``rng``.
    """
    if how == "none":
        return x_BCHW
    if how == "affine":
        return _affine(x_BCHW, rng)
    batch, channels, height, width = x_BCHW.shape
    row_1H = torch.arange(height, device=rng.device)[None]
    column_BW = torch.arange(width, device=rng.device).expand(batch, width)
    if how != "shift":
        flipped_B1 = torch.randint(2, (batch, 1), generator=rng, device=rng.device)
        column_BW = torch.where(flipped_B1 == 1, width - 1 - column_BW, column_BW)
    row_BH = row_1H.expand(batch, height)
    if how != "flip":
        down_B1, right_B1 = torch.randint(
            -1, 2, (2, batch, 1), generator=rng, device=rng.device
        ).unbind()
        row_BH = (row_BH - down_B1).clamp(0, height - 1)
        column_BW = (column_BW - right_B1).clamp(0, width - 1)
    # One gather by the place of each pixel: a third of the time of indexing rows, then columns.
    pixel_BN = (row_BH[:, :, None] * width + column_BW[:, None]).flatten(1).to(x_BCHW.device)
    return (
        x_BCHW.flatten(2).gather(2, pixel_BN[:, None].expand(-1, channels, -1)).view(x_BCHW.shape)
    )


def _affine(x_BCHW: Tensor, rng: torch.Generator) -> Tensor:
    """Each image by a map of its own, evenly drawn within the bounds above; pixels are
    interpolated.
    """
    draws_6B = 2 * torch.rand(6, len(x_BCHW), generator=rng, device=rng.device) - 1
    turn_B, shear_B, wide_B, high_B, right_B, down_B = draws_6B.to(x_BCHW.device)
    cos_B, sin_B = (TURN * turn_B).cos(), (TURN * turn_B).sin()
    wide_B = 1 + STRETCH * wide_B
    high_B = 1 + STRETCH * high_B
    # a grid's axes run from -1 to 1 whatever the sides are, but a turn is one of pixels
    aspect = x_BCHW.shape[2] / x_BCHW.shape[3]
    rows = [wide_B * cos_B, aspect * (SHEAR * shear_B - high_B * sin_B), 2 * MOVE * right_B]
    rows += [wide_B * sin_B / aspect, high_B * cos_B, 2 * MOVE * down_B]
    grid_BHW2 = affine_grid(
        torch.stack(rows, 1).view(-1, 2, 3), list(x_BCHW.shape), align_corners=False
    )
    mapped_BCHW = grid_sample(x_BCHW.float(), grid_BHW2, padding_mode="border", align_corners=False)
    return mapped_BCHW.to(x_BCHW.dtype)


DTYPES = {torch.uint8: "|u1", torch.float32: "<f4", torch.int64: "<i8"}
"""Their names in the file, on every machine."""

CRC_BYTES = 4  # of the checksum of an item on disk
ADVICE = say("restore the file as the run left it, or start a new run in another {out}")


class DiskStore:
    """Items by number in a file of ``folder``, which is made by the first ``write``: a ring of
    rows.

    A row holds a coded image, its answer, and a checksum that includes the item's number. Item n
    lies in row n modulo the number of rows. A row that one of the two kept checkpoints needs is not
    overwritten: the file gets more rows instead. Rows are read by ``pread``: a memory map counts as
    the process's own memory, and kills it where the file is cut short. RunError where the disk
    refuses.
    """

    def __init__(self, folder: Path, capacity: int, coding: Coding) -> None:
        self._path = folder / "items.bin"
        self._rows = rows_for(capacity)
        self._coding = coding
        self._row: np.dtype[Any] | None = None
        self._needed = [0, 0]  # the oldest item that each of the two kept checkpoints holds
        self._fd = -1
        self._writable = False

    def write(self, first: int, coded_BCHW: Tensor, answers: Tensor) -> None:
        """Write items ``first`` and on, whatever lies in their rows."""
        row = self._row or self._row_of(tuple(answers.shape[1:]), DTYPES[answers.dtype])
        items = np.empty(len(coded_BCHW), row)
        items["image"] = coded_BCHW.detach().cpu().numpy()
        items["answer"] = answers.detach().cpu().numpy()
        contents = items.view("u1").reshape(len(items), row.itemsize)[:, :-CRC_BYTES]
        items["crc"] = [
            zlib.crc32(content, number) for number, content in enumerate(contents, first)
        ]
        self._row = row
        try:
            if not self._writable:
                self._open_to_write(new=first == 0)
            if first + len(items) - self._needed[0] > self._rows:
                self._enlarge(first, first + len(items))
            place = first % self._rows
            self._write_at(place, items[: self._rows - place])
            self._write_at(0, items[self._rows - place :])
        except OSError as error:
            raise disk_error("write", self._path, error) from error

    def read(self, slots_B: Tensor) -> tuple[Tensor, Tensor]:
        """The coded images and the answers of these items, on the CPU."""
        items = np.frombuffer(b"".join([self._item(slot) for slot in slots_B.tolist()]), self._row)
        return torch.from_numpy(items["image"].copy()), torch.from_numpy(items["answer"].copy())

    def state_dict(self, first: int, end: int) -> dict[str, Any]:
        """State for a checkpoint beside the file, which is on the disk when this returns."""
        try:
            if self._writable:
                os.fsync(self._fd)
        except OSError as error:
            raise disk_error("write", self._path, error) from error
        if first > self._needed[1]:
            self._needed = [self._needed[1], first]
        answer = None if self._row is None else self._row["answer"]
        form = None if answer is None else [list(answer.shape), answer.base.str]
        return {"kind": "disk", "needed": list(self._needed), "answer": form}

    def load_state_dict(self, state: dict[str, Any], first: int, end: int) -> None:
        """Load items ``first`` to ``end``, changing no file. RunError if it is missing or cut
        short.
        """
        before, last = state["needed"]
        self.close()
        self._needed = [before, last]
        self._row = None
        if end:
            shape, dtype = state["answer"]
            self._row = self._row_of(tuple(shape), dtype)
            self._open_to_read(end - first)

    def close(self) -> None:
        """Close the file; closing twice is no error."""
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1
        self._writable = False

    def _row_of(self, answer: tuple[int, ...], dtype: str) -> np.dtype[Any]:
        image = ("image", DTYPES[self._coding.dtype], self._coding.spec.shape)
        return np.dtype([image, ("answer", dtype, answer), ("crc", "<u4")])

    def _size(self) -> int:
        assert self._row is not None, "nothing was added yet"
        return self._row.itemsize

    def _open_to_read(self, held: int) -> None:
        try:
            with open_file(self._path) as file:
                self._fd = os.dup(file.fileno())
        except OSError as error:
            text = f"cannot read kept answers: {error.strerror}; "
            raise RunError(text + ADVICE, about=str(self._path)) from error
        size = os.fstat(self._fd).st_size
        self._rows = size // self._size()
        if self._rows < held or size % self._size():
            text = (
                f"expected at least {held} kept answers of {self._size()} bytes, got {size} bytes; "
            )
            raise RunError(text + ADVICE, about=str(self._path))

    def _open_to_write(self, new: bool = False) -> None:
        """Open the file, never through a link; a new one takes disk only where it is written."""
        self.close()
        make_folder(self._path.parent)
        flags = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | (os.O_CREAT | os.O_TRUNC if new else 0)
        self._fd = os.open(self._path, flags, 0o644)
        self._writable = True
        if new:
            os.ftruncate(self._fd, self._rows * self._size())

    def _enlarge(self, first: int, end: int) -> None:
        """Move the needed items before ``first`` to a file that has rows up to ``end`` too."""
        rows = max(self._rows + self._rows // 4, end - self._needed[0])
        size = self._size()
        with replacing(self._path) as file:
            file.truncate(rows * size)
            for number in range(self._needed[0], first):
                file.seek(number % rows * size)
                file.write(os.pread(self._fd, size, number % self._rows * size))
        self._rows = rows
        self._open_to_write()

    def _write_at(self, place: int, items: np.ndarray[Any, Any]) -> None:
        start = place * self._size()
        rest = memoryview(items.tobytes())
        while rest:  # a full disk takes a part, and refuses the rest
            written = os.pwrite(self._fd, rest, start)
            start += written
            rest = rest[written:]

    def _item(self, number: int) -> bytes:
        size = self._size()
        item = os.pread(self._fd, size, number % self._rows * size)
        crc = zlib.crc32(item[:-CRC_BYTES], number).to_bytes(CRC_BYTES, "little")
        if len(item) != size or item[-CRC_BYTES:] != crc:
            text = "is cut short, or not as it was written; "
            raise RunError(text + ADVICE, about=f"{self._path}, item {number}")
        return item


def rows_for(capacity: int) -> int:
    """Rows of a file for ``capacity`` items and those that the checkpoints before need."""
    return capacity + capacity // 4 + 1


@dataclass(frozen=True)
class Coding:
    """The form in which images of ``spec`` are kept: numbers of levels up to 256 levels, else as
    they are.
    """

    spec: ImageSpec

    @property
    def dtype(self) -> torch.dtype:
        return torch.uint8 if self.spec.has_codes else torch.float32

    def encode(self, images_BCHW: Tensor) -> Tensor:
        """Images within the bounds, float32, as they are kept."""
        return self.spec.encode(images_BCHW) if self.dtype == torch.uint8 else images_BCHW

    def decode(self, coded_BCHW: Tensor) -> Tensor:
        """Kept images as the float32 that they were."""
        return self.spec.decode(coded_BCHW) if coded_BCHW.dtype == torch.uint8 else coded_BCHW


class MemoryStore:
    """The last ``capacity`` items; item n lies at place n modulo the capacity, made at the first
    batch.
    """

    def __init__(self, capacity: int, device: torch.device) -> None:
        self._capacity = capacity
        self._device = device
        self._items: list[Tensor] = []  # the images and the answers

    def write(self, first: int, coded_BCHW: Tensor, answers: Tensor) -> None:
        """Items ``first`` and on, at most ``capacity`` of them; they take the place of the
        oldest.
        """
        start = first % self._capacity
        head = min(len(coded_BCHW), self._capacity - start)
        rooms = self._reserved(coded_BCHW, answers)
        for room, new in zip(rooms, (coded_BCHW, answers), strict=True):
            room[start : start + head] = new[:head]
            room[: len(new) - head] = new[head:]

    def read(self, slots_B: Tensor) -> tuple[Tensor, Tensor]:
        """The coded images and the answers of these items."""
        place_B = slots_B % self._capacity
        # index_select gathers whole rows, three times as fast as indexing does on a CPU.
        images, answers = (room.index_select(0, place_B) for room in self._items)
        return images, answers

    def state_dict(self, first: int, end: int) -> dict[str, Any]:
        """Copies of the items from ``first`` to ``end``, which are all that it holds, by place."""
        images, answers = [room[: end - first].clone() for room in self._items] or (None, None)
        return {"kind": "memory", "images": images, "answers": answers}

    def load_state_dict(self, state: dict[str, Any], first: int, end: int) -> None:
        """Load what ``state_dict`` gave."""
        if held := end - first:
            self._items = []  # room is made for answers such as these
            items = state["images"], state["answers"]
            for room, item in zip(self._reserved(*items), items, strict=True):
                room[:held] = item

    def close(self) -> None:
        """Nothing to close."""

    def _reserved(self, *items: Tensor) -> list[Tensor]:
        """Room for ``capacity`` items such as these."""
        self._items = self._items or [
            torch.empty(self._capacity, *like.shape[1:], dtype=like.dtype, device=self._device)
            for like in items
        ]
        return self._items


class Replay:
    """The last ``capacity`` items, first in, first out; drawn from with replacement, on ``rng``'s
    device.

    ``folder``: where the items lie on disk; without one they lie on ``rng``'s device.
    """

    def __init__(
        self, capacity: int, spec: ImageSpec, rng: torch.Generator, folder: Path | None = None
    ) -> None:
        self.capacity = capacity
        self.spec = spec
        self._coding = Coding(spec)
        self._rng = rng
        self._device = rng.device
        self.on_disk = folder is not None
        self._store: MemoryStore | DiskStore = (
            MemoryStore(capacity, rng.device)
            if folder is None
            else DiskStore(folder, capacity, self._coding)
        )
        self.added = 0  # items that were ever stored; the number of the next

    def __len__(self) -> int:
        return min(self.added, self.capacity)

    def size(self, answer: int) -> int:
        """Bytes of its items when full, in memory or on disk, with answers of so many bytes."""
        count = rows_for(self.capacity) if self.on_disk else self.capacity
        image = self.spec.numel * self._coding.dtype.itemsize
        return count * (image + answer + CRC_BYTES * self.on_disk)

    def add(self, images_BCHW: Tensor, answers: Tensor) -> None:
        """Store a batch of paid images and answers, dropping the oldest. RunError for disk
        errors.
        """
        images_BCHW = images_BCHW[-self.capacity :]
        answers = answers[-self.capacity :]
        self._store.write(self.added, self._coding.encode(images_BCHW), answers)
        self.added += len(images_BCHW)

    def sample(self, count: int) -> tuple[Tensor, Tensor]:
        """``count`` images (float32, within the bounds) and answers, from at least one stored."""
        assert self.added, "nothing was added yet"
        place_B = torch.randint(len(self), (count,), generator=self._rng, device=self._device)
        return self.read(self._oldest + (place_B - self._oldest) % self.capacity)

    def batches(self, count: int) -> Iterator[tuple[Tensor, Tensor]]:
        """All images and answers held, ``count`` at a time, the oldest first."""
        end = self.added
        for start in range(self._oldest, end, count):
            yield self.read(torch.arange(start, min(start + count, end), device=self._device))

    def items(self, first: int, end: int) -> tuple[Tensor, Tensor]:
        """Images and answers of the items ``first`` to ``end``, by their numbers; all are held."""
        return self.read(torch.arange(first, end, device=self._device))

    def state_dict(self) -> dict[str, Any]:
        """State as plain tensors and numbers; items on disk are flushed and not in it."""
        items = self._store.state_dict(self._oldest, self.added)
        return {"added": self.added, "held": len(self), "items": items}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up what ``state_dict`` gave. RunError for a file on disk that is missing or cut
        short.
        """
        self.added = state["added"]
        self._store.load_state_dict(state["items"], self._oldest, self.added)

    def close(self) -> None:
        """Close what is open on disk; closing twice is no error."""
        self._store.close()

    @property
    def _oldest(self) -> int:
        return self.added - len(self)

    def read(self, slots_B: Tensor) -> tuple[Tensor, Tensor]:
        """Images and answers of the items of these numbers, all of which are held."""
        coded_BCHW, answers = self._store.read(slots_B)
        # Coded they are smallest, so they travel to an accelerator before they are images again.
        return self._coding.decode(coded_BCHW.to(self._device)), answers.to(self._device)
