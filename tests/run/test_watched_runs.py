"""Runs against a watched teacher: resumed exactly, reported, and the same run as unwatched."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from defended import WEIGHTS
from kills import Strike, after, strike
from processes import PROJECT, Bench
from report_runs import page_of
from small_runs import BATCH, break_down, clone, ctrl_c, no_pictures, student
from torch import Tensor

from dfme.cli.main import main
from dfme.config.settings import ExtractConfig, Job, TeacherConfig
from dfme.errors import RunError, TeacherError
from dfme.methods import METHODS
from dfme.report.console import end_table
from dfme.report.summary_file import read_summary
from dfme.run.job import config_hash
from dfme.spec import LabelMode
from dfme.teachers.build import make_teacher
from dfme.teachers.defences.wrapper import Defended
from dfme.teachers.watch.watch import Watch

NAMES = ("pairs", "labels", "sequential")
DIGITS: dict[str, Any] = {"evaluation": {"dataset": "digits", "limit": 60, "points": 4}}


@pytest.fixture(autouse=True)
def _no_pictures() -> Any:
    with no_pictures():
        yield


class Stopped(Defended):
    """The embedded digits under a watch, stopped where ``at`` says."""

    def __init__(self, at: dict[int, Callable[[], object]] | None = None, on_alarm: Any = "log") -> None:
        plain = make_teacher(TeacherConfig(label_mode="logits"), {"checkpoint": WEIGHTS}, torch.device("cpu"))
        watching = partial(Watch, names=NAMES, data="digits", on_alarm=on_alarm)
        super().__init__(plain, (), LabelMode("probabilities"), watching)
        self.calls, self.before = 0, at or {}

    def __call__(self, images: Tensor) -> Tensor:
        self.calls += 1
        self.before.get(self.calls, int)()
        return super().__call__(images)


def seen(out: Path) -> tuple[Any, str]:
    return json.loads((out / "summary.json").read_text())["watch"], (out / "watch.jsonl").read_text()


def test_a_resumed_run_has_the_watch_figures_of_the_undisturbed_one(tmp_path: Path) -> None:
    """Stopped with a checkpoint; then with answers beyond it, and lines a killed process had written there."""
    clone(tmp_path / "whole", Stopped(), **DIGITS)
    out = tmp_path / "run"
    assert not clone(out, Stopped({9: ctrl_c}), **DIGITS).finished
    with (out / "watch.jsonl").open("a") as file:
        file.write('{"images": 350, "largest": {"pairs": 9.0}}\n{"images": 4')
    with pytest.raises(TeacherError, match="gone"):
        clone(out, Stopped({4: break_down}), resume=True, **DIGITS)
    clone(out, Stopped(), resume=True, **DIGITS)
    assert student(out) == student(tmp_path / "whole")
    assert seen(out) == seen(tmp_path / "whole")
    report, text = seen(out)
    lines = [json.loads(line) for line in text.splitlines()]
    assert report["images"] == 400
    assert [line["images"] for line in lines if "largest" in line] == list(range(50, 401, 50))
    for name in NAMES:
        figures, alarms = report["detectors"][name], [line for line in lines if line.get("alarm") == name]
        assert figures["alarms"] == len(alarms)
        assert figures["first_alarm"] == (alarms[0]["images"] if alarms else None)
        assert figures["largest"] == max(line["largest"][name] for line in lines if "largest" in line)
        assert figures["largest_600"] is None
    assert report["detectors"]["sequential"]["first_alarm"] < 20, "noise is not at home"
    table = end_table(read_summary(out / "summary.json") or {}, out)
    first = report["detectors"]["sequential"]["first_alarm"]
    for page in (table, " ".join(page_of(out).text)):
        assert f"first alarm at image {first} of 400 images" in page
    damaged = json.loads((out / "summary.json").read_text())
    damaged["watch"]["detectors"]["pairs"]["first_alarm"] = "soon"
    (out / "summary.json").write_text(json.dumps(damaged))
    with pytest.raises(RunError, match="its watch is"):
        read_summary(out / "summary.json")


def test_a_run_that_the_watch_refuses_ends_in_words_with_everything_kept(tmp_path: Path) -> None:
    with pytest.raises(
        TeacherError, match=r"an alarm was raised for this account .*sequential at image \d+.*all that was"
    ):
        clone(tmp_path / "run", Stopped(on_alarm="refuse"), **DIGITS)
    lines = [json.loads(line) for line in (tmp_path / "run/ledger.jsonl").read_text().splitlines()]
    charged = [line for line in lines if line.get("event") == "charge" or "charge" in line.values()]
    assert charged
    assert "watch" in (tmp_path / "run/ledger.jsonl").read_text()


def test_a_watch_that_only_logs_is_no_part_of_the_configurations_hash() -> None:
    teacher, entry = TeacherConfig(), METHODS["static"]
    job = Job(ExtractConfig(), teacher, {"checkpoint": WEIGHTS}, "static", entry.config())
    watched = {"watch": ("pairs",), "benign": "digits"}
    hashes = [config_hash(replace(job, teacher=replace(teacher, **changes))) for changes in ({}, watched)]
    assert hashes[0] == hashes[1]
    acting = [
        config_hash(replace(job, teacher=replace(teacher, **watched, on_alarm=each))) for each in ("refuse", "label")
    ]
    assert len({*hashes, *acting}) == 3
    other = config_hash(replace(job, teacher=replace(teacher, watch=("labels",), benign="digits", on_alarm="label")))
    assert other not in acting


@pytest.mark.integration
def test_killed_by_the_system_and_resumed_it_has_the_figures_of_the_unkilled_run(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    weights = ["--teacher.checkpoint", str(PROJECT / WEIGHTS), "--teacher.watch", ",".join(NAMES)]
    flags = [
        "extract",
        *weights,
        "--teacher.benign",
        "digits",
        "--method.name",
        "static",
        "--method.batch-size",
        str(BATCH),
    ]
    flags += [
        "--method.latent-size",
        "16",
        "--budget",
        "400",
        "--student.arch",
        "cnn_small",
        "--evaluation.limit",
        "20",
    ]
    flags += ["--evaluation.dataset", "digits", "--checkpoint-seconds", "0.02", "--evaluation.points", "2"]
    assert main([*flags, "--out", str(tmp_path / "whole")]) == 0
    process = bench.start([*flags, "--out", "run"])
    assert strike(process, tmp_path / "run", Strike(after(8), 0.0), time.time()), "it was alive"
    assert not (tmp_path / "run/summary.json").exists()
    assert main(["extract", "--resume", "--out", str(tmp_path / "run")]) == 0
    assert bench.student("run") == bench.student("whole")
    assert seen(tmp_path / "run") == seen(tmp_path / "whole")
    assert seen(tmp_path / "run")[0]["images"] == 400
