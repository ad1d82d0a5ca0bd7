"""Files that survive a kill: append-only logs, and files that are the old one or the new one, never
half.

A run directory may come from somebody else: nothing is written through a link, and no pipe is
waited for.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import math
import os
import stat
import struct
import zipfile
from collections.abc import Iterator
from io import BufferedReader
from itertools import pairwise
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from dfme.errors import RunError

if TYPE_CHECKING:
    from numpy.typing import NDArray

MAX_LINE = 1 << 20
"""Bytes of the longest line that a log of ours can hold, by far."""

MAX_LISTING = 10_000_000
"""Bytes of the longest list of entries in an archive: some 100,000 tensors."""

NO_FILE = (
    errno.ELOOP,
    errno.ENXIO,
    errno.ESPIPE,
    errno.EISDIR,
)  # said of a link, a pipe or a folder


def disk_error(action: str, path: Path, error: OSError) -> RunError:
    """The error for a disk that is full, read-only or out of reach, with what to do about it."""
    why = (
        f"{error.strerror or error}; nothing recorded is lost: make the disk writable or "
        "free some space"
    )
    why += ", then resume, or begin again"
    if error.errno in NO_FILE:
        why = "it is a link, a pipe or a folder, and no file; put it elsewhere"
    return RunError(f"cannot {action} {path}: {why}")


def open_file(path: Path) -> BufferedReader:
    """Open a file, or a link's target, for reading. OSError at once for pipes, devices, folders."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "it is no regular file", str(path))
    return open(fd, "rb")


