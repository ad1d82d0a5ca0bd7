"""Lock of a directory: one process at a time, on this machine and others that share the disk.

``flock`` decides among the processes of one host, but may not reach the others of a shared file
system. So ``.lock`` names its holder, who touches it: its time of change is the latest beat. All
times are the file system's, no host's.
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
import time
from pathlib import Path

from dfme.config.messages import printable
from dfme.errors import Ref, UserError, say

LOCK = ".lock"
BEAT_SECONDS = 30.0
DEAD_SECONDS = 120.0  # without a beat for so long, a process of another host holds nothing
MAX_BYTES = 500  # of a lock that is read
NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


class InUseError(UserError):
    """Another process holds a lock."""


def wait_for_lock(path: Path) -> DirectoryLock:
    """The lock of a directory, once no other process holds it."""
    while True:
        try:
            return DirectoryLock(path)
        except InUseError:
            time.sleep(0.1)


class DirectoryLock:
    """A lock from creation until ``close`` or the process's end. ``note``: a remark for the user.

    Raises UserError, about ``option``, if another process holds it, or the directory cannot
    be written.
    """

    def __init__(self, path: Path, option: str = "out") -> None:
        self.note = ""
        self._fd = -1
        self._ended = threading.Event()
        self._option = option
        self._own = json.dumps({"host": socket.gethostname(), "pid": os.getpid()}).encode()
        try:
            self._fd = os.open(
                path / LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o644
            )
            os.lseek(self._fd, 0, os.SEEK_END)  # which a pipe refuses
            self._take(path)
        except InUseError:
            os.close(self._fd)
            raise
        except OSError as error:
            with contextlib.suppress(OSError):
                os.close(self._fd)
            problem = f"cannot write to the directory: {error.strerror}"
            if error.errno in NO_LOCKS:
                problem += (
                    "; its file system has no locks: mount it with -o flock, or without "
                    "-o nolock (NFS)"
                )
            raise UserError(problem, about=Ref(option, path)) from None
        threading.Thread(target=self._beat, daemon=True).start()

    def _take(self, path: Path) -> None:
        """Take the lock. InUseError, which names the other process, where one is at work."""
        busy = True
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            busy = False
        host, pid = self._holder()
        there = host not in ("", socket.gethostname())
        age = 0.0
        if there:
            with tempfile.TemporaryFile(dir=path) as fresh:  # what time it is on the file system
                os.utime(fresh.fileno())
                age = os.fstat(fresh.fileno()).st_mtime - os.fstat(self._fd).st_mtime
        holder = f"process {pid}"
        if there:
            holder += f" on {host}, {age:.0f} s after its latest sign of life"
        if busy or (
            there and abs(age) < DEAD_SECONDS
        ):  # a beat far ahead is none of this file system's
            wait = "" if busy else f" (or {DEAD_SECONDS - age:.0f} s if it is gone)"
            raise InUseError(
                say(
                    "in use by {}; wait for it to end{}, stop it, or choose another {}",
                    holder,
                    wait,
                    Ref(self._option),
                ),
                about=Ref(self._option, path),
            )
        self.note = f"{path}: taken over from {holder}" if there else ""
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, self._own, 0)

    def _holder(self) -> tuple[str, str]:
        """Host and process that the file names, a stranger's text perhaps."""
        try:
            content = json.loads(os.pread(self._fd, MAX_BYTES, 0))
            return printable(str(content["host"]))[:64], printable(str(content["pid"]))[:20]
        except (ValueError, LookupError, TypeError, RecursionError):  # none, or not ours
            return "", "unknown"

    def _beat(self) -> None:
        while not self._ended.wait(BEAT_SECONDS):
            with contextlib.suppress(OSError):
                os.utime(self._fd)

    def close(self) -> None:
        """Give it back, also to other hosts, which need not wait then; closing twice is no
        error.
        """
        if self._fd < 0:
            return
        self._ended.set()
        with contextlib.suppress(OSError):
            if os.pread(self._fd, MAX_BYTES, 0) == self._own:  # and nobody took it over meanwhile
                os.ftruncate(self._fd, 0)
        os.close(self._fd)
        self._fd = -1
