"""The write-ahead journal: every answer is on file, with the digest of its query, before anyone
uses it.

    journal/000000.bin, 000001.bin, ...   segments; a new one begins whenever a checkpoint was saved
    record = header (charge number, digest of the query, its place in its batch, dtype, shape, crc32
    of the
             payload and of itself) + payload (the answers as they are in memory)

Parts of a batch stand in the order in which their answers came. A checkpoint holds the place of the
next record (``state_dict``); a journal opened with it first reads the records from there on.
Segments that neither the last checkpoint nor the one before needs are deleted when the next begins.
Records survive the death of the process at any instant; a power cut may lose the last of them,
unless each is waited for (``fsync``).
"""

import contextlib
import hashlib
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, NamedTuple

import torch
from torch import Tensor

from dfme.errors import RunError
from dfme.files import AppendFile, make_folder, open_file

HEADER = struct.Struct("<4sQ16sBB2xIIIII")
MAGIC = b"dfj2"
CRC = struct.Struct("<I")
DIGEST_BYTES = 16
HEAD_BYTES = HEADER.size + CRC.size
DTYPES: tuple[torch.dtype, ...] = (torch.float32, torch.int64)
ABANDONED = bytes(DIGEST_BYTES)
"""In place of a digest: the batch was given up, for want of budget to ask again after a failure."""


@dataclass(frozen=True)
class Record:
    """One answered request: number of its charge, digest of its query, answers, place in its
    batch.
    """

    seq: int
    digest: bytes
    answers: Tensor
    start: int
    batch: int


class RecordPosition(NamedTuple):
    """Where a record begins: the segment's number and the byte within it."""

    segment: int
    offset: int


def digest(query_BCHW: Tensor) -> bytes:
    """Sixteen bytes of SHA-256 for a CPU query's bytes, shape and dtype."""
    code = hashlib.sha256(query_BCHW.contiguous().numpy().data)
    code.update(f"{tuple(query_BCHW.shape)} {query_BCHW.dtype}".encode())
    return code.digest()[:DIGEST_BYTES]


class Journal:
    """The answers of one run in ``folder``, first to be read again, then to be added to.

    ``state``: from a checkpoint's ``state_dict``; without one, reading starts at the very first
    record. ``fsync``: a record is on the disk when ``append`` returns. Raises RunError for damaged,
    missing or unwritable segments; a last record that a kill tore is cut off.
    """

    def __init__(
        self, folder: Path, state: dict[str, int] | None = None, fsync: bool = False
    ) -> None:
        self.folder = folder
        self._fsync = fsync
        self._start = self._place = RecordPosition(**state) if state else RecordPosition(0, 0)
        self._file: AppendFile | None = None
        make_folder(folder)
        self._records = self._read(self._start)
        self._next = next(self._records, None)

    @property
    def replaying(self) -> bool:
        """True if a record is left to be read again."""
        return self._next is not None

    def peek(self) -> Record:
        """The next record to read again; only while ``replaying``."""
        assert self._next is not None
        return self._next[0]

    def advance(self) -> None:
        """Go past the record that ``peek`` shows."""
        assert self._next is not None
        self._place = self._next[1]
        self._next = next(self._records, None)

    def append(self, record: Record) -> None:
        """Write a record, answers (B, K) float32 or (B,) int64 on the CPU; on file when this
        returns.

        Raises RunError where the disk refuses; the journal is then as before.
        """
        assert self._file is not None, "a journal is added to once all its records were read again"
        answers = record.answers.detach().contiguous()
        payload = answers.numpy().data.cast("B") if answers.numel() else memoryview(b"")
        rows, columns = (*answers.shape, 1)[:2]
        code = DTYPES.index(answers.dtype)
        place = (record.start, record.batch)
        head = HEADER.pack(
            MAGIC,
            record.seq,
            record.digest,
            code,
            answers.ndim,
            *place,
            rows,
            columns,
            zlib.crc32(payload),
        )
        self._file.append(head, CRC.pack(zlib.crc32(head)), payload)
        self._place = RecordPosition(
            self._place.segment, self._place.offset + HEAD_BYTES + len(payload)
        )

    def state_dict(self) -> dict[str, int]:
        """The place of the next record, for a checkpoint."""
        return self._place._asdict()

    def sync(self) -> None:
        """Wait until every record is on the disk."""
        if self._file is not None:
            self._file.sync()

    def rotate(self) -> None:
        """Call once a checkpoint with this ``state_dict`` is saved: begin a segment, delete what
        none needs.

        What the checkpoint before needs stays. While records are still read again, no segment
        begins.
        """
        keep = self._start.segment
        self._start = self._place
        if self._file is not None and self._place.offset > 0:
            self._file.close()
            self._open(RecordPosition(self._place.segment + 1, 0))
        for segment in self._segments():
            if segment < keep:
                with contextlib.suppress(OSError):  # a segment too many does no harm
                    self._path(segment).unlink()

    def close(self) -> None:
        """Close the segment."""
        if self._file is not None:
            self._file.close()

    def _path(self, segment: int) -> Path:
        return self.folder / f"{segment:06d}.bin"

    def _segments(self) -> list[int]:
        return sorted(int(path.stem) for path in self.folder.glob("*.bin") if path.stem.isdecimal())

    def _open(self, end: RecordPosition) -> None:
        self._place = end
        self._file = AppendFile(self._path(end.segment), end.offset, self._fsync)

    def _read(self, start: RecordPosition) -> Iterator[tuple[Record, RecordPosition]]:
        """Every record from ``start`` on and the place after it; then open the last segment for
        more.
        """
        last = max([start.segment, *self._segments()])
        end = start
        for segment in range(start.segment, last + 1):
            end = RecordPosition(segment, start.offset if segment == start.segment else 0)
            path = self._path(segment)
            if not path.exists() and self._segments():
                raise _broken(path, end.offset, "it is missing, with other segments there")
            if (
                not path.exists()
            ):  # nothing was answered yet, or the owner of the run deleted the journal
                break
            for record, after in _records(path, end, torn_end=segment == last):
                yield record, after
                end = after
        self._open(end)