def sha256_of(path: Path) -> str:
    """SHA-256 of a file's bytes, in hexadecimal. OSError as ``open_file`` has it."""
    with open_file(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def whole_lines(path: Path) -> Iterator[bytes]:
    """The lines of a log, without a last one that a kill tore.

    Raises OSError as ``open_file`` does, and RunError for a line longer than any of ours.
    """
    with open_file(path) as file:
        while (line := file.readline(MAX_LINE)).endswith(b"\n"):
            yield line
    if len(line) == MAX_LINE:
        raise RunError(f"{path}: expected lines of a log, got one of more than {MAX_LINE} bytes")


def make_folder(path: Path, mode: int = 0o777) -> None:
    """Make a folder to write into, and those above it, unless it is there.

    ``mode``: of a new one, but for what the umask takes away. RunError where the disk refuses, or
    for a link: what is written, or deleted, would be elsewhere.
    """
    if path.is_symlink():
        raise RunError(f"cannot write into {path}: it is a link; put the folder itself there")
    try:
        path.mkdir(mode, parents=True, exist_ok=True)
    except OSError as error:
        raise disk_error("create", path, error) from error


class AppendFile:
    """A file that only grows, by whole appends: one that fails is taken back before the error is
    raised.

    ``size`` is what an existing file is cut (or zero-padded) to on opening: the end of its last
    whole record. ``fsync``: an append is on the disk when it returns. ``mode``: of a new file.
    """

    def __init__(self, path: Path, size: int = 0, fsync: bool = False, mode: int = 0o644) -> None:
        self.path = path
        self._fsync = fsync
        self._fd = -1
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK
            self._fd = os.open(path, flags, mode)
            os.lseek(self._fd, 0, os.SEEK_END)  # which a pipe refuses
            if os.fstat(self._fd).st_size != size:
                os.ftruncate(self._fd, size)
            for folder in path.parents[
                : 2 if fsync else 0
            ]:  # the names of the file and of its folder
                _sync_folder(folder)
        except OSError as error:
            self.close()
            raise disk_error("open", path, error) from error

    def append(self, *chunks: bytes | memoryview) -> None:
        """Hand the chunks, in order and as one, to the operating system, or to its disk."""
        start = os.lseek(self._fd, 0, os.SEEK_END)
        try:
            written = os.writev(self._fd, chunks)
            if written < sum(map(len, chunks)):  # a full disk, or more than one system call takes
                rest = memoryview(b"".join(chunks))[written:]
                while rest:
                    rest = rest[os.write(self._fd, rest) :]
            if self._fsync:
                os.fsync(self._fd)
        except OSError as error:
            with contextlib.suppress(OSError):
                os.ftruncate(self._fd, start)
            raise disk_error("write", self.path, error) from error

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
def replacing(path: Path, keep: Path | None = None, mode: int = 0o666) -> Iterator[IO[bytes]]:
    """Write a new ``path`` beside the old one and swap them at the end, on the disk, whole.

    With ``keep`` the old file takes that name. At every instant the old or the new file is whole
    under ``path`` or ``keep``. ``mode``: of the new file from its creation on, but for what the
    umask takes away. Raises RunError for the disk's errors.
    """
    draft = path.with_name(path.name + ".tmp")
    try:
        draft.unlink(missing_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL  # never through a link that lies there
        with open(os.open(draft, flags, mode), "wb") as file:
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


def write_text(path: Path, text: str) -> None:
    """Write a file of text by ``replacing``."""
    with replacing(path) as file:
        file.write(text.encode())


def remove(path: Path) -> None:
    """Remove a file, if it is there. RunError where the disk refuses."""
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise disk_error("remove", path, error) from error


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def read_npz(path: Path, most: int, inflation: int | None = None) -> dict[str, NDArray[Any]]:
    """The arrays of a file by name; ``most``: their bytes together; ``inflation``: those for one of
    the file.

    Raises ValueError, in words, for larger ones, for Python objects, and for whatever is no such
    file; OSError where it cannot be read.
    """
    try:
        with open_file(path) as file, zipfile.ZipFile(file) as archive:
            entries = [entry for entry in archive.infolist() if entry.filename.endswith(".npy")]
            if (unpacked := sum(entry.file_size for entry in entries)) > most:
                raise ValueError(f"its arrays are larger than {most:,} bytes")
            if inflation is not None and unpacked > inflation * os.fstat(file.fileno()).st_size:
                raise ValueError(
                    f"its arrays are over {inflation} times the file; save them by np.savez"
                )
            return {
                entry.filename.removesuffix(".npy"): _array(archive, entry) for entry in entries
            }
    except (OSError, ValueError):
        raise
    except MemoryError:
        raise ValueError("its arrays do not fit into memory") from None
    except Exception as error:  # a damaged archive can raise anything at all
        raise ValueError(f"{type(error).__name__}: {error}") from error


def archive_entries(file: IO[bytes], end: int, unpacked: int = 0) -> dict[str, tuple[int, int]]:
    """Where each entry of a zip archive begins, and its bytes; ``end``: where the archive ends in
    the file.

    PyTorch's reader is not Python's: each looks for the list of entries in its own way, and one
    takes names that differ in case for the same. So nothing here may be readable in two ways, or
    not be as PyTorch writes it: ValueError, in words. Compressed entries, which only its programs
    have, may unpack to ``unpacked`` bytes together.
    """
    file.seek(max(end - 98, 0))
    wide_end = file.read(56)
    locator = file.read(20)
    last = file.read(22)
    entries: dict[str, tuple[int, int]] = {}
    try:
        wide = locator[:4] == b"PK\6\7"
        length, begin = (
            struct.unpack("<40x2Q", wide_end) if wide else struct.unpack("<12x2L2x", last)
        )
        fine = (
            last[:4] == b"PK\5\6"
            and last[20:] == b"\0\0"
            and begin + length == end - (98 if wide else 22)
        )
        agree = not wide or (wide_end[:4], *struct.unpack("<8xQ4x", locator)) == (
            b"PK\6\6",
            end - 98,
        )
        if not fine or not agree or length > MAX_LISTING:
            raise ValueError("its end is not that of an archive which PyTorch wrote")
        with zipfile.ZipFile(file) as archive:
            listed = archive.infolist()
            spans = [(begin, end)]
            if archive.start_dir != begin:
                raise ValueError("its list of entries is not where it should be")
        for entry in listed:
            file.seek(entry.header_offset)
            mark, method, name_bytes, extra_bytes = struct.unpack("<4s4xH16x2H", file.read(30))
            start = entry.header_offset + 30 + name_bytes + extra_bytes
            stored = method == zipfile.ZIP_STORED
            name = file.read(name_bytes).decode("utf-8" if entry.flag_bits & 0x800 else "cp437")
            listed_as = (entry.compress_type, entry.filename, entry.orig_filename)
            alike = mark == b"PK\3\4" and (method, name, name) == listed_as
            # and no other field
            wider = not entry.extra or entry.extra[:4] == struct.pack(
                "<HH", 1, len(entry.extra) - 4
            )
            known = (
                entry.compress_size == entry.file_size if stored else method == zipfile.ZIP_DEFLATED
            )
            if not (alike and wider and known) or entry.flag_bits & 1:
                raise ValueError(f"its entry {name[:80]!r} is none that PyTorch wrote")
            unpacked -= 0 if stored else max(entry.file_size, 1)
            entries[name] = (start, entry.compress_size)
            spans.append((entry.header_offset, start + entry.compress_size))
    except (zipfile.BadZipFile, NotImplementedError, struct.error, UnicodeDecodeError) as problem:
        raise ValueError(f"it is no archive that PyTorch wrote: {problem}") from problem
    if unpacked < 0:
        raise ValueError(
            "its entries are compressed, as only TorchScript's may be, or unpack to too much"
        )
    overlap = any(one[1] > other[0] for one, other in pairwise(sorted(spans)))
    if overlap or len({name.lower() for name in entries}) != len(listed):
        raise ValueError("two of its entries share a name or a place")
    return entries


def _array(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> NDArray[Any]:
    """One array, once its header is known to claim what is there."""
    import numpy as np  # not above: appending a line of text must not load it

    # The third version differs only for records with names that are not Latin.
    headers = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }
    with archive.open(entry) as file:
        version = np.lib.format.read_magic(file)
        if version not in headers:
            raise ValueError(
                f"{entry.filename}: expected an array of version 1 or 2, got {version}"
            )
        shape, _, dtype = headers[version](file)
        if dtype.hasobject:
            raise ValueError(
                f"{entry.filename}: holds Python objects, which are not loaded: they run code"
            )
        claimed = math.prod(shape) * dtype.itemsize
        held = entry.file_size - file.tell()
        if claimed != held:
            raise ValueError(
                f"{entry.filename}: claims to be an array of {claimed} bytes, but holds {held}"
            )
    with archive.open(entry) as file:
        array: NDArray[Any] = np.lib.format.read_array(file, allow_pickle=False)
    return array
