"""Files that survive a kill: append-only logs, and files that are the old one or the new one, never half.

What was handed to the operating system outlives the process, so a kill loses nothing. A power cut may lose
what the system had not yet put on the disk; ``fsync`` makes an append wait for that too.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

from dfme.errors import RunError


def disk_error(action: str, path: Path, error: OSError) -> RunError:
    """The error for a disk that is full, read-only or out of reach, with what to do about it."""
    return RunError(
        f"cannot {action} {path}: {error.strerror or error}; "
        "nothing recorded is lost: make the disk writable or free some space, then resume"
    )


class AppendFile:
    """A file that only grows, by whole appends: one that fails is taken back before the error is raised.

    ``size`` is what an existing file is cut (or zero-padded) to on opening: the end of its last whole record.
    Raises RunError where the file cannot be opened or written.
    """

    def __init__(self, path: Path, size: int = 0, fsync: bool = False) -> None:
        self.path = path
        self._fsync = fsync
        try:
            self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
            if os.fstat(self._fd).st_size != size:
                os.ftruncate(self._fd, size)
        except OSError as error:
            raise disk_error("open", path, error) from error

    def append(self, *chunks: bytes | memoryview) -> None:
        """Hand the chunks, in order and as one, to the operating system (and to the disk, with ``fsync``)."""
        start = os.lseek(self._fd, 0, os.SEEK_END)
        try:
            self._write(chunks)
            if self._fsync:
                os.fdatasync(self._fd)
        except OSError as error:
            with contextlib.suppress(OSError):
                os.ftruncate(self._fd, start)
            raise disk_error("write", self.path, error) from error

    def _write(self, chunks: Sequence[bytes | memoryview]) -> None:
        total = sum(len(chunk) for chunk in chunks)
        written = os.writev(self._fd, chunks)
        if written < total:  # a full disk, or more than one system call takes
            rest = memoryview(b"".join(chunks))[written:]
            while rest:
                rest = rest[os.write(self._fd, rest) :]

    @property
    def size(self) -> int:
        """Bytes in the file."""
        return os.lseek(self._fd, 0, os.SEEK_END)

    def sync(self) -> None:
        """Wait until everything appended is on the disk."""
        try:
            os.fsync(self._fd)
        except OSError as error:
            raise disk_error("write", self.path, error) from error

    def close(self) -> None:
        """Close the file; closing twice is no error."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


@contextlib.contextmanager
def replacing(path: Path, keep: Path | None = None) -> Iterator[IO[bytes]]:
    """Write a new ``path`` beside the old one and swap them at the end, on the disk, whole.

    With ``keep`` the old file takes that name. At every instant the old or the new file is whole under
    ``path`` or ``keep``. Whatever goes wrong before the swap leaves both as they were. Raises RunError for
    the disk's errors.
    """
    draft = path.with_name(path.name + ".tmp")
    try:
        with draft.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        if keep is not None and path.exists():
            os.replace(path, keep)
        os.replace(draft, path)
        _sync_folder(path.parent)
    except OSError as error:
        raise disk_error("write", path, error) from error
    finally:
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
