"""A fresh student on what a run paid for: all of it is read again, in order, and nothing is
asked.
"""

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from begun import refused_words
from processes import summary
from small_runs import BUDGET, Metered, Recording, clone
from tables import exhaustive
from torch import Tensor

import dfme
from dfme.cli.main import main
from dfme.config.settings import EvaluationConfig, ExtractConfig, ScheduleConfig, StudentConfig
from dfme.config.yaml_files import SEAL, load_yaml, sealed
from dfme.data import load_dataset
from dfme.errors import RunError, UserError
from dfme.run.retrain import PaidAnswers, paid_answers, retrain
from dfme.spec import ImageSpec, LabelMode

PAID, HALF = 600, BUDGET // 2
DIGITS = {"dataset": "digits", "points": 2, "limit": 200}
STUDENT = {"lr": 0.01, "replay_steps": 1, "replay_batch": 8}

# What was paid for


def finished(out: Path, labels: bool = False, **student: Any) -> Recording:
    """A run scored on what it did not pay for, so that all that is paid for teaches."""
    teacher, mode = Recording(labels), "label" if labels else None
    evaluation = {"dataset": "digits", "points": 2}
    assert clone(
        out, teacher, HALF, student=STUDENT | student, evaluation=evaluation, label_mode=mode
    ).finished
    return teacher


def everything(paid: PaidAnswers) -> tuple[Tensor, Tensor]:
    images, answers = zip(*paid.replay.batches(33), strict=True)
    return torch.cat(images), torch.cat(answers)


@pytest.mark.parametrize(("store", "labels"), [("disk", False), ("memory", True)])
def test_all_that_was_paid_for_comes_back_in_order(
    store: str, labels: bool, tmp_path: Path
) -> None:
    teacher = finished(tmp_path / "run", labels, replay_store=store)
    paid = paid_answers(tmp_path / "run", torch.Generator().manual_seed(3))
    images, answers = everything(paid)
    assert torch.equal(images, torch.cat(teacher.queries)[-HALF:])
    assert torch.equal(answers, torch.cat(teacher.answers)[-HALF:])
    assert (paid.spec, paid.num_classes) == (ImageSpec((1, 8, 8)), 10)
    assert paid.label_mode == LabelMode("label" if labels else "probabilities")
    assert (paid.replayed, paid.spent, paid.shortfall) == (HALF, HALF, None)
    assert (tmp_path / "run" / "replay").is_dir() == (store == "disk")
    place_B = torch.randint(HALF, (20,), generator=torch.Generator().manual_seed(3))
    assert torch.equal(paid.replay.sample(20)[0], images[place_B])


@pytest.mark.parametrize("store", ["disk", *exhaustive("memory")])
def test_a_smaller_window_holds_the_last_in_order_and_says_so(store: str, tmp_path: Path) -> None:
    teacher = finished(tmp_path / "run", replay_store=store, replay_capacity=70)
    paid = paid_answers(tmp_path / "run")
    assert torch.equal(everything(paid)[0], torch.cat(teacher.queries)[-70:])
    assert str(paid.shortfall).startswith("70 of 200 paid answers are kept; not 130 older")


def test_what_served_other_ends_is_counted(whole: Path) -> None:
    paid = paid_answers(whole)
    assert paid.replayed < paid.spent == BUDGET, "some were held back to score the student on"
    assert f"not {BUDGET - paid.replayed} that served other ends" in str(paid.shortfall)


def test_what_is_no_run_or_kept_nothing_is_told(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"expected a whole checkpoint, but there is none"):
        paid_answers(tmp_path)
    finished(tmp_path / "run", replay_steps=0, replay_batch=256)  # the default, which says nothing
    with pytest.raises(UserError, match=r"kept none of its paid answers.*--student.replay-steps 1"):
        paid_answers(tmp_path / "run")


