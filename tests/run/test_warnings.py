"""What a run says of itself: by the teacher's own count, early enough, exactly after a resume, and never in vain."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import small_runs
import torch
from small_runs import BUDGET, Metered, clone, ctrl_c
from torch import Tensor

from dfme.cli.main import main
from dfme.errors import RunError
from dfme.run.checkpoint import load_checkpoint, save_checkpoint


@pytest.fixture(scope="module", autouse=True)
def _no_pictures() -> Iterator[None]:
    with small_runs.no_pictures():
        yield


class Counting(Metered):
    """Counts its answers by class, whatever they were for."""

    def __init__(self, at: Any = None) -> None:
        super().__init__(at)
        self.by_class = [0] * 10

    def __call__(self, images: Tensor) -> Tensor:
        answers = super().__call__(images)
        for label in answers.argmax(dim=1).tolist():
            self.by_class[label] += 1
        return answers


class OneAnswer(Metered):
    """Knows one class, and remembers how many images it had served when it was first found out."""

    def __call__(self, images: Tensor) -> Tensor:
        self.served += len(images)
        return torch.eye(10)[torch.full((len(images),), 3)]


def test_paid_answers_are_counted_as_the_teacher_counts_them(tmp_path: Path) -> None:
    teacher = Counting()
    told = clone(tmp_path / "run", teacher).summary
    assert told["answers"]["queries"] == teacher.by_class
    assert sum(told["answers"]["queries"]) == told["spent"] == BUDGET
    assert sum(told["answers"]["teacher"]) == sum(told["answers"]["student"]) == told["evaluation"]["images"]
    held = max(told["answers"]["teacher"]) / told["evaluation"]["images"]
    assert told["baselines"] == {"constant_agreement": held, "constant_accuracy": None, "chance": 0.1}


def test_evaluation_images_are_not_among_the_paid(tmp_path: Path) -> None:
    teacher = Counting()
    told = clone(tmp_path / "run", teacher, evaluation={"dataset": "digits", "limit": 100}).summary
    assert sum(teacher.by_class) == BUDGET + 100
    added = [sum(pair) for pair in zip(told["answers"]["queries"], told["answers"]["teacher"], strict=True)]
    assert added == teacher.by_class
    assert told["baselines"]["constant_accuracy"] == pytest.approx(0.1, abs=0.03)
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["answers"] == told["answers"]


def test_a_resumed_run_says_what_one_in_a_stretch_says(tmp_path: Path, whole: Path) -> None:
    whole_summary = json.loads((whole / "summary.json").read_text())
    small_runs.cut_short(tmp_path / "run")
    found = clone(tmp_path / "run", Metered(), resume=True).summary
    for name in ("baselines", "answers", "warnings"):
        assert found[name] == whole_summary[name]


def test_a_run_begun_by_an_earlier_version_goes_on_without_the_count(tmp_path: Path) -> None:
    out = tmp_path / "run"
    clone(out, Metered({7: ctrl_c}))
    state = load_checkpoint(out / "checkpoint.pt")
    del state["oracle"]["answered"]
    save_checkpoint(out / "checkpoint.pt", state)
    found = clone(out, Metered(), resume=True)
    assert found.finished
    assert found.summary["answers"]["queries"] is None
    assert found.summary["answers"]["teacher"] is not None


@pytest.mark.parametrize("counts", [[-1] + [0] * 9, [BUDGET + 1] + [0] * 9, [0] * 9, None])
def test_counts_that_are_none_are_refused_in_one_line(tmp_path: Path, counts: list[int] | None) -> None:
    out = tmp_path / "run"
    clone(out, Metered({7: ctrl_c}))
    state = load_checkpoint(out / "checkpoint.pt")
    state["oracle"]["answered"] = "many" if counts is None else torch.tensor(counts)
    save_checkpoint(out / "checkpoint.pt", state)
    with pytest.raises(RunError, match="answers by class: expected"):
        clone(out, Metered(), resume=True)


def test_a_teacher_of_one_answer_is_told_before_anything_is_paid(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """0.6.0 called this an agreement of 100%, and said nothing more."""
    teacher, paid = OneAnswer(), []
    caplog.set_level(logging.WARNING, "dfme")
    monkeypatch.setattr(caplog.handler, "emit", lambda record: paid.append((teacher.served, record.getMessage())))
    told = clone(tmp_path / "run", teacher, evaluation={"dataset": "digits", "limit": 100}).summary
    assert told["agreement"] == told["baselines"]["constant_agreement"] == 1.0
    (line,) = told["warnings"]
    assert "the teacher answers class 3 to all 100 evaluation images, so agreement says nothing" in line
    # By the logger, as there is no console: once, when only the evaluation had been asked.
    assert paid == [(100, f"warning: {line}")]
    clone(tmp_path / "run", teacher, resume=True, evaluation={"dataset": "digits", "limit": 100})
    assert paid[1:] == [(100 + BUDGET, f"warning: {line}")], "who asks for a finished run's result hears it, too"


def test_one_class_among_the_paid_is_told_while_most_of_the_budget_is_left(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    teacher, paid = OneAnswer(), []
    monkeypatch.setattr(caplog.handler, "emit", lambda record: paid.append((teacher.served, record.getMessage())))
    told = clone(tmp_path / "run", teacher).summary
    assert paid[0][0] == 100 < BUDGET
    assert paid[0][1].startswith("warning: the teacher answered class 3 to 100.0% of the 100 images paid for so far")
    assert len(told["warnings"]) == 1
    assert "to all 20 held-back queries, so agreement says nothing" in told["warnings"][0]


def test_a_student_that_learns_nothing_is_told_why_by_the_runs_own_record(tmp_path: Path) -> None:
    still: dict[str, Any] = {
        "student": {"lr": 1e-9, "replay_steps": 1, "replay_batch": 8},
        "evaluation": {"dataset": "digits", "limit": 50, "points": 20},
        "method_options": {"batch_size": 20, "student_steps": 1, "latent_size": 16},
    }
    told = clone(tmp_path / "still", Metered(), **still).summary
    assert "a rate that does not suit: the loss did not fall (" in told["warnings"][-1]
    in_rounds = {**still, "student": {"lr": 1e-9, "steps": 20, "rounds": (0.5, 1.0)}}
    told = clone(tmp_path / "rounds", Metered(), **in_rounds).summary
    assert "try --method.name knockoff" in told["warnings"][-1], "losses at the ends of rounds tell no fall"


def test_the_command_line_shows_baselines_and_warnings(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "stuck.py").write_text(
        "import torch\n\n\ndef answer(*_):\n    return lambda images: torch.eye(10)[torch.full((len(images),), 3)]\n"
    )
    words = "--teacher stuck:answer --teacher.shape 1,8,8 --teacher.num-classes 10 --evaluation.dataset digits"
    small = "--method.name static --method.batch-size 20 --budget 100 --evaluation.limit 50 --out run"
    assert main([*words.split(), *small.split()]) == 0
    out, err = (" ".join(text.split()) for text in capsys.readouterr())  # whatever the width
    assert "constant answer accuracy 16.00%, agreement 100.00%; a guess: 10.00%" in out
    told, begun = "the teacher answers class 3 to all 50 evaluation images", "100 / 100 queries"
    assert f"warning {told}" in out
    assert err.index(f"warning: {told}") < err.index(begun)


RECIPES = {
    **{"digits": (10_000, 1_500), "digits_dfms": (15_000, 500), "digits_disguide": (5_000, 600)},
    **{"digits_dni": (20_000, None), "digits_dual_students": (5_000, 600), "digits_frugal": (3_000, 1_500)},
    **{"digits_knockoff": (10_000, None), "digits_maze": (20_000, 600), "digits_paper": (40_000, None)},
    **{"digits_procedural": (10_000, None), "digits_static": (20_000, None)},
}
"""Our recipes, and fewer queries than their own, and fewer student steps where those are many."""


@pytest.mark.integration
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", RECIPES)
def test_a_run_of_our_recipes_is_warned_of_nothing(name: str, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = Path(__file__).parents[2] / "configs" / f"{name}.yaml"
    budget, steps = RECIPES[name]
    fewer = [] if steps is None else ["--student.steps", str(steps)]
    assert main(["--config", str(recipe), "--budget", str(budget), "--out", "run", "--device", "cpu", *fewer]) == 0
    assert json.loads((here / "run" / "summary.json").read_text())["warnings"] == []
    assert "warning: the" not in capsys.readouterr().err
