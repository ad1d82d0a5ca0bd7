"""Answers by class: what a constant answer gets, and what is wrong with teacher, queries, student.

A warning is one line: what was found, the likely cause, what to do. No torch here.
"""

import math
import shlex

import numpy as np

from dfme.config.messages import shortened
from dfme.errors import flag
from dfme.report.classified import (
    Classified,
    ClassNumbers,
    Training,
    far_above,
    is_one_sided,
    per_cent,
    plain,
    top,
)
from dfme.report.run_files import is_above
from dfme.statistics import Z_95, wilson_interval

# Heuristic, but for the numbers of classes.
SCALING = f"{flag('teacher.mean')} and {flag('teacher.std')}"
ALMOST_ALL = (
    0.95  # answers are nearly all of one class if the 95% interval of its share is above this
)
# share put right of what luck would not (Cohen's kappa) that is next to nothing on any images
SLIGHT = 0.1
MIN_LOSSES = 8  # that tell a fall, at least
FALLEN = 0.9  # the last quarter lies below this share of the first
MAX_ORDERED = 1_000  # classes among which another order is looked for
MAX_NAMED = 20  # classes that a warning names
MAX_GIVEN = 180  # letters of their names together


def warnings(seen: Classified) -> list[str]:
    """All that is wrong: with the training, then the teacher, then the queries, then the
    student.
    """
    lines = [
        *training_warnings(seen),
        *teacher_warnings(seen),
        *query_warnings(seen),
        *student_warnings(seen),
    ]
    return [shortened(line) for line in lines]


def training_warnings(seen: Classified) -> list[str]:
    """A student that trained at a learning rate of 0, which nothing else about it can be told
    before.
    """
    training = seen.training
    if training is None or not training.stood_still:
        return []
    # one record alone may be of the last step of a schedule that ends at 0, and a student that
    # learnt tells
    if len(training.steps) == 1 and _is_above_constant(seen):
        return []
    steps = f"{training.still:,.0f} of its {training.steps[-1]:,.0f} steps"
    cause = (
        f"its schedule had come to its end; try {flag('schedule.kind', 'constant')}, or leave out "
        f"{flag('student.steps')} and {flag('student.rounds')}"
    )
    if training.always_still and training.still_rate > 0:
        rate = flag("student.lr")
        cause = f"a {rate} too small to change any weight; try a larger one, such as 0.1"
    return [
        f"the student trained at a learning rate of {training.still_rate:g} for {steps}, which "
        f"taught it nothing, whatever the images; likely cause: {cause}"
    ]


def teacher_warnings(seen: Classified) -> list[str]:
    """Warnings that make every figure of a run meaningless, known before anything is paid for."""
    if len(seen.teacher) < 2:
        return []
    most, share = top(seen.counts(seen.teacher))
    if share == 1:
        return [
            f"the teacher answers {seen.name(most)} to all {seen.where}, so agreement says "
            f"nothing; likely cause: wrong {flag('teacher.bounds')}, {SCALING}, or checkpoint; see "
            "what run.py check says"
        ]
    if seen.labels is None or len(np.unique(seen.labels)) < 2:
        return []
    accuracy = float((seen.teacher == seen.labels).mean())
    (luck, deviation) = _luck(seen.labels, seen)
    if (order := _other_order(seen.labels, seen, accuracy)) is not None:
        return [order]
    usual = float((seen.labels == most).mean())
    leans = wilson_interval(share, len(seen.teacher))[0] > far_above(usual)
    if not leans and accuracy > luck + Z_95 * deviation and accuracy - luck >= SLIGHT * (1 - luck):
        return []
    return [
        f"the teacher is right on {accuracy:.1%} of the {seen.where}, luck would be on {luck:.1%} "
        f"(it answers {seen.name(most)} to {share:.0%}); likely cause: {SCALING} forgotten, or "
        f"wrong {flag('teacher.bounds')}, channel order, checkpoint or order of classes; mend that "
        "first"
    ]


def query_warnings(seen: Classified, when: str = "") -> list[str]:
    """Paid answers of nearly one class; ``when``: in the run. Not for a teacher with one class."""
    if (
        seen.queries is None
        or not seen.queries.any()
        or (len(seen.teacher) > 1 and not np.ptp(seen.teacher))
    ):
        return []
    (most, share) = top(seen.queries)
    total = int(seen.queries.sum())
    if wilson_interval(share, total)[0] <= ALMOST_ALL or not is_one_sided(seen):
        return []
    finding = (
        f"the teacher answered {seen.name(most)} to {share:.1%} of the {total:,} images "
        f"paid for{when}"
    )
    if training_fault(seen) is not None:
        return [finding]
    return [
        f"{finding}; likely cause: they are unlike its own images, or wrong "
        f"{flag('teacher.bounds')}; try {_other_images(seen)}"
    ]


