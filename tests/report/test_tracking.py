"""Metrics file, console and recorder, against plain arithmetic and the files on disk."""

import io
import json
import math
import sys
import tracemalloc
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from handmade import SUMMARY

from dfme.config.sections import WandbConfig
from dfme.errors import RunError
from dfme.report.console import Console, duration, end_table
from dfme.report.metrics import MAX_STEPS, METRICS, MetricsFile, read_metrics
from dfme.report.recorder import IN_A_ROW, SYMPTOMS, GradientWatch, Recorder
from dfme.report.wandb_run import WandbRun


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def begun(budget: int, spent: int = 0) -> tuple[Console, io.StringIO, Clock]:
    """A console off a terminal, what it says, and its clock."""
    stream, clock = io.StringIO(), Clock()
    console = Console(budget, stream, io.StringIO(), clock=clock)
    console.start(spent)
    return console, stream, clock


def recorder(
    run_dir: Path, resume_at: int = 0, bounds: tuple[float, float] = (0.0, 1.0)
) -> Recorder:
    return Recorder(
        run_dir, 1_000, {"seed": 0}, WandbConfig(), bounds=bounds, resume_at=resume_at, quiet=True
    )


def test_every_line_is_on_disk_at_once_and_is_strict_json(tmp_path: Path) -> None:
    file = MetricsFile(tmp_path / "m.jsonl")
    file.write(256, {"student_loss": 0.5, "kl": float("nan")})
    with pytest.raises(KeyError, match="did you mean student_loss"):
        file.write(300, {"student_los": 0.5})
    lines = (tmp_path / "m.jsonl").read_text().splitlines()  # the file is still open
    assert [json.loads(line) for line in lines] == [
        {"queries": 256, "student_loss": 0.5, "kl": None}
    ]


def test_of_a_long_file_a_sample_every_score_and_the_last_of_each_are_read(tmp_path: Path) -> None:
    path, count = tmp_path / "m.jsonl", 10_000
    names = ("generator_loss", "student_loss")
    records: list[dict[str, Any]] = [{"queries": n, names[n % 2]: n / count} for n in range(count)]
    for n in range(0, count, 250):
        records[n]["agreement"] = n / count
    records[7]["kl"] = 0.5
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    tracemalloc.start()
    result = read_metrics(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 3e6  # 0.5.0: 4.2e6, and twice that of twice as many
    assert len(result) < MAX_STEPS + 60
    assert [r["queries"] for r in result if "agreement" in r] == list(range(0, count, 250))
    queries = [r["queries"] or 0 for r in result]
    assert queries == sorted(set(queries))
    assert {7, count - 2, count - 1} <= set(queries)
    assert all(r == {name: records[int(r["queries"] or 0)][name] for name in r} for r in result)
    # what alternates is there in equal parts, from end to end
    for name in names:
        places = [r["queries"] or 0 for r in result if name in r]
        assert 800 < len(places) < 1_200
        assert max(after - before for before, after in pairwise([0, *places, count])) < count / 50


@pytest.mark.parametrize("torn", [1, 12, 29])
def test_a_torn_last_line_is_overwritten_and_a_broken_one_named(tmp_path: Path, torn: int) -> None:
    path = tmp_path / "m.jsonl"
    MetricsFile(path).write(100, {"accuracy": 0.25})
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"queries": 200, "accuracy": 0.5}\n'[:torn])
    assert [record["queries"] for record in read_metrics(path)] == [100]
    MetricsFile(path).write(300, {})
    assert path.read_bytes() == whole + b'{"queries": 300}\n'
    path.write_bytes(whole + b'{"queries": \n' + whole)
    with pytest.raises(RunError, match="line 2"):
        MetricsFile(path)


def test_plain_lines_come_every_two_seconds_and_at_evaluations() -> None:
    console, stream, clock = begun(10_000)
    for queries in range(100, 2_001, 100):
        clock.now = queries / 500
        console.step(queries, {"student_loss": 0.25})
    assert [line.split(" / ")[0] for line in stream.getvalue().splitlines()] == ["1,000", "2,000"]
    console.evaluation(2_050, {"agreement": 0.75})
    last = stream.getvalue().splitlines()[-1]
    # 2,050 queries in 4 s are 512.5 per second
    for part in ("2,050 / 10,000", "agreement 75.00%", "student loss 0.25", "512 queries/s"):
        assert part in last
    assert len(last) <= 100
    assert "\r" not in stream.getvalue()


