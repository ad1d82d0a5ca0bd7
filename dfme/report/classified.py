"""Classes that teacher, student and labels give to the same images, and figures of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dfme.config.messages import printable
from dfme.report.training import Training
from dfme.statistics import wilson_interval

ClassNumbers = NDArray[np.int64]
# a teacher that gives one class more, and twice what the labels do, is not asked as it wants
LOPSIDED = 0.5
MAX_KEPT = 1_000  # classes in summary.json


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
        own = plain(self.names[number]) if self.names else str(number)
        return f"class {number}" + (f" ({own})" if own != str(number) else "")

    def counts(self, classes_N: ClassNumbers) -> ClassNumbers:
        return np.bincount(classes_N, minlength=self.classes)


def plain(name: str) -> str:
    """A name from somebody's file, short and without what moves a terminal's cursor."""
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
        None if each is None or not len(each) else top(seen.counts(each))[1]
        for each in (seen.teacher, seen.labels)
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
    counts = {name: None if each is None else seen.counts(each) for name, each in kinds.items()}
    counts["queries"] = seen.queries
    total_K = np.sum([each for each in counts.values() if each is not None], axis=0)
    kept = np.sort(np.argsort(-total_K, kind="stable")[:MAX_KEPT])
    shown = {name: None if each is None else each[kept].tolist() for name, each in counts.items()}
    return {
        "classes": kept.tolist(),
        "names": [plain(seen.names[number]) for number in kept] if seen.names else None,
        **shown,
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
