"""What a watch says: alarms, and each detector's largest statistic in every window of images."""

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from dfme.errors import RunError, flag
from dfme.files import AppendFile, disk_error, make_folder, open_file


@dataclass(frozen=True)
class Alarm:
    """A detector's statistic rose above its threshold at the ``image``-th image of an account."""

    account: str
    detector: str
    statistic: float
    threshold: float
    image: int
    is_first: bool
    """Whether it is the first alarm of this detector over this account."""

    def line(self) -> dict[str, Any]:
        """As watch.jsonl has it."""
        return {
            "images": self.image,
            "alarm": self.detector,
            "statistic": self.statistic,
            "first": self.is_first,
        }

    def entry(self) -> dict[str, Any]:
        """As an alarm file has it."""
        return {
            "account": self.account,
            "detector": self.detector,
            "statistic": self.statistic,
            "threshold": self.threshold,
            "image": self.image,
        }


@dataclass(frozen=True)
class WindowLargest:
    """Each detector's largest statistic in the window that ends at the ``images``-th image."""

    images: int
    largest: dict[str, float]

    def line(self) -> dict[str, Any]:
        """As watch.jsonl has it."""
        return {"images": self.images, "largest": self.largest}


class AlarmFile:
    """Appends each alarm to a file, as JSON with its time; ``tell`` hears of one that the disk
    refuses.

    A last line that a crash tore is left as evidence, and ended: the next alarm has a line of its
    own.
    """

    def __init__(self, path: Path, tell: Callable[[str], None]) -> None:
        make_folder(path.parent)
        size = path.stat().st_size if path.is_file() else 0
        self._file = AppendFile(path, size, mode=0o600)
        if size and _last_byte(path) != b"\n":
            self._file.append(b"\n")
        self._tell = tell

    def __call__(self, alarm: Alarm) -> None:
        try:
            entry = {"at": timestamp(datetime.now(UTC)), **alarm.entry()}
            self._file.append((json.dumps(entry) + "\n").encode())
        except RunError as error:
            self._tell(f"WARNING: an alarm is not in {flag('alarm_file')}: {error}")


def timestamp(moment: datetime) -> str:
    """A time in UTC as the owner's files have it, to a millisecond."""
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _last_byte(path: Path) -> bytes:
    """The last byte of a file that has one."""
    try:
        with open_file(path) as file:
            file.seek(-1, os.SEEK_END)
            return file.read(1)
    except OSError as error:
        raise disk_error("read", path, error) from error
