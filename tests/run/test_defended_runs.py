"""Runs against a teacher with defences or under a watch, scored through the owner's door and reported;
runs that make something of its answers: what they pay, how they resume.
"""

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from begun import refused_run
from damage import saved, sealed
from defended import DETECTORS, WEIGHTS, Stopped, logging_watch
from handmade import page_of
from known_teachers import Counting
from small_runs import (
    BATCH,
    BUDGET,
    Labels,
    Metered,
    break_down,
    clone,
    ctrl_c,
    small_options,
    student,
)
from torch import Tensor

import dfme
from dfme.answers.recover import make_recovery
from dfme.cli.main import main
from dfme.config.sections import AnswersConfig
from dfme.config.settings import EvaluationConfig, ExtractConfig, Job, StudentConfig, TeacherConfig
from dfme.data import load_dataset
from dfme.errors import RunError, TeacherError, UserError
from dfme.methods import METHODS
from dfme.oracle.ledger import audit
from dfme.report.console import end_table
from dfme.report.run_files import read_summary
from dfme.run.checkpoint import load_checkpoint
from dfme.run.job import config_hash
from dfme.run.retrain import paid_answers, read_again, retrain
from dfme.spec import LabelMode

DIGITS: dict[str, Any] = {"evaluation": {"dataset": "digits", "limit": 60, "points": 4}}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Counting]:
    out, teacher = tmp_path_factory.mktemp("whole") / "run", Counting()
    clone(out, teacher, **DIGITS)
    return out, teacher


def test_scores_are_the_truths_and_stand_beside_what_users_are_served(
    whole: tuple[Path, Counting],
) -> None:
    out, teacher = whole
    summary = json.loads((out / "summary.json").read_text())
    assert (teacher.truths, teacher.honest, teacher.answered) == (60, 60, BUDGET)
    # what honest users are answered is asked, too
    assert summary["benign_queries"] == audit(out / "ledger.jsonl").benign_queries == 60
    assert summary["defences"] == list(Counting.defences) == summary["teacher"]["defences"]
    assert summary["defence_report"] == {"asked": BUDGET}
    assert 0 <= summary["agreement_relabelled"] <= 1
    # By hand, from the delivered student.
    images = load_dataset("digits", "test", shape=(1, 8, 8)).subset(60).batch(slice(None))
    copy, honest = dfme.load_student(out / "student.safetensors"), teacher._answers(images, 0)
    with torch.no_grad():
        copied = copy(images).argmax(1)
    for name, answers in (("agreement", teacher._scores(images)), ("agreement_served", honest)):
        assert summary[name] == pytest.approx((copied == answers.argmax(1)).double().mean().item())
    table, page = end_table(summary, out), " ".join(page_of(out).text)
    for text in (
        "efences",
        "counting:moved=0.3",
        "asked 400",
        f"{summary['agreement_served']:.2%}",
    ):
        assert text in table
        assert text in page
    assert "undefended" in page


def test_a_teacher_without_defences_has_none_of_the_keys(tmp_path: Path) -> None:
    summary = clone(tmp_path / "run", Metered(), **DIGITS).summary
    keys = {"agreement_served", "agreement_relabelled", "defences", "defence_report"}
    assert not keys & {*summary, *summary["teacher"]}
    assert "teacher" not in load_checkpoint(tmp_path / "run" / "checkpoint.pt")["oracle"]
    assert "undefended" not in " ".join(page_of(tmp_path / "run").text)


def test_held_back_queries_are_what_is_answered(tmp_path: Path) -> None:
    out, teacher = tmp_path / "run", Counting()
    summary = clone(out, teacher).summary
    assert (teacher.truths, teacher.honest) == (0, 0)
    assert summary["agreement_served"] is None
    assert summary["agreement_relabelled"] is not None
    assert "defended teacher" in " ".join(page_of(out).text)


