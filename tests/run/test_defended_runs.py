"""Runs against a teacher with defences: exactly resumed, scored through the owner's door, counted by it too."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from counting_teacher import Counting
from fuzzing import saved, sealed
from processes import Bench
from report_runs import page_of
from small_runs import BUDGET, Metered, break_down, clone, ctrl_c, no_pictures, queries, student
from torch import Tensor

import dfme
from dfme.cli.main import main
from dfme.config.defence_texts import parse_defences
from dfme.config.settings import EvaluationConfig, ExtractConfig, TeacherConfig
from dfme.data import load_dataset
from dfme.errors import RunError, TeacherError, UserError
from dfme.oracle.ledger import audit
from dfme.report.console import end_table
from dfme.run.checkpoint import load_checkpoint
from dfme.run.retrain import retrain
from dfme.spec import LabelMode
from dfme.teachers.build import make_teacher
from dfme.teachers.defences.wrapper import Defended

DIGITS: dict[str, Any] = {"evaluation": {"dataset": "digits", "limit": 60, "points": 4}}
SESSION = {
    "seconds",
    "stretches",
    "benign_queries",
    "started",
    "ended",
    "wall_seconds",
    "queries_per_second",
    "requests",
    "refused",
    "lost",
}


@pytest.fixture(autouse=True)
def _no_pictures() -> Any:
    with no_pictures():
        yield


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Counting]:
    out, teacher = tmp_path_factory.mktemp("whole") / "run", Counting()
    with no_pictures():
        clone(out, teacher, **DIGITS)
    return out, teacher


def lasting(out: Path) -> dict[str, Any]:
    """The summary, without what only says how the run went."""
    return {key: value for key, value in json.loads((out / "summary.json").read_text()).items() if key not in SESSION}


def cut(out: Path, **changes: Any) -> list[Counting]:
    """A run stopped with a checkpoint, and then with answers beyond it: its teachers, each of a process of its own."""
    teachers = [Counting({7: ctrl_c}), Counting({4: break_down})]
    assert not clone(out, teachers[0], **DIGITS | changes).finished
    with pytest.raises(TeacherError, match="gone"):
        clone(out, teachers[1], resume=True, **DIGITS | changes)
    return teachers


TWICE = {"answers": {"repeat": 2, "learn": "label"}, "method_options": {"batch_size": 10, "latent_size": 16}}


@pytest.mark.parametrize("changes", [TWICE, {"max_batch": 7}, {"evaluation": {"dataset": "none"}}])
def test_a_resumed_run_is_the_undisturbed_one_bit_by_bit(changes: dict[str, Any], tmp_path: Path) -> None:
    """Evaluation answers and, with max_batch, halves of batches are among those on record."""
    undisturbed = Counting()
    clone(tmp_path / "whole", undisturbed, **DIGITS | changes)
    teachers = [*cut(tmp_path / "run", **changes), Counting()]
    clone(tmp_path / "run", teachers[2], resume=True, **DIGITS | changes)
    assert student(tmp_path / "run") == student(tmp_path / "whole")
    assert queries(tmp_path / "run") == queries(tmp_path / "whole")
    assert lasting(tmp_path / "run") == lasting(tmp_path / "whole")
    # The ledger is the teacher's own count; what came from the record was witnessed, once, and not served again.
    ledger, scored = audit(tmp_path / "run" / "ledger.jsonl"), 0 if "evaluation" in changes else 60
    assert sum(each.answered for each in teachers) == undisturbed.answered == ledger.spent == BUDGET
    assert sum(each.truths for each in teachers) == undisturbed.truths == ledger.evaluation_queries == scored
    assert sum(each.honest for each in teachers) == ledger.benign_queries
    assert undisturbed.honest == audit(tmp_path / "whole" / "ledger.jsonl").benign_queries == scored
    assert teachers[2].witnessed > 0
    assert ledger.lost == 0


def test_killed_before_its_first_checkpoint_the_record_alone_brings_the_state_back(tmp_path: Path) -> None:
    """The evaluation stands in the journal, too, and leaves the state alone."""
    clone(tmp_path / "whole", Counting(), **DIGITS)
    with pytest.raises(TeacherError, match="gone"):
        clone(tmp_path / "run", Counting({5: break_down}), **DIGITS)
    assert not (tmp_path / "run" / "checkpoint.pt").exists()
    teacher = Counting()
    clone(tmp_path / "run", teacher, resume=True, **DIGITS)
    assert (teacher.witnessed, teacher.truths) == (80, 0)
    assert student(tmp_path / "run") == student(tmp_path / "whole")


def test_scores_are_the_truths_and_stand_beside_what_users_are_served(whole: tuple[Path, Counting]) -> None:
    out, teacher = whole
    summary = json.loads((out / "summary.json").read_text())
    assert (teacher.truths, teacher.honest, teacher.answered) == (60, 60, BUDGET)
    assert summary["benign_queries"] == 60  # what honest users are answered is asked, too
    assert summary["defences"] == list(Counting.defences) == summary["teacher"]["defences"]
    assert summary["defence_report"] == {"asked": BUDGET}
    assert 0 <= summary["agreement_relabelled"] <= 1
    # By hand, from the delivered student.
    images = load_dataset("digits", "test", shape=(1, 8, 8)).subset(60).batch(slice(None))
    copy, honest = dfme.load_student(out / "student.safetensors"), teacher._answers(images, 0)
    with torch.no_grad():
        own = copy(images).argmax(1)
    for name, answers in (("agreement", teacher._scores(images)), ("agreement_served", honest)):
        assert summary[name] == pytest.approx((own == answers.argmax(1)).double().mean().item())
    # As people read it.
    table, page = end_table(summary, out), " ".join(page_of(out).text)
    for text in ("efences", "counting:moved=0.3", "asked 400", f"{summary['agreement_served']:.2%}"):
        assert text in table
        assert text in page
    assert "agrees with the undefended teacher on" in page
    assert "evaluation images never met" in page


def test_a_teacher_without_defences_has_none_of_the_keys(tmp_path: Path) -> None:
    summary = clone(tmp_path / "run", Metered(), **DIGITS).summary
    assert not {"agreement_served", "agreement_relabelled", "defences", "defence_report"} & {
        *summary,
        *summary["teacher"],
    }
    assert "teacher" not in load_checkpoint(tmp_path / "run" / "checkpoint.pt")["oracle"]
    page = " ".join(page_of(tmp_path / "run").text)
    assert "undefended" not in page
    assert "whatever defends it" not in page


def test_held_back_queries_are_what_is_answered(tmp_path: Path) -> None:
    out, teacher = tmp_path / "run", Counting()
    summary = clone(out, teacher).summary
    assert (teacher.truths, teacher.honest) == (0, 0)
    assert summary["agreement_served"] is None
    assert summary["agreement_relabelled"] is not None
    assert "Held-back queries were answered by the defended teacher" in " ".join(page_of(out).text)


# Other teachers, other checkpoints


def test_another_key_is_one_line_and_nothing_is_asked(tmp_path: Path) -> None:
    cut(tmp_path / "run")
    teacher = Counting(moved=0.2)
    with pytest.raises(
        RunError, match=r"^the teacher answers otherwise than request \d+ on record \(20 answers differ\)"
    ):
        clone(tmp_path / "run", teacher, resume=True, **DIGITS)
    assert teacher.answered == 0


def test_other_defences_are_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cut(tmp_path / "run")
    monkeypatch.setattr(Counting, "defences", ("counting:moved=0.9",))
    with pytest.raises(UserError, match=r"started with a teacher of defences .*0\.3.* \(now .*0\.9"):
        clone(tmp_path / "run", Counting(), resume=True, **DIGITS)


WRONG_STATES = [None, [], {}, {"asked": 3}, {"asked": -1, "sum": torch.zeros(10)}, {"asked": 3, "sum": torch.zeros(9)}]


@pytest.mark.parametrize("kind", [Counting, Metered])
def test_a_state_belongs_to_a_teacher_that_has_one(kind: Any, tmp_path: Path) -> None:
    """An older checkpoint has none; it is taken up where the teacher has none either. Whatever is wrong is one line."""
    clone(tmp_path / "run", kind({7: ctrl_c}), **DIGITS)
    path = tmp_path / "run" / "checkpoint.pt"
    state = load_checkpoint(path)
    assert ("teacher" in state["oracle"]) == (kind is Counting)
    without = {name: value for name, value in state["oracle"].items() if name != "teacher"}
    for oracle in [*([without] if kind is Counting else ()), *(without | {"teacher": each} for each in WRONG_STATES)]:
        path.write_bytes(sealed(saved({**state, "oracle": oracle}, True)))
        teacher = kind()
        with pytest.raises(
            RunError, match=r"does not fit this run \(ValueError: (counting|expected (the|no) state)"
        ) as caught:
            clone(tmp_path / "run", teacher, resume=True, **DIGITS)
        assert "\n" not in str(caught.value)
        assert teacher.calls == 0


def test_what_comes_after_defences_of_its_own_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="which come last"):
        clone(tmp_path / "run", Counting(), label_mode="label", **DIGITS)
    assert not (tmp_path / "run").exists()


def test_retrain_learns_from_the_defended_answers_and_is_scored_by_the_truth(
    whole: tuple[Path, Counting], tmp_path: Path
) -> None:
    out, _ = whole
    settings = ExtractConfig(device="cpu", evaluation=EvaluationConfig(dataset="digits", limit=60))
    summary = retrain(out, tmp_path / "again", settings, lambda line: None)
    assert summary["source"]["defences"] == list(Counting.defences)
    assert summary["teacher_accuracy"] == json.loads((out / "summary.json").read_text())["teacher_accuracy"]


STACK = "modelguard_s:epsilon=0.6+noise:sigma=0.1:key_env=DFME_TEST_KEY"


class Stopped(Defended):
    """The embedded digits behind two defences with states; stopped where ``at`` says, counting what it answers."""

    def __init__(self, mode: str, at: dict[int, Callable[[], object]] | None = None) -> None:
        options = {"checkpoint": "teachers/checkpoints/digits.safetensors"}
        plain = make_teacher(TeacherConfig(label_mode="logits"), options, torch.device("cpu"))
        super().__init__(plain, parse_defences(STACK), LabelMode.parse(mode))
        self.calls, self.answered, self.before = 0, 0, at or {}

    def __call__(self, images: Tensor) -> Tensor:
        self.calls += 1
        self.before.get(self.calls, int)()
        self.answered += len(images)
        return super().__call__(images)


@pytest.mark.parametrize("mode", ["probabilities:2", "top_k:3"])
def test_modelguard_s_and_fresh_noise_survive_a_resume(
    mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Student, summary and ledger are the undisturbed run's, bit by bit; with another key it is refused."""
    monkeypatch.setenv("DFME_TEST_KEY", "a key for tests, long enough")
    undisturbed, teachers = Stopped(mode), [Stopped(mode, {7: ctrl_c}), Stopped(mode, {4: break_down})]
    clone(tmp_path / "whole", undisturbed, **DIGITS)
    assert not clone(tmp_path / "run", teachers[0], **DIGITS).finished
    with pytest.raises(TeacherError, match="gone"):
        clone(tmp_path / "run", teachers[1], resume=True, **DIGITS)
    monkeypatch.setenv("DFME_TEST_KEY", "another key for tests, as long")
    with pytest.raises(RunError, match=r"otherwise than request \d+ on record .*other answers than on record"):
        clone(tmp_path / "run", other := Stopped(mode), resume=True, **DIGITS)
    assert other.calls == 0
    monkeypatch.setenv("DFME_TEST_KEY", "a key for tests, long enough")
    clone(tmp_path / "run", last := Stopped(mode), resume=True, **DIGITS)
    assert student(tmp_path / "run") == student(tmp_path / "whole")
    assert lasting(tmp_path / "run") == lasting(tmp_path / "whole")
    assert sum(each.answered for each in (*teachers, last)) == undisturbed.answered == BUDGET
    ledger, summary = audit(tmp_path / "run" / "ledger.jsonl"), lasting(tmp_path / "run")
    assert (ledger.spent, ledger.evaluation_queries, ledger.lost) == (BUDGET, 60, 0)
    assert summary["defence_report"]["noise"] == {"answered": BUDGET}
    assert summary["teacher_accuracy"] > 0.9, "the truth's"
    for path in (tmp_path / "run").rglob("*"):
        assert not path.is_file() or b"a key for tests" not in path.read_bytes()


