"""Audits whole, of real attacks: worked out again by a stranger, killed and gone on with."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from handmade import Here, cells_here
from safetensors.torch import load_file
from stranger import work_out_again

from dfme.cli.main import main
from dfme.run.job import PROJECT

pytestmark = pytest.mark.integration

WORDS = (
    "audit --budget 200 --student.arch cnn_small --evaluation.points 4 --teacher.watch labels"
).split()
SMALL = (
    "--label-modes probabilities --defences none --twin none --transfer false --like-images none"
).split()


@pytest.fixture(autouse=True)
def in_this_process(here: Path) -> Iterator[None]:
    with cells_here():
        yield


def stored(out: str = "a") -> dict[str, Any]:
    return json.loads(Path(out, "audit.json").read_text())  # type: ignore[no-any-return]


def test_a_stranger_finds_every_figure_again(capsys: pytest.CaptureFixture[str]) -> None:
    words = (
        "--label-modes probabilities,label --defences lattice:n=10,quota:images=100"
        " --acceptable queries_to_50=200,queries_to_95=200,agreement=0.999 --price-per-1000 1.5"
        " --keep-below 0.8 --budget 400 --student-steps 300 --out a"
    )
    code = main([*WORDS, *words.split()])
    audit = work_out_again(Path("a"))
    assert code == (0 if all(entry["pass"] for entry in audit["verdicts"]) else 4)
    assert audit["made"]["finished"] is True
    # it learns, so that there is something to count
    assert audit["price"][0]["queries_to"]["0.5"][0] is not None
    assert [entry["defence"] for entry in audit["defences"]][:3] == [
        "none",
        "lattice:n=10",
        "quota:images=100",
    ]
    assert audit["accounts"]["attacker"] == audit["headline"]["attacker"]
    quota = audit["quota"]
    (under,) = [cell for cell in audit["cells"] if cell["name"] == quota["checked"]["cell"]]
    assert (under["budget"], under["row"]) == (quota["images"], quota["attacker"])
    assert under["spent"] <= quota["images"] < audit["options"]["budget"]
    assert quota["checked"] == {
        "cell": under["name"],
        "agreement": under["agreement"],
        "holds": under["agreement"] < 0.8,
    }
    assert all(entry["cell"] != under["name"] for entry in audit["detection"]["attacks"])
    out = capsys.readouterr().out
    assert all(sentence.split()[-1] in out for sentence in audit["headline"]["sentences"])
    card = Path("a/model_card.md").read_text()
    assert all(text in card for text in (*audit["headline"]["sentences"], *audit["limits"]))
    assert Path("a/audit.html").stat().st_size > 10_000

    parts = [
        Path("a", name)
        for name in ("utility.json", "detection.json", "accounts.json", "examined/found.json")
    ]
    before = {
        path: path.stat().st_mtime_ns for path in (*Path("a").glob("cells/*/summary.json"), *parts)
    }
    assert main(["audit", "--resume", "--out", "a"]) == code
    again = stored()
    assert {
        path: path.stat().st_mtime_ns for path in before
    } == before  # nothing was run, or measured, twice
    assert (
        again["made"]["command"] == audit["made"]["command"]
    )  # how to make it, not how it went on
    assert again | {"made": None, "tool": None} == audit | {"made": None, "tool": None}


def test_limits_cells_that_fail_and_a_total_have_codes_of_their_own(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*WORDS, *SMALL, "--total", "100", "--out", "t"]) == 2
    assert (
        "1 attack of 200 images may be charged 200 in all, more than 100" in capsys.readouterr().err
    )
    assert not Path("t").exists()
    assert (
        main([*WORDS, *SMALL, "--acceptable", "agreement=0.01", "--total", "200", "--out", "a"])
        == 4
    )
    (verdict,) = stored()["verdicts"]
    assert (verdict["pass"], verdict["value"]) == (False, stored()["price"][0]["agreement"][0])
    monkeypatch.setattr(Here, "failing", "seed1")
    words = "--seeds 0,1 --acceptable agreement=1 --total 400 --resume --out a"
    assert main([*WORDS, *SMALL, *words.split()]) == 1
    audit = stored()
    assert (audit["price"][0]["agreement"][1], audit["price"][0]["state"]) == (None, "failed")
    assert any(entry["what"] == "frugal with probabilities, seed 1" for entry in audit["not_run"])
    assert audit["headline"]["best_agreement"]["n"] == 1


def test_killed_in_the_middle_it_goes_on_and_comes_to_the_same() -> None:
    words = [*WORDS, *SMALL, "--seeds", "0,1"]
    assert main([*words, "--out", "whole"]) == 0
    environment = {**os.environ, "PYTHONPATH": str(PROJECT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "dfme", *words, "--out", "cut"]
    process = subprocess.Popen(
        command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    ledger = next(Path("whole").glob("cells/*/ledger.jsonl")).parent.name
    charges = Path("cut/cells", ledger, "ledger.jsonl")
    deadline = time.monotonic() + 60
    while not (charges.exists() and b"student" in charges.read_bytes()):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert stored("cut")["made"]["finished"] is False  # what was found before is on file
    assert main(["audit", "--resume", "--out", "cut"]) == 0
    whole, cut = work_out_again(Path("whole")), stored("cut")
    assert cut["made"]["finished"] is True
    for name in ("headline", "price", "verdicts", "fidelity", "pareto", "detection", "accounts"):
        assert cut[name] == whole[name]


def test_labels_of_a_teacher_and_labels_made_of_its_scores_give_the_same_copy() -> None:
    run = "--recipe frugal --budget 200 --student.steps 40 --evaluation.dataset digits"
    for out, labels in (("a", "--teacher.label-mode label"), ("b", "--answers.learn label")):
        assert main([*run.split(), *labels.split(), "--out", out]) == 0
    (first, second) = (load_file(Path(out, "student.safetensors")) for out in "ab")
    assert first.keys() == second.keys()
    assert all(weight.equal(second[name]) for name, weight in first.items())
