"""A comparison as processes: with stand-ins that do what a cell is told to, and whole, as a person starts it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from processes import Bench

from dfme.benchmarks.compare import session
from dfme.benchmarks.compare.plan import ComparisonPlan
from dfme.cli.compare import plan_of
from dfme.cli.extract import parse_extract
from dfme.config.yaml_files import dump_yaml, load_yaml
from dfme.errors import UserError
from dfme.run.job import config_hash

pytestmark = pytest.mark.integration

STAND_IN = '''
"""What a run leaves behind, in no time: finishes, fails, or waits to be interrupted, as its batch size says."""
import json, os, pathlib, shutil, sys, time

config, out, do, identity, budget = sys.argv[1], pathlib.Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4], sys.argv[5]
out.mkdir(parents=True, exist_ok=True)
(out / "starts").open("a").write("x")
shutil.copy(config, out / "config.yaml")
print("under way", flush=True)
if do == 5:
    sys.exit("dfme: no such teacher")
if do == 7 and not (out / "killed").exists():
    (out / "killed").touch()
    os.kill(os.getpid(), 9)
if do == 6:
    try:
        time.sleep(60)
    except KeyboardInterrupt:
        (out / "interrupted").open("a").write("x")
        sys.exit(130)
header = json.dumps({"__metadata__": {"num_classes": "10"}}).encode()
(out / "student.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
evaluations = [{"queries": queries, "agreement": 0.9, "accuracy": 0.9} for queries in (1000, 2000)]
(out / "metrics.jsonl").write_text("".join(json.dumps(each) + "\\n" for each in evaluations))
summary = {
    "budget": int(budget), "spent": int(budget), "accuracy": 0.9, "agreement": 0.9, "teacher_accuracy": 1.0, "kl": 0.1,
    "wall_seconds": 1.0, "student_steps": 40, "device": "cpu", "version": "1", "torch": "2", "config_hash": identity,
}
(out / "summary.json").write_text(json.dumps(summary))
'''

FINE, FAILS, WAITS, IS_KILLED = 4, 5, 6, 7
"""Batch sizes that tell the stand-in what to do."""


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Sequence[str]]:
    """Cells are stand-ins; the words that each was started with."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "stand_in.py").write_text(STAND_IN)
    started: list[Sequence[str]] = []

    def start(words: Sequence[str], log: Path, threads: int) -> subprocess.Popen[bytes]:
        started.append(words)
        job = parse_extract([*words[1:]])
        told = [words[2], words[4], str(job.method_config.batch_size), config_hash(job), str(job.config.budget)]
        with log.open("ab") as file:
            return subprocess.Popen(
                [sys.executable, "-S", "stand_in.py", *told], stdout=file, stderr=file, start_new_session=True
            )

    monkeypatch.setattr(session, "start", start)
    return started


def plan(flags: str = "", **rows: int) -> ComparisonPlan:
    """Rows of the stand-in, each with what it is to do."""
    content: dict[str, Any] = {
        "rows": {row: {"method": {"name": "static", "batch_size": do}} for row, do in rows.items()},
        "seeds": [0, 1],
        "budgets": ["2k"],
        "student_steps": 40,
        "teacher": {"checkpoint": "teachers/checkpoints/digits.safetensors"},
        "student": {"arch": "cnn_small"},
        "evaluation": {"dataset": "digits"},
    }
    Path("c.yaml").write_text(dump_yaml(content))
    return plan_of(["--config", "c.yaml", "--out", "out", *flags.split()])


def compare(made: ComparisonPlan) -> tuple[int, list[str], str]:
    """The exit code, the lines told and the text shown at the end."""
    told: list[str] = []
    shown: list[str] = []
    code = session.compare(made, told.append, shown.append)
    return code, told, "\n".join(shown)


def report() -> dict[str, Any]:
    content: dict[str, Any] = json.loads(Path("out/comparison.json").read_text())
    return content


def states() -> dict[str, str]:
    return {cell["run"].removeprefix("cells/"): cell["state"] for cell in report()["cells"]}


