"""A function of the user's hears what a run logs, and may stop it: all that was paid is kept."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import small_runs
from small_runs import BUDGET, Metered, clone, student


@pytest.fixture(autouse=True)
def _no_pictures():
    with small_runs.no_pictures():
        yield


def test_it_hears_every_record_and_the_result_has_them_all(tmp_path: Path) -> None:
    heard = []
    result = clone(tmp_path / "run", Metered(), callback=lambda queries, metrics: heard.append((queries, metrics)))
    written = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [queries for queries, _ in heard] == [record["queries"] for record in written]
    assert [metrics["student_loss"] for _, metrics in heard] == [record["student_loss"] for record in written]
    assert result.metrics == written
    assert sum("requests" in metrics for _, metrics in heard) == 4, "the evaluations"
    again = clone(tmp_path / "run", Metered(), resume=True)
    assert again.metrics == written, "of a run that was finished before, too"


def test_true_stops_the_run_and_resuming_ends_as_if_nothing_had_been(tmp_path: Path) -> None:
    clone(tmp_path / "whole", Metered())
    first, second = Metered(), Metered()
    stopped = clone(tmp_path / "run", first, callback=lambda queries, metrics: queries >= BUDGET / 2)
    assert not stopped.finished
    assert first.served == stopped.summary["spent"] == BUDGET / 2
    assert clone(tmp_path / "run", second, resume=True, callback=lambda queries, metrics: 1).finished, "1 is not True"
    assert first.served + second.served == BUDGET
    assert student(tmp_path / "run") == student(tmp_path / "whole")


@pytest.mark.parametrize("share", [0.25, 0.5, 1.0])
def test_what_it_raises_ends_the_run_once_everything_is_kept(share: float, tmp_path: Path) -> None:
    def fail(queries: int, metrics: dict[str, float]) -> None:
        if queries >= share * BUDGET:
            metrics.clear()
            raise ZeroDivisionError("mine")

    clone(tmp_path / "whole", Metered())
    first, second = Metered(), Metered()
    with pytest.raises(ZeroDivisionError, match="mine"):
        clone(tmp_path / "run", first, callback=fail)
    assert not (tmp_path / "run" / "summary.json").exists()
    result = clone(tmp_path / "run", second, resume=True)
    assert result.finished
    assert (first.served, second.served) == (share * BUDGET, BUDGET - share * BUDGET)
    assert student(tmp_path / "run") == student(tmp_path / "whole")
    assert [record["queries"] for record in result.metrics if "requests" in record] == [100, 200, 300, 400]