def _records(
    path: Path, place: RecordPosition, torn_end: bool
) -> Iterator[tuple[Record, RecordPosition]]:
    """The records of one segment; a torn last one is left out if ``torn_end`` says that there may
    be one.
    """
    try:
        with open_file(path) as file:
            total = file.seek(0, 2)
            if total < place.offset:
                raise _broken(path, total, "the file ends before the place of the checkpoint")
            file.seek(place.offset)
            while place.offset < total:
                record = _record(file, path, place.offset, total, torn_end)
                if record is None:
                    return
                place = RecordPosition(place.segment, file.tell())
                yield record, place
    except OSError as error:
        raise RunError(f"{path}: cannot read the journal: {error.strerror}") from error


def _record(file: IO[bytes], path: Path, at: int, total: int, torn_end: bool) -> Record | None:
    """The record at byte ``at``, or none if it is the torn last one."""
    head = file.read(HEAD_BYTES)
    if torn_end and (len(head) < HEAD_BYTES or not (any(head) or _holds_more(file))):
        return None  # cut short by a kill, or never filled in before a power cut
    if len(head) < HEAD_BYTES or CRC.unpack(head[HEADER.size :])[0] != zlib.crc32(
        head[: HEADER.size]
    ):
        raise _broken(path, at, "its header is damaged")
    magic, seq, code, dtype, ndim, start, batch, rows, columns, crc = HEADER.unpack(
        head[: HEADER.size]
    )
    if magic != MAGIC:
        raise _broken(path, at, "it is of another version of this software")
    size = rows * columns * DTYPES[dtype].itemsize
    payload = bytearray(
        file.read(min(size, total - file.tell()))
    )  # never memory for what is not there
    if len(payload) < size or zlib.crc32(payload) != crc:
        if torn_end and file.tell() == total:
            return None
        raise _broken(path, at, "its answers are damaged")
    shape = (rows,) if ndim == 1 else (rows, columns)
    answers = (
        torch.frombuffer(payload, dtype=DTYPES[dtype]).reshape(shape)
        if payload
        else torch.empty(shape)
    )
    return Record(seq, code, answers, start, batch)


def _holds_more(file: IO[bytes]) -> bool:
    """True if anything but zeros follows."""
    return any(block.strip(b"\0") for block in iter(lambda: file.read(1 << 20), b""))


def _broken(path: Path, at: int, problem: str) -> RunError:
    return RunError(
        f"{path}, byte {at}: expected a whole record of the journal, but {problem}; restore the "
        "file, "
        f"or delete {path.parent} to pay again for what was answered since the checkpoint"
    )
