"""Baselines by arithmetic, orders by trying all of them."""

import shlex
import time
from dataclasses import replace
from itertools import permutations
from typing import Any

import numpy as np
import pytest
from tables import exhaustive_rows

from dfme.report import verdict
from dfme.report.classified import Classified, Training, baselines, histogram, paid_answers
from dfme.report.verdict import best_order, relabelled, warnings


def seen(
    teacher: Any, labels: Any = None, student: Any = None, classes: int = 10, **more: Any
) -> Classified:
    read = [
        None if item is None else np.asarray(item, dtype=np.int64)
        for item in (teacher, labels, student)
    ]
    assert read[0] is not None
    return Classified(
        classes, read[0], read[1], read[2], where=f"{len(read[0]):,} evaluation images", **more
    )


def truth(images: int, classes: int = 10, seed: int = 0) -> np.ndarray[Any, Any]:
    """Labels of images, as many of each class as of any other."""
    return np.random.default_rng(seed).permutation(np.arange(images) % classes)


def blurred(labels: Any, right: float, classes: int = 10, seed: int = 1) -> np.ndarray[Any, Any]:
    """Answers that are the label with this probability, and else any class."""
    rng = np.random.default_rng(seed)
    return np.where(rng.random(len(labels)) < right, labels, rng.integers(0, classes, len(labels)))


def test_baselines_by_hand() -> None:
    result = baselines(seen([0, 0, 0, 1], [0, 1, 2, 2], classes=4))
    balanced = 1 / 2  # of the two classes that the teacher answers
    assert result == {
        "constant_agreement": 0.75,
        "constant_accuracy": 0.5,
        "constant_balanced": balanced,
        "chance": 0.25,
    }
    without = dict.fromkeys(("constant_agreement", "constant_accuracy", "constant_balanced"))
    assert baselines(seen([], classes=4)) == without | {"chance": 0.25}


def test_answers_are_counted_by_class_and_named() -> None:
    queries = np.array([5, 0, 7])
    names = ("a", "b\x1b[2J", "c")
    result = histogram(seen([0, 0, 2], student=[1, 0, 2], classes=3, queries=queries, names=names))
    assert result == {
        **{"classes": [0, 1, 2], "names": ["a", "b?[2J", "c"]},
        **{"teacher": [2, 0, 1], "student": [1, 1, 1], "queries": [5, 0, 7]},
    }
    many = histogram(seen([], classes=5_000, queries=np.arange(5_000)))
    assert many["classes"] == many["queries"] == [*range(4_000, 5_000)], (
        "the most frequent, in their order"
    )


def test_a_teacher_that_leans_to_one_class_is_asked_wrongly() -> None:
    """As digits were with a wrong mean and std: 25 % right."""
    labels = truth(359)
    answers = np.where(np.arange(359) < 277, 1, labels)
    assert any("--teacher.std forgotten" in line for line in warnings(seen(answers, labels)))
    frequent = np.where(np.arange(359) < 277, 1, truth(359))
    assert warnings(seen(frequent, frequent, frequent)) == [], "a frequent class is nobody's fault"


@pytest.mark.parametrize("classes", range(2, 8))
def test_no_order_is_better_and_of_equals_none_keeps_more_names(classes: int) -> None:
    """Against all of them, on random tables with many ties and with few."""
    orders, rng = np.array(list(permutations(range(classes)))), np.random.default_rng(classes)
    for most in (2, 3, 30) * 20:
        table_KK = rng.integers(0, most, (classes, classes))
        labels, teacher = (
            item.repeat(table_KK.ravel()) for item in np.indices(table_KK.shape).reshape(2, -1)
        )
        result = best_order(labels, teacher, classes)
        gained = table_KK[range(classes), orders].sum(1)
        assert table_KK[range(classes), result].sum() == gained.max()
        most_kept = (orders[gained == gained.max()] == range(classes)).sum(1)
        assert (result == range(classes)).sum() == most_kept.max()


def test_a_clone_is_scored_under_the_best_renaming_on_images_that_it_was_not_found_on() -> None:
    rolled, shuffled = (truth(360) + 1) % 10, truth(360, seed=5)
    assert relabelled(seen(truth(360), student=rolled)) == 1.0
    assert relabelled(seen(truth(360), student=truth(360))) == 1.0
    luck = relabelled(seen(truth(360), student=shuffled))
    assert luck is not None and luck < 0.25, "on the half that it was found on it is more"  # noqa: PT018
    assert relabelled(seen(truth(360))) is None
    assert relabelled(seen([1], student=[1])) is None


