"""A function of the user's hears what a run logs, and may stop it: all that was paid is kept."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from small_runs import BUDGET, Metered, clone, student

from dfme.errors import UserError
from dfme.report.metrics import callback_metrics
from dfme.report.page import write_page
from dfme.report.run_files import read_run, read_summary
from dfme.report.wandb_run import WandbRun

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
    again = clone(out, Metered(), resume=True)
    assert result.metrics == again.metrics == written, "of a run that was finished before, too"


def test_true_stops_the_run_and_resuming_ends_as_if_nothing_had_been(
    tmp_path: Path, whole: Path
) -> None:
    first, second = Metered(), Metered()
    stopped = clone(
        tmp_path / "run", first, callback=lambda queries, metrics: queries >= BUDGET / 2
    )
    assert not stopped.finished
    assert first.served == stopped.summary["spent"] == BUDGET / 2
    one = clone(tmp_path / "run", second, resume=True, callback=lambda queries, metrics: 1)
    assert one.finished, "1 is not True"
    assert first.served + second.served == BUDGET
    assert student(tmp_path / "run") == student(whole)


@pytest.mark.parametrize("share", [0.25, 1.0])
def test_what_it_raises_ends_the_run_once_everything_is_kept(
    share: float, tmp_path: Path, whole: Path
) -> None:
    def fail(queries: int, metrics: dict[str, float]) -> None:
        if queries >= share * BUDGET:
            metrics.clear()
            raise ZeroDivisionError("mine")

    first, second = Metered(), Metered()
    with pytest.raises(ZeroDivisionError, match="mine"):
        clone(tmp_path / "run", first, callback=fail)
    assert not (tmp_path / "run" / "summary.json").exists()
    result = clone(tmp_path / "run", second, resume=True)
    assert result.finished
    assert (first.served, second.served) == (share * BUDGET, BUDGET - share * BUDGET)
    assert student(tmp_path / "run") == student(whole)
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
    shown = capsys.readouterr()
    assert "my_score          57.14" in shown.out
    assert "my_score 14.29" in shown.err
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


def test_what_can_be_no_metric_ends_the_run_and_all_paid_is_kept(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=NO_METRIC):
        clone(tmp_path / "run", first := Metered(), callback=lambda queries, metrics: WRONG[-1])
    assert clone(tmp_path / "run", second := Metered(), resume=True).finished
    assert first.served + second.served == BUDGET


@pytest.mark.parametrize("value", [float("nan"), 2, np.float32(2)])
def test_numbers_of_any_kind_are_metrics(value: float) -> None:
    (metric,) = callback_metrics({"a": value}).values()
    assert type(metric) is float
    assert metric == 2 or not math.isfinite(metric)


def test_a_callback_of_another_form_is_refused_before_the_first_query(tmp_path: Path) -> None:
    for callback in (lambda queries: None, lambda *, student: None, 3):
        with pytest.raises(UserError, match="callback: expected a function of"):
            clone(tmp_path / "run", teacher := Metered(), callback=callback)
        assert not teacher.calls
        assert not (tmp_path / "run").exists()
    heard: list[object] = []
    clone(
        tmp_path / "run",
        Metered(),
        callback=lambda queries, metrics, student=None: heard.append(student),
    )
    assert all(isinstance(each, torch.nn.Module) for each in heard)
