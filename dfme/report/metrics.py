"""Every metric's name, unit and meaning, once; and the file that keeps them, one JSON line per
record.
"""

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from numbers import Real
from pathlib import Path
from random import Random
from typing import NamedTuple

from dfme.config.messages import did_you_mean, printable
from dfme.errors import RunError, UserError, flag
from dfme.files import AppendFile, whole_lines


class Metric(NamedTuple):
    """One quantity that a run logs."""

    unit: str
    meaning: str


LARGEST = 1e300  # no metric is as large; what is larger, and NaN, no picture could show

METRICS: dict[str, Metric] = {
    "queries": Metric(
        "images", "Images charged to the budget so far; the axis of every other metric."
    ),
    "seconds": Metric("s", "Wall time spent on the run so far, over all its resumptions."),
    "queries_per_second": Metric(
        "images/s", "Charged images per second of wall time, over the run so far."
    ),
    "accuracy": Metric("share", "Evaluation images that the student classifies as labelled."),
    "teacher_accuracy": Metric(
        "share", "Evaluation images that the teacher classifies as labelled."
    ),
    "agreement": Metric(
        "share", "Fidelity: evaluation images that student and teacher classify alike."
    ),
    "agreement_balanced": Metric(
        "share", "Mean over the teacher's classes of the agreement on the images of each."
    ),
    "constant_agreement": Metric(
        "share", "Agreement of one answer to everything: the teacher's most frequent."
    ),
    "agreement_top5": Metric(
        "share", "Teacher's class is among the student's five; of 100 classes or more."
    ),
    "held_back_agreement": Metric(
        "share", f"The same of the queries held back for {flag('until_agreement')}."
    ),
    "kl": Metric(
        "nats", "Mean KL divergence from the teacher's class probabilities to the student's."
    ),
    "vote_accuracy": Metric(
        "share", "Evaluation images that the students' vote classifies as labelled."
    ),
    "vote_agreement": Metric(
        "share", "Evaluation images that the vote and the teacher classify alike."
    ),
    "vote_agreement_balanced": Metric("share", "The same mean over classes of the vote."),
    "vote_agreement_top5": Metric("share", "The same of the vote's five."),
    "vote_kl": Metric(
        "nats", "Mean KL divergence from the teacher's class probabilities to the vote's."
    ),
    "student_loss": Metric(
        "loss", "Student's loss on the answers just paid for, mean over the images."
    ),
    "replay_loss": Metric(
        "loss", "Student's loss on answers paid for earlier, mean over the images."
    ),
    "generator_loss": Metric(
        "loss", "Objective that the generator minimises, mean over the images."
    ),
    "discriminator_loss": Metric(
        "loss", "Loss of the net that tells real or proxy images from generated."
    ),
    "generator_grad_norm": Metric(
        "norm", "Euclidean norm of the gradient of the generator's parameters."
    ),
    "upstream_grad_norm": Metric(
        "norm", "Euclidean norm of the gradient handed to the generator's output."
    ),
    "student_grad_norm": Metric(
        "norm", "Euclidean norm of the gradient of the student's parameters."
    ),
    "student_lr": Metric("rate", "Learning rate of the student's last step."),
    "student_lr_greatest": Metric(
        "rate", "Greatest one of its steps so far; with rounds, of the round's."
    ),
    "generator_lr": Metric("rate", "Learning rate of the generator's optimiser."),
    "difference_zero_share": Metric(
        "share", "Finite differences that are zero, hidden by the answers."
    ),
    "difference_snr": Metric(
        "ratio", "Rms of the finite differences over that of what the answers hide."
    ),
    "probe_alignment": Metric(
        "cosine", "Between the steps intended and those the wire carries; 1: alike."
    ),
    "student_steps": Metric("steps", "Optimiser steps of the student so far, replay included."),
    "queries_generator": Metric("images", "Images charged for the generator's gradient estimates."),
    "queries_student": Metric("images", "Images charged for the student's training."),
    "queries_seed": Metric("images", "Images charged to label real seed images."),
    "queries_check": Metric("images", "Images charged to check the teacher before the run."),
    "queries_evaluation": Metric(
        "images", "Evaluation images the teacher answered; recorded, not charged."
    ),
    "requests": Metric("requests", "Requests sent to the teacher."),
    "refused": Metric(
        "images", "Images the teacher said it did not serve; given back to the budget."
    ),
    "no_answer": Metric(
        "images", "Images that a service named no class for; counted and left out."
    ),
    "failed": Metric("images", "Images maybe served, without a usable answer; they stay charged."),
    "cost": Metric(
        "currency", f"Price of all images maybe served so far, by {flag('teacher.price_per_1000')}."
    ),
    "lost": Metric(
        "images", "Images sent whose answers a kill lost; sent again, not counted as spent."
    ),
}


