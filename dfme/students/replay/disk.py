"""A replay's items on disk: files that only grow, read item by item.

    replay/000000.items, 000001.items, ...   segments: whole items one after the other, in the order they came

An item's number says where it lies, for good. So a checkpoint holds no items: a resumed run cuts what came after
its checkpoint, comes by the same items again and appends the same bytes. Segments that neither of the two kept
checkpoints needs are deleted when a third is made.

Items are read with ``pread`` and not through a memory map: pages that a map has touched count as the process's own
memory (a fault maps its neighbours too: 700 MB after 8 batches of 256 small images), giving them back costs more
than it saves (2.0 ms a batch against 0.4), and a file cut short by somebody else would kill the process. The
system's cache serves both alike.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Any

from torch import Tensor

from dfme.compute import held_to
from dfme.errors import RunError
from dfme.files import AppendFile, make_folder, open_file
from dfme.students.replay.layout import Coding, SegmentLayout, segment_items

MAX_OPEN = 128
"""Segments open for reading at once, far below what a process may have."""

ADVICE = "restore the file as the run left it, or start a new run in another --out"


def disk_bytes(item: int, capacity: int, ever: int) -> int:
    """Bytes of a full window of items, and of two segments that it only touches or has just left; ``ever``: in all."""
    return item * min(ever, capacity + 2 * segment_items(item))


class DiskStore:
    """Items in ``folder``, by their number; what ``coding`` makes of an image, and the answer.

    Nothing is read or made there before the first ``write`` or ``load_state_dict``. RunError where the disk refuses.
    """

    def __init__(self, folder: Path, coding: Coding) -> None:
        self._folder = folder
        self._coding = coding
        self._layout: SegmentLayout | None = None
        self._needed = [0, 0]  # the oldest item that each of the last two checkpoints holds
        self._writer: AppendFile | None = None
        self._next = -1  # the item that the open file is at
        self._readers: dict[int, IO[bytes]] = {}

    def write(self, first: int, coded_BCHW: Tensor, answers: Tensor) -> None:
        """Append items ``first`` and on; whatever lay there from that number on is cut."""
        if self._layout is None:
            assert first == 0, "a store that goes on is loaded first"
            self._layout = SegmentLayout.of(coded_BCHW, answers)
        items = self._layout.pack(first, coded_BCHW, answers)
        while len(items):
            segment, place = divmod(first, self._layout.segment)
            part, items = items[: self._layout.segment - place], items[self._layout.segment - place :]
            if self._writer is None or first != self._next or not place:
                self._writer = self._open_writer(segment, place * self._layout.item_bytes)
            self._writer.append(part.view("u1").data)
            first = self._next = first + len(part)

    def read(self, slots_B: Tensor) -> tuple[Tensor, Tensor]:
        """The coded images and the answers of these items, on the CPU."""
        assert self._layout is not None, "nothing was added yet"
        slots = slots_B.tolist()
        return self._layout.unpack(b"".join([self._item(slot, self._layout) for slot in slots]))

    def state_dict(self, first: int, end: int) -> dict[str, Any]:
        """What a checkpoint needs beside the files, which are on the disk when this returns."""
        if self._writer is not None:
            self._writer.sync()
        self._drop_before(self._needed[0])
        if first > self._needed[1]:
            self._needed = [self._needed[1], first]
        layout = None if self._layout is None else self._layout.state()
        return {"kind": "disk", "needed": list(self._needed), "layout": layout}

    def load_state_dict(self, state: dict[str, Any], first: int, end: int, like_CHW: Tensor) -> None:
        """Take up items ``first`` to ``end``, images such as this; nothing in the folder is changed.

        Raises ValueError for the state of another store, RunError for files that are missing, cut short or foreign.
        """
        if state["kind"] != "disk":
            raise ValueError(f"replay: expected items kept on disk, got items kept in {state['kind']}")
        needed = held_to([0, 0], state["needed"], "replay, needed")
        if not needed[0] <= needed[1] <= first:
            raise ValueError(f"replay: expected items up to {first} to be needed, got {needed}")
        self.close()
        self._needed, self._layout = needed, None
        if end:
            self._layout = SegmentLayout.from_state(state["layout"], tuple(like_CHW.shape), like_CHW.dtype)
            self._require(self._layout, first, end)

    def close(self) -> None:
        """Close all files; closing twice is no error."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None
        self._close_readers()

    def _open_writer(self, segment: int, size: int) -> AppendFile:
        """The segment to append to, cut to ``size``; the one before is on the disk, later ones are gone."""
        make_folder(self._folder)
        if self._writer is not None:
            self._writer.sync()
        self.close()
        self._delete(number for number in self._segments() if number > segment)
        return AppendFile(self._path(segment), size)

    def _item(self, slot: int, layout: SegmentLayout) -> bytes:
        segment, place = divmod(slot, layout.segment)
        if segment not in self._readers:
            if len(self._readers) == MAX_OPEN:
                self._close_readers()
            self._readers[segment] = self._open_reader(segment)
        item = os.pread(self._readers[segment].fileno(), layout.item_bytes, place * layout.item_bytes)
        if not layout.is_whole(slot, item):
            raise RunError(f"{self._path(segment)}, item {slot}: is cut short, or not as it was written; {ADVICE}")
        return item

    def _open_reader(self, segment: int) -> IO[bytes]:
        path = self._path(segment)
        try:
            return open_file(path)
        except OSError as error:
            raise RunError(f"{path}: cannot read kept answers: {error.strerror}; {ADVICE}") from error

    def _close_readers(self) -> None:
        for file in self._readers.values():
            file.close()
        self._readers = {}

    def _require(self, layout: SegmentLayout, first: int, end: int) -> None:
        """RunError unless the files hold the items from ``first`` to ``end``."""
        for segment in range(first // layout.segment, (end - 1) // layout.segment + 1):
            needed = min(end - segment * layout.segment, layout.segment) * layout.item_bytes
            with self._open_reader(segment) as file:
                size = os.fstat(file.fileno()).st_size
            if size < needed:
                raise RunError(
                    f"{self._path(segment)}: expected at least {needed} bytes of kept answers, got {size}; {ADVICE}"
                )

    def _drop_before(self, item: int) -> None:
        """Delete the segments that end before this item."""
        if self._layout is not None and item >= self._layout.segment:
            self._close_readers()
            whole = item // self._layout.segment
            self._delete(number for number in self._segments() if number < whole)

    def _delete(self, segments: Iterable[int]) -> None:
        for segment in segments:
            with contextlib.suppress(OSError):  # a segment too many does no harm
                self._path(segment).unlink()

    def _segments(self) -> list[int]:
        return [int(path.stem) for path in self._folder.glob("*.items") if path.stem.isdecimal()]

    def _path(self, segment: int) -> Path:
        return self._folder / f"{segment:06d}.items"
