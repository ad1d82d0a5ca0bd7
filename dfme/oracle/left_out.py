"""Images that a service answers without a class: which share of them is too large to go on.

Such an image is charged, counted by the ledger and left out of all training and scoring. A name
that is none of the classes may be that, as "not sure" is, or a fault of the adapter, which would
leave out all images of a class that it spells wrongly. So a run ends early where such names are the
rule, and where no image at all is given a class. Both follow from the ledger's counts, so that a
resumed run ends alike, and asks nothing.
"""

from collections.abc import Iterable

from torch import Tensor

from dfme.answers.reading import NO_ANSWER, UNKNOWN_CLASS, gaps_of
from dfme.errors import Unserved, say
from dfme.oracle.ledger import Ledger

NO_LABEL = "no label"
NO_CLASS = "unknown class"
REASONS = {NO_ANSWER: NO_LABEL, UNKNOWN_CLASS: NO_CLASS}
"""What the ledger says of the marks of ``PartialAnswers``."""

MAX_UNKNOWN = 20
"""So many names that are no classes, before as many images were given one: the adapter is wrong."""

MAX_WITHOUT = 100
"""So many images are paid for, and none is given a class: the service has nothing to tell of them.
"""

MANY = 0.05  # a share of the images paid for that is worth a warning at the end

SHOWN = 5  # names in a message


def gap_counts(answers: Tensor) -> dict[str, int]:
    """The images without a class by reason, those reasons alone that occur."""
    gaps_B = gaps_of(answers)
    counts = {reason: int((gaps_B == mark).sum()) for mark, reason in REASONS.items()}
    return {reason: images for reason, images in counts.items() if images}


def left_out_warnings(ledger: Ledger, evaluation: int) -> list[str]:
    """What to say of images that are left out, where there are many. ``evaluation``: of that
    set.
    """
    paid = ledger.paid_without_answer
    answered = paid + ledger.paid_with_answer
    if paid < MANY * answered and not evaluation:
        return []
    beside = f", and for {evaluation:,} evaluation images" if evaluation else ""
    reasons = ", ".join(sorted(reason for reason, images in ledger.no_answer.items() if images))
    return [
        f"the service named none of the classes for {paid:,} of the {answered:,} images paid "
        f"for{beside} "
        f"({reasons}): they are left out, and every figure is of the others alone"
    ]


def require_classes(ledger: Ledger, names: Iterable[str] = (), enough: int = MAX_WITHOUT) -> None:
    """Unserved where what the service answers is too seldom a class.

    ``names``: what it said instead. ``enough``: images without a class, where none has one.
    """
    unknown = ledger.no_answer[NO_CLASS].total()
    if unknown >= MAX_UNKNOWN > ledger.given.total():
        examples = ", ".join(list(names)[:SHOWN])
        raise Unserved(
            f"the service answered what is none of the classes for {unknown} of the first "
            f"{unknown + ledger.given.total()} images{f' ({examples})' if examples else ''}: name "
            "all its "
            "classes in "
            "answer.classes, and in answer.no_answer what it says where it knows none; then start "
            "a new run, "
            "since these answers are on record in this one"
        )
    without = ledger.paid_without_answer
    if without >= enough and not ledger.paid_with_answer:
        raise Unserved(
            say(
                "the service gave no class to any of the first {} images paid for: the method's "
                "images tell it nothing, or the adapter reads the wrong place; look with run.py "
                "check, then start a new run with another method, or with images like its own "
                "({method.name:knockoff})",
                without,
            )
        )