def student_warnings(seen: Classified) -> list[str]:
    """A copy that has collapsed, or is not shown to be better than one answer to everything."""
    if seen.student is None or len(seen.teacher) < 2 or not np.ptp(seen.teacher):
        return []
    images = len(seen.teacher)
    usual, constant = top(seen.counts(seen.teacher))
    most, share = top(seen.counts(seen.student))
    nearly_one = share == 1 or wilson_interval(share, images)[0] > ALMOST_ALL
    if nearly_one and share > wilson_interval(constant, images)[1]:
        return [
            f"the student has collapsed: it answers {seen.name(most)} to {share:.1%} of the "
            f"{seen.where}, the "
            f"teacher to {(seen.teacher == most).mean():.1%}; likely cause: {_cause(seen)}"
        ]
    agreement = float((seen.teacher == seen.student).mean())
    if is_above(agreement, constant, images):
        return []
    low, high = wilson_interval(agreement, images)
    few = agreement > constant and training_fault(seen) is None
    return [
        f"agreement of {agreement:.1%} (95% interval {low:.1%} to {high:.1%}) is not above the "
        f"{constant:.1%} of always answering {seen.name(usual)}; likely cause: "
        f"{'too few images to tell' if few else _cause(seen)}"
    ]


def _is_above_constant(seen: Classified) -> bool:
    """True if the student is shown to agree more than one answer to everything."""
    if seen.student is None or not len(seen.teacher):
        return False
    agreement = float((seen.teacher == seen.student).mean())
    return is_above(agreement, top(seen.counts(seen.teacher))[1], len(seen.teacher))


