"""What a run paid for is read again from its directory: all of it, in order, with what is missing said."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from small_runs import BUDGET, Metered, break_down, clone, ctrl_c, no_pictures
from tiers import exhaustive
from torch import Tensor

from dfme.config.yaml_files import SEAL, sealed
from dfme.errors import RunError, TeacherError, UserError
from dfme.run.retrain import PaidAnswers, paid_answers
from dfme.spec import ImageSpec, LabelMode


class Recording(Metered):
    """Remembers what it was asked and what it answered."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.queries: list[Tensor] = []
        self.answers: list[Tensor] = []

    def __call__(self, images: Tensor) -> Tensor:
        answers = super().__call__(images)
        self.queries.append(images.clone())
        self.answers.append(answers.clone())
        return answers


@pytest.fixture(autouse=True)
def _no_pictures() -> Iterator[None]:
    with no_pictures():
        yield


STUDENT = {"lr": 0.01, "replay_steps": 1, "replay_batch": 8}
DIGITS = {"evaluation": {"dataset": "digits", "points": 2}}


def finished(out: Path, **student: Any) -> Recording:
    """A run scored on what it did not pay for, so that all that is paid for teaches."""
    teacher = Recording()
    assert clone(out, teacher, student=STUDENT | student, **DIGITS).finished
    return teacher


def everything(paid: PaidAnswers) -> tuple[Tensor, Tensor]:
    images, answers = zip(*paid.replay.batches(33), strict=True)
    return torch.cat(images), torch.cat(answers)


@pytest.mark.parametrize("store", ["disk", *exhaustive("memory")])
def test_all_that_was_paid_for_comes_back_in_order(store: str, tmp_path: Path) -> None:
    teacher = finished(tmp_path / "run", replay_store=store)
    paid = paid_answers(tmp_path / "run")
    images, answers = everything(paid)
    assert torch.equal(images, torch.cat(teacher.queries)[-BUDGET:])
    assert torch.equal(answers, torch.cat(teacher.answers)[-BUDGET:])
    assert (paid.spec, paid.label_mode, paid.num_classes) == (ImageSpec((1, 8, 8)), LabelMode("probabilities"), 10)
    assert (paid.replayed, paid.spent, paid.shortfall) == (BUDGET, BUDGET, None)
    assert (tmp_path / "run" / "replay").is_dir() == (store == "disk")


@pytest.mark.parametrize("store", ["disk", *exhaustive("memory")])
def test_a_smaller_window_holds_the_last_in_order_and_says_so(store: str, tmp_path: Path) -> None:
    teacher = finished(tmp_path / "run", replay_store=store, replay_capacity=70)
    paid = paid_answers(tmp_path / "run")
    assert torch.equal(everything(paid)[0], torch.cat(teacher.queries)[-70:])
    expected = "70 of 400 paid answers are kept; not 330 older than the --student.replay-capacity last ones"
    assert paid.shortfall == expected


def test_what_served_other_ends_is_counted(tmp_path: Path) -> None:
    assert clone(tmp_path / "run", Metered()).finished
    paid = paid_answers(tmp_path / "run")
    assert paid.replayed < paid.spent == BUDGET, "some were held back to score the student on"
    assert f"not {BUDGET - paid.replayed} that served other ends" in str(paid.shortfall)


def test_draws_follow_the_generator_that_is_given(tmp_path: Path) -> None:
    finished(tmp_path / "run")
    paid = paid_answers(tmp_path / "run", torch.Generator().manual_seed(3))
    place_B = torch.randint(BUDGET, (20,), generator=torch.Generator().manual_seed(3))
    assert torch.equal(paid.replay.sample(20)[0], everything(paid)[0][place_B])


def test_labels_come_back_as_labels(tmp_path: Path) -> None:
    class Labels(Recording):
        def __call__(self, images: Tensor) -> Tensor:
            return super().__call__(images).argmax(dim=1)

    assert clone(tmp_path / "run", Labels(), student=STUDENT, label_mode="label", **DIGITS).finished
    paid = paid_answers(tmp_path / "run")
    assert paid.label_mode == LabelMode("label")
    assert everything(paid)[1].dtype == torch.int64


def test_a_run_that_kept_nothing_is_told_the_option(tmp_path: Path) -> None:
    finished(tmp_path / "run", replay_steps=0, replay_batch=256)  # the default, which says nothing
    with pytest.raises(UserError, match=r"kept none of its paid answers; start one with --student.replay-steps 1"):
        paid_answers(tmp_path / "run")


def test_what_is_no_run_is_said(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"expected the directory of a run, but it holds no config\.yaml"):
        paid_answers(tmp_path)


def test_a_missing_folder_is_explained(tmp_path: Path) -> None:
    finished(tmp_path / "run", replay_store="disk")
    (tmp_path / "run" / "replay").rename(tmp_path / "elsewhere")
    with pytest.raises(RunError, match=r"000000.items: cannot read kept answers: No such file"):
        paid_answers(tmp_path / "run")


def test_an_unfinished_run_says_what_it_has_and_how_it_was_answered(tmp_path: Path) -> None:
    out = tmp_path / "run"
    finished(out)
    summary = json.loads((out / "summary.json").read_text())
    (out / "summary.json").unlink()
    with pytest.raises(UserError, match=r"is not finished, .*label_mode; resume it to its end first"):
        paid_answers(out)
    config = (out / "config.yaml").read_text()
    assert "label_mode: null" in config
    edited = config.replace("label_mode: null", "label_mode: probabilities:4")
    (out / "config.yaml").write_text(edited)
    with pytest.raises(UserError, match=r"config\.yaml: expected the file as the run wrote it"):
        paid_answers(out)
    (out / "config.yaml").write_text(sealed(edited.rpartition(SEAL)[0]))
    assert summary["label_mode"] == "probabilities"
    assert paid_answers(out).label_mode == LabelMode("probabilities", decimals=4)


@pytest.mark.parametrize("store", ["disk", *exhaustive("memory")])
def test_an_interrupted_run_ends_as_if_nothing_had_happened(store: str, tmp_path: Path) -> None:
    """And what it kept is what one undisturbed kept, byte for byte on disk."""
    options: dict[str, Any] = {"student": STUDENT | {"replay_store": store}, **DIGITS}
    assert clone(tmp_path / "whole", Recording(), **options).finished
    assert not clone(tmp_path / "run", Recording(at={7: ctrl_c}), **options).finished
    with pytest.raises(TeacherError, match="gone"):
        clone(tmp_path / "run", Recording(at={4: break_down}), resume=True, **options)
    assert clone(tmp_path / "run", Recording(), resume=True, **options).finished
    kept = [everything(paid_answers(tmp_path / name)) for name in ("whole", "run")]
    assert torch.equal(kept[0][0], kept[1][0])
    assert torch.equal(kept[0][1], kept[1][1])
    students = [(tmp_path / name / "student.safetensors").read_bytes() for name in ("whole", "run")]
    assert students[0] == students[1]
    if store == "disk":
        found = [
            {path.name: path.read_bytes() for path in (tmp_path / name / "replay").iterdir()}
            for name in ("whole", "run")
        ]
        assert found[0] == found[1]
