"""A teacher of one's own counts what it is asked, in a file of its own."""

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from handmade import cells_here
from processes import in_this_process
from small_runs import student

from dfme.oracle.ledger_log import audit
from dfme.run.checkpoint import load_checkpoint
from dfme.run.job import PROJECT

pytestmark = pytest.mark.integration

CLIENT = """
import os
import signal

import torch

KILL_AT = int(os.environ.get("KILL_AT", "0"))


class Client:
    shape, num_classes, levels = (1, 8, 8), 10, 17

    def __init__(self):
        self.weight = torch.randn(64, 10, generator=torch.Generator().manual_seed(7))

    def __call__(self, images):
        with open("images", "a") as seen:
            seen.writelines(image.numpy().tobytes().hex() + "\\n" for image in images)
        with open("meter", "a") as meter:
            meter.write(f"{len(images)}\\n")
            meter.flush()
            if KILL_AT and meter.tell() > KILL_AT:
                os.kill(os.getpid(), signal.SIGKILL)
        if os.path.exists("broken") and len(images) < 20:
            raise RuntimeError("gone")
        scores = 3 * (images - 0.5).flatten(1).double() @ self.weight.double()
        return scores.softmax(1).float()  # the same bits whatever the other images of a batch are
"""
KILLED = """
import sys

from handmade import cells_here

from dfme.cli.main import main


with cells_here():
    main(sys.argv[1:])
"""
ASKED = "--teacher client:Client --evaluation.dataset digits --evaluation.limit 60".split()
WORDS = [
    "audit",
    *ASKED,
    *"--student.arch cnn_small --evaluation.points 2 --budget 160 --student-steps 20".split(),
    *"--twin none --price-per-1000 2 --jobs 1".split(),
]
LOCAL = "--own-teacher local --defences lattice:n=10 --teacher.watch labels --teacher.benign digits"
FORMS = ["--label-modes", "probabilities,label"]
LOCAL_AUDIT = [*WORDS, *LOCAL.split(), "--like-images", "none"]


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "client.py").write_text(CLIENT)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "client", raising=False)
    with cells_here():
        yield


def run(*words: str) -> subprocess.CompletedProcess[str]:
    """A command line in this process."""
    return subprocess.CompletedProcess(words, *in_this_process(words))


def run_and_kill(kill_at: int, *words: str) -> None:
    """A command line in a process that is killed when the teacher's meter has so many bytes."""
    environment = {
        **os.environ,
        "PYTHONPATH": f"{PROJECT}:{PROJECT}/tests/support:{Path.cwd()}",
        "KILL_AT": str(kill_at),
    }
    completed = subprocess.run(
        [sys.executable, "-c", KILLED, *words], env=environment, capture_output=True
    )
    assert completed.returncode == -signal.SIGKILL, completed.stderr


def images_asked() -> int:
    """Images that the teacher was asked, by its own count."""
    meter = Path("meter")
    return sum(map(int, meter.read_text().split())) if meter.exists() else 0


def test_an_api_is_asked_by_attacks_alone_and_the_bill_is_its_own_count() -> None:
    completed = run(*WORDS, "--total", "320", "--out", "a")
    assert completed.returncode == 0, completed.stderr
    line = (
        "2 attacks of 160 images may be charged 320 in all; 60 more to score the copies; "
        "cost at most 0.76"
    )
    assert line in completed.stderr
    content = json.loads(Path("a/audit.json").read_text())
    ledger = content["ledger"]
    assert images_asked() == ledger["served"] == 380  # both attacks are scored by the same answers
    assert (ledger["images"], ledger["evaluation"], ledger["benign"], ledger["cost"]) == (
        320,
        60,
        0,
        0.76,
    )
    assert [cell["agreement"] is None for cell in content["cells"]] == [False, False]
    why = {part["what"]: part["why"] for part in content["not_run"]}
    assert "--own-teacher local" in why["defences"]
    assert why["detection"] == why["defences"]


