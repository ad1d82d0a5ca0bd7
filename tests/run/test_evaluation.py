"""Scores by hand, and what is asked of the teacher to get them."""

import math
from pathlib import Path

import pytest
import torch
from small_runs import Metered, clone, ctrl_c
from torch import nn
from toys import LinearTeacher, small_net

from dfme.oracle.ledger import Ledger
from dfme.oracle.oracle import Oracle
from dfme.run.evaluation import EvaluationSet, Examination, HoldOut, score_all
from dfme.run.scores import compare, scores
from dfme.spec import ImageSpec, LabelMode

SPEC = ImageSpec((1, 4, 4))


def test_agreement_and_kl_by_hand():
    answers = torch.tensor([[0.75, 0.25], [0.4, 0.6]])
    student = torch.tensor([[math.log(0.5), math.log(0.5)], [math.log(0.9), math.log(0.1)]])
    kl = (0.75 * math.log(1.5) + 0.25 * math.log(0.5) + 0.4 * math.log(0.4 / 0.9) + 0.6 * math.log(6)) / 2
    result = compare(student, answers, LabelMode("probabilities"))
    assert result["agreement"] == 0.5
    assert result["kl"] == pytest.approx(kl, rel=1e-5)


def test_labels_give_agreement_and_no_divergence():
    assert compare(torch.eye(3), torch.tensor([0, 1, 1]), LabelMode("label")) == {"agreement": pytest.approx(2 / 3)}


def test_the_teacher_is_asked_once_and_not_charged():
    teacher = LinearTeacher(SPEC)
    oracle = Oracle(teacher, Ledger(10))
    images = torch.rand(1_203, 1, 4, 4, generator=torch.Generator().manual_seed(0))
    labels = teacher.logits(images).argmax(dim=1)
    labels[:203] = (labels[:203] + 1) % 3
    examination = EvaluationSet("toy", images, labels, teacher.label_mode, lambda x: oracle(x, "evaluation"))
    examination.prepare()
    examination.prepare()
    assert teacher.images == oracle.ledger.evaluation_queries == 1_203
    assert oracle.ledger.spent == 0
    assert examination.teacher_accuracy == pytest.approx(1_000 / 1_203)

    class Twin(nn.Module):
        def forward(self, x):
            return teacher.logits(x)

    result = examination.score(Twin())
    assert result["agreement"] == 1.0
    assert result["accuracy"] == pytest.approx(1_000 / 1_203)
    assert result["kl"] == pytest.approx(0.0, abs=1e-6)


def test_scoring_leaves_the_mode_and_the_statistics_as_they_were():
    net = small_net(SPEC).train()
    before = {key: value.clone() for key, value in net.state_dict().items()}
    scores(net, torch.rand(8, 1, 4, 4))
    assert net.training
    assert all(torch.equal(value, before[key]) for key, value in net.state_dict().items())


def test_every_nth_paid_batch_is_held_back_and_the_newest_are_kept():
    held = HoldOut(LabelMode("label"), SPEC, every=3, keep=10)
    taken = [held.hold_out(torch.full((4, 1, 4, 4), float(n)), torch.full((4,), n)) for n in range(1, 13)]
    assert [n for n, was_taken in enumerate(taken, 1) if was_taken] == [3, 6, 9, 12]
    assert held.state_dict()["answers"].tolist() == [6, 6, 9, 9, 9, 9, 12, 12, 12, 12]
    assert len(held) == 10


def test_without_held_back_images_there_is_no_score():
    assert HoldOut(LabelMode("label"), SPEC).score(small_net(SPEC)) == {}


def test_the_students_last_evaluation_is_not_made_again(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[nn.Module] = []

    def score(examination: Examination, student: nn.Module, vote: nn.Module | None) -> dict[str, float]:
        made.append(student)
        return score_all(examination, student, vote)

    monkeypatch.setattr("dfme.run.run.score_all", score)
    images = torch.rand(40, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    evaluation = {"images": images, "points": 2}
    for out, teacher, again in (("whole", Metered(), 0), ("stopped", Metered({13: ctrl_c}), 1)):
        result = clone(here / out, teacher, evaluation=evaluation, device="cpu")
        assert (result.finished, len(made)) == (not again, again)
        with torch.no_grad():
            alike = result.student(images).argmax(1) == Metered()(images).argmax(1)
        assert result.summary["agreement"] == alike.double().mean().item()
