"""--dry-run: what it prints is what the run then does, by its ledger, its files and its memory; it asks nothing."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from small_runs import Metered
from tiers import exhaustive

from dfme.cli.main import main
from dfme.run.job import PROJECT

pytestmark = pytest.mark.usefixtures("here")

DIGITS = str(PROJECT / "teachers/checkpoints/digits.safetensors")
BASE = [
    *("--teacher.checkpoint", DIGITS, "--teacher.max-batch", "7", "--method.batch-size", "20", "--budget", "790"),
    *("--evaluation.dataset", "digits", "--evaluation.limit", "31", "--evaluation.points", "1"),
    *("--student.arch", "cnn_small", "--student.replay-steps", "1", "--method.latent-size", "8"),
    *("--teacher.price-per-1000", "10"),
]
MADE = {
    "dfme": "dfme --method.generator-steps 2",
    "check": "dfme --estimator.kind auto --budget 1200",
    "synthetic": "dfme --estimator.kind synthetic --estimator.every 3 --method.reuse true --method.student-steps 2"
    " --method.training always",
    "prior": "dfme --estimator.kind prior_guided --method.batch-size 40",
    "seeds": "maze --method.partial-data procedural --method.seed-images 33 --method.store all",
    "central": "maze --estimator.form central --estimator.directions 3 --method.reuse false",
    "dfms": "dfms --method.gan-steps 1",
    "dual students": "dual_students",
    "static": "static",
}


def told(text: str) -> dict[str, list[str]]:
    """The table's rows, by name; numbers as they are written."""
    rows, name = dict[str, list[str]](), ""
    for line in text.splitlines()[1:]:
        name = line[:12].strip() or name
        rows.setdefault(name, []).append(line[12:])
    return rows


def number(text: str) -> int:
    return int(text.split()[0].strip(",;").replace(",", ""))


TELLING = ["check", "synthetic", "seeds"]


@pytest.mark.parametrize("name", [*TELLING, *exhaustive(*(name for name in MADE if name not in TELLING))])
def test_images_and_requests_are_those_of_the_ledger(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = [*BASE, "--method.name", *MADE[name].split()]
    assert main([*words, "--out", "run", "--dry-run"]) == 0
    said, before = capsys.readouterr().out, list(Path().iterdir())
    assert before == []
    assert main([*words, "--out", "run"]) == 0
    summary, rows = json.loads(Path("run/summary.json").read_text()), told(said)
    purposes = {each: count for each, count in summary["spent_by_purpose"].items() if count}
    planned = dict(re.findall(r"(\w+) ([\d,]+)", rows["images"][0].partition(": ")[2]))
    assert {each: number(count) for each, count in planned.items()} == purposes
    assert number(rows["images"][0]) == summary["spent"]
    assert number(rows["images"][1]) == summary["evaluation_queries"] == 31
    assert number(rows["requests"][0]) == summary["requests"]
    assert float(rows["cost"][0].split()[0]) == round(summary["cost"], 2)
    assert max(map(len, said.splitlines())) <= 80


def test_a_generator_that_may_pause_is_planned_at_its_most(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*BASE, "--method.name", "dfme", "--method.student-steps", "1", "--dry-run"]) == 0
    rows = told(capsys.readouterr().out)
    assert rows["images"][0].partition(": ")[2] == "generator 520, student 270"
    # 13 iterations of 40 and 20, and 10 more
    assert "of the generator at most" in rows["iterations"][1]


def test_the_disk_is_what_the_files_take(capsys: pytest.CaptureFixture[str]) -> None:
    words = [*BASE, "--method.name", "dfme", "--method.student-steps", "2", "--student.replay-steps", "1"]
    words += ["--queries.base", "none", "--out", "run"]  # the paper's generator, beside which random states are little
    assert main([*words, "--dry-run"]) == 0
    disk = " ".join(told(capsys.readouterr().out)["disk"])
    assert main(words) == 0
    sizes = [float(size) * {"kB": 1e3, "MB": 1e6}[unit] for size, unit in re.findall(r"([\d.]+) (kB|MB)", disk)]
    assert sizes[0] == pytest.approx(Path("run/checkpoint.pt").stat().st_size, rel=0.05)
    assert sizes[1] == pytest.approx(sum(each.stat().st_size for each in Path("run/journal").iterdir()), rel=0.02)