def test_an_unfinished_run_says_what_it_has_and_how_it_was_answered(
    whole: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    shutil.copytree(whole, out)
    (out / "summary.json").unlink()
    with pytest.raises(
        UserError, match=r"is not finished, .*label_mode; resume it to its end first"
    ):
        paid_answers(out)
    edited = (
        (out / "config.yaml").read_text().replace("label_mode: null", "label_mode: probabilities:4")
    )
    (out / "config.yaml").write_text(edited)
    with pytest.raises(UserError, match=r"config\.yaml: expected the file as the run wrote it"):
        paid_answers(out)
    (out / "config.yaml").write_text(sealed(edited.rpartition(SEAL)[0]))
    assert paid_answers(out).label_mode == LabelMode("probabilities", decimals=4)


# A fresh student


@pytest.fixture(scope="module")
def paid(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that bought good answers and hardly learnt from them."""
    out = tmp_path_factory.mktemp("paid") / "run"
    clone(
        out,
        Metered(),
        PAID,
        evaluation=DIGITS,
        student={"lr": 1e-6, "replay_steps": 1, "loss": "kl"},
    )
    return out


@pytest.fixture
def run(paid: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(paid, tmp_path / "run"))


def settings(**changes: Any) -> ExtractConfig:
    student = {"arch": "cnn_small", "lr": 0.05, "steps": 60, "loss": "kl"}
    return ExtractConfig(
        student=StudentConfig(**student | changes.pop("student", {})),
        evaluation=EvaluationConfig(**DIGITS | changes.pop("evaluation", {})),
        schedule=ScheduleConfig("cosine"),
        device="cpu",
        **changes,
    )


def test_the_queries_are_worth_what_a_good_training_makes_of_them(
    run: Path, tmp_path: Path
) -> None:
    files = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    lines: list[str] = []
    out = tmp_path / "again"
    retrained, source = retrain(run, out, settings(seed=5), lines.append), summary(run)
    assert retrained["agreement"] > source["agreement"] + 0.15
    assert retrained["source"]["agreement"] == source["agreement"]
    assert {path: path.read_bytes() for path in files} == files, "the run stays as it is"
    assert summary(out) == retrained
    assert retrained == retrained | {
        "method": "retrain",
        "spent": 0,
        "evaluation_queries": 0,
        "answers": PAID,
        "seed": 5,
        "student_steps": 60,
        "students": 1,
    }
    facts = {"run": str(run), "method": "static", "spent": PAID}
    assert retrained["source"] == retrained["source"] | facts
    assert load_yaml(out / "config.yaml")["method"] == {"name": "retrain", "run": str(run)}
    names = ".lock config.yaml student.safetensors summary.json".split()
    assert sorted(path.name for path in out.iterdir()) == names
    assert len(lines) == 10
    assert re.fullmatch(
        r"60 / 60 steps  agreement [\d.]+% \(constant answer [\d.]+%\)  loss [\d.]+", lines[-1]
    )
    # What it scores is what the teacher would have said.
    data = load_dataset("digits", "test", shape=(1, 8, 8)).subset(200)
    images = data.batch(slice(None))
    truth, student = Metered()(images).argmax(dim=1), dfme.load_student(out)(images).argmax(dim=1)
    pairs = {"agreement": truth == student, "accuracy": student == data.labels}
    for name, alike in (pairs | {"teacher_accuracy": truth == data.labels}).items():
        assert retrained[name] == pytest.approx(alike.double().mean().item())


def test_a_seed_decides_everything_and_nothing_outside_is_moved(run: Path, tmp_path: Path) -> None:
    students = []
    for number, seed in enumerate((1, 1, 2)):
        torch.manual_seed(number)
        before = torch.get_rng_state()
        retrain(run, tmp_path / str(number), settings(seed=seed, student={"steps": 10}), print)
        assert torch.equal(torch.get_rng_state(), before)
        students.append((tmp_path / str(number) / "student.safetensors").read_bytes())
    assert students[0] == students[1] != students[2]


def test_held_back_answers_are_on_record_too_and_what_is_not_kept_is_said(tmp_path: Path) -> None:
    lines: list[str] = []
    student = {"lr": 0.01, "replay_steps": 1, "replay_capacity": 100}
    recorded = clone(tmp_path / "small", Metered(), student=student).summary["evaluation"]
    unscored = settings(evaluation={"dataset": "none"}, student={"steps": 10})
    retrained = retrain(tmp_path / "small", tmp_path / "again", unscored, lines.append)
    assert retrained["answers"] == 100
    assert lines[0].startswith("100 of 400 paid answers are kept")
    assert retrained["evaluation"] == recorded
    assert recorded["held_back"]
    assert retrained["accuracy"] is None


def test_what_cannot_work(run: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="200 evaluation images on record, but here are 100"):
        retrain(run, tmp_path / "again", settings(evaluation={"limit": 100}), print)
    with pytest.raises(UserError, match="expected a new or empty directory"):
        retrain(run, run, settings(), print)
    (run / "checkpoint.pt").write_bytes(b"")
    with pytest.raises(RunError, match=r"checkpoint\.pt: expected a whole checkpoint"):
        retrain(run, tmp_path / "again", settings(), print)
    assert not (tmp_path / "again").exists()


# The command


def test_the_command_trains_as_the_run_did_unless_told_otherwise(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["retrain", "--run", str(run)]) == 0
    retrained, source = summary(tmp_path / "run-retrained"), summary(run)
    for name in ("student_steps", "seed", "student_arch", "evaluation"):
        assert retrained[name] == source[name], name
    output = capsys.readouterr().out
    assert (
        f"{retrained['agreement']:.2%} (the run's own student: {source['agreement']:.2%})" in output
    )
    assert f"{PAID} of {run} (static); no query was asked" in output
    flags = "--student.arch cnn_medium --student.steps 12 --seed 4 --out".split()
    assert main(["retrain", "--run", str(run), *flags, str(tmp_path / "other")]) == 0
    retrained = summary(tmp_path / "other")
    assert (retrained["student_arch"], retrained["student_steps"], retrained["seed"]) == (
        "cnn_medium",
        12,
        4,
    )


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("", "--run: missing"),
        ("--run nowhere", "'nowhere' has no config.yaml"),
        ("--run run --out run", "--out: expected a new or empty directory"),
        ("--run run --budget 3", "--budget: unknown flag"),
    ],
)
def test_mistakes_are_named(
    paid: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    flags: str,
    message: str,
) -> None:
    monkeypatch.chdir(paid.parent)
    assert message in refused_words(f"retrain {flags}", capsys)
