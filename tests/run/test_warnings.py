"""What a run says of itself: by the teacher's own count, and early enough."""

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from small_runs import BUDGET, Metered, clone
from torch import Tensor

from dfme.cli.main import main
from dfme.run.job import PROJECT

pytestmark = pytest.mark.full("generator")

SCORED: dict[str, Any] = {"evaluation": {"dataset": "digits", "limit": 100}}


class Counting(Metered):
    """Counts its answers by class, whatever they were for."""

    def __init__(self) -> None:
        super().__init__()
        self.by_class = [0] * 10

    def __call__(self, images: Tensor) -> Tensor:
        answers = super().__call__(images)
        for label in answers.argmax(dim=1).tolist():
            self.by_class[label] += 1
        return answers


class OneAnswer(Metered):
    """Knows one class."""

    def __call__(self, images: Tensor) -> Tensor:
        self.served += len(images)
        return torch.eye(10)[torch.full((len(images),), 3)]


Heard = tuple[OneAnswer, list[tuple[int, str]]]


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Heard:
    """A teacher, and what the logger says, as there is no console, with the images served by
    then.
    """
    teacher, lines = OneAnswer(), list[tuple[int, str]]()
    caplog.set_level(logging.WARNING, "dfme")
    emit = lambda record: lines.append((teacher.served, record.getMessage()))  # noqa: E731
    monkeypatch.setattr(caplog.handler, "emit", emit)
    return teacher, lines


def test_paid_answers_are_counted_as_the_teacher_counts_them(
    tmp_path: Path,
) -> None:
    teacher = Counting()
    summary = clone(tmp_path / "run", teacher, **SCORED).summary
    assert sum(teacher.by_class) == BUDGET + 100
    answers = summary["answers"]
    counts = zip(answers["queries"], answers["teacher"], strict=True)
    assert [sum(pair) for pair in counts] == teacher.by_class
    assert sum(answers["queries"]) == summary["spent"] == BUDGET
    assert sum(answers["teacher"]) == sum(answers["student"]) == 100
    assert summary["baselines"]["constant_agreement"] == max(answers["teacher"]) / 100
    assert summary["baselines"]["constant_accuracy"] == pytest.approx(0.1, abs=0.03)
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["answers"] == answers


def test_a_teacher_of_one_answer_is_told_before_anything_is_paid(
    tmp_path: Path, heard: Heard
) -> None:
    teacher, lines = heard
    summary = clone(tmp_path / "run", teacher, **SCORED).summary
    assert summary["agreement"] == summary["baselines"]["constant_agreement"] == 1.0
    (line,) = summary["warnings"]
    assert "class 3 to all 100 evaluation images" in line
    assert lines == [(100, f"warning: {line}")], "once, when only the evaluation had been asked"
    clone(tmp_path / "run", teacher, resume=True, **SCORED)
    assert lines[1:] == [(100 + BUDGET, f"warning: {line}")], "with a finished run's result, too"


def test_one_class_among_the_paid_is_told_while_most_of_the_budget_is_left(
    tmp_path: Path, heard: Heard
) -> None:
    teacher, lines = heard
    summary = clone(tmp_path / "run", teacher).summary
    assert lines[0][0] == 100 < BUDGET
    assert "class 3 to 100.0% of the 100 images" in lines[0][1]
    (line,) = summary["warnings"]
    assert "to all 20 held-back queries" in line


def test_a_student_that_learns_nothing_is_told_why_by_the_runs_own_record(tmp_path: Path) -> None:
    still: dict[str, Any] = {
        "student": {"lr": 1e-9, "replay_steps": 1, "replay_batch": 8},
        "evaluation": {"dataset": "digits", "limit": 50, "points": 20},
        "method_options": {"batch_size": 20, "student_steps": 1, "latent_size": 16},
    }
    result = clone(tmp_path / "still", Metered(), **still).summary
    assert "the loss did not fall (" in result["warnings"][-1]
    in_rounds = {**still, "student": {"lr": 1e-9, "steps": 20, "rounds": (0.5, 1.0)}}
    result = clone(tmp_path / "rounds", Metered(), **in_rounds).summary
    assert "images that it was trained on it agrees on" in result["warnings"][-1], (
        "losses there tell no fall"
    )
    assert "images unlike" not in " ".join(result["warnings"])


def test_the_command_line_shows_baselines_and_warnings(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "stuck.py").write_text(
        "import torch\n\n\ndef answer(*_):\n    return lambda images: "
        "torch.eye(10)[torch.full((len(images),), 3)]\n"
    )
    words = (
        "--teacher stuck:answer --teacher.shape 1,8,8 --teacher.num-classes 10 "
        "--evaluation.dataset digits"
    )
    words += (
        " --method.name static --method.batch-size 20 --budget 100 --evaluation.limit 50 --out run"
    )
    assert main(words.split()) == 0
    out, err = (" ".join(text.split()) for text in capsys.readouterr())  # whatever the width
    assert "constant answer accuracy 16.00%, agreement 100.00%; a guess: 10.00%" in out
    warned = "the teacher answers class 3 to all 50 evaluation images"
    assert f"warning {warned}" in out
    assert err.index(f"warning: {warned}") < err.index("100 / 100 queries")


RECIPES = {
    **{"digits": (3_000, 400), "digits_dfms": (3_000, 150), "digits_disguide": (2_500, 300)},
    **{
        "digits_dni": (10_000, None),
        "digits_dual_students": (2_500, 300),
        "digits_frugal": (1_500, 400),
    },
    **{
        "digits_knockoff": (5_000, None),
        "digits_maze": (20_000, 600),
        "digits_paper": (20_000, None),
    },
    **{"digits_procedural": (2_500, 400), "digits_static": (3_000, 400)},
}
"""Our recipes, and fewer queries than their own, and fewer student steps where those are many."""


@pytest.mark.integration
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", RECIPES)
def test_a_run_of_our_recipes_is_warned_of_nothing(
    name: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    budget, steps = RECIPES[name]
    words = (
        f"--config {PROJECT}/configs/{name}.yaml --budget {budget} --out run --device cpu".split()
    )
    assert main(words + ([] if steps is None else ["--student.steps", str(steps)])) == 0
    assert json.loads((here / "run" / "summary.json").read_text())["warnings"] == []
    assert "warning: the" not in capsys.readouterr().err