def training_fault(seen: Classified) -> str | None:
    """What is wrong with the training of a student that learnt nothing, by the run's record; or
    None.
    """
    training = seen.training or Training()
    if training.stood_still:
        return f"it trained at a learning rate of {training.still_rate:g}, see above"
    losses = seen.losses or training.losses
    if (
        len(losses) >= MIN_LOSSES
        and (last := np.mean(losses[-(len(losses) // 4) :])) >= FALLEN * losses[0]
    ):
        fall = f"the loss did not fall ({losses[0]:.3g} at first, {last:.3g} at last)"
        remedy = f"try a smaller {flag('student.lr')}, then a larger one"
        return f"a rate that does not suit: {fall}; {remedy}"
    if training.fit is None:
        return None
    share, constant, images = training.fit
    low, high = wilson_interval(share, images)
    # of one-sided answers a student may learn the one, and is no worse than it
    if low > constant or (is_one_sided(seen) and high >= constant):
        return None
    return (
        f"its training: on {images:,} images that it was trained on it agrees on {share:.1%}, a "
        f"constant answer on {constant:.1%}; try another {flag('student.lr')}, then more "
        f"{flag('student.steps')}"
    )


def _cause(seen: Classified) -> str:
    """The likely cause of a student that learnt nothing, by training, then by paid answers; the
    remedy.
    """
    if (fault := training_fault(seen)) is not None:
        return fault
    last = f"a larger {flag('budget')} or another {flag('student.lr')}"
    remedy = f"try {_other_images(seen)}; else {last}"
    if seen.queries is None or not seen.queries.any():
        if seen.training is None and not seen.losses:
            return f"its training, or images unlike its own: no record of either is here; {remedy}"
        return f"images unlike the teacher's own; {remedy}"
    total = int(seen.queries.sum())
    most, share = top(seen.queries)
    reached = f"{int((seen.queries > 0).sum()):,} of {seen.classes:,} classes"
    most_frequent = f"{seen.name(most)} to {per_cent(share)}"
    if is_one_sided(seen):
        return (
            f"one-sided answers: {most_frequent} of the {total:,} images paid for, "
            f"{reached}; {remedy}"
        )
    return (
        f"images unlike the teacher's own: its answers to the {total:,} paid for are of {reached}, "
        f"{most_frequent}, and teach nothing of those; {remedy}"
    )


def _other_images(seen: Classified) -> str:
    """The ways to other images than those of this run."""
    pool = f"{flag('method.pool')} (of an audit: {flag('pool')}) of images like its own"
    real = f"{flag('method.name', 'knockoff')} with a {pool}"
    if seen.method == "knockoff":
        real = f"another {pool}"
    drawn = flag("method.name", "procedural")
    if seen.method == "procedural":
        drawn = f"{flag('queries.programs')} other than {','.join(seen.programs)}"
    return f"{real}, or {drawn}"


def _luck(labels: ClassNumbers, seen: Classified) -> tuple[float, float]:
    """Expected accuracy of the teacher's class frequencies at random, and its standard deviation.

    Source: Fleiss, Cohen & Everitt 1969 (Psychol. Bull. 72, 323-327), kappa's deviation where it is
    zero.
    """
    true_K, told_K = (
        seen.counts(classes_N) / len(classes_N) for classes_N in (labels, seen.teacher)
    )
    luck = float(true_K @ told_K)
    variance = luck + luck**2 - float((true_K * told_K) @ (true_K + told_K))
    return luck, math.sqrt(max(variance, 0.0) / len(labels))


def _other_order(labels: ClassNumbers, seen: Classified, accuracy: float) -> str | None:
    """A line where most images follow one order of the classes that is not the labels' own.

    Found on half of the images, it is judged by the other half: by its 95% interval it must be
    right more often than the labels' own, the most frequent label, and one time in two.
    """
    teacher = seen.teacher
    images = len(labels)
    classes = seen.classes
    to_beat = max(0.5, wilson_interval(accuracy, images)[1], top(seen.counts(labels))[1])
    if (
        classes > MAX_ORDERED
        or _crossed(labels, teacher, classes).max(axis=1).sum() <= to_beat * images
    ):
        return None
    orders = [best_order(labels[half::2], teacher[half::2], classes) for half in (1, 0)]
    right = sum(
        int((order[labels[half::2]] == teacher[half::2]).sum()) for half, order in enumerate(orders)
    )
    if wilson_interval(right / images, images)[0] <= to_beat:
        return None
    order_K = best_order(labels, teacher, classes)
    names = (
        [plain(seen.label_names[label]) for label in np.argsort(order_K)]
        if seen.label_names
        else []
    )
    names_given = shlex.quote(",".join(names))
    if classes > MAX_NAMED or len(names_given) > MAX_GIVEN:
        names_given = "and a file of their names"
    remedy = f"give the teacher's order with {flag('evaluation.classes')} {names_given}"
    return (
        f"the teacher is right on {accuracy:.1%} of the {seen.where}, but on "
        f"{(order_K[labels] == teacher).mean():.1%} with the labels' classes in another order; "
        f"{remedy if names else 'number the labels as it does'}; until then accuracies and names "
        "of classes "
        "say nothing, agreement does"
    )


def _crossed(labels: ClassNumbers, teacher: ClassNumbers, classes: int) -> ClassNumbers:
    """Images of each label (row) that the teacher put into each class (column), (K, K)."""
    return np.bincount(labels * classes + teacher, minlength=classes**2).reshape(classes, classes)


def best_order(labels: ClassNumbers, teacher: ClassNumbers, classes: int) -> ClassNumbers:
    """One-to-one class (K,) per label that most images agree on; among equals most keep theirs.

    Exact, by shortest augmenting paths (Jonker & Volgenant 1987, Computing 38, 325-340); 0 stands
    for none.
    """
    cost_KK = np.zeros((classes + 1, classes + 1), np.int64)
    cost_KK[1:, 1:] -= _crossed(labels, teacher, classes) * (classes + 1) + np.eye(
        classes, dtype=np.int64
    )
    of_label, of_class, label_of, before = np.zeros((4, classes + 1), np.int64)
    for label_of[0] in range(1, classes + 1):
        far = np.full(classes + 1, 1 << 60)
        settled = np.full(classes + 1, False)
        column = 0
        while label := label_of[column]:
            settled[column] = True
            slack = cost_KK[label] - of_label[label] - of_class
            before[(slack < far) & ~settled] = column
            far = np.where(settled, 1 << 61, np.minimum(slack, far))
            column = int(far.argmin())
            of_label[label_of[settled]] += far[column]
            of_class[settled] -= far[column]
            far -= far[column]
        while column:
            label_of[column] = label_of[before[column]]
            column = int(before[column])
    return np.argsort(label_of[1:])


def relabelled(seen: Classified) -> float | None:
    """Agreement on half of the images, drawn by a fixed seed, after the other half's best
    renaming.
    """
    if seen.student is None or len(seen.teacher) < 2 or seen.classes > MAX_ORDERED:
        return None
    half, judged = np.array_split(np.random.default_rng(0).permutation(len(seen.teacher)), 2)
    order_K = best_order(seen.student[half], seen.teacher[half], seen.classes)
    return float((order_K[seen.student[judged]] == seen.teacher[judged]).mean())