@pytest.mark.exhaustive
def test_an_order_of_a_thousand_classes_is_found_at_once() -> None:
    labels, order = truth(20_000, 1_000), np.random.default_rng(2).permutation(1_000)
    began = time.process_time()
    assert (best_order(labels, blurred(order[labels], 0.7, 1_000), 1_000) == order).all()
    assert time.process_time() - began < 2


@pytest.mark.parametrize(
    ("classes", "images", "right"), [(2, 60, 0.9), (3, 90, 0.8), (10, 359, 0.7), (100, 2_000, 0.8)]
)
def test_another_order_is_told_with_the_accuracy_it_gives(
    classes: int, images: int, right: float
) -> None:
    labels, order = truth(images, classes), np.roll(np.arange(classes), 1)
    teacher = blurred(order[labels], right, classes)
    names = tuple(f"kind {number}" for number in range(classes))
    (line,) = warnings(seen(teacher, labels, classes=classes, names=names, label_names=names))
    assert (
        f"on {(order[labels] == teacher).mean():.1%} with the labels' classes in another order"
        in line
    )
    if classes > verdict.MAX_NAMED:
        assert "--evaluation.classes and a file" in line
        return
    # What it says to give: the folder's names in the teacher's order. With it the teacher is right.
    given = shlex.split(line.split("--evaluation.classes ")[1])[0].rstrip(";").split(",")
    assert (np.array([given.index(names[label]) for label in labels]) == teacher).mean() == (
        order[labels] == teacher
    ).mean()


def test_a_teacher_of_one_answer_says_nothing() -> None:
    labels, threes = truth(359), np.full(359, 3)
    (line,) = warnings(
        seen(threes, labels, student=threes, queries=np.eye(10, dtype=int)[3] * 10_000)
    )
    assert line.startswith("the teacher answers class 3 to all 359 evaluation images")
    assert len(warnings(seen([1, 1, 1]))) == 1  # nor without labels
    for item in (seen([]), seen([4]), seen([0, 1, 0], labels=[0, 0, 0])):
        assert warnings(item) == [], (
            "of no image, of one, of labels of one class nothing can be told"
        )


@pytest.mark.parametrize(
    ("images", "right"), [(100, 0.0), (359, 0.016), (10_000, 0.0), (10_000, 0.07)]
)
def test_a_teacher_near_luck_is_told_on_any_number_of_images(images: int, right: float) -> None:
    labels = truth(images)
    (line,) = warnings(seen(blurred(labels, right), labels))
    assert "luck would be on 10" in line
    assert "--teacher.mean and --teacher.std forgotten" in line


@pytest.mark.parametrize(
    ("classes", "images", "right"),
    [(2, 50, 0.6), (10, 100, 0.4), (100, 500, 0.3), *exhaustive_rows([(300, 600, 0.2)])],
)
def test_who_knows_the_images_is_not_warned_of(classes: int, images: int, right: float) -> None:
    labels = truth(images, classes)
    answers = blurred(labels, right, classes)
    assert warnings(seen(answers, labels, classes=classes)) == []
    assert warnings(seen(labels, student=answers, classes=classes)) == []
    for seed in range(
        5
    ):  # of one that guesses no order is told: among so many one always fits a few images
        lines = warnings(seen(blurred(labels, 0.0, classes, seed + 50), labels, classes=classes))
        assert not any("another order;" in line for line in lines)
        # and a good teacher whose accuracy lies within the interval of a constant one's is not
        # called broken
        rng = np.random.default_rng(seed)
        rare = (rng.random(200) < 0.1).astype(np.int64)
        teacher = np.where(rng.random(200) < 0.93, rare, 1 - rare)
        assert warnings(seen(teacher, rare, student=teacher, classes=2)) == []


@pytest.mark.parametrize(
    ("others", "total", "warned"),
    [(0, 1_000, True), (20, 1_000, True), (100, 1_000, False), (0, 20, False)],
)
def test_paid_answers_of_one_class_are_told(others: int, total: int, warned: bool) -> None:
    """Twenty alike may be luck where one class is frequent, and one in ten of another is no
    failure.
    """
    lines = warnings(
        seen([0, 1], classes=2, queries=np.array([others, total - others]), names=("cat", "dog"))
    )
    assert bool(lines) == warned
    assert not lines or lines[0].startswith(
        f"the teacher answered class 1 (dog) to {1 - others / total:.1%} of the "
    )


FALLS, FLAT = (2.0, 1.5, 1.2, 1.0, 0.9, 0.9, 0.8, 0.8), (2.0, 2.2, 1.9, 2.1, 2.0, 2.0, 1.9, 2.0)
SPREAD, ONE_SIDED = [100] * 10, [910, *[10] * 9]


