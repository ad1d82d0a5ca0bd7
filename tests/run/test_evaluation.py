"""Scores by hand, what is asked to get them, and --until-agreement, which ends a run on what is
held back.
"""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from begun import refused_run
from small_runs import Metered, break_down, clone, ctrl_c, student
from torch import nn
from toys import LinearTeacher, small_net

from dfme.config.settings import Job
from dfme.errors import RunError, TeacherError
from dfme.oracle.ledger import Ledger
from dfme.oracle.ledger_log import audit
from dfme.oracle.oracle import Oracle
from dfme.report.metrics import read_metrics
from dfme.run import build
from dfme.run.evaluation import EvaluationSet, Examination, HoldOut, score_all
from dfme.run.loop import Goal
from dfme.run.scores import compare, scores
from dfme.spec import ImageSpec, LabelMode
from dfme.statistics import wilson_interval

pytestmark = pytest.mark.full("generator")

SPEC = ImageSpec((1, 4, 4))


def test_agreement_and_kl_by_hand():
    answers = torch.tensor([[0.75, 0.25], [0.4, 0.6]])
    student = torch.tensor([[math.log(0.5), math.log(0.5)], [math.log(0.9), math.log(0.1)]])
    kl = (
        0.75 * math.log(1.5) + 0.25 * math.log(0.5) + 0.4 * math.log(0.4 / 0.9) + 0.6 * math.log(6)
    ) / 2
    result = compare(student, answers, LabelMode("probabilities"))
    assert (result["agreement"], result["kl"]) == (0.5, pytest.approx(kl, rel=1e-5))


def test_the_teacher_is_asked_once_and_not_charged():
    teacher = LinearTeacher(SPEC)
    oracle = Oracle(teacher, Ledger(10))
    images = torch.rand(1_203, 1, 4, 4, generator=torch.Generator().manual_seed(0))
    labels = teacher.logits(images).argmax(dim=1)
    labels[:203] = (labels[:203] + 1) % 3
    examination = EvaluationSet(
        "toy", images, labels, teacher.label_mode, lambda x: oracle(x, "evaluation")
    )
    examination.prepare()
    examination.prepare()
    assert teacher.images == oracle.ledger.evaluation_queries == 1_203
    assert oracle.ledger.spent == 0
    assert examination.teacher_accuracy == pytest.approx(1_000 / 1_203)

    class Twin(nn.Module):
        def forward(self, x):
            return teacher.logits(x)

    result = examination.score(Twin())
    assert (result["agreement"], result["accuracy"]) == (1.0, pytest.approx(1_000 / 1_203))
    assert result["kl"] == pytest.approx(0.0, abs=1e-6)


def test_runs_of_one_teacher_share_its_answers_and_each_other_teacher_is_asked(tmp_path: Path):
    teacher = LinearTeacher(SPEC)
    images = torch.rand(20, 1, 4, 4, generator=torch.Generator().manual_seed(0))
    facts = {
        "label_mode": "probabilities",
        "files": {"a": "0"},
        "shape": [1, 4, 4],
        "num_classes": 3,
    }

    def shared(
        facts: dict[str, Any], images=images, mode=teacher.label_mode
    ) -> tuple[bool, EvaluationSet]:
        on = EvaluationSet("toy", images, None, mode, teacher)
        return on.prepare(tmp_path, facts), on

    asked, first = shared(facts)
    again, second = shared(facts | {"defences": ["mad"]})  # asked undefended
    assert (asked, again, teacher.images) == (True, False, 20)
    assert torch.equal(first.answers, second.answers)
    for other in (facts | {"files": {"a": "1"}}, facts | {"label_mode": "logits"}):
        assert shared(other)[0]
    assert shared(facts, images=images.flip(0))[0]
    assert teacher.images == 80
    for path in tmp_path.glob("*/answers.pt"):
        path.write_bytes(path.read_bytes()[:-50])
    with pytest.raises(RunError, match=r"answers\.pt"):
        shared(facts)