def test_the_key_of_a_defence_is_in_no_file_and_another_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    noisy = partial(
        Stopped, defences="modelguard_s:epsilon=0.6+noise:sigma=0.1:key_env=DFME_TEST_KEY"
    )
    monkeypatch.setenv("DFME_TEST_KEY", "a key for tests, long enough")
    with pytest.raises(TeacherError, match="gone"):
        clone(tmp_path / "run", noisy({5: break_down}))
    monkeypatch.setenv("DFME_TEST_KEY", "another key for tests, as long")
    with pytest.raises(RunError, match="other answers than on record"):
        clone(tmp_path / "run", other := noisy(), resume=True)
    assert other.calls == 0
    with pytest.raises(UserError, match=r"defences .*0\.6.* \(now .*0\.9"):
        clone(tmp_path / "run", Stopped(defences="modelguard_s:epsilon=0.9"), resume=True)
    monkeypatch.setenv("DFME_TEST_KEY", "a key for tests, long enough")
    assert clone(tmp_path / "run", noisy(), resume=True).summary["defence_report"]["noise"] == {
        "answered": BUDGET
    }
    for path in (tmp_path / "run").rglob("*"):
        assert not path.is_file() or b"a key for tests" not in path.read_bytes()


@pytest.mark.parametrize("kind", [Counting, Metered])
def test_a_state_belongs_to_a_teacher_that_has_one(kind: Any, tmp_path: Path) -> None:
    clone(tmp_path / "run", kind({7: ctrl_c}), **DIGITS)
    path = tmp_path / "run" / "checkpoint.pt"
    state = load_checkpoint(path)
    if state["oracle"].pop("teacher", None) is None:
        state["oracle"]["teacher"] = {"asked": 3}
    path.write_bytes(sealed(saved(state, True)))
    teacher = kind()
    with pytest.raises(
        RunError, match=r"does not fit this run \(ValueError: expected (the|no) state"
    ):
        clone(tmp_path / "run", teacher, resume=True, **DIGITS)
    assert teacher.calls == 0


def test_what_comes_after_defences_of_its_own_is_refused(tmp_path: Path) -> None:
    refused_run(tmp_path / "run", "come last", Counting(), label_mode="label", **DIGITS)


def test_retrain_learns_from_the_defended_answers_and_is_scored_by_the_truth(
    whole: tuple[Path, Counting], tmp_path: Path
) -> None:
    settings = ExtractConfig(device="cpu", evaluation=EvaluationConfig(dataset="digits", limit=60))
    summary = retrain(whole[0], tmp_path / "again", settings, lambda line: None)
    source = json.loads((whole[0] / "summary.json").read_text())
    assert summary["source"]["defences"] == list(Counting.defences)
    assert summary["teacher_accuracy"] == source["teacher_accuracy"]


@pytest.mark.exhaustive
def test_a_renaming_of_classes_is_no_misinformation(tmp_path: Path) -> None:
    """A gate that lets hardly an attack's image pass."""
    words = (
        "--recipe=frugal --budget=3k --student.steps=1200"
        " --teacher.defences=misinform:gate=mahalanobis:data=digits:wrong=roll"
    )
    assert main(["extract", *words.split(), f"--out={tmp_path / 'run'}"]) == 0
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["agreement_relabelled"] - summary["agreement"] > 0.8


# Under a watch


def test_the_figures_of_a_watch_are_those_of_its_log(tmp_path: Path) -> None:
    out = tmp_path / "run"
    clone(out, Stopped(watching=logging_watch), **DIGITS)
    report = json.loads((out / "summary.json").read_text())["watch"]
    lines = [json.loads(line) for line in (out / "watch.jsonl").read_text().splitlines()]
    assert report["images"] == 400
    assert [line["images"] for line in lines if "largest" in line] == list(range(50, 401, 50))
    for name in DETECTORS:
        alarms = [line["images"] for line in lines if line.get("alarm") == name]
        assert report["detectors"][name] == report["detectors"][name] | {
            "alarms": len(alarms),
            "first_alarm": alarms[0] if alarms else None,
            "largest": max(line["largest"][name] for line in lines if "largest" in line),
            "largest_600": None,
        }
    first = report["detectors"]["sequential"]["first_alarm"]
    assert first < 20, "noise is not at home"
    table = end_table(read_summary(out / "summary.json") or {}, out)
    for page in (table, " ".join(page_of(out).text)):
        assert f"first alarm at image {first} of 400 images" in page


def test_a_run_that_the_watch_refuses_ends_in_words_with_everything_kept(tmp_path: Path) -> None:
    refusing = partial(logging_watch, on_alarm="refuse")
    with pytest.raises(TeacherError, match=r"sequential at image \d+.*all that was"):
        clone(tmp_path / "run", Stopped(watching=refusing), **DIGITS)
    assert "watch" in (tmp_path / "run/ledger.jsonl").read_text()
    assert audit(tmp_path / "run/ledger.jsonl").spent > 0


