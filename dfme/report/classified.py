"""What is known of a student: its training's rates and losses, and the classes that it, the teacher
and the labels give to the same images, with figures of them. No torch here.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dfme.config.messages import printable
from dfme.report.metrics import MetricRecord
from dfme.statistics import wilson_interval

ClassNumbers = NDArray[np.int64]
# a teacher that gives one class more, and twice what the labels do, is not asked as it wants
LOPSIDED = 0.5
MAX_KEPT = 1_000  # classes in summary.json
EARLY = 0.2  # of all steps, by which the first loss must be on record to tell a fall; heuristic
FEW_STEPS = 20  # that an iteration of a method may take before a run's first record; heuristic
NO_RATE = 1e-12  # a learning rate up to which no step changes a weight in single precision, by far
STILL = 0.1  # share of the steps at a learning rate of 0 from which on a run says so; heuristic


@dataclass(frozen=True)
class Training:
    """What is on record of a student's training, by metrics.jsonl.

    ``steps`` taken by each record, and the learning rate of the last of them (``rates``).
    ``losses``: those that tell a fall, if any do. ``fit``: the agreement of student and teacher on
    images that were trained on, that of a constant answer to these, and their number.
    """

    steps: Sequence[float] = ()
    rates: Sequence[float] = ()
    losses: Sequence[float] = ()
    fit: tuple[float, float, int] | None = None

    @staticmethod
    def of_records(records: Iterable[MetricRecord], in_rounds: bool = False) -> "Training":
        """By the records of metrics.jsonl, in order; ``in_rounds``: losses rise as each round
        begins.
        """
        steps: list[float] = []
        rates: list[float] = []
        losses: list[float] = []
        for record in records:
            now = record.get("student_steps")
            rate = record.get("student_lr")
            if now is None or rate is None or (steps and now <= steps[-1]):
                continue
            steps.append(now)
            rates.append(rate)
            loss = record.get("replay_loss", record.get("student_loss"))
            losses += [] if loss is None else [loss]
        tells = bool(steps) and not in_rounds and steps[0] <= EARLY * steps[-1]
        return Training(steps, rates, losses if tells else ())

    @property
    def still_rate(self) -> float:
        """The greatest learning rate on record that is so small that no step changes a weight."""
        return max((rate for rate in self.rates if rate <= NO_RATE), default=0.0)

    @property
    def always_still(self) -> bool:
        """True if no record has a greater rate: it was chosen, and no schedule came to it."""
        return bool(self.rates) and max(self.rates) <= NO_RATE

    @property
    def still(self) -> float:
        """Steps that are shown to have been taken at a learning rate of 0: from one such record to
        the next.

        What comes before the first record counts if that is such a record, of more than
        ``FEW_STEPS``: the rate of a schedule that ends at 0 is 0 in its last step.
        """
        steps = [0.0, *self.steps]
        first = self.rates[0] if self.steps and self.steps[0] > FEW_STEPS else math.inf
        rates = [first, *self.rates]
        pairs = zip(pairwise(steps), pairwise(rates), strict=True)
        return sum(
            end - start for (start, end), (before, after) in pairs if max(before, after) <= NO_RATE
        )

    @property
    def stood_still(self) -> bool:
        """True if so many of the steps were taken at a learning rate of 0 that a run says so."""
        return bool(self.steps) and self.still >= STILL * self.steps[-1]


@dataclass(frozen=True)
class Classified:
    """Classes (N,) that the teacher and, if there are any, labels and student give to the same
    images.

    ``queries``: how often each of the ``classes`` was the answer to what was paid for (K,).
    ``names`` and the data set's ``label_names``: of all classes, or none. ``where``: the images, as
    a sentence names them; ``held_back``: they are paid queries. ``training``: the record of the
    student's, None if there is none.
    """

    classes: int
    teacher: ClassNumbers
    labels: ClassNumbers | None = None
    student: ClassNumbers | None = None
    queries: ClassNumbers | None = None
    names: Sequence[str] = ()
    label_names: Sequence[str] = ()
    where: str = "evaluation images"
    method: str = ""
    programs: Sequence[str] = ()
    losses: Sequence[float] = ()
    training: Training | None = None
    held_back: bool = False

    def name(self, number: int) -> str:
        called = plain(self.names[number]) if self.names else str(number)
        return f"class {number}" + (f" ({called})" if called != str(number) else "")

    def counts(self, classes_N: ClassNumbers) -> ClassNumbers:
        return np.bincount(classes_N, minlength=self.classes)


def plain(name: str) -> str:
    """A name from a file, short and without letters that move a terminal's cursor."""
    return printable(name[:60])