def test_a_local_one_is_measured_whole_and_no_image_twice_though_it_is_killed() -> None:
    completed = run(*LOCAL_AUDIT, *FORMS, "--out", "a")
    assert completed.returncode == 0, completed.stderr
    content = json.loads(Path("a/audit.json").read_text())
    assert (content["detection"]["benign"] != [], len(content["utility"])) == (True, 3)
    ledger = content["ledger"]
    assert images_asked() == ledger["served"]
    assert (
        ledger["served"]
        == ledger["images"] + ledger["evaluation"] + ledger["benign"] - ledger["shared"]
    )
    assert ledger["shared"] > 60  # the images that score, and queries of three attacks of one seed
    measured = audit(Path("a/benign/ledger.jsonl")).benign_queries
    most = int(completed.stderr.split("and at most ")[1].split()[0].replace(",", ""))
    assert 2_000 < measured < ledger["benign"] <= most
    before = images_asked()
    kill_at = (
        Path("meter").stat().st_size // 2
    )  # in the midst of detection, which asks by far the most
    assert (
        run("audit", "--resume", "--out", "a").returncode == 0
    )  # what is known is not asked again
    assert images_asked() == before
    assert content["accounts"]["alarms"]
    Path("a/accounts.json").unlink()  # as if it was killed while these were scored
    completed = run("audit", "--resume", "--out", "a")
    assert completed.returncode == 0, completed.stderr
    assert images_asked() == before, "the journal has what calibrates the detectors"
    assert json.loads(Path("a/audit.json").read_text())["accounts"] == content["accounts"]

    Path("meter").unlink()
    run_and_kill(kill_at, *LOCAL_AUDIT, *FORMS, "--out", "cut")
    completed = run("audit", "--resume", "--out", "cut")
    assert completed.returncode == 0, completed.stderr
    cut = json.loads(Path("cut/audit.json").read_text())
    assert images_asked() == cut["ledger"]["served"]
    assert images_asked() - before <= 100  # the one request in flight
    assert cut["detection"] == content["detection"]
    assert cut["utility"] == content["utility"]


def test_attacks_side_by_side_ask_equal_images_once_and_copy_as_if_each_were_alone() -> None:
    words = "--jobs 2 --attackers frugal --label-modes probabilities,probabilities:2 --out a"
    completed = run(*LOCAL_AUDIT, *words.split())
    assert completed.returncode == 0, completed.stderr
    content = json.loads(Path("a/audit.json").read_text())
    ledger = content["ledger"]
    seen = Path("images").read_text().split()
    assert len(seen) == images_asked() == ledger["served"]
    paid = [  # a checkpoint has the numbers of their 17 levels
        (image.float() / 16).numpy().tobytes().hex()
        for path in Path("a/cells").glob("*/checkpoint.pt")
        for image in load_checkpoint(path)["trainer"]["replay"]["items"]["images"]
    ]
    assert len(paid) == ledger["images"] == 160 * len(content["cells"])
    often = Counter(seen)
    assert {often[image] for image in paid} == {1}
    # 60 images score two forms, and 30 of them had calibrated the watch
    assert ledger["shared"] == len(paid) - len(set(paid)) + 60 + 30 > 600
    for cell in content["cells"][-2:]:  # began last, so others had asked most of their images
        alone = run("--config", f"a/cells/{cell['name']}.yaml", "--out", f"alone/{cell['name']}")
        assert alone.returncode == 0, alone.stderr
        assert student(Path("alone", cell["name"])) == student(Path("a/cells", cell["name"]))


def test_what_failed_attacks_asked_is_paid_for_and_decides_no_limit() -> None:
    Path("broken").touch()  # the attack's own small requests fail, the evaluation's do not
    completed = run(*WORDS, "--acceptable", "agreement=0.9", "--out", "a")
    assert completed.returncode == 1, completed.stderr
    content = json.loads(Path("a/audit.json").read_text())
    assert images_asked() == content["ledger"]["served"] > 0
    assert content["cells"][0]["spent"] > 0
    assert content["verdicts"][0]["pass"] is None
    assert "NOT KNOWN: You want at most 90.0% agreement" in completed.stdout


def test_a_dry_run_asks_nothing_and_writes_nothing() -> None:
    completed = run(*WORDS, "--dry-run")
    assert (completed.returncode, completed.stderr) == (0, "")
    assert "2 attacks of 160 images may be charged 320 in all" in completed.stdout
    for text in ("cost at most 0.76", "left out    defences: ", "attackers   frugal, knockoff;"):
        assert text in completed.stdout
    assert images_asked() == 0
    assert {path.name for path in Path().iterdir()} <= {"__pycache__", "meter", "client.py"}


def test_utility_asks_only_who_is_said_to_answer_for_nothing_and_counts_it() -> None:
    switches = "--teacher.defences lattice:n=10,label --price-per-1000 2"
    words = ["utility", *ASKED, *switches.split()]
    refused = run(*words, "--out", "u")
    assert (refused.returncode, images_asked(), Path("u").exists()) == (2, 0, False)
    assert "--own-teacher: expected local, since client:Client would be asked" in refused.stderr
    completed = run(*words, "--own-teacher", "local", "--out", "u")
    assert completed.returncode == 0, completed.stderr
    assert (
        images_asked() == audit(Path("u/benign/ledger.jsonl")).served <= 180
    )  # three streams of 60, once each
    assert (
        f"the teacher was asked {images_asked():,} images, which cost {images_asked() * 0.002:,.2f}"
        in completed.stderr
    )


def test_a_twin_without_weights_is_found_before_anything_is_asked() -> None:
    completed = run(*WORDS, "--twin", "/etc/passwd", "--out", "a")
    assert (completed.returncode, completed.stderr.count("\n")) == (2, 1)
    assert "--twin /etc/passwd: expected the weights of a net" in completed.stderr
    assert (images_asked(), Path("a").exists()) == (0, False)
