"""Which images a student is scored on: handed over in Python, without labels, in an order of their
own.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from begun import refused_run, refused_words
from command_line import run
from small_runs import Metered, clone

from dfme.data import load_dataset
from dfme.errors import UserError

DIGITS = load_dataset("digits", "test").subset(60)
OTHERS = load_dataset("digits", "train").subset(60)


def cloned(out: Path, evaluation: Any, **changes: Any) -> dict[str, Any]:
    return clone(out, Metered(), **{"budget": 100, "evaluation": evaluation} | changes).summary


@pytest.fixture
def class_folders(tmp_path: Path) -> Path:
    """Sixty digits as pictures, in folders that sort in another order than the digits."""
    image = pytest.importorskip("PIL.Image")
    for number, (x, label) in enumerate(zip(DIGITS.images, DIGITS.labels.tolist(), strict=True)):
        folder = tmp_path / "set" / Named.class_names[label]
        folder.mkdir(parents=True, exist_ok=True)
        image.fromarray((x[0] * 255).round().byte().numpy()).save(folder / f"{number:02}.png")
    return tmp_path / "set"


def test_images_handed_over_are_scored_like_those_of_the_data_set(tmp_path: Path) -> None:
    handed = cloned(tmp_path / "a", {"images": DIGITS.images, "labels": DIGITS.labels, "points": 4})
    named = cloned(tmp_path / "b", {"dataset": "digits", "limit": 60, "points": 4})
    scores = ("accuracy", "agreement", "kl", "teacher_accuracy", "evaluation_queries")
    assert [handed[name] for name in scores] == [named[name] for name in scores]
    assert handed["evaluation"]["name"].startswith("tensors:")
    as_arrays = cloned(tmp_path / "c", (DIGITS.images.numpy(), DIGITS.labels.numpy()))
    assert as_arrays["evaluation"] == handed["evaluation"]


def test_images_alone_tell_agreement_and_no_accuracy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    summary = cloned(tmp_path / "a", DIGITS.images)
    assert (
        summary["agreement"] == cloned(tmp_path / "b", (DIGITS.images, DIGITS.labels))["agreement"]
    )
    assert (summary["accuracy"], summary["teacher_accuracy"]) == (None, None)
    assert json.loads((tmp_path / "a" / "summary.json").read_text())["accuracy"] is None
    run(f"report {tmp_path / 'a'}")
    assert (
        "not known: the evaluation images have no labels"
        in (tmp_path / "a" / "report.html").read_text()
    )
    capsys.readouterr()


def test_a_resume_on_other_images_is_refused(tmp_path: Path) -> None:
    cloned(tmp_path / "a", (DIGITS.images, DIGITS.labels))
    changed = DIGITS.labels.clone()
    changed[0] = (changed[0] + 1) % 10
    for other in ((OTHERS.images, OTHERS.labels), (DIGITS.images, changed), DIGITS.images):
        with pytest.raises(UserError, match=r"other values of evaluation\.dataset"):
            cloned(tmp_path / "a", other, budget=200, resume=True)
    more = cloned(tmp_path / "a", (DIGITS.images, DIGITS.labels), budget=200, resume=True)
    assert more["spent"] == 200


@pytest.mark.parametrize(
    ("evaluation", "says"),
    [
        (
            (torch.zeros(2, 1, 8, 8), torch.zeros(3, dtype=torch.long)),
            "expected 2 labels, whole numbers",
        ),
        ((torch.zeros(2, 1, 9, 8), None), "its images are 1x9x8, but 1x8x8 was asked for"),
        (torch.full((2, 1, 8, 8), 1.5), "floating-point pixels within 0 and 1"),
        (5, r"evaluation: expected images \(N, H, W\)"),
        ({"images": DIGITS.images, "dataset": "digits"}, "expected a dataset or images, got both"),
        ((DIGITS.images, DIGITS.labels + 5), "has 15 classes, but the teacher answers 10"),
    ],
)
def test_images_that_cannot_be_are_refused_before_the_first_query(
    tmp_path: Path, evaluation: Any, says: str
) -> None:
    refused_run(tmp_path / "a", says, evaluation=evaluation)


def test_commands_say_that_such_images_are_not_theirs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cloned(tmp_path / "a", DIGITS.images)
    assert "these images were handed over in Python: hand them over again" in refused_words(
        f"retrain --run {tmp_path / 'a'} --out {tmp_path / 'b'}", capsys
    )


class Named(Metered):
    class_names = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")


def test_a_folder_is_put_in_the_order_that_the_teacher_announces(
    class_folders: Path, tmp_path: Path
) -> None:
    """Its own order made a teacher of 11 % of it, without a word."""
    exact = cloned(tmp_path / "a", DIGITS.images.mul(255).round().byte(), budget=20)
    right = cloned(
        tmp_path / "b", (DIGITS.images.mul(255).round().byte(), DIGITS.labels), budget=20
    )
    named = clone(tmp_path / "c", Named(), evaluation=str(class_folders), budget=20).summary
    named_in_order = {"dataset": str(class_folders), "classes": list(Named.class_names)}
    in_order = cloned(tmp_path / "d", named_in_order, budget=20)
    alone = cloned(tmp_path / "e", str(class_folders), budget=20)
    assert named["teacher_accuracy"] == in_order["teacher_accuracy"] == right["teacher_accuracy"]
    assert (
        alone["teacher_accuracy"] != right["teacher_accuracy"]
    )  # as in 0.6.0: nobody told the order
    assert named["agreement"] == exact["agreement"]
    (class_folders / "ten").mkdir()
    message = r"set has 11 classes \(.*\), but the teacher answers 10 \(zero, one"
    refused_run(tmp_path / "f", message, Named(), evaluation=str(class_folders))


def test_a_retrained_student_is_scored_on_the_labels_of_the_run(
    class_folders: Path, tmp_path: Path
) -> None:
    """The teacher's order of classes is in the checkpoint: nobody else announces it there."""
    paid = clone(tmp_path / "a", Named(), evaluation=str(class_folders), budget=40).summary
    assert run(f"retrain --run {tmp_path / 'a'} --out {tmp_path / 'b'} --student.steps 2") == 0
    summary = json.loads((tmp_path / "b" / "summary.json").read_text())
    assert summary["teacher_accuracy"] == paid["teacher_accuracy"]


def test_evaluate_says_what_it_cannot_know(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cloned(tmp_path / "a", "digits", budget=20)
    np.savez(tmp_path / "x.npz", images=DIGITS.images.numpy())
    weights = (
        Path(__file__).resolve().parents[2] / "teachers" / "checkpoints" / "digits.safetensors"
    )
    words = f"evaluate --student {tmp_path / 'a'} --teacher torch --teacher.checkpoint {weights}"
    assert run(f"{words} --evaluation.dataset {tmp_path / 'x.npz'}") == 0
    lines = dict(line.split("  ", 1) for line in capsys.readouterr().out.splitlines())
    for name in ("accuracy", "teacher accuracy"):
        assert lines[name].strip() == "not known: the evaluation images have no labels"
    assert 0 <= float(lines["agreement"]) <= 1
    line = refused_words(f"{words} --evaluation.dataset none --evaluation.classes a,b", capsys)
    assert "--evaluation.classes: expected an evaluation.dataset as well" in line