def test_a_slow_teacher_gives_a_line_now_and_then_and_a_resumed_run_is_timed_from_there() -> None:
    console, stream, clock = begun(1_000_000)
    for second in range(1, 3_601):
        clock.now = float(second)
        console.step(second // 60, {})
    # every two seconds up to 100 s, then after another 2 % of the time so far
    assert 150 < len(stream.getvalue().splitlines()) < 50 + math.log(36) / math.log(1.02)
    console, stream, clock = begun(1_000, 500)
    clock.now = 10.0
    console.evaluation(600, {})
    assert "10 queries/s" in stream.getvalue()


def test_the_end_table_names_the_results_and_the_files_there_are(tmp_path: Path) -> None:
    (tmp_path / "student.safetensors").touch()
    rows = dict(line.split("  ", 1) for line in end_table(SUMMARY, tmp_path).splitlines())
    assert (
        rows["spent"].strip()
        == "1,000 (generator 300, student 700; 360 more for evaluation, not charged)"
    )
    assert rows["agreement"].strip() == "97.50%"
    assert rows["student"].strip() == str(tmp_path / "student.safetensors")
    assert "report" not in rows
    held = {"name": "held-back queries", "images": 10, "held_back": True}
    unknown = dict.fromkeys(("accuracy", "teacher_accuracy", "queries_per_second"))
    text = end_table(SUMMARY | unknown | {"evaluation": held}, tmp_path)
    assert "97.50% on held-back generated queries" in text
    assert text.count("not known") == 2


def test_a_recorder_fans_out_and_a_resumed_one_repeats_nothing(tmp_path: Path) -> None:
    with recorder(tmp_path) as first:
        first.step(100, {"student_loss": 1.0})
        first.evaluation(200, {"agreement": 0.5})
        first.samples(200, np.zeros((2, 1, 4, 4)), None)
        first.evaluation(400, {"agreement": 0.7})
        first.samples(400, np.zeros((2, 1, 4, 4)), None)
    with recorder(tmp_path, resume_at=200) as second:
        second.evaluation(400, {"agreement": 0.7})
    assert [record["queries"] for record in read_metrics(tmp_path / "metrics.jsonl")] == [
        100,
        200,
        400,
    ]
    assert [path.name for path in (tmp_path / "samples").iterdir()] == ["queries-000000200.npz"]


@pytest.mark.parametrize("bounds", [(0.0, 1.0), (-1.0, 1.0), (0.0, 255.0)])
def test_samples_are_kept_as_pixels_with_their_answers(
    tmp_path: Path, bounds: tuple[float, float]
) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (5, 3, 6, 4), dtype=np.uint8)
    answers = np.random.default_rng(1).random((5, 10)).astype(np.float32)
    images = bounds[0] + pixels.astype(np.float32) / 255 * (bounds[1] - bounds[0])
    with recorder(tmp_path, bounds=bounds) as recorded:
        recorded.samples(300_000, images, answers)
    with np.load(tmp_path / "samples" / "queries-000300000.npz", allow_pickle=False) as result:
        np.testing.assert_array_equal(result["images"], pixels)
        np.testing.assert_array_equal(result["answers"], answers)


def test_wandb_that_cannot_be_imported_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    messages: list[str] = []
    run = WandbRun(WandbConfig(mode="offline"), tmp_path, {}, messages.append)
    run.log(1, {"accuracy": 0.5})
    run.finish({}, tmp_path / "student.safetensors")
    assert [line.count("goes on without it") for line in messages] == [1]


def test_quiet_writes_nothing_anywhere_and_durations_are_as_people_write_them() -> None:
    stream, results = io.StringIO(), io.StringIO()
    console = Console(1_000, stream, results, quiet=True)
    console.start(0)
    console.step(900, {})
    console.evaluation(1_000, {"agreement": 1.0})
    console.note("hello")
    console.table(SUMMARY, Path("x"))
    assert stream.getvalue() == results.getvalue() == ""
    assert [duration(seconds) for seconds in (0, 59.4, 60, 3_725)] == [
        "0 s",
        "59 s",
        "1:00",
        "1:02:05",
    ]


BAD = {"difference_zero_share": 0.75, "difference_snr": 1.5, "probe_alignment": 0.2}
GOOD = {"difference_zero_share": 0.0, "difference_snr": 40.0, "probe_alignment": 0.99}


def lines(records: list[dict[str, float]]) -> list[str]:
    watch = GradientWatch()
    return [line for record in records if (line := watch.see(record)) is not None]


@pytest.mark.parametrize(
    ("name", "figure"),
    [
        ("difference_zero_share", "75%"),
        ("difference_snr", "1.5 times"),
        ("probe_alignment", "0.20"),
    ],
)
def test_each_symptom_gives_one_line_with_its_figure(name: str, figure: str) -> None:
    (line,) = lines([GOOD | {name: BAD[name]}] * 10)
    assert line.startswith("warning: ")
    assert all(part in line for part in (figure, "likely cause: ", "--estimator.kind auto"))
    assert name in METRICS


def test_good_figures_and_single_bad_ones_warn_of_nothing() -> None:
    assert lines([GOOD] * 20) == []
    assert lines([BAD] * (IN_A_ROW - 1)) == []
    assert len(lines([BAD, {"student_loss": 1.0}] * IN_A_ROW)) == 1, (
        "other records do not break the row"
    )
    assert lines([BAD, BAD, GOOD] * 10) == []
    assert lines([{name: float("nan") for name in SYMPTOMS}] * 10) == []
    assert lines([GOOD | {"difference_snr": float("inf")}] * 10) == []


@pytest.mark.parametrize("checked", [False, True])
def test_a_run_says_it_once_and_is_not_sent_back_to_the_check(
    checked: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recorder = Recorder(
        tmp_path, 1_000, {"estimator": {"kind": "auto"}} if checked else {}, WandbConfig()
    )
    for queries in range(1, 20):
        recorder.step(queries, {"difference_snr": 0.5})
    recorder.evaluation(20, {"difference_snr": 0.5})
    recorder.close()
    messages = capsys.readouterr().err
    assert messages.count("warning: finite differences are only 0.5 times") == 1
    assert ("--estimator.kind auto" in messages) != checked
