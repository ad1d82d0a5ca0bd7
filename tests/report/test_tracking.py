"""Metrics file, console and recorder, against plain arithmetic and the files on disk."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import tracemalloc
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tables import all_hold

from dfme.config.settings import WandbConfig
from dfme.errors import RunError
from dfme.report.console import Console, duration
from dfme.report.metrics import MOST_CALLBACK_NAMES, MOST_STEPS, MetricsFile, read_metrics
from dfme.report.recorder import Recorder, contact_sheet
from dfme.report.wandb_run import WandbRun

SUMMARY: dict[str, Any] = {
    "budget": 1_000,
    "spent": 1_000,
    "spent_by_purpose": {"generator": 400, "student": 600, "seed": 0, "check": 0},
    "evaluation_queries": 360,
    "teacher_accuracy": 0.9889,
    "accuracy": 0.95,
    "agreement": 0.975,
    "wall_seconds": 12.5,
    "queries_per_second": 80.0,
    "evaluation": {"name": "digits", "images": 360, "held_back": False},
}


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def recorder(run_dir: Path, resume_at: int = 0, bounds: tuple[float, float] = (0.0, 1.0)) -> Recorder:
    return Recorder.open(run_dir, 1_000, {"seed": 0}, WandbConfig(), bounds=bounds, resume_at=resume_at, quiet=True)


def test_every_line_is_on_disk_at_once_and_is_strict_json(tmp_path: Path) -> None:
    file = MetricsFile(tmp_path / "m.jsonl")
    file.write(256, {"student_loss": 0.5, "kl": float("nan")})
    lines = (tmp_path / "m.jsonl").read_text().splitlines()  # the file is still open
    assert [json.loads(line) for line in lines] == [{"queries": 256, "student_loss": 0.5, "kl": None}]


def test_unknown_metric_is_refused_with_the_nearest_name_and_nothing_is_written(tmp_path: Path) -> None:
    file = MetricsFile(tmp_path / "m.jsonl")
    with pytest.raises(KeyError, match="did you mean student_loss"):
        file.write(1, {"student_los": 0.5})
    assert (tmp_path / "m.jsonl").read_bytes() == b""


@pytest.mark.parametrize(("resume_at", "kept"), [(0, [0]), (299, [0, 100, 200]), (300, [0, 100, 200, 300])])
def test_reopening_keeps_what_the_checkpoint_covers(tmp_path: Path, resume_at: int, kept: list[int]) -> None:
    file = MetricsFile(tmp_path / "m.jsonl")
    for queries in range(0, 500, 100):
        file.write(queries, {"student_loss": queries / 7})
    file.close()
    file = MetricsFile(tmp_path / "m.jsonl", resume_at)
    file.write(resume_at + 1, {})
    assert [record["queries"] for record in read_metrics(tmp_path / "m.jsonl")] == [*kept, resume_at + 1]


def test_of_a_long_file_a_sample_every_score_and_the_last_of_each_are_read(tmp_path: Path) -> None:
    """0.5.0 read and drew all of them: 26 s and 960 MB for 300,000 records of eleven metrics."""
    path, count = tmp_path / "m.jsonl", 10_000
    records: list[dict[str, Any]] = [
        {"queries": n, "student_loss" if n % 2 else "generator_loss": n / count, f"strange_{n}": 1}
        for n in range(count)
    ]
    for n in range(0, count, 250):
        records[n]["agreement"] = n / count
    records[7]["kl"] = 0.5
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    tracemalloc.start()
    found = read_metrics(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 3e6  # 0.5.0: 4.2e6, and twice that of twice as many
    assert len(found) < MOST_STEPS + 60 + MOST_CALLBACK_NAMES
    assert [r["queries"] for r in found if "agreement" in r] == list(range(0, count, 250))
    queries = [r["queries"] or 0 for r in found]
    assert queries == sorted(set(queries))
    assert {7, count - 2, count - 1} <= set(queries)
    assert all(r == {name: records[int(r["queries"] or 0)][name] for name in r} for r in found)
    for name in ("student_loss", "generator_loss"):  # what alternates is there in equal parts, from end to end
        places = [r["queries"] or 0 for r in found if name in r]
        assert 800 < len(places) < 1_200
        assert max(after - before for before, after in pairwise([0, *places, count])) < count / 50


def test_a_torn_last_line_is_left_out_and_overwritten(tmp_path: Path) -> None:
    def holds(torn: int) -> None:
        path = tmp_path / f"{torn}.jsonl"
        MetricsFile(path).write(100, {"accuracy": 0.25})
        whole = path.read_bytes()
        path.write_bytes(whole + b'{"queries": 200, "accuracy": 0.5}\n'[:torn])
        assert [record["queries"] for record in read_metrics(path)] == [100]
        MetricsFile(path).write(300, {})
        assert path.read_bytes() == whole + b'{"queries": 300}\n'

    all_hold(holds, ((torn,) for torn in range(1, 30)))


def test_a_broken_line_in_the_middle_is_named(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    path.write_text('{"queries": 1}\n{"queries": \n{"queries": 3}\n')
    with pytest.raises(RunError, match="line 2"):
        MetricsFile(path)


def test_plain_lines_come_every_twentieth_of_the_budget_and_at_evaluations() -> None:
    stream, clock = io.StringIO(), Clock()
    console = Console(10_000, stream, io.StringIO(), clock=clock)
    console.start(0)
    for queries in range(100, 2_001, 100):
        clock.now = queries / 50
        console.step(queries, {"student_loss": 0.25})
    assert [line.split(" / ")[0] for line in stream.getvalue().splitlines()] == ["500", "1,000", "1,500", "2,000"]
    console.evaluation(2_050, {"agreement": 0.75})
    last = stream.getvalue().splitlines()[-1]
    # 2,050 queries in 40 s are 51.25 per second; the 7,950 left take 155 s
    for part in ("2,050 / 10,000", "agreement 75.00%", "student loss 0.25", "51 queries/s", "2:35 left"):
        assert part in last
    assert "\r" not in stream.getvalue()


def test_a_slow_teacher_still_gives_a_line_now_and_then() -> None:
    stream, clock = io.StringIO(), Clock()
    console = Console(1_000_000, stream, io.StringIO(), clock=clock)
    console.start(0)
    for minute in range(1, 21):
        clock.now = 60.0 * minute
        console.step(minute, {})
    assert len(stream.getvalue().splitlines()) == 4


def test_a_resumed_run_is_timed_from_where_it_was_taken_up() -> None:
    stream, clock = io.StringIO(), Clock()
    console = Console(1_000, stream, io.StringIO(), clock=clock)
    console.start(500)
    clock.now = 10.0
    console.evaluation(600, {})
    assert "10 queries/s" in stream.getvalue()
    assert "40 s left" in stream.getvalue()


def test_quiet_writes_nothing_anywhere() -> None:
    stream, results = Terminal(), Terminal()
    console = Console(1_000, stream, results, quiet=True)
    console.start(0)
    console.step(900, {})
    console.evaluation(1_000, {"agreement": 1.0})
    console.note("hello")
    console.table(SUMMARY, Path("x"))
    assert stream.getvalue() == results.getvalue() == ""


def test_the_end_table_names_the_results_and_the_files_there_are(tmp_path: Path) -> None:
    (tmp_path / "student.safetensors").touch()
    results = io.StringIO()
    Console(1_000, io.StringIO(), results).table(SUMMARY, tmp_path)
    rows = dict(line.split("  ", 1) for line in results.getvalue().splitlines())
    assert rows["spent"].strip() == "1,000 (generator 400, student 600; 360 more for evaluation, not charged)"
    assert rows["agreement"].strip() == "97.50%"
    assert rows["student"].strip() == str(tmp_path / "student.safetensors")
    assert "report" not in rows


def test_the_end_table_of_a_run_without_evaluation_set_says_so(tmp_path: Path) -> None:
    held = {"name": "held-back queries", "images": 10, "held_back": True}
    results = io.StringIO()
    summary = SUMMARY | {"evaluation": held, "accuracy": None, "teacher_accuracy": None, "queries_per_second": None}
    Console(1_000, io.StringIO(), results).table(summary, tmp_path)
    assert "97.50% on held-back generated queries" in results.getvalue()
    assert results.getvalue().count("not known") == 2


@pytest.mark.parametrize(("seconds", "text"), [(0, "0 s"), (59.4, "59 s"), (60, "1:00"), (3_725, "1:02:05")])
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_a_recorder_fans_out_and_a_resumed_one_repeats_nothing(tmp_path: Path) -> None:
    with recorder(tmp_path) as first:
        first.step(100, {"student_loss": 1.0})
        first.evaluation(200, {"agreement": 0.5})
        first.samples(200, np.zeros((2, 1, 4, 4)), None)
        first.evaluation(400, {"agreement": 0.7})
        first.samples(400, np.zeros((2, 1, 4, 4)), None)
    with recorder(tmp_path, resume_at=200) as second:
        second.evaluation(400, {"agreement": 0.7})
    assert [record["queries"] for record in read_metrics(tmp_path / "metrics.jsonl")] == [100, 200, 400]
    assert [path.name for path in (tmp_path / "samples").iterdir()] == ["queries-000000200.npz"]


@pytest.mark.parametrize("bounds", [(0.0, 1.0), (-1.0, 1.0), (0.0, 255.0)])
def test_samples_are_kept_as_pixels_with_their_answers(tmp_path: Path, bounds: tuple[float, float]) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (5, 3, 6, 4), dtype=np.uint8)
    answers = np.random.default_rng(1).random((5, 10)).astype(np.float32)
    images = bounds[0] + pixels.astype(np.float32) / 255 * (bounds[1] - bounds[0])
    with recorder(tmp_path, bounds=bounds) as kept:
        kept.samples(300_000, images, answers)
    with np.load(tmp_path / "samples" / "queries-000300000.npz", allow_pickle=False) as found:
        np.testing.assert_array_equal(found["images"], pixels)
        np.testing.assert_array_equal(found["answers"], answers)


def test_closing_after_the_end_does_no_harm(tmp_path: Path) -> None:
    with recorder(tmp_path) as record:
        record.finish(SUMMARY)


def test_the_contact_sheet_shows_each_image_where_it_belongs() -> None:
    pixels = np.arange(10, dtype=np.uint8).reshape(10, 1, 1, 1) * np.ones((1, 1, 8, 8), dtype=np.uint8)
    sheet = contact_sheet(pixels)
    assert sheet.shape == (2 * 34, 8 * 34, 3)  # 8x8 images enlarged four times, in frames of one pixel
    centres = sheet[17::34, 17::34, 0].reshape(-1)
    assert centres.tolist() == [*range(10), *[255] * 6]


@pytest.mark.integration
def test_tracking_off_imports_neither_wandb_nor_torch(tmp_path: Path) -> None:
    code = (
        "import sys, pathlib; from dfme.report.recorder import Recorder; from dfme.config.settings import WandbConfig;"
        f"Recorder.open(pathlib.Path({str(tmp_path)!r}), 10, {{}}, WandbConfig()).close();"
        "print(sorted({'torch', 'wandb', 'matplotlib'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_wandb_that_cannot_be_imported_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    said: list[str] = []
    run = WandbRun(WandbConfig(mode="offline"), tmp_path, {}, said.append)
    run.log(1, {"accuracy": 0.5})
    run.finish({}, tmp_path / "student.safetensors")
    assert len(said) == 1
    assert "goes on without it" in said[0]
