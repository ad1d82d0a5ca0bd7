"""Every metric's name, unit and meaning, once; and the file that keeps them, one JSON line per record."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from dfme.config.messages import did_you_mean
from dfme.errors import RunError
from dfme.files import AppendFile, whole_lines


@dataclass(frozen=True)
class Metric:
    """One quantity that a run logs."""

    unit: str
    meaning: str


LARGEST = 1e300
"""No metric is as large; what is larger, and NaN, no picture could show."""

METRICS: dict[str, Metric] = {
    "queries": Metric("images", "Images charged to the budget so far; the axis of every other metric."),
    "seconds": Metric("s", "Wall time spent on the run so far, over all its resumptions."),
    "queries_per_second": Metric("images/s", "Charged images per second of wall time, over the run so far."),
    "accuracy": Metric("share", "Evaluation images that the student classifies as labelled."),
    "teacher_accuracy": Metric("share", "Evaluation images that the teacher classifies as labelled."),
    "agreement": Metric("share", "Evaluation images that student and teacher put into the same class."),
    "kl": Metric("nats", "Mean KL divergence from the teacher's class probabilities to the student's."),
    "vote_accuracy": Metric("share", "Evaluation images that the students' soft vote classifies as labelled."),
    "vote_agreement": Metric("share", "Evaluation images that the vote and the teacher put into the same class."),
    "vote_kl": Metric("nats", "Mean KL divergence from the teacher's class probabilities to the vote's."),
    "student_loss": Metric("loss", "Student's loss on the answers just paid for, mean over the images."),
    "replay_loss": Metric("loss", "Student's loss on answers paid for earlier, mean over the images."),
    "generator_loss": Metric("loss", "Objective that the generator minimises, mean over the images."),
    "discriminator_loss": Metric("loss", "Loss of the net that tells real or proxy images from generated ones."),
    "generator_grad_norm": Metric("norm", "Euclidean norm of the gradient of the generator's parameters."),
    "upstream_grad_norm": Metric("norm", "Euclidean norm of the gradient handed to the generator's output."),
    "student_grad_norm": Metric("norm", "Euclidean norm of the gradient of the student's parameters."),
    "student_lr": Metric("rate", "Learning rate of the student's optimiser."),
    "generator_lr": Metric("rate", "Learning rate of the generator's optimiser."),
    "difference_zero_share": Metric("share", "Finite differences that are exactly zero, hidden by the answers."),
    "difference_snr": Metric("ratio", "Rms of the finite differences over that of what the answers' resolution hides."),
    "probe_alignment": Metric("cosine", "Between the steps intended and those the wire carries; 1: nothing rounded."),
    "student_steps": Metric("steps", "Optimiser steps of the student so far, replay included."),
    "queries_generator": Metric("images", "Images charged for the generator's gradient estimates."),
    "queries_student": Metric("images", "Images charged for the student's training."),
    "queries_seed": Metric("images", "Images charged to label real seed images."),
    "queries_check": Metric("images", "Images charged to check the teacher before the run."),
    "queries_evaluation": Metric("images", "Evaluation images the teacher answered; recorded, not charged."),
    "requests": Metric("requests", "Requests sent to the teacher."),
    "refused": Metric("images", "Images the teacher said it did not serve; given back to the budget."),
    "failed": Metric("images", "Images that may have been served without a usable answer; they stay charged."),
    "cost": Metric("currency", "Price of all images that may have been served so far, by --teacher.price-per-1000."),
    "lost": Metric("images", "Images sent whose answers a kill lost; sent again, not counted as spent."),
}


def require_known(names: Iterable[str]) -> None:
    """Raise ``KeyError`` for a name that METRICS does not define: each logged quantity has one definition."""
    for name in names:
        if name not in METRICS:
            hint = did_you_mean(name, METRICS)
            raise KeyError(f"unknown metric {name!r}: define it in dfme.report.metrics.METRICS{hint}")


def metrics_table() -> str:
    """The table of all metrics in Markdown, for the documentation."""
    rows = [f"| `{name}` | {metric.unit} | {metric.meaning} |" for name, metric in METRICS.items()]
    return "\n".join(["| Metric | Unit | Meaning |", "| --- | --- | --- |", *rows]) + "\n"


def read_metrics(path: Path) -> list[dict[str, float | None]]:
    """Every record of a metrics file, in order; an absent file has none.

    A torn last line is left out: a kill can leave one. A broken line anywhere else raises ``RunError``.
    """
    return [record for record, _ in _records(path)]


def _records(path: Path) -> Iterator[tuple[dict[str, float | None], int]]:
    """Every whole record, and where in the file it ends."""
    end = 0
    try:
        for number, line in enumerate(whole_lines(path), start=1):
            end += len(line)
            yield _parse(line, path, number), end
    except FileNotFoundError:
        return
    except OSError as error:
        raise RunError(f"{path}: cannot read the metrics: {error.strerror}") from error


def _parse(line: bytes, path: Path, number: int) -> dict[str, float | None]:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        record = None
    if not isinstance(record, dict) or not is_count(record.get("queries")):
        raise RunError(f"{path}, line {number}: expected a JSON record with queries; remove the line to go on")
    wrong = next((name for name, value in record.items() if value is not None and not _fits(name, value)), None)
    if wrong is not None:
        what = METRICS[wrong].unit if wrong in METRICS else "number"
        raise RunError(f"{path}, line {number}: {wrong[:80]!r} is no {what}; remove the line to go on")
    return record


def is_count(value: object) -> bool:
    """Whether a JSON value is a whole number that a file of ours can hold."""
    return type(value) is int and 0 <= value < 2**63


def _fits(name: str, value: object) -> bool:
    """Whether a value can be one of the metric, or of any that another version logs."""
    if type(value) not in (int, float):
        return False
    number = cast(float, value)
    return 0 <= number <= 1 if name in METRICS and METRICS[name].unit == "share" else -LARGEST < number < LARGEST


class MetricsFile:
    """Appends one JSON line per record and hands each to the operating system at once.

    What was logged beyond ``keep`` queries is dropped: a run resumed from there logs it again. Values that are not
    finite are written as ``null``, since JSON has no word for them. Raises ``RunError`` for a disk that does not take
    a record, or a file that holds something else.
    """

    def __init__(self, path: Path, keep: float = math.inf) -> None:
        ends = [end for record, end in _records(path) if (record["queries"] or 0) <= keep]
        self._file = AppendFile(path, ends[-1] if ends else 0)

    def write(self, queries: int, metrics: Mapping[str, float]) -> None:
        """Append one record. Raises ``KeyError`` for a name that METRICS does not define."""
        require_known(metrics)
        record: dict[str, float | None] = {"queries": queries}
        for name, value in metrics.items():
            if name != "queries":
                record[name] = value if abs(value) < LARGEST else None
        self._file.append(json.dumps(record, allow_nan=False).encode() + b"\n")

    def close(self) -> None:
        """Close the file; nothing may be written afterwards."""
        self._file.close()
