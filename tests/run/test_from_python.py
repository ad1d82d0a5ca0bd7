"""``dfme.extract``: a function of the user's hears what a run logs and may stop it; what is wrong is said
by the names of its own arguments.
"""

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from begun import refused_run
from small_runs import BUDGET, Metered, clone, resumes_as, student

import dfme
from dfme.errors import DfmeError, Ref, UserError
from dfme.report.metrics import callback_metrics
from dfme.report.page import write_page
from dfme.report.run_files import read_run, read_summary
from dfme.report.wandb_run import WandbRun
from dfme.run.api import as_keyword
from dfme.run.job import PROJECT

QUARTERS = (100, 200, 300, 400)


def test_it_hears_every_record_and_the_result_has_them_all(tmp_path: Path) -> None:
    heard = []
    out = tmp_path / "run"
    result = clone(
        out, Metered(), callback=lambda queries, metrics: heard.append((queries, metrics))
    )
    written = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert [queries for queries, _ in heard] == [record["queries"] for record in written]
    assert [metrics["student_loss"] for _, metrics in heard] == [
        record["student_loss"] for record in written
    ]
    assert sum("requests" in metrics for _, metrics in heard) == 4, "the evaluations"
    assert result.metrics == clone(out, Metered(), resume=True).metrics == written, (
        "of a run that was finished before, too"
    )


def test_true_stops_the_run_and_resuming_ends_as_if_nothing_had_been(
    tmp_path: Path, whole: Path
) -> None:
    teacher = Metered()
    stopped = clone(
        tmp_path / "run", teacher, callback=lambda queries, metrics: queries >= BUDGET / 2
    )
    assert not stopped.finished
    assert teacher.served == stopped.summary["spent"] == BUDGET / 2
    resumes_as(whole, tmp_path / "run", teacher.served, **{"callback": lambda queries, metrics: 1})


@pytest.mark.parametrize("share", [0.25, 1.0])
def test_what_it_raises_ends_the_run_once_everything_is_kept(
    share: float, tmp_path: Path, whole: Path
) -> None:
    def fail(queries: int, metrics: dict[str, float]) -> None:
        if queries >= share * BUDGET:
            metrics.clear()
            raise ZeroDivisionError("mine")

    teacher = Metered()
    with pytest.raises(ZeroDivisionError, match="mine"):
        clone(tmp_path / "run", teacher, callback=fail)
    assert not (tmp_path / "run" / "summary.json").exists()
    assert teacher.served == share * BUDGET
    result = resumes_as(whole, tmp_path / "run", teacher.served)
    assert tuple(record["queries"] for record in result.metrics if "requests" in record) == QUARTERS