def test_a_watch_that_only_logs_is_no_part_of_the_configurations_hash() -> None:
    job = Job(
        ExtractConfig(),
        TeacherConfig(),
        {"checkpoint": WEIGHTS},
        "static",
        METHODS["static"].config(),
    )

    def hash_of(**watch: Any) -> str:
        return config_hash(replace(job, teacher=replace(job.teacher, benign="digits", **watch)))

    assert hash_of(watch=("pairs",)) == config_hash(job)
    acting = [hash_of(watch=("pairs",), on_alarm=action) for action in ("refuse", "label")]
    acting.append(hash_of(watch=("labels",), on_alarm="label"))
    assert len({config_hash(job), *acting}) == 4


# What runs make of the answers

REVERSE = "reverse_sigmoid:beta=0.7"


@pytest.mark.parametrize("method", ["static", "procedural"])
def test_labels_learnt_are_those_of_a_teacher_that_answers_labels(
    method: str, tmp_path: Path
) -> None:
    common: dict[str, Any] = {
        "method": method,
        "method_options": small_options(method, batch_size=BATCH, latent_size=16),
        "student": {"lr": 0.01, "replay_steps": 1, "replay_batch": 8},
        "evaluation": {"dataset": "digits", "points": 2, "limit": 60},
    }
    alone = clone(tmp_path / "alone", Labels(), 200, label_mode="label", **common)
    soft = clone(tmp_path / "soft", Metered(), 200, answers={"learn": "label"}, **common)
    assert student(tmp_path / "soft") == student(tmp_path / "alone")
    assert soft.summary["agreement"] == alone.summary["agreement"]
    assert soft.summary["label_mode"] == "probabilities"
    assert soft.summary["config_hash"] != alone.summary["config_hash"]
    clone(tmp_path / "other", Metered(), 200, **common)
    assert student(tmp_path / "other") != student(tmp_path / "soft")


@pytest.mark.parametrize(("learn", "loss"), [("scores", "l1"), ("kl", "kl")])
def test_what_is_learnt_is_the_loss_by_another_name(learn: str, loss: str, tmp_path: Path) -> None:
    options = {"lr": 0.01, "replay_steps": 1, "replay_batch": 8}
    clone(tmp_path / "named", Metered(), 200, student=options, answers={"learn": learn})
    clone(tmp_path / "loss", Metered(), 200, student=options | {"loss": loss})
    assert student(tmp_path / "named") == student(tmp_path / "loss")


@pytest.mark.parametrize(
    ("changes", "message"),
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
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    refused_run(tmp_path / "run", message, **changes)


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
    ((same, recovered),) = read_again(paid, settings, torch.Generator()).replay.batches(10_000)
    assert torch.equal(images, same)
    table = make_recovery(settings.answers, LabelMode("probabilities"), 10, settings.seed)
    assert torch.equal(recovered, table(answers))
    truth = Metered()(images)
    assert (recovered - truth).abs().sum(1).mean() < 0.3 * (answers - truth).abs().sum(1).mean()
    summary = retrain(run, tmp_path / "again", settings, lambda line: None)
    assert (summary["spent"], summary["label_mode"]) == (0, result.summary["label_mode"])
    with pytest.raises(UserError, match="expected those of the run"):
        read_again(paid, ExtractConfig(answers=AnswersConfig(repeat=2)), torch.Generator())


def test_rounds_go_on_under_a_larger_budget_as_they_do_where_each_image_is_asked_once(
    tmp_path: Path,
) -> None:
    how: dict[str, Any] = {
        "method_options": {"batch_size": 5, "latent_size": 16},
        "student": {"lr": 0.01, "steps": 30, "rounds": (0.5, 1.0), "replay_batch": 8},
    }
    steps_and_queries = {}
    for times, rest in ((1, 0), (3, 2)):
        out, answers = tmp_path / str(times), {"answers": {"repeat": times}}
        first = clone(out, Metered(), 20 * times + rest, **how, **answers)
        steps_and_queries[times] = [
            (result.summary["student_steps"], result.summary["spent"] / times)
            for result in (first, clone(out, Metered(), 45 * times + rest, True, **how, **answers))
        ]
    assert steps_and_queries[3] == steps_and_queries[1]
    assert steps_and_queries[1][0] == (30, 20)
    assert steps_and_queries[1][1][0] > 30