@pytest.mark.parametrize(
    ("queries", "method", "training", "cause", "remedy"),
    [
        (
            ONE_SIDED,
            "dfme",
            {"losses": FALLS},
            "one-sided answers: class 0 to 91% of",
            "procedural; else",
        ),
        (SPREAD, "dfme", {"losses": FALLS}, "images unlike the teacher's own", "knockoff with a"),
        (SPREAD, "knockoff", {}, "images unlike", "another --method.pool"),
        (
            SPREAD,
            "procedural",
            {"programs": ("leaves", "noise")},
            "images unlike",
            "other than leaves,noise",
        ),
        (
            ONE_SIDED,
            "dfme",
            {"losses": FLAT},
            "did not fall (2 at first, 1.95 at last)",
            "a smaller --stud",
        ),
        (SPREAD, "dfme", {"losses": FLAT[:7]}, "images unlike", "or another --student.lr"),
        (None, "", {}, "its training, or images unlike its own", "or another --student.lr"),
    ],
)
def test_causes_are_told_apart_by_what_is_on_record(
    queries: Any, method: str, training: dict[str, Any], cause: str, remedy: str
) -> None:
    counts = None if queries is None else np.array(queries)
    teacher, student = truth(359), np.where(np.arange(359) < 3, truth(359), 1)
    (line,) = warnings(seen(teacher, student=student, queries=counts, method=method, **training))
    assert line.startswith("the student has collapsed: it answers class 1 to ")
    assert "--recipe" not in line, "the run may be of that recipe"
    assert cause in line.split("likely cause: ")[1]
    assert remedy in line.split("; try ")[1]


def test_a_student_no_better_than_one_answer_is_told_with_both_figures() -> None:
    teacher = np.repeat([0, 1], [270, 90])
    (line,) = warnings(
        seen(teacher, student=np.where(np.arange(360) % 4 < 3, teacher, 1 - teacher), classes=2)
    )
    assert (
        "agreement of 75.0% (95% interval 70.3% to 79.2%) is not above the 75.0% of always" in line
    )
    few = seen(np.repeat([0, 1], [20, 10]), student=np.repeat([0, 1, 0], [20, 3, 7]), classes=2)
    assert warnings(few)[0].endswith("likely cause: too few images to tell")


@pytest.mark.parametrize(
    ("shares", "queries", "one_sided"),
    [
        ((0.5, 0.5), (400, 0), True),
        ((0.5, 0.5), (340, 60), True),
        (
            (0.5, 0.5),
            (280, 120),
            False,
        ),  # 70 % where the teacher gives it half: below three quarters
        ((0.3, 0.7), (20, 380), True),  # 95 % of a class with 70 %: above 85
        ((0.3, 0.7), (80, 320), False),
        ((0.3, 0.7), (320, 80), True),  # of the other class 60 would be much
        ((0.02, 0.98), (8, 392), False),  # as among the teacher's own
        ((0.1, 0.2, 0.7), (0, 400, 0), True),
        ((0.1, 0.2, 0.7), (100, 100, 200), False),
        ((0.001,) * 1_000, (3_000,) + (1,) * 999, True),
        ((0.001,) * 1_000, (5,) * 1_000, False),
    ],
)
def test_answers_are_one_sided_by_the_share_that_the_class_has_among_the_teachers_own(
    shares: tuple[float, ...], queries: tuple[int, ...], one_sided: bool
) -> None:
    teacher = np.repeat(np.arange(len(shares)), [round(1_000 * share) for share in shares])
    answered = seen(
        teacher, student=np.zeros_like(teacher), classes=len(shares), queries=np.array(queries)
    )
    paid = paid_answers(answered)
    assert paid["one_sided"] == one_sided
    assert paid["classes_reached"] == sum(map(bool, queries))
    assert paid["share"] == max(queries) / sum(queries)
    lines = " ".join(warnings(answered))
    assert "are of many classes" not in lines
    assert ("one-sided answers" in lines) == one_sided or "images unlike" not in lines


def test_a_binary_teacher_that_saw_one_side_alone_is_told_so() -> None:
    answered = seen(
        np.arange(200) % 2, student=np.zeros(200), classes=2, queries=np.array([400, 0])
    )
    first, second = warnings(answered)
    assert first.startswith("the teacher answered class 0 to 100.0% of the 400 images paid for")
    assert "one-sided answers: class 0 to 100% of the 400 images paid for, 1 of 2 classes" in second