def top(counts_K: ClassNumbers) -> tuple[int, float]:
    """The most frequent class and its share."""
    return (most := int(counts_K.argmax())), float(counts_K[most] / counts_K.sum())


def baselines(seen: Classified) -> dict[str, float | None]:
    """Agreement and accuracy of the best constant answer, None if there are none, and of a guess.

    ``constant_balanced``: that agreement balanced over the teacher's classes, one in as many as
    occur.
    """
    shares = [
        None if classes_N is None or not len(classes_N) else top(seen.counts(classes_N))[1]
        for classes_N in (seen.teacher, seen.labels)
    ]
    occurring = len(np.unique(seen.teacher))
    return {
        "constant_agreement": shares[0],
        "constant_accuracy": shares[1],
        "constant_balanced": 1 / occurring if occurring else None,
        "chance": 1 / seen.classes,
    }


def histogram(seen: Classified) -> dict[str, Any]:
    """Counts of answers per class: parallel lists of the ``MAX_KEPT`` most frequent, in order."""
    kinds = {"teacher": seen.teacher, "student": seen.student}
    counts = {
        name: None if counted is None else seen.counts(counted) for name, counted in kinds.items()
    }
    counts["queries"] = seen.queries
    total_K = np.sum([counted for counted in counts.values() if counted is not None], axis=0)
    numbers = np.sort(np.argsort(-total_K, kind="stable")[:MAX_KEPT])
    lists = {
        name: None if counted is None else counted[numbers].tolist()
        for name, counted in counts.items()
    }
    return {
        "classes": numbers.tolist(),
        "names": [plain(seen.names[number]) for number in numbers] if seen.names else None,
        **lists,
    }


def paid_answers(seen: Classified) -> dict[str, Any] | None:
    """How many classes the answers to the images paid for are of, and the most frequent; None of
    none.
    """
    if seen.queries is None or not seen.queries.any():
        return None
    most, share = top(seen.queries)
    return {
        "classes_reached": int((seen.queries > 0).sum()),
        "classes": seen.classes,
        "most_frequent": seen.name(most),
        "share": share,
        "one_sided": is_one_sided(seen),
    }


def reached(paid: Mapping[str, Any]) -> str:
    """The entry of ``paid_answers`` in words."""
    classes = f"{paid['classes_reached']:,} of {paid['classes']:,} classes"
    return (
        f"{classes} reached, the most frequent, {paid['most_frequent']}, {per_cent(paid['share'])}"
    )


def per_cent(share: float) -> str:
    """In whole per cent, but never all where it is not all."""
    return f"{share:.0%}" if share == 1 or share < 0.995 else f"{share:.2%}"


def is_one_sided(seen: Classified) -> bool:
    """True if one class has more than half of the paid answers, and far more than of the teacher's
    others.

    That is twice its share of these or, of a frequent class, half the way from there to all
    answers: in a binary task no share is twice one half.
    """
    if seen.queries is None or not seen.queries.any():
        return False
    most, share = top(seen.queries)
    usual = 1 / seen.classes
    if len(seen.teacher) and not seen.held_back:
        usual = float((seen.teacher == most).mean())
    return wilson_interval(share, int(seen.queries.sum()))[0] > far_above(usual)


def far_above(usual: float) -> float:
    """The share of one class that is far above its usual one, and below all whatever that is."""
    return max(LOPSIDED, min(2 * usual, (1 + usual) / 2))