def test_a_failed_cell_is_reported_and_stops_nothing(stand_in: list[Sequence[str]]) -> None:
    code, told, shown = compare(plan(bad=FAILS, good=FINE))
    assert code == 1
    assert states() == {
        "bad-probabilities-2k-seed0": "failed", "good-probabilities-2k-seed0": "finished",
        "bad-probabilities-2k-seed1": "failed", "good-probabilities-2k-seed1": "finished",
    }  # fmt: skip
    assert [line.partition(" ")[0] for line in told] == ["[1/4]", "[2/4]", "[3/4]", "[4/4]"]
    log = "out/cells/bad-probabilities-2k-seed0.log"
    assert told[0].endswith(f"FAILED: no such teacher ({log}); 0 running, 3 to go")
    assert "agreement 90.00%, accuracy 90.00%, 1.0 s; 0 running, 2 to go" in told[1]
    assert f"- failed: `bad-probabilities-2k-seed0`: no such teacher ({log})" in shown
    assert Path("out/comparison.md").read_text().count("no such teacher") == 2
    assert Path("out/comparison.png").is_file()
    assert load_yaml("out/cells/good-probabilities-2k-seed1.yaml")["seed"] == 1


def test_a_cell_that_the_system_kills_is_failed_and_resumed(stand_in: list[Sequence[str]]) -> None:
    code, told, shown = compare(plan("--seeds 0", killed=IS_KILLED, good=FINE))
    assert code == 1
    said = "killed by signal 9 (the system does that when memory runs out); what was paid is kept; under way"
    assert said in told[0]
    assert said in shown
    assert compare(plan("--seeds 0 --resume", killed=IS_KILLED, good=FINE))[0] == 0
    assert set(states().values()) == {"finished"}


def test_a_cell_that_says_nothing_at_all_has_a_reason(stand_in: list[Sequence[str]]) -> None:
    """As on a full disk, which takes no log either; 0.5.0 gave an empty one."""
    Path("stand_in.py").write_text("raise SystemExit(3)")
    assert "FAILED: exit code 3, and nothing said (out/cells/" in compare(plan("--seeds 0", a=FINE))[1][0]


def test_finished_cells_are_kept_and_the_others_are_resumed(stand_in: list[Sequence[str]]) -> None:
    assert compare(plan(bad=FAILS, good=FINE))[0] == 1
    stand_in.clear()
    again = plan_of(["--resume", "--out", "out"])
    code, told, _ = compare(again)
    assert (code, told[0]) == (1, "2 cells were finished before and are kept")
    assert [words[4] for words in stand_in] == [f"out/cells/bad-probabilities-2k-seed{seed}" for seed in (0, 1)]
    assert all("--resume" in words for words in stand_in)
    assert Path("out/cells/good-probabilities-2k-seed0/starts").read_text() == "x"


def test_more_seeds_and_rows_are_added_to_what_there_is(stand_in: list[Sequence[str]]) -> None:
    assert compare(plan(a=FINE))[0] == 0
    stand_in.clear()
    assert compare(plan("--resume --seeds 0,1,2", a=FINE, b=FINE))[0] == 0
    assert len(stand_in) == 4
    assert set(states().values()) == {"finished"}


def test_a_cell_of_which_only_half_a_summary_is_left_is_run_again(stand_in: list[Sequence[str]]) -> None:
    assert compare(plan("--seeds 0", a=FINE))[0] == 0
    summary = Path("out/cells/a-probabilities-2k-seed0/summary.json")
    summary.write_text(summary.read_text()[:50])
    assert compare(plan("--seeds 0 --resume", a=FINE))[0] == 0
    assert len(stand_in) == 2


