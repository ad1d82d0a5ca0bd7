"""The suite of a GPU: its rows, what is kept of them, and how it goes on; on a CPU every row at toy size."""

from __future__ import annotations

import gc
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from dfme.config.estimator_settings import EstimatorConfig
from dfme.config.settings import ExtractConfig
from dfme.config.values import options_of
from dfme.errors import DfmeError, UserError
from dfme.run.loop import Progress
from research import bench, gpu_suite, speed
from research.gpu_rows import (
    ARITHMETICS,
    COMPILED,
    OPTIONS,
    PLAIN,
    PLAN,
    PLANS,
    SLOPES,
    TIMES,
    Bench,
    Measured,
    Row,
    rows,
)
from research.gpu_suite import DATA, REPORT, judged
from research.options import BenchConfig
from research.speed import CASES

CPU = torch.device("cpu")
Stubs = dict[str, Callable[[], Measured]]


@pytest.fixture(autouse=True)
def no_processes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if not request.node.get_closest_marker("integration"):
        monkeypatch.setattr(gpu_suite, "commit", lambda: "")


@pytest.fixture
def suite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, Any]]:
    """Runs the suite with rows of ours; what it kept."""

    def run(stubs: Stubs, *words: str, seconds: float = 1.0) -> dict[str, Any]:
        made = [Row(name, measure, {"speed": 2.0}, seconds) for name, measure in stubs.items()]
        monkeypatch.setattr(gpu_suite, "rows", lambda bench: iter(made))
        bench.run(["--suite", "gpu", "--device", "cpu", "--out", str(tmp_path / "out"), *words])
        return json.loads((tmp_path / "out" / DATA).read_text())

    return run


def fails() -> Measured:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate\n2.00 GiB | more")


def never() -> Measured:
    raise AssertionError("a row that was measured is measured again")


def test_every_row_is_named_once_and_every_bar_of_the_issue_stands_on_one() -> None:
    every = list(rows(Bench(CPU)))
    assert len({row.name for row in every}) == len(every)
    bars = {(name, least) for row in every for name, least in row.bars.items()}
    published, bare = TIMES + "the published loop", TIMES + "the same kernels bare, as one CUDA graph"
    assert bars >= {(published, 1.7), (published, 3.0), (SLOPES, 0.9), (bare, 0.9)}
    assert all(row.seconds <= 60 for row in every)


def test_a_bar_is_met_or_missed_and_without_its_figure_neither() -> None:
    assert judged({"a": 1.7, "b": 0.9, "c": 1.0}, {"a": 1.7, "b": 0.89}) == {
        "a >= 1.7": True,
        "b >= 0.9": False,
        "c >= 1": None,
    }


def test_rows_are_kept_as_they_come_and_one_that_fails_stops_nothing(suite, tmp_path, capsys) -> None:
    def second() -> Measured:
        kept = json.loads((tmp_path / "out" / DATA).read_text())
        assert [row["name"] for row in kept["rows"]] == ["first"]
        assert kept["missing"] == ["second", "third", "fourth"]
        return {"speed": 3.0}

    stubs = {"first": lambda: {"speed": 1.5}, "second": second, "third": fails, "fourth": lambda: {"x": float("nan")}}
    kept = suite(stubs)
    assert set(kept) == {"note", "made_on", "clocks", "date", "rows", "missing"}
    assert kept["missing"] == []
    assert "say nothing about a GPU" in kept["note"]
    assert kept["made_on"]["torch"] == torch.__version__
    first, _, third, fourth = kept["rows"]
    assert set(first) == {"name", "figures", "bars", "seconds", "error"}
    assert (first["figures"], first["bars"], first["error"]) == ({"speed": 1.5}, {"speed >= 2": None}, "")
    assert third["figures"] == fourth["figures"] == {}
    assert third["error"] == "OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB | more"
    assert fourth["error"].startswith("ValueError: Out of range float values")
    table = [line for line in (tmp_path / "out" / REPORT).read_text().splitlines() if line.startswith("|")]
    assert all(line.count("|") == 5 for line in table)
    assert len(table) == 2 + 4
    assert table[2] in capsys.readouterr().out


def test_what_is_missing_or_failed_is_measured_on_resume_and_nothing_else(suite, capsys) -> None:
    measured: list[str] = []

    def note(name: str) -> Callable[[], Measured]:
        return lambda: measured.append(name) or {"speed": 1.0}

    kept = suite({"a": note("a"), "b": fails}, "--minutes", "0.05")
    assert (measured, kept["missing"]) == (["a"], [])
    kept = suite({"a": never, "b": note("b"), "c": note("c")}, "--resume")
    assert measured == ["a", "c", "b"], "a row that failed comes last"
    assert [(row["name"], row["error"]) for row in kept["rows"]] == [("a", ""), ("b", ""), ("c", "")]