def test_answers_of_one_class_are_no_fault_where_the_teacher_nearly_always_gives_it() -> None:
    rare = np.repeat([0, 1], [970, 30])
    assert warnings(seen(rare, student=rare, classes=2, queries=np.array([388, 12]))) == []
    many = np.array([3_880, 120])
    assert warnings(seen(rare, student=rare, classes=2, queries=many)) == []
    held_back = seen(rare, student=rare, classes=2, queries=many, held_back=True)
    assert "97.0% of the 4,000 images" in warnings(held_back)[0], "its own share is not known"


def records(*rows: tuple[float, float, float]) -> list[dict[str, float | None]]:
    names = ("student_steps", "student_lr", "replay_loss")
    return [{"queries": 170.0, **dict(zip(names, row, strict=True))} for row in rows]


ZERO = records(*((50.0 * step, 0.0, 4.0) for step in range(1, 17)))
LATE = records(*((50.0 * step, 0.1 if step < 9 else 0.0, 4.0 / step) for step in range(1, 17)))
COSINE = records(*((50.0 * step, 0.1 * (16 - step), 4.0 / step) for step in range(1, 17)))
FLAT_LOSS = records(*((50.0 * step, 0.1, 4.0) for step in range(1, 17)))
BURST = records((5.0, 0.0, 4.0))
ONCE = records((800.0, 0.0, 4.0))


@pytest.mark.parametrize(
    ("log", "steps"), [(ZERO, "800 of its 800"), (LATE, "350 of its 800"), (ONCE, "800 of its 800")]
)
@pytest.mark.parametrize("queries", [SPREAD, ONE_SIDED, None])
def test_a_learning_rate_of_zero_is_said_first_and_no_image_is_blamed(
    log: Any, steps: str, queries: Any
) -> None:
    counts = None if queries is None else np.array(queries)
    student = np.where(np.arange(359) < 3, truth(359), 1)
    training = Training.of_records(log)
    lines = warnings(seen(truth(359), student=student, queries=counts, training=training))
    assert lines[0].startswith(f"the student trained at a learning rate of 0 for {steps} steps")
    assert "images unlike" not in " ".join(lines)
    assert "unlike its own images" not in " ".join(lines)
    few = seen(truth(60), student=np.where(np.arange(60) < 10, truth(60), 1), training=training)
    assert "too few images" not in " ".join(warnings(few))


def test_a_rate_too_small_to_change_a_weight_is_said_as_it_is() -> None:
    training = Training.of_records(records(*((50.0 * step, 1e-12, 4.0) for step in range(1, 17))))
    lines = warnings(seen(truth(359), student=np.ones(359), training=training))
    assert lines[0].startswith("the student trained at a learning rate of 1e-12 for 800 of its 800")
    assert "schedule" not in lines[0]
    assert "--student.lr" in lines[0]
    assert "it trained at a learning rate of 1e-12, see above" in lines[1]


@pytest.mark.parametrize("log", [COSINE, BURST, FLAT_LOSS, ONCE, []])
def test_a_rate_that_ends_at_zero_is_none_that_was_zero(log: Any) -> None:
    answers = blurred(truth(359), 0.9)
    assert warnings(seen(truth(359), student=answers, training=Training.of_records(log))) == []


@pytest.mark.parametrize(
    ("log", "fit", "queries", "words"),
    [
        (FLAT_LOSS, None, SPREAD, "did not fall (4 at first, 4 at last)"),
        (FLAT_LOSS[8:], None, SPREAD, "images unlike"),  # when it may have fallen already
        (None, None, SPREAD, "images unlike"),
        (None, (0.11, 0.1, 500), SPREAD, "on 500 images that it was trained on it agrees on 11.0%"),
        (None, (0.3, 0.91, 500), ONE_SIDED, "its training: on 500 images"),  # not the one answer
        (None, (0.91, 0.91, 500), ONE_SIDED, "one-sided answers"),
        (None, (0.9, 0.1, 500), SPREAD, "images unlike"),
    ],
)
def test_a_training_that_failed_goes_before_the_images(
    log: Any, fit: Any, queries: list[int], words: str
) -> None:
    """``log``: None of a training in rounds."""
    training = Training.of_records(FLAT_LOSS if log is None else log, in_rounds=log is None)
    answered = seen(
        truth(359),
        student=np.where(np.arange(359) < 3, truth(359), 1),
        queries=np.array(queries),
        training=replace(training, fit=fit),
    )
    assert words in warnings(answered)[0]


def test_every_warning_fits_five_hundred_letters() -> None:
    long = tuple(f"{number:02}" + "x" * 58 for number in range(20))
    labels = truth(400, 20)
    (line,) = warnings(
        seen(np.roll(np.arange(20), 1)[labels], labels, classes=20, names=long, label_names=long)
    )
    assert len(line) <= 500
    assert "--evaluation.classes and a file of their names" in line
