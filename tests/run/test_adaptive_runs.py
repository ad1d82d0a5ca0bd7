"""Whole runs that make something of a teacher's answers: what they pay, how they resume."""

from pathlib import Path
from typing import Any

import pytest
import torch
from small_runs import BATCH, Metered, clone, student
from torch import Tensor

from dfme.answers.recover import make_recovery
from dfme.config.sections import AnswersConfig
from dfme.config.settings import ExtractConfig, StudentConfig
from dfme.errors import UserError
from dfme.run.retrain import paid_answers, read_again, retrain
from dfme.spec import LabelMode

REVERSE = "reverse_sigmoid:beta=0.7"


class Digital(Metered):
    """Soft answers, or their top classes."""

    def __init__(self, labels: bool) -> None:
        super().__init__()
        self._labels = labels

    def __call__(self, images: Tensor) -> Tensor:
        return super().__call__(images).argmax(1) if self._labels else super().__call__(images)


@pytest.mark.parametrize("method", ["static", "procedural"])
def test_labels_learnt_are_those_of_a_teacher_that_answers_labels(
    method: str, tmp_path: Path
) -> None:
    options = {"batch_size": BATCH} | ({"latent_size": 16} if method == "static" else {})
    own = {"lr": 0.01, "replay_steps": 1, "replay_batch": 8}
    common: dict[str, Any] = {"method": method, "method_options": options, "student": own}
    common["evaluation"] = {"dataset": "digits", "points": 2, "limit": 60}
    alone = clone(tmp_path / "alone", Digital(True), 200, label_mode="label", **common)
    soft = clone(tmp_path / "soft", Digital(False), 200, answers={"learn": "label"}, **common)
    assert student(tmp_path / "soft") == student(tmp_path / "alone")
    assert soft.summary["agreement"] == alone.summary["agreement"]
    assert soft.summary["label_mode"] == "probabilities"
    assert soft.summary["config_hash"] != alone.summary["config_hash"]
    clone(tmp_path / "other", Digital(False), 200, **common)
    assert student(tmp_path / "other") != student(tmp_path / "soft")


@pytest.mark.parametrize(("learn", "loss"), [("scores", "l1"), ("kl", "kl")])
def test_what_is_learnt_is_the_loss_by_another_name(learn: str, loss: str, tmp_path: Path) -> None:
    options = {"lr": 0.01, "replay_steps": 1, "replay_batch": 8}
    clone(tmp_path / "named", Metered(), 200, student=options, answers={"learn": learn})
    clone(tmp_path / "loss", Metered(), 200, student=options | {"loss": loss})
    assert student(tmp_path / "named") == student(tmp_path / "loss")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"budget": 7, "answers": {"repeat": 4, "vote": 2}},
            "budget.*: expected at least 8 images",
        ),
        ({"answers": {"learn": "kl"}, "student": {"loss": "l1"}}, "student.*expected auto or kl"),
        ({"answers": {"knows": "mad"}}, "answers.*takes effect only with"),
        ({"answers": {"recover": "net"}}, "answers.*expected .*knows"),
        ({"answers": {"recover": "net", "knows": "modelguard_s"}}, "modelguard_s.*follow from p"),
        (
            {"answers": {"repeat": 4}, "until_agreement": 0.5, "budget": 1_500},
            "1,600 images or more",
        ),
    ],
)
def test_what_cannot_work_is_refused_before_the_first_query(
    changes: dict[str, Any], said: str, tmp_path: Path
) -> None:
    teacher = Metered()
    with pytest.raises(UserError, match=said):
        clone(tmp_path / "run", teacher, **changes)
    assert teacher.served == 0
    assert not (tmp_path / "run").exists()


def defended(images: Tensor) -> Tensor:
    """Reverse sigmoid (beta .7, gamma .2) by its formula, on the toy's answers."""
    p = Metered()(images).double().clamp(1e-12, 1 - 1e-12)
    y = (p - 0.7 * ((0.2 * p.logit()).sigmoid() - 0.5)).clamp_min(0)
    return (y / y.sum(1, keepdim=True)).float()


def test_a_record_of_defended_answers_is_recovered_for_nothing(tmp_path: Path) -> None:
    run, knows = tmp_path / "run", {"recover": "table", "knows": REVERSE}
    result = clone(run, defended)  # type: ignore[arg-type]
    settings = ExtractConfig(
        answers=AnswersConfig(**knows), student=StudentConfig(arch="cnn_small"), device="cpu"
    )
    paid = paid_answers(run)
    ((images, answers),) = paid.replay.batches(10_000)
    again = read_again(paid, settings, torch.Generator())
    ((same, recovered),) = again.replay.batches(10_000)
    assert torch.equal(images, same)
    table = make_recovery(settings.answers, LabelMode("probabilities"), 10, settings.seed)
    assert torch.equal(recovered, table(answers))
    truth = Metered()(images)
    assert (recovered - truth).abs().sum(1).mean() < 0.3 * (answers - truth).abs().sum(1).mean()
    summary = retrain(run, tmp_path / "again", settings, lambda line: None)
    assert summary["spent"] == 0
    assert summary["label_mode"] == result.summary["label_mode"]
    with pytest.raises(UserError, match="expected those of the run"):
        read_again(paid, ExtractConfig(answers=AnswersConfig(repeat=2)), torch.Generator())


def test_rounds_go_on_under_a_larger_budget_as_they_do_where_each_image_is_asked_once(
    tmp_path: Path,
) -> None:
    options = {"lr": 0.01, "steps": 30, "rounds": (0.5, 1.0), "replay_batch": 8}
    how: dict[str, Any] = {
        "method_options": {"batch_size": 5, "latent_size": 16},
        "student": options,
    }
    taken = {}
    for times, rest in ((1, 0), (3, 2)):
        out, answers = tmp_path / str(times), {"answers": {"repeat": times}}
        first = clone(out, Metered(), 20 * times + rest, **how, **answers)
        then = clone(out, Metered(), 45 * times + rest, True, **how, **answers)
        taken[times] = [
            (each.summary["student_steps"], each.summary["spent"] / times) for each in (first, then)
        ]
    assert taken[3] == taken[1]
    assert taken[1][0] == (30, 20)
    assert taken[1][1][0] > 30
