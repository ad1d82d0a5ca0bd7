"""A drill that is killed, or stopped, goes on as if nothing had been: images, agreement, alarms."""

import json
import signal
import subprocess
import time
from pathlib import Path

import pytest
from defended import digits
from drilled import EVALUATED, agreement_by, outcome, recorded_run
from processes import PROJECT, Bench
from test_drills_over_sockets import Serving, attack

from dfme.oracle.ledger import audit

pytestmark = pytest.mark.integration
RATE = 150
"""Images a second, so that a drill lasts long enough to be met."""


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    made = Bench(tmp_path)
    (tmp_path / "teachers").symlink_to(PROJECT / "teachers")
    (tmp_path / "alarms.log").write_text("of yesterday\n")
    return made


def words(url: str, out: str, *more: str) -> list[str]:
    """A drill by recorded queries, or a live one where ``more`` says so."""
    teacher = f"--teacher v2 --teacher.url {url} --teacher.model digits --teacher.in-flight 1"
    rest = f"--teacher.images-per-second {RATE} --webhook-log alarms.log --wait 0.3 --out {out}"
    return ["drill", *teacher.split(), *rest.split(), *more]


LIVE = (
    "--evaluation.dataset digits --evaluation.limit 60 --budget 400 --student.arch cnn_small "
    "--student.steps 40"
).split()


def until(process: subprocess.Popen[str], ledger: Path, images: int) -> None:
    """Wait until so many images are charged."""
    while not ledger.is_file() or audit(ledger).spent < images:
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)


def ring(folder: Path) -> None:
    with (folder / "alarms.log").open("a") as file:
        file.write("stealing suspected\n")


@pytest.mark.timeout(200)
@pytest.mark.parametrize("kind", ["live", "recorded"])
@pytest.mark.parametrize("rings", ["before", "meanwhile"])
def test_a_killed_drill_goes_on(bench: Bench, kind: str, rings: str) -> None:
    recorded_run(bench.folder / "run", attack(400))
    more = LIVE if kind == "live" else ["--from", "run"]
    ledger = bench.folder / "out" / "ledger.jsonl"
    with Serving(digits(), "digits") as serving:
        process = bench.start(words(serving.url, "out", *more))
        until(process, ledger, 100)
        if rings == "before":
            ring(bench.folder)
            while not (bench.folder / "out" / "drill.json").is_file():
                time.sleep(0.02)
            time.sleep(0.1)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        killed = audit(ledger).spent
        assert killed < 400
        if rings == "meanwhile":
            ring(bench.folder)
        before = outcome(bench.folder / "out") if rings == "before" else {}
        code, out, err = bench.run(["drill", "--resume", "--out", "out"])
        assert code == 0, err
        told = outcome(bench.folder / "out")
        totals = audit(ledger)
        # at most the request in flight is paid for twice, which the ledger says
        assert totals.spent + totals.evaluation_queries - serving.meter.images <= totals.lost
        assert totals.lost <= 64
        if kind == "live":
            code, _, err = bench.run(words(serving.url, "whole", *more))
            assert code == 4, err
            assert bench.student("whole") == bench.student("out")
    assert (told["rang"], told["finished"], told["alarm"]) == (True, True, "stealing suspected")
    curve = bench.folder / ("out" if kind == "live" else "run")
    assert told["agreement"] == agreement_by(curve, told["images"])
    if rings == "before":
        assert told["images"] == before["images"]
        assert not before["finished"]
        assert told["images"] <= killed
    else:
        assert killed <= told["images"] <= killed + 64
    assert out.splitlines()[-2].startswith(f"drill: rang after {told['images']} images")


@pytest.mark.timeout(200)
@pytest.mark.parametrize("kind", ["live", "recorded"])
def test_a_stopped_drill_says_how_to_go_on(bench: Bench, kind: str) -> None:
    recorded_run(bench.folder / "run", attack(400))
    more = LIVE if kind == "live" else ["--from", "run"]
    with Serving(digits(), "digits") as serving:
        process = bench.start(words(serving.url, "out", *more))
        until(process, bench.folder / "out" / "ledger.jsonl", 100)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
        assert process.returncode == 130, err
        assert "drill --resume --out out" in out + err
        assert "Traceback" not in err
        assert not outcome(bench.folder / "out")["finished"]
        code, out, err = bench.run(["drill", "--resume", "--out", "out", "--within", "300"])
    assert code == 4, err
    told = outcome(bench.folder / "out")
    assert (told["rang"], told["images_in_all"], told["finished"]) == (False, 400, True)
    channel = json.loads((bench.folder / "out" / "channel.json").read_text())
    assert (channel["within"], channel["wait"]) == (300, 0.3)


@pytest.mark.timeout(200)
def test_alarms_at_honest_images_do_not_count_after_a_kill_either(bench: Bench) -> None:
    with Serving(digits(), "digits") as serving:
        process = bench.start(words(serving.url, "out", *LIVE[:2], *LIVE[4:]))
        channel = bench.folder / "out" / "channel.json"
        while not channel.is_file():
            time.sleep(0.01)
        ring(bench.folder)  # while the 359 evaluation images are asked, which takes two seconds
        until(process, bench.folder / "out" / "ledger.jsonl", 100)
        assert serving.meter.images >= EVALUATED
        process.send_signal(signal.SIGKILL)
        process.communicate()
        code, out, err = bench.run(["drill", "--resume", "--out", "out"])
    assert code == 4, err
    assert "1 alarm came before the attack's first image, and did not count" in out