def test_a_row_for_which_there_is_no_time_is_left(tmp_path, monkeypatch, capsys) -> None:
    long = Row("long", never, {}, 90.0)
    short = Row("short", lambda: {"speed": 1.0}, {}, 5.0)
    monkeypatch.setattr(gpu_suite, "rows", lambda bench: iter([long, short]))
    out = tmp_path / "timed"
    bench.run(["--suite=gpu", "--device=cpu", "--minutes=1", f"--out={out}"])
    kept = json.loads((out / DATA).read_text())
    assert ([row["name"] for row in kept["rows"]], kept["missing"]) == (["short"], ["long"])
    assert f"1 rows are left: python -m research.bench --suite gpu --resume --out {out}" in capsys.readouterr().out
    assert "Not measured yet: long." in (out / REPORT).read_text()


def test_where_nothing_can_be_measured_it_is_an_error(suite) -> None:
    with pytest.raises(DfmeError, match="nothing could be measured"):
        suite({"only": fails})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"made_on": {"machine": "another GPU"}}, "measured with machine another GPU, and this is cpu"),
        ({"rows": [{"name": "a"}]}, "expected a suite to go on with"),
        ({"rows": [{"name": "a", "figures": {"x": "1; rm"}, "bars": {}, "seconds": 1}]}, "expected a suite to go on"),
    ],
)
def test_rows_of_another_machine_or_of_no_suite_are_refused(suite, tmp_path, change, message) -> None:
    kept = suite({"a": lambda: {"speed": 1.0}})
    (tmp_path / "out" / DATA).write_text(json.dumps(kept | change))
    with pytest.raises(UserError, match=message):
        suite({"a": never}, "--resume")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--suite", "gpu", "--out", "TAKEN"], "--out: expected a new or empty directory"),
        (["--suite", "gpu", "--resume"], "--resume: expected --out as well"),
        (["--suite", "gpu", "--resume", "--out", "TAKEN"], "expected a suite to go on with"),
        (["--suite", "gpu", "--cases", "resnet"], "--cases: of no effect with --suite gpu"),
        (["--minutes", "3"], "--minutes: of effect with --suite gpu alone"),
        (["--seconds", "0"], "--seconds: expected a positive number"),
        (["--cases", "digit"], "did you mean digits?"),
    ],
)
def test_a_mistake_is_named(tmp_path, words, message) -> None:
    (tmp_path / "note.txt").write_text("a file of the user")
    with pytest.raises(UserError) as caught:
        bench.run([str(tmp_path) if word == "TAKEN" else word for word in words])
    assert message in str(caught.value)


def test_good_differences_correlate_with_the_true_slopes_and_rounded_answers_do_not() -> None:
    """The truth is autograd's, in float64; the answers are then rounded to what bf16 carries."""
    toy = Bench(CPU)
    toy.images = 128
    work = toy._work(CASES["digits_paper"], {})
    with work.opened(Progress()) as (method, run):
        run(2)
        estimated = method.approximate_gradients
        assert toy._slopes(work, method, estimated) > 0.999
        work.teacher.precision = "bf16"
        assert abs(toy._slopes(work, method, estimated)) < 0.5


def test_what_is_switched_on_is_an_option() -> None:
    """One that a run does not have would be measured without it."""
    known = {option.key for option in (*options_of(ExtractConfig), *options_of(EstimatorConfig, "estimator."))}
    changes = [*OPTIONS.values(), *ARITHMETICS.values(), *(each for each, _ in PLANS.values()), PLAN, COMPILED, PLAIN]
    assert {key for each in changes for key in each} - known == {"teacher.precision"}
    shared = speed.Work(CASES["digits_paper"], BenchConfig(batch_size=2), CPU, {"teacher.precision": "bf16"})
    assert shared.teacher.precision == "bf16"


@pytest.mark.exhaustive
@pytest.mark.timeout(600)
def test_on_a_cpu_every_row_is_measured_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All but compiling, which would take longer than all else."""
    out = tmp_path / "out"
    gc.freeze()  # the suite collects after every row: not what pytest and all tests before hold
    try:
        with torch.compiler.set_stance("force_eager"):
            bench.run(["--suite", "gpu", "--device", "cpu", "--minutes", "30", "--out", str(out)])
    finally:
        gc.unfreeze()
    kept = json.loads((out / DATA).read_text())
    assert [row["name"] for row in kept["rows"]] == [row.name for row in rows(Bench(CPU))]
    assert {row["name"]: row["error"] for row in kept["rows"] if row["error"]} == {}
    assert kept["missing"] == []
    assert all(value == value for row in kept["rows"] for value in row["figures"].values())
    assert {met for row in kept["rows"] for met in row["bars"].values()} == {None}
