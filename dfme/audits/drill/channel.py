"""The owner's alarm channel: a file that grows by a line for each alarm. It is read, never written.

``alarm_file`` is dfme's own form, as ``run.py serve`` and ``dfme.Guard`` write it: JSON with
account, detector and the number of the image. A ``webhook_log`` is any text to which the owner's
receiver appends a line for each alarm. A channel may come from a stranger: at most ``MAX_READ``
bytes of it are in memory at a time, and what is shown of a line steers no terminal.
"""

import json
import os
import stat
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from dfme.config.messages import printable

MAX_READ = 1 << 20
"""Bytes that are read at a time."""
MAX_LINE = 1 << 16
"""Bytes of a line that are looked at."""
MAX_SHOWN = 300
"""Letters of a line that are shown."""
MAX_BEFORE = 16 * MAX_READ
"""Bytes from before the drill that are looked at."""
MAX_ACCOUNTS = 20
"""Names of other accounts that are remembered."""
ALL = "all"
"""What detectors that look at the images of all accounts give as theirs."""

ChannelKind = Literal["alarm_file", "webhook_log"]


@dataclass(frozen=True)
class Mark:
    """Where in which file a channel stood. An ``inode`` of 0: there was no file."""

    device: int = 0
    inode: int = 0
    size: int = 0


@dataclass(frozen=True)
class HeardAlarm:
    """A line of the channel that counts. ``image``: the number that it names, of its account, or of
    all accounts together (``of_all``).
    """

    text: str
    detector: str = ""
    image: int | None = None
    of_all: bool = False


class Tail:
    """The whole lines that a file gets after ``mark``, None: after now.

    A file that is not there yet is waited for; one that is cut short, or another file in its place,
    is read from its beginning. ``trouble``: why it cannot be read now, if so.
    """

    def __init__(self, path: Path, mark: Mark | None = None) -> None:
        self.path = path
        self.trouble = ""
        self._fd = -1
        self._at = 0
        self._torn = b""
        self._inside = False  # of a line that began before, or is too long
        begin = mark is None
        if self._open():
            here = self._end
            if begin:
                self._at = here.size
            elif mark and (mark.device, mark.inode) == (here.device, here.inode):
                self._at = mark.size if mark.size <= here.size else 0
            self._inside = self._at > 0 and os.pread(self._fd, 1, self._at - 1) != b"\n"

    @property
    def exists(self) -> bool:
        """Whether there was a file so far."""
        return self._fd >= 0

    @property
    def mark(self) -> Mark:
        """Up to where whole lines were read; the mark of no file where there is none."""
        here = self._end
        return Mark(here.device, here.inode, self._at - len(self._torn))

    @property
    def _end(self) -> Mark:
        """Where the open file ends now."""
        if self._fd < 0:
            return Mark()
        facts = os.fstat(self._fd)
        return Mark(facts.st_dev, facts.st_ino, facts.st_size)

    def read(self) -> list[bytes]:
        """The next whole lines, of at most ``MAX_READ`` bytes; none where nothing came."""
        if self._fd < 0 and not self._open():
            return []
        chunk = self._chunk()
        if not chunk and self._is_another():
            chunk = self._chunk()
        if self._inside:
            _, newline, chunk = chunk.partition(b"\n")
            self._inside = not newline
        *lines, self._torn = (self._torn + chunk).split(b"\n")
        if len(self._torn) > MAX_LINE:  # its beginning is a line, its rest is left out
            lines.append(self._torn)
            self._torn = b""
            self._inside = True
        return [line[:MAX_LINE] for line in lines if line.strip()]

    def close(self) -> None:
        """Close the file; closing twice is no error."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _chunk(self) -> bytes:
        try:
            chunk = os.pread(self._fd, MAX_READ, self._at)
        except OSError as error:  # of a disk, or a file system that is gone
            self.trouble = error.strerror or str(error)
            return b""
        self.trouble = ""
        self._at += len(chunk)
        return chunk

    def _open(self) -> bool:
        """Open what is there, from its beginning; whether it is a file that can be read."""
        try:
            fd = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        except OSError as error:
            self.trouble = error.strerror or str(error)
            return False
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            self.trouble = "it is a folder, a pipe or a device, and no file"
            return False
        self.close()
        self.trouble = ""
        self._fd = fd
        self._at = 0
        self._torn = b""
        self._inside = False
        return True

    def _is_another(self) -> bool:
        """Whether the file is to be read from its beginning: it was cut, or replaced by another."""
        here = self._end
        if here.size < self._at:
            self._at = 0
            self._torn = b""
            self._inside = False
            return True
        try:
            facts = os.stat(self.path)
        except OSError:  # moved away, and no other in its place yet
            return False
        return (facts.st_dev, facts.st_ino) != (here.device, here.inode) and self._open()


class AlarmChannel:
    """What the lines of a channel say.

    ``accounts``: the tags of this client, of which alarms count; empty: of any. ``match``: the text
    that a line holds if it counts. Counted apart: ``others``, alarms of other accounts by their
    names, and lines that are ``unreadable``.
    """

    def __init__(
        self, kind: ChannelKind, match: str | None = None, accounts: frozenset[str] = frozenset()
    ) -> None:
        self.kind = kind
        self.others = Counter[str]()
        self.unreadable = 0
        self._match = match
        self._accounts = accounts

    def hear(self, line: bytes) -> HeardAlarm | None:
        """The alarm of a line, if it counts."""
        text = line.decode(errors="replace").strip()
        if self._match is not None and self._match not in text:
            return None
        shown = _shown(text)
        if self.kind == "webhook_log":
            return HeardAlarm(shown)
        try:
            entry = json.loads(text)
            detector = entry["detector"]
            account = entry["account"]
        except (ValueError, LookupError, TypeError, RecursionError):
            detector = account = None
        if not isinstance(detector, str) or not isinstance(account, str):
            self.unreadable += 1
            return None
        if self._accounts and account not in self._accounts and account != ALL:
            self._count_other(_shown(account))
            return None
        image = entry.get("image")
        number = image if type(image) is int and 0 < image < 1 << 62 else None
        return HeardAlarm(shown, _shown(detector), number, account == ALL)

    def _count_other(self, account: str) -> None:
        if account not in self.others and len(self.others) >= MAX_ACCOUNTS:
            account = "others"
        self.others[account] += 1


def rang_before(path: Path, channel: AlarmChannel) -> bool:
    """Whether there are alarms that count among the last lines that are there already."""
    end = Tail(path)
    mark = end.mark
    end.close()
    tail = Tail(path, replace(mark, size=max(0, mark.size - MAX_BEFORE)))
    taken = 0
    try:
        while taken < MAX_BEFORE and (lines := tail.read()):
            taken += sum(map(len, lines))
            if any(channel.hear(line) for line in lines):
                return True
    finally:
        tail.close()
    return False


def _shown(text: str) -> str:
    """The beginning of a stranger's text without what steers a terminal."""
    beginning = text[:MAX_SHOWN]
    return beginning if beginning.isprintable() else printable(beginning)
