"""A comparison whole, as a person starts it, with real runs as its cells."""

import csv
import json
import signal
import time
from pathlib import Path

import pytest
from handmade import cells_here
from processes import Bench

from dfme.cli.main import main

pytestmark = pytest.mark.integration

COMPARISON = """
methods: [static, dfme]
seeds: [0]
budgets: [2k]
label_modes: [label, probabilities]
student_steps: 24
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
    words = "compare --config c.yaml --methods static,dfme --label-modes label --format pdf".split()
    for name in ("ray", "submitit", "cloudpickle"):  # of engines that are not asked for
        (bench.folder / f"{name}.py").write_text("raise SystemExit('it is loaded')")
    code, out, err = bench.run([*words, "--out", "out"])
    assert code == 0, err
    assert "[1/1] static-label-2k-seed0" in err, "the cell that is not applicable did not run"
    assert "| static " in out
    assert "not applicable: `dfme` with label: dfme needs answers of" in out
    summary = bench.summary("out/cells/static-label-2k-seed0")
    assert (summary["spent"], summary["student_steps"], summary["label_mode"]) == (
        2000,
        24,
        "label",
    )
    assert f"agreement {summary['agreement']:.2%}" in err
    content = json.loads((bench.folder / "out/comparison.json").read_text())
    assert content["tables"][0]["rows"][0]["agreement"]["mean"] == summary["agreement"]
    assert (bench.folder / "out/comparison.pdf").read_bytes().startswith(b"%PDF")
    assert not (bench.folder / "out/comparison.png").exists()
    with (bench.folder / "out/comparison.csv").open(newline="") as file:
        done, never = csv.DictReader(file)
    assert (done["row"], done["state"]) == ("static", "finished")
    assert float(done["agreement"]) == summary["agreement"]
    assert (never["row"], never["state"], never["agreement"]) == ("dfme", "not applicable", "")
    assert done.keys() >= {"label_mode", "budget", "seed", "queries_to_90", "seconds"}


@pytest.mark.exhaustive
def test_interrupted_and_resumed_it_comes_to_the_same_as_without(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(bench.folder)
    words = ["compare", "--config", "c.yaml", "--label-modes", "probabilities"]
    process = bench.start([*words, "--out", "cut"])
    report = bench.folder / "cut" / "comparison.json"
    while not (report.exists() and "finished" in report.read_text()):
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=120)
    assert process.returncode == 130
    with cells_here():
        assert main(["compare", "--resume", "--out", "cut"]) == 0
        assert "1 cells were finished before and" in capsys.readouterr().err
        assert main([*words, "--out", "whole"]) == 0
    for name in ("static-probabilities-2k-seed0", "dfme-probabilities-2k-seed0"):
        assert bench.student(f"cut/cells/{name}") == bench.student(f"whole/cells/{name}")