class Untouched(Metered):
    """A teacher that nobody may ask."""

    shape, num_classes = (1, 8, 8), 10

    def __call__(self, images: object) -> object:  # type: ignore[override]
        raise AssertionError("it was asked")


def test_a_teacher_of_ones_own_is_not_asked_and_nothing_is_written(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    assert main(["--teacher", "test_dry_run:Untouched", "--budget", "5k", "--out", "run", "--dry-run"]) == 0
    rows = told(capsys.readouterr().out)
    assert rows["teacher"][0].startswith("test_dry_run:Untouched in test_dry_run.py, sha256")
    assert "state the price by --teacher.price-per-1000" in rows["cost"][0]
    assert not list(Path().iterdir())
    assert main(["--resume", "--out", "run", "--dry-run"]) == 2


def test_a_service_without_consent_is_not_even_asked_what_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--teacher", "v2", "--teacher.url", "http://models.example", "--teacher.model", "m", "--budget", "9k"]
    assert main([*words, "--dry-run"]) == 2
    assert "nothing was sent" in capsys.readouterr().err


def test_a_run_that_does_not_fit_the_memory_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("dfme.run.memory.free_memory", lambda device: 100_000_000)
    monkeypatch.setattr("dfme.run.parts.SMALL", 0)
    words = [*BASE, "--method.name", "static", "--out", "run"]
    assert main([*words, "--method.batch-size", "60000", "--budget", "120k"]) == 2
    said = capsys.readouterr().err
    assert re.fullmatch(
        r"dfme: memory: this run needs about [\d.]+ GB, [\d.]+ GB of it for the (student|generator), and cpu has "
        r"0\.1 GB free; lower --method\.batch-size.*; nothing was asked\n",
        said,
    )
    assert not Path("run").exists()
    assert main(words) == 0


CHILD = """
import re, sys
from dfme.cli.main import main
assert main(sys.argv[1:]) == 0
# Not getrusage's: a process begins with the peak of the one that started it.
print(1024 * int(re.search(r"VmHWM:\\s+(\\d+) kB", open("/proc/self/status").read())[1]))
"""


@pytest.mark.integration
@pytest.mark.parametrize(
    "words",
    [
        "dfme --student.arch cnn_medium --method.batch-size 1500 --budget 10500",
        "static --student.arch resnet18_8x --method.batch-size 256 --budget 256 --student.replay-steps 1",
    ],
)
def test_the_memory_is_near_what_a_run_takes(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Less what the process holds without any of it: that of the smallest run. What kernels work in is not planned."""
    base = ["--teacher.checkpoint", DIGITS, "--evaluation.dataset", "none", "--device", "cpu", "--method.name"]
    large = [*base, *words.split()]
    assert main([*large, "--dry-run"]) == 0
    size, unit = re.findall(r"about ([\d.]+) (MB|GB)", " ".join(told(capsys.readouterr().out)["memory"]))[0]
    small = [*base, "static", "--method.batch-size", "2", "--budget", "2", "--student.arch", "cnn_small"]
    peaks = []
    for number, each in enumerate((small, large)):
        command = [sys.executable, "-c", CHILD, *each, "--out", f"run{number}"]
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=True,
            cwd=Path.cwd(),
            env={**os.environ, "PYTHONPATH": str(PROJECT)},
        )
        peaks.append(int(done.stdout.splitlines()[-1]))
    measured, planned = peaks[1] - peaks[0], float(size) * {"MB": 1e6, "GB": 1e9}[unit]
    assert planned / 2 <= measured <= planned * 2.5
