"""--until-agreement: ends a run on what is held back, never on the evaluation set, and goes on to a higher goal."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from small_runs import Metered, clone, ctrl_c, no_pictures, student
from torch import nn

import dfme
from dfme.errors import UserError
from dfme.report.facts import wilson_interval
from dfme.run.evaluation import HoldOut
from dfme.run.goal import Goal
from dfme.spec import ImageSpec, LabelMode

SPEC = ImageSpec((1, 1, 1))
LOW, HIGH = 0.3, 0.5
RUN: dict[str, Any] = {"budget": 2_400, "evaluation": {"dataset": "digits", "limit": 40, "points": 12}}


class Fixed(nn.Module):
    """Names the class that the image's one pixel is, or 0 for every image."""

    def __init__(self, constant: bool = False) -> None:
        super().__init__()
        self.constant = constant

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        classes = x.flatten(1)[:, 0].long()
        return nn.functional.one_hot(classes * (not self.constant), 4).float()


def held(wrong: int, classes: int = 4, images: int = 100) -> HoldOut:
    """Held-back images whose teacher's class the fixed student names, but for so many."""
    hold_out = HoldOut(LabelMode("label"), SPEC, every=1)
    pixels = torch.arange(images).remainder(classes)
    answers = torch.where(torch.arange(images) < wrong, (pixels + 1) % 4, pixels)
    assert hold_out.hold_out(pixels.float().view(-1, 1, 1, 1), answers)
    return hold_out


@pytest.mark.parametrize(("wrong", "reached"), [(0, True), (3, True), (4, False), (20, False)])
def test_a_goal_is_reached_when_the_interval_lies_above_it(wrong: int, reached: bool) -> None:
    goal = Goal(0.91, held(wrong), own=True)
    assert goal.look(Fixed(), {}) == {"held_back_agreement": pytest.approx(1 - wrong / 100)}
    assert goal.latest["at_least"] == wilson_interval(1 - wrong / 100, 100)[0]
    assert goal.reached is reached  # by hand: 97 of 100 give an interval from 91.5 %, 96 from 90.2 %


def test_one_class_for_everything_reaches_no_goal() -> None:
    """A teacher that names one class on all that it is asked says nothing about the others."""
    goal = Goal(0.9, held(0, classes=1), own=True)
    assert goal.look(Fixed(constant=True), {}) == {"held_back_agreement": 1.0}
    assert goal.latest["one_class"] == 1.0
    assert not goal.reached


def test_before_anything_is_held_back_nothing_is_known() -> None:
    goal = Goal(0.1, HoldOut(LabelMode("label"), SPEC), own=True)
    assert goal.look(Fixed(), {}) == {}
    assert not goal.reached


@pytest.mark.integration
def test_a_run_ends_at_its_goal_and_goes_on_to_a_higher_one_bit_for_bit(tmp_path: Path) -> None:
    teacher = Metered()
    with no_pictures():
        first = clone(tmp_path / "a", teacher, until_agreement=LOW, **RUN)
        again = clone(tmp_path / "a", teacher, until_agreement=LOW, resume=True, **RUN)
        asked = teacher.served
        higher = clone(tmp_path / "a", teacher, until_agreement=HIGH, resume=True, **RUN)
        at_once = clone(tmp_path / "b", Metered(), until_agreement=HIGH, **RUN)
    summary, seen = first.summary, first.summary["held_back"]
    assert (summary["ended_by"], first.finished) == ("until_agreement", True)
    assert summary["spent"] < higher.summary["spent"] <= RUN["budget"]
    assert asked == summary["spent"] + 40  # what was not needed was not asked
    assert again.summary == summary
    assert seen["goal"] == LOW <= seen["at_least"] == wilson_interval(seen["agreement"], seen["images"])[0]
    assert seen["images"] == summary["spent"] // 20 // 20 * 20  # one batch in twenty, of twenty images
    assert student(tmp_path / "a") == student(tmp_path / "b")
    same = ("spent", "ended_by", "held_back", "agreement", "accuracy", "student_steps")
    assert [higher.summary[name] for name in same] == [at_once.summary[name] for name in same]
    records = [json.loads(line) for line in (tmp_path / "b" / "metrics.jsonl").read_text().splitlines()]
    assert [each["held_back_agreement"] for each in records if "held_back_agreement" in each][-1] == pytest.approx(
        at_once.summary["held_back"]["agreement"]
    )


@pytest.mark.integration
def test_a_goal_that_is_not_reached_spends_the_budget_and_a_stop_changes_nothing(tmp_path: Path) -> None:
    changes = {**RUN, "budget": 1_000, "until_agreement": 0.8}
    with no_pictures():
        whole = clone(tmp_path / "a", Metered(), **changes)
        assert not clone(tmp_path / "b", Metered({30: ctrl_c}), **changes).finished
        resumed = clone(tmp_path / "b", Metered(), resume=True, **changes)
    assert (whole.summary["ended_by"], whole.summary["spent"]) == ("budget", 1_000)
    assert resumed.summary["held_back"] == whole.summary["held_back"]
    assert student(tmp_path / "a") == student(tmp_path / "b")


def test_without_an_evaluation_set_the_same_images_serve_both(tmp_path: Path) -> None:
    with no_pictures():
        whole = {"budget": 2_400, "evaluation": {"dataset": "none", "points": 12}}
        result = clone(tmp_path / "a", Metered(), until_agreement=LOW, **whole)
        plain = clone(tmp_path / "b", Metered(), budget=40)
    assert result.summary["ended_by"] == "until_agreement"
    assert result.summary["agreement"] == result.summary["held_back"]["agreement"]
    assert (plain.summary["ended_by"], plain.summary["held_back"]) == ("budget", None)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"until_agreement": 90}, "expected a number above 0 to 0.99, got 90"),
        ({"until_agreement": 0.9, "budget": 799}, "expected a budget of 800 images or more: 35 must be held back"),
        ({"until_agreement": 0.5, "student": {"steps": 50, "final_share": 1.0}}, "here they learn afterwards"),
        ({"until_agreement": 0.5, "method": "knockoff", "method_options": {}, "student": {}}, "they learn afterwards"),
    ],
)
def test_a_goal_that_cannot_be_reached_is_refused_before_the_first_query(
    tmp_path: Path, changes: dict[str, Any], says: str
) -> None:
    teacher = Metered()
    with pytest.raises(UserError, match=says):
        clone(tmp_path / "a", teacher, **{"budget": 50_000} | changes)
    assert teacher.calls == 0


def test_python_knows_the_option() -> None:
    with pytest.raises(UserError, match="until_agreement"):
        dfme.extract(lambda x: x, shape=(1, 8, 8), num_classes=2, until_agreement=2.0)
