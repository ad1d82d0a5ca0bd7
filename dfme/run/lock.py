"""The lock of a directory: one process at a time works in it, on this machine and on those that share its disk.

``flock`` decides among the processes of one host, and the system frees it when its process ends. It may not reach the
other hosts of a shared file system. So ``.lock`` names host and process of the holder, who touches it while it is at
work: the file's time of change is its latest beat. All times are the file system's own, no host's.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import socket
import tempfile
import threading
from pathlib import Path

from dfme.config.messages import printable
from dfme.errors import UserError

LOCK = ".lock"
BEAT_SECONDS = 30.0
DEAD_SECONDS = 120.0
"""Without a beat for so long, a process of another host holds nothing."""

MOST_BYTES = 500
"""Of a lock that is read: a name and a number."""

NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)
"""What ``flock`` says where a file system is mounted without locks."""


class DirectoryLock:
    """Held from its making until ``close``, or the end of the process. ``note``: what is to be said of it, if anything.

    Raises UserError if another process holds it, or the directory cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self.note, self._fd, self._ended = "", -1, threading.Event()
        self._own = json.dumps({"host": socket.gethostname(), "pid": os.getpid()}).encode()
        try:
            self._fd = os.open(path / LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o644)
            os.lseek(self._fd, 0, os.SEEK_END)  # which a pipe refuses
            self._take(path)
        except (OSError, UserError) as error:
            with contextlib.suppress(OSError):
                os.close(self._fd)
            if isinstance(error, UserError):
                raise
            text = f"cannot write to the run directory: {error.strerror}"
            if error.errno in NO_LOCKS:
                text = f"its file system has no locks ({error.strerror}); mount it with -o flock (Lustre), or without "
                text += "-o nolock (NFS), or choose another --out"
            raise UserError(f"--out {path}: {text}") from error
        self._thread = threading.Thread(target=self._beat, daemon=True)
        self._thread.start()

    def _take(self, path: Path) -> None:
        busy = False
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            busy = True
        host, pid = self._holder()
        there = host not in ("", socket.gethostname())
        age = self._age(path) if there else 0.0
        holder = f"process {pid}" + f" on {host}, {age:.0f} s after its latest sign of life" * there
        if busy or (there and abs(age) < DEAD_SECONDS):  # a beat far ahead is none of this file system's
            wait = "" if busy else f" (or {DEAD_SECONDS - age:.0f} s if it is gone)"
            text = f"in use by {holder}; wait for it to end{wait}, stop it, or choose another --out"
            raise UserError(f"--out {path}: {text}")
        self.note = f"{path}: taken over from {holder}" if there else ""
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, self._own, 0)

    def _holder(self) -> tuple[str, str]:
        """Host and process that the file names, a stranger's text perhaps."""
        try:
            said = json.loads(os.pread(self._fd, MOST_BYTES, 0))
            return printable(str(said["host"]))[:64], printable(str(said["pid"]))[:20]
        except (ValueError, LookupError, TypeError, RecursionError):  # none, or not ours
            return "", "unknown"

    def _age(self, path: Path) -> float:
        """Seconds since the latest beat, as the file system counts them."""
        with tempfile.TemporaryFile(dir=path) as fresh:
            os.utime(fresh.fileno())
            return os.fstat(fresh.fileno()).st_mtime - os.fstat(self._fd).st_mtime

    def _beat(self) -> None:
        while not self._ended.wait(BEAT_SECONDS):
            with contextlib.suppress(OSError):
                os.utime(self._fd)

    def close(self) -> None:
        """Give it back, also to other hosts, which need not wait then; closing twice is no error."""
        if self._fd < 0:
            return
        self._ended.set()
        self._thread.join(1.0)  # a disk out of reach may hold it up
        with contextlib.suppress(OSError):
            if os.pread(self._fd, MOST_BYTES, 0) == self._own:  # and nobody took it over meanwhile
                os.ftruncate(self._fd, 0)
        os.close(self._fd)
        self._fd = -1
