"""What a watch says and keeps of one account, or of all of them as one: its alarms, and what each
detector came to.
"""

import json
import os
from collections.abc import Callable
from dataclasses import astuple, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from dfme.errors import RunError, flag
from dfme.files import AppendFile, disk_error, make_folder, open_file
from dfme.teachers.owner.watch.detector import SESSION, Detector

ALL = "all"
"""The account that all of them are to detectors of all traffic."""


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
    """Each detector's largest statistic in the window that ends at an account's ``images``-th
    image.
    """

    account: str
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


# What a watch keeps of one account: its detectors, and what each of them came to

NOTHING = torch.finfo(torch.float64).min  # the largest of no statistics


@dataclass
class Tally:
    """What one detector came to. The order of the fields is that of a checkpoint's columns."""

    first_alarm: int = 0
    """Number of the image; 0: none."""
    alarms: int = 0
    largest: float = NOTHING
    largest_of_session: float = NOTHING
    """Of the first ``SESSION`` images."""
    largest_of_window: float = NOTHING

    def take(self, values: list[float], in_session: bool) -> None:
        """Note the statistic after each of the next images of one window."""
        self.largest = max(self.largest, *values)
        self.largest_of_window = max(self.largest_of_window, *values)
        if in_session:
            self.largest_of_session = self.largest

    def take_alarm(self, image: int) -> bool:
        """Note an alarm; whether it is the first."""
        self.alarms += 1
        self.first_alarm = self.first_alarm or image
        return self.first_alarm == image

    def end_window(self) -> float:
        """The largest statistic of the window that ends here."""
        largest = self.largest_of_window
        self.largest_of_window = NOTHING
        return largest


@dataclass
class AccountWatch:
    """Detectors over one account, and how many of its images they have seen."""

    detectors: dict[str, Detector]
    images: int = 0
    figures: dict[str, Tally] = field(init=False)

    def __post_init__(self) -> None:
        self.figures = {name: Tally() for name in self.detectors}

    @property
    def in_session(self) -> bool:
        """Whether the next images are still among the first ``SESSION``."""
        return self.images < SESSION

    @property
    def alarms(self) -> str:
        """Where each detector first raised an alarm, in words; empty: none has."""
        first = {name: figures.first_alarm for name, figures in self.figures.items()}
        return ", ".join(f"{name} at image {image:,}" for name, image in first.items() if image)

    def report(self) -> dict[str, Any]:
        """Findings of each detector, for summary.json."""
        report = {}
        for name, figures in self.figures.items():
            detector = self.detectors[name]
            report[name] = {
                "first_alarm": figures.first_alarm or None,
                "alarms": figures.alarms,
                "largest": figures.largest if self.images else None,
                "largest_600": None if self.in_session else figures.largest_of_session,
                "threshold": detector.threshold,
                "memory_mb": detector.memory_mb,
                "statistic": detector.statistic,
            }
        return report

    def state_dict(self) -> dict[str, Any]:
        rows = [astuple(figures) for figures in self.figures.values()]
        states = {name: detector.state_dict() for name, detector in self.detectors.items()}
        return {
            "images": self.images,
            "figures": torch.tensor(rows, dtype=torch.float64),
            "detectors": states,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.images = state["images"]
        rows = state["figures"].tolist()
        tallies = (Tally(int(first), int(alarms), *largest) for first, alarms, *largest in rows)
        self.figures = dict(zip(self.figures, tallies, strict=True))
        for name, detector_state in state["detectors"].items():
            self.detectors[name].load_state_dict(detector_state)