MAX_STEPS = 2_000  # records of training that are read of a longer file: a curve shows no more
MAX_SCORED = 10_000  # and of evaluations
CALLBACK_NAME = re.compile(r"[A-Za-z][\w.-]{0,59}")

MetricRecord = dict[str, float | None]


def callback_metrics(returned: object) -> dict[str, float]:
    """Metrics that a callback returned, if it returned a mapping. UserError for impossible ones."""
    metrics: dict[str, float] = {}
    for name, value in returned.items() if isinstance(returned, Mapping) else ():
        if not (isinstance(name, str) and CALLBACK_NAME.fullmatch(name)) or name in (
            *METRICS,
            "samples",
        ):
            form = "a letter, then at most 59 letters, digits or _.-, and no metric of dfme's"
            raise UserError(
                printable(f"callback: expected names of its own ({form}), got {name!r:.80}")
            )
        is_huge = isinstance(value, int) and abs(value) > LARGEST
        if isinstance(value, bool) or is_huge or not isinstance(value, Real):
            text = f"expected a number, got {value!r:.80}; of a tensor return its item()"
            raise UserError(printable(f"callback: {name}: {text}"))
        metrics[name] = float(value)
    return metrics


def latest_of_callback(records: Iterable[MetricRecord]) -> dict[str, float]:
    """The latest value of each metric that METRICS does not define."""
    every = (pair for record in records for pair in record.items())
    return {name: value for name, value in every if name not in METRICS and value is not None}


def read_metrics(path: Path) -> list[MetricRecord]:
    """Records of a metrics file, in order; none without a file.

    Of more than ``MAX_STEPS`` training records, or ``MAX_SCORED`` evaluations, a sample is kept,
    and the last record with each name. A torn last line is left out; a broken line anywhere else
    raises ``RunError``.
    """
    steps = _Sample(MAX_STEPS)
    scored = _Sample(MAX_SCORED)
    latest = dict[str, tuple[int, MetricRecord]]()
    for numbered in enumerate(record for record, _ in _records(path)):
        latest.update(dict.fromkeys(numbered[1], numbered))
        (scored if "agreement" in numbered[1] else steps).add(numbered)
    return [
        record for _, record in sorted(dict([*steps.kept, *scored.kept, *latest.values()]).items())
    ]


class _Sample:
    """At most ``most`` of the records, uniformly at random, where every n-th could miss a cycle.

    Source: Vitter 1985 (ACM Trans. Math. Softw. 11, 37-57), algorithm R.
    """

    def __init__(self, most: int) -> None:
        self.kept: list[tuple[int, MetricRecord]] = []
        self._most = most
        self._added = 0
        self._rng = Random(0)  # noqa: S311 (no secret)

    def add(self, numbered: tuple[int, MetricRecord]) -> None:
        self._added += 1
        if self._added <= self._most:
            self.kept.append(numbered)
        elif (place := self._rng.randrange(self._added)) < self._most:
            self.kept[place] = numbered


def _records(path: Path) -> Iterator[tuple[MetricRecord, int]]:
    """Every whole record, and where in the file it ends."""
    end = 0
    try:
        for number, line in enumerate(whole_lines(path), start=1):
            end += len(line)
            try:
                record = json.loads(line.decode())
            except (ValueError, RecursionError):
                record = None
            if not isinstance(record, dict) or type(record.get("queries")) is not int:
                problem = "expected a JSON record with queries; remove it to go on"
                raise RunError(f"{path}, line {number}: {problem}")
            yield record, end
    except FileNotFoundError:
        return
    except OSError as error:
        raise RunError(f"{path}: cannot read the metrics: {error.strerror}") from error


class MetricsFile:
    """Appends one JSON line per record and hands each to the operating system at once.

    What was logged beyond ``keep`` queries is dropped: a run resumed from there logs it again. What
    is not finite is written as ``null``. Raises ``RunError`` if the disk refuses or the file holds
    something else.
    """

    def __init__(self, path: Path, keep: float = math.inf) -> None:
        ends = (end for record, end in _records(path) if (record["queries"] or 0) <= keep)
        self._file = AppendFile(path, max(ends, default=0))

    def write(
        self,
        queries: int,
        metrics: Mapping[str, float],
        of_callback: Mapping[str, float] | None = None,
    ) -> None:
        """Append one record, with a callback's own. Raises ``KeyError`` for a name not in
        METRICS.
        """
        for name in metrics:
            if name not in METRICS:
                hint = did_you_mean(name, METRICS)
                raise KeyError(
                    f"unknown metric {name!r}: define it in dfme.report.metrics.METRICS{hint}"
                )
        record: MetricRecord = {"queries": queries}
        for name, value in {**metrics, **(of_callback or {})}.items():
            if name != "queries":
                record[name] = value if abs(value) < LARGEST else None
        self._file.append(json.dumps(record, allow_nan=False).encode() + b"\n")

    def close(self) -> None:
        """Close the file."""
        self._file.close()