@pytest.mark.exhaustive
def test_a_renaming_of_classes_is_no_misinformation(tmp_path: Path) -> None:
    """A gate that lets hardly an attack's image pass, and classes moved on by one: whoever renames them has it all."""
    words = ["--recipe=frugal", "--budget=3k", "--student.steps=1200"]
    words += ["--teacher.defences=misinform:gate=mahalanobis:data=digits:wrong=roll"]
    assert main(["extract", *words, f"--out={tmp_path / 'run'}"]) == 0
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["agreement_relabelled"] - summary["agreement"] > 0.8


@pytest.mark.integration
def test_killed_in_the_middle_of_an_answer_it_ends_as_if_never_killed(tmp_path: Path) -> None:
    """By SIGKILL in the second of a batch's three requests, once the state has moved and nothing of that is on file."""
    bench = Bench(tmp_path)
    bench.environment["PYTHONPATH"] += f":{Path(__file__).parents[1] / 'support'}"
    flags = ["--method.name", "static", "--method.batch-size", "20", "--method.latent-size", "16", "--budget", "500"]
    flags += ["--student.arch", "cnn_small", "--evaluation.dataset", "digits", "--evaluation.limit", "60"]
    flags += ["--checkpoint-seconds", "0.02", "--teacher.max-batch", "8"]
    for out, kill in (("whole", 0), ("run", 20)):
        bench.environment["KILL_AT"] = str(kill)
        teacher = ["--teacher", "counting_teacher:metered", "--teacher.log", f"{out}.log"]
        code, _, err = bench.run(["extract", *teacher, "--out", out, *flags])
        assert code == (-9 if kill else 0), err
    bench.environment["KILL_AT"] = "0"
    code, _, err = bench.run(["--resume", "--out", "run"])
    assert code == 0, err
    assert bench.student("run") == bench.student("whole")
    log = {"config_hash"}  # where the meter's file is
    ended = [
        {key: value for key, value in lasting(tmp_path / out).items() if key not in log} for out in ("run", "whole")
    ]
    assert ended[0] == ended[1]
    # The meter of the teacher itself, in a file: all that was charged and not killed on its way, and nothing twice.
    for out in ("whole", "run"):
        lines = [line.split() for line in (tmp_path / f"{out}.log").read_text().splitlines()]
        answered, scored = (sum(int(count) for kind, count in lines if kind == own) for own in ("served", "truth"))
        ledger = audit(tmp_path / out / "ledger.jsonl")
        assert (answered, scored) == (ledger.spent, ledger.evaluation_queries) == (500, 60)
        assert 0 < ledger.lost <= 8 if out == "run" else ledger.lost == 0