@pytest.mark.integration
def test_a_run_that_took_its_answers_resumes_with_them_after_a_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    run_job = build.run_job

    def sharing(job: Job, **others: Any) -> Any:
        config = replace(job.config, shared_answers=str(tmp_path / "shared"))
        return run_job(replace(job, config=config), **others)

    monkeypatch.setattr(build, "run_job", sharing)
    runs = {name: tmp_path / name for name in ("asks", "takes")}
    images = torch.rand(30, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    asking = Metered()
    clone(runs["asks"], asking, evaluation={"images": images})
    taking = Metered(at={3: break_down})
    with pytest.raises(TeacherError):
        clone(runs["takes"], taking, evaluation={"images": images})
    taken = Metered()
    clone(runs["takes"], taken, evaluation={"images": images}, resume=True)
    ledgers = {name: audit(path / "ledger.jsonl") for name, path in runs.items()}
    assert [each.evaluation_queries for each in ledgers.values()] == [30, 0]
    assert asking.images == ledgers["asks"].served
    assert taking.images + taken.images == ledgers["takes"].served
    assert student(runs["takes"]) == student(runs["asks"])


@pytest.mark.integration
def test_a_student_that_did_not_change_is_scored_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    scored = list[int]()
    plain = EvaluationSet.score
    monkeypatch.setattr(EvaluationSet, "score", lambda on, net: scored.append(1) or plain(on, net))
    student = {"arch": "cnn_small", "steps": 12, "rounds": (0.5, 1.0), "replay_batch": 8}
    images = torch.rand(30, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    clone(tmp_path / "a", Metered(), evaluation={"images": images, "points": 10}, student=student)
    records = [
        record for record in read_metrics(tmp_path / "a" / "metrics.jsonl") if "agreement" in record
    ]
    values = [record["agreement"] for record in records]
    assert len(records) > len(scored) >= len(set(values))


def test_scoring_leaves_the_mode_and_the_statistics_as_they_were():
    net = small_net(SPEC).train()
    before = {key: value.clone() for key, value in net.state_dict().items()}
    scores(net, torch.rand(8, 1, 4, 4))
    assert net.training
    assert all(torch.equal(value, before[key]) for key, value in net.state_dict().items())


def test_every_nth_paid_batch_is_held_back_and_the_newest_are_kept():
    held = HoldOut(LabelMode("label"), SPEC, every=3, keep=10)
    taken = [
        held.hold_out(torch.full((4, 1, 4, 4), float(n)), torch.full((4,), n)) for n in range(1, 13)
    ]
    assert [n for n, was_taken in enumerate(taken, 1) if was_taken] == [3, 6, 9, 12]
    assert held.state_dict()["answers"].tolist() == [6, 6, 9, 9, 9, 9, 12, 12, 12, 12]
    assert len(held) == 10


def test_the_students_last_evaluation_is_not_made_again(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scored: list[nn.Module] = []

    def score(
        examination: Examination, student: nn.Module, vote: nn.Module | None
    ) -> dict[str, float]:
        scored.append(student)
        return score_all(examination, student, vote)

    monkeypatch.setattr("dfme.run.run.score_all", score)
    images = torch.rand(40, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    evaluation = {"images": images, "points": 2}
    for out, teacher, again in (("whole", Metered(), 0), ("stopped", Metered({13: ctrl_c}), 1)):
        result = clone(here / out, teacher, evaluation=evaluation, device="cpu")
        assert (result.finished, len(scored)) == (not again, again)
        with torch.no_grad():
            alike = result.student(images).argmax(1) == Metered()(images).argmax(1)
        assert result.summary["agreement"] == alike.double().mean().item()


# --until-agreement


PIXEL = ImageSpec((1, 1, 1))
LOW, HIGH = 0.3, 0.5
RUN: dict[str, Any] = {
    "budget": 2_400,
    "evaluation": {"dataset": "digits", "limit": 40, "points": 12},
}


class Fixed(nn.Module):
    """Names the class that the image's one pixel is, or 0 for every image."""

    def __init__(self, constant: bool = False) -> None:
        super().__init__()
        self.constant = constant

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.one_hot(x.flatten(1)[:, 0].long() * (not self.constant), 4).float()


def held(wrong: int, classes: int = 4, images: int = 100) -> HoldOut:
    """Held-back images whose teacher's class the fixed student names, but for so many."""
    hold_out = HoldOut(LabelMode("label"), PIXEL, every=1)
    pixels = torch.arange(images).remainder(classes)
    answers = torch.where(torch.arange(images) < wrong, (pixels + 1) % 4, pixels)
    assert hold_out.hold_out(pixels.float().view(-1, 1, 1, 1), answers)
    return hold_out


@pytest.mark.parametrize(("wrong", "reached"), [(0, True), (3, True), (4, False), (20, False)])
def test_a_goal_is_reached_when_the_interval_lies_above_it(wrong: int, reached: bool) -> None:
    goal = Goal(0.91, held(wrong), own=True)
    assert goal.look(Fixed(), {}) == {"held_back_agreement": pytest.approx(1 - wrong / 100)}
    assert goal.latest["at_least"] == wilson_interval(1 - wrong / 100, 100)[0]
    assert (
        goal.reached is reached
    )  # by hand: 97 of 100 give an interval from 91.5 %, 96 from 90.2 %


def test_one_class_for_everything_reaches_no_goal() -> None:
    """A teacher that names one class on all that it is asked says nothing about the others."""
    goal = Goal(0.9, held(0, classes=1), own=True)
    assert goal.look(Fixed(constant=True), {}) == {"held_back_agreement": 1.0}
    assert goal.latest["one_class"] == 1.0
    assert not goal.reached


def test_before_anything_is_held_back_nothing_is_known() -> None:
    nothing = HoldOut(LabelMode("label"), PIXEL)
    goal = Goal(0.1, nothing, own=True)
    assert nothing.score(Fixed()) == {}
    assert goal.look(Fixed(), {}) == {}
    assert not goal.reached


@pytest.mark.integration
def test_a_run_ends_at_its_goal_and_goes_on_to_a_higher_one_bit_for_bit(tmp_path: Path) -> None:
    teacher = Metered()
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
    assert (
        seen["goal"]
        == LOW
        <= seen["at_least"]
        == wilson_interval(seen["agreement"], seen["images"])[0]
    )
    assert (
        seen["images"] == summary["spent"] // 20 // 20 * 20
    )  # one batch in twenty, of twenty images
    assert student(tmp_path / "a") == student(tmp_path / "b")
    same = ("spent", "ended_by", "held_back", "agreement", "accuracy", "student_steps")
    assert [higher.summary[name] for name in same] == [at_once.summary[name] for name in same]
    last = [
        each["held_back_agreement"] for each in at_once.metrics if "held_back_agreement" in each
    ][-1]
    assert last == pytest.approx(at_once.summary["held_back"]["agreement"])


def test_without_an_evaluation_set_the_same_images_serve_both(tmp_path: Path) -> None:
    whole = {"budget": 2_400, "evaluation": {"dataset": "none", "points": 12}}
    result = clone(tmp_path / "a", Metered(), until_agreement=LOW, **whole)
    plain = clone(tmp_path / "b", Metered(), budget=40)
    assert result.summary["ended_by"] == "until_agreement"
    assert result.summary["agreement"] == result.summary["held_back"]["agreement"]
    assert (plain.summary["ended_by"], plain.summary["held_back"]) == ("budget", None)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"until_agreement": 90}, "0 to 0.99, got 90"),
        ({"budget": 799, "until_agreement": 0.9}, "800 images or more"),
        ({"student": {"steps": 50, "rounds": (1.0,)}}, "learn afterwards"),
        ({"method": "knockoff", "method_options": {}, "student": {}}, "learn afterwards"),
    ],
)
def test_a_goal_that_cannot_be_reached_is_refused_before_the_first_query(
    tmp_path: Path, changes: dict[str, Any], says: str
) -> None:
    refused_run(tmp_path / "a", says, **{"budget": 50_000, "until_agreement": 0.5} | changes)