def test_what_it_returns_joins_line_wandb_table_and_page(
    tmp_path: Path, whole: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    logged: list[dict[str, float]] = []
    monkeypatch.setattr(WandbRun, "_open", lambda *_: None)
    monkeypatch.setattr(WandbRun, "log", lambda run, queries, metrics: logged.append(dict(metrics)))

    def scored(
        queries: int, metrics: dict[str, float], student: torch.nn.Module
    ) -> dict[str, float] | None:
        assert not student.training
        return {"my_score": queries / 7} if "requests" in metrics else None

    result = clone(
        tmp_path / "run",
        Metered(),
        callback=scored,
        progress=True,
        wandb={"mode": "offline"},
    )
    for records in (result.metrics, logged):
        assert [each["my_score"] for each in records if "my_score" in each] == [
            n / 7 for n in QUARTERS
        ]
    assert result.summary["callback_metrics"] == {"my_score": BUDGET / 7}
    output = capsys.readouterr()
    assert "my_score          57.14" in output.out
    assert "my_score 14.29" in output.err
    page = write_page(read_run(tmp_path / "run"), tmp_path / "page.html").read_text()
    assert page.count("my_score") == 2, "its value, and its row among the metrics"
    assert student(tmp_path / "run") == student(whole)
    assert read_summary(tmp_path / "run" / "summary.json") == result.summary


WRONG: list[dict[object, object]] = [
    {name: 0.5} for name in ("agreement", "samples", "my score", 3)
]
WRONG += [{"a": value} for value in ("0.5", True, 10**400, torch.zeros(2, 20))]


NO_METRIC = r"^callback: (a: expected a number, got|expected names).*$"


@pytest.mark.parametrize("returned", WRONG, ids=str)
def test_what_can_be_no_metric_is_one_line(returned: dict[object, object]) -> None:
    with pytest.raises(UserError, match=NO_METRIC):
        callback_metrics(returned)


def test_what_can_be_no_metric_ends_the_run_and_all_paid_is_kept(
    tmp_path: Path, whole: Path
) -> None:
    teacher = Metered()
    with pytest.raises(UserError, match=NO_METRIC):
        clone(tmp_path / "run", teacher, callback=lambda queries, metrics: WRONG[-1])
    resumes_as(whole, tmp_path / "run", teacher.served)


@pytest.mark.parametrize("value", [float("nan"), 2, np.float32(2)])
def test_numbers_of_any_kind_are_metrics(value: float) -> None:
    (metric,) = callback_metrics({"a": value}).values()
    assert type(metric) is float
    assert metric == 2 or not math.isfinite(metric)


def test_a_callback_of_another_form_is_refused_before_the_first_query(tmp_path: Path) -> None:
    for callback in (lambda queries: None, lambda *, student: None, 3):
        refused_run(tmp_path / "run", "callback: expected a function of", callback=callback)
    heard: list[object] = []
    clone(
        tmp_path / "run",
        Metered(),
        callback=lambda queries, metrics, student=None: heard.append(student),
    )
    assert all(isinstance(each, torch.nn.Module) for each in heard)


# Messages

LATTICE = {"space": "lattice", "step": 1}

WRONG_ARGUMENTS: list[tuple[dict[str, Any], str]] = [
    ({"budget": 0}, "budget=...: expected at least 1, got 0"),
    ({"device": "cuda:77"}, 'device="cuda:77": this machine has'),
    ({"out": ""}, "out=...: expected a directory"),
    ({"out": "taken"}, "out=...: 'taken' exists; give another out=..., or resume=... to go on"),
    ({"resume": True}, "resume=...: expected out=... as well"),
    ({"method": "dfne"}, "method=...: expected a method"),
    (
        {"method_options": {"batchsize": 1}},
        'method_options={"batchsize": ...}: unknown option; did you m',
    ),
    (
        {"method": "knockoff", "method_options": {"pool": "digits"}, "budget": 3000},
        "lower budget=... to",
    ),
    (
        {"estimator": LATTICE},
        'estimator={"space": "lattice"}: expected a teacher that declares levels=..',
    ),
    (
        {"estimator": {"kind": "auto"}, "budget": 10},
        'the check that estimator={"kind": "auto"} and est',
    ),
    (
        {"estimator": {"form": "central"}, "method_options": {"reuse": True}},
        'with method_options={"reuse',
    ),
    (
        {"method": "static", "estimator": {"step": 1}},
        "estimator=...: method static does not use it",
    ),
    (
        {"method": "static", "student": {"loss": "l1"}, "label_mode": "label"},
        'student={"loss": "l1"} can',
    ),
    ({"label_mode": "label"}, 'method="dfme" needs a teacher that answers'),
    ({"evaluation": "mnist"}, 'or fetch them with evaluation={"download": True}'),
    ({"shape": (3, 8)}, "shape=...: expected 3 whole numbers"),
    ({"shape": None}, "known: say shape=..."),
    ({"minutes": 0.001}, "minutes=0.001: expected at least"),
    ({"student": [1]}, "student=...: expected a configuration or a mapping of options, got [1]"),
    ({"recipe": 3}, "recipe=...: expected a recipe (dfme, "),
]


@pytest.mark.parametrize(
    ("options", "message"), WRONG_ARGUMENTS, ids=[message[:40] for _, message in WRONG_ARGUMENTS]
)
def test_what_is_wrong_is_said_in_python(
    options: dict[str, Any], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "config.yaml").touch()
    teacher = Metered()
    with pytest.raises(DfmeError) as caught:
        dfme.extract(teacher, **{"shape": (1, 8, 8), "num_classes": 10, "budget": 100, **options})
    said = str(caught.value)
    assert message in said
    assert "--" not in said
    assert "flag" not in said
    assert teacher.calls == 0
    assert list(tmp_path.iterdir()) == [tmp_path / "taken"]


def test_what_is_no_teacher_is_refused() -> None:
    for wrong in (None, 3, "digits"):
        with pytest.raises(dfme.UserError, match=r"^teacher=\.\.\.: expected a callable images"):
            dfme.extract(wrong, shape=(1, 8, 8), num_classes=10)  # type: ignore[arg-type]


def test_all_that_is_wrong_is_said_at_once_by_key_and_by_keyword() -> None:
    wrong: dict[str, Any] = {
        "budget": 0,
        "levels": 1,
        "student": {"lr": -1, "lrr": 1},
        "estimator": {"directions": 0},
        "method_options": {"batchsize": 1},
    }
    with pytest.raises(dfme.UserError) as caught:
        dfme.extract(Metered(), shape=(1, 8, 8), num_classes=10, **wrong)
    keys = [problem.key for problem in caught.value.problems]
    assert set(keys) == {
        "student.lrr",
        "budget",
        "student.lr",
        "teacher.levels",
        "method.batchsize",
        "estimator.directions",
    }
    assert len(keys) == 6
    for keyword in ("budget=", "levels=", 'student={"lr": ', 'estimator={"directions": '):
        assert f"{keyword}...: expected" in str(caught.value).replace("...}", "...")


def test_what_goes_wrong_on_the_way_is_said_in_python_too(tmp_path: Path) -> None:
    def column(images: torch.Tensor) -> torch.Tensor:
        return images.mean((1, 2, 3))[:, None]

    with pytest.raises(
        dfme.TeacherError, match=r"start a new run with num_classes=2; .* out="
    ) as e:
        dfme.extract(column, shape=(1, 8, 8), num_classes=10, budget=100, out=tmp_path / "run")
    assert (e.value.reason, e.value.exit_code) == ("unusable answer", 3)


@pytest.mark.parametrize(
    ("option", "text"),
    [
        (Ref("budget", "2k"), 'budget="2k"'),
        (Ref("budget"), "budget=..."),
        (Ref("estimator.step", "1e-3"), 'estimator={"step": 1e-3}'),
        (Ref("method.reuse", True), 'method_options={"reuse": True}'),
        (Ref("method.name", "dfme"), 'method="dfme"'),
        (Ref("teacher.levels", 256), "levels=256"),
        (Ref("teacher.url", "http://x/y"), "teacher.url http://x/y"),
        (Ref("estimator"), "estimator=..."),
    ],
)
def test_an_option_is_the_keyword_that_sets_it(option: Ref, text: str) -> None:
    assert as_keyword(option, ["budget", "estimator", "method", "method_options", "levels"]) == text


@pytest.mark.integration
def test_the_package_lists_what_it_has_without_loading_it() -> None:
    code = (
        "import dfme, sys\nnames = dir(dfme)\nassert not {'torch', 'pydantic', 'numpy'} & "
        "set(sys.modules)\n"
        "assert all(getattr(dfme, name) is not None for name in names)\nprint(*names)"
    )
    process = subprocess.run(
        [sys.executable, "-c", code], cwd=PROJECT, capture_output=True, text=True, check=True
    )
    assert {"extract", "load_student", "Method", "MethodEntry", "Result", "UserError"} <= set(
        process.stdout.split()
    )
    assert set(process.stdout.split()) == set(dfme.__all__) == set(dir(dfme))