def test_an_interruption_stops_the_cells_once_and_says_how_to_go_on(stand_in: list[Sequence[str]]) -> None:
    made, handler = plan("--jobs 2", slow=WAITS, good=FINE), signal.getsignal(signal.SIGINT)
    with after(lambda: states_are("good-probabilities-2k-seed0", "finished"), signal.SIGINT):
        code, told, _ = compare(made)
    assert code == 130
    assert told[-1] == "stopped; all that was paid is kept; go on with:\n  python run.py compare --resume --out out"
    folder = Path("out/cells/slow-probabilities-2k-seed0")
    assert (folder / "interrupted").read_text() == "x", "told once"
    assert states()["slow-probabilities-2k-seed0"] == "waiting"
    assert signal.getsignal(signal.SIGINT) is handler, "as it was"


def test_two_comparisons_in_one_directory_are_refused(stand_in: list[Sequence[str]]) -> None:
    made = plan("--seeds 0", slow=WAITS)
    refused: list[str] = []

    def second() -> bool:
        if not Path("out/cells/slow-probabilities-2k-seed0/starts").exists():
            return False
        with pytest.raises(UserError) as caught:
            session.compare(made, print, print)
        refused.append(str(caught.value))
        return True

    with after(second, signal.SIGINT):
        assert compare(made)[0] == 130
    assert f"out: in use by process {os.getpid()}" in refused[0]


def states_are(name: str, state: str) -> bool:
    return Path("out/comparison.json").exists() and states()[name] == state


class after:  # noqa: N801 (reads as a word)
    """Within it, the signal comes to this process once the condition, asked by a thread, holds."""

    def __init__(self, condition: Callable[[], bool], number: signal.Signals) -> None:
        self._condition, self._number = condition, number
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._thread.join(20)

    def _watch(self) -> None:
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            try:
                if self._condition():
                    break
            except (OSError, ValueError, KeyError):
                pass
            time.sleep(0.02)
        os.kill(os.getpid(), self._number)


# Whole

COMPARISON = """
methods: [static, dfme]
seeds: [0, 1]
budgets: [2k]
label_modes: [label, probabilities]
student_steps: 24
rows:
  broken: {method: {name: static}, student: {lr: 1.0e9}}
teacher: {checkpoint: teachers/checkpoints/digits.safetensors}
student: {arch: cnn_small}
evaluation: {dataset: digits, points: 4}
"""


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    made = Bench(tmp_path / "bench")
    (made.folder / "c.yaml").write_text(COMPARISON)
    return made


def test_a_comparison_of_one_cell(bench: Bench) -> None:
    words = ["compare", "--config", "c.yaml", "--methods", "static,dfme", "--seeds", "0", "--label-modes", "label"]
    code, out, err = bench.run([*words, "--out", "out"])
    assert code == 0, err
    assert "| static " in out
    assert "not applicable: `dfme` with label: dfme needs answers of" in out
    summary = bench.summary("out/cells/static-label-2k-seed0")
    assert (summary["spent"], summary["student_steps"], summary["label_mode"]) == (2000, 24, "label")
    assert f"agreement {summary['agreement']:.2%}" in err
    content = json.loads((bench.folder / "out/comparison.json").read_text())
    assert content["tables"][0]["rows"][0]["agreement"]["mean"] == summary["agreement"]


@pytest.mark.exhaustive
@pytest.mark.timeout(600)
def test_killed_and_resumed_it_comes_to_the_same_as_without(bench: Bench) -> None:
    words = ["compare", "--config", "c.yaml", "--methods", "static,dfme,broken", "--jobs", "2"]
    code, _, err = bench.run([*words, "--out", "whole"])
    assert code == 1
    assert err.count("FAILED: the student has diverged") == 4
    process = bench.start([*words, "--out", "cut"])
    report = bench.folder / "cut" / "comparison.json"
    while not (report.exists() and "finished" in report.read_text()):
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=120)
    assert process.returncode == 130
    code, _, err = bench.run(["compare", "--resume", "--out", "cut"])
    assert code == 1
    assert "finished before and" in err
    for name in ("static-label-2k-seed0", "static-probabilities-2k-seed1", "dfme-probabilities-2k-seed1"):
        assert bench.student(f"cut/cells/{name}") == bench.student(f"whole/cells/{name}")
