"""Runs over HTTP: killed or stopped at any moment, and through ``run.py serve``'s own server."""

from __future__ import annotations

import json
import random
import signal
import time
from pathlib import Path

import pytest
import torch
from hostile import Hostile, Served
from processes import (
    EVALUATION,
    METHOD,
    STUDENT,
    Bench,
    command,
    plan,
    scores,
    strike,
    student,
    words,
)
from processes import KILLS as PLANNED
from toys import LinearTeacher

from dfme.config.settings import TeacherConfig
from dfme.oracle.ledger import Totals, audit
from dfme.spec import ImageSpec, LabelMode
from dfme.teachers.label_modes import restrict
from dfme.teachers.open_inference.client import connect_v2
from dfme.teachers.options import V2Options

MOST = 64
SAME = tuple(
    "budget spent spent_by_purpose evaluation_queries accuracy agreement kl config_hash".split()
)

CASES = {"one at a time": ("static", 1), "dfme, four at once": ("dfme", 4)}

KILLS = max(3, PLANNED // len(CASES))


def slowly(number: int) -> str:
    """Answers that take long enough for a kill to meet them."""
    return "status:429/0" if number % 31 == 5 else "slow:0.01"


def flags(server: Hostile, method: str, in_flight: int, budget: int) -> list[str]:
    more = ["--method.name", method, "--method.batch-size", "200", "--teacher.max-batch", str(MOST)]
    more += ["--teacher.in-flight", str(in_flight), "--checkpoint-seconds", "0.3"]
    more += [
        "--evaluation.dataset",
        "digits",
        "--evaluation.limit",
        "300",
        "--evaluation.points",
        "5",
    ]
    return words(server.url, "run", *more, budget=budget)


@pytest.mark.integration
@pytest.mark.timeout(7200)
@pytest.mark.exhaustive
@pytest.mark.parametrize("case", CASES)
def test_killed_again_and_again_over_http(case: str, tmp_path: Path) -> None:
    method, in_flight = CASES[case]
    budget = 1_200 * KILLS + 1  # the last batch is a lone image
    whole, killed = Bench(tmp_path / "whole"), Bench(tmp_path / "killed")
    with Hostile(slowly) as server:
        whole.here(flags(server, method, in_flight, budget))
        undisturbed = audit(whole.folder / "run" / "ledger.jsonl")
        assert server.images == undisturbed.served
        assert undisturbed.spent == budget

    with Hostile(slowly) as server:
        kills, ledger = kill_and_resume(
            killed, flags(server, method, in_flight, budget), case, budget, undisturbed
        )
    print(
        f"{case}: {kills} kills, {ledger.lost} images lost, {server.images} served, budget {budget}"
    )

    # The same student, bit by bit, the same scores, and the budget spent to the last image.
    assert killed.student("run") == whole.student("run")
    expected, summary = whole.summary("run"), killed.summary("run")
    expected["config_hash"] = summary["config_hash"]  # of another port
    assert {key: summary[key] for key in SAME} == {key: expected[key] for key in SAME}
    assert scores(killed.evaluations("run")) == scores(whole.evaluations("run"))

    # The server counted no more than the ledger says was sent, and at least what was answered; what
    # was charged and killed before it was sent is all that may be missing. What was lost is in
    # flight at a kill, and no more.
    assert (ledger.spent, ledger.failed) == (budget, 0)
    assert ledger.lost <= kills * in_flight * MOST
    paid = ledger.spent + ledger.evaluation_queries
    assert paid <= server.images <= paid + ledger.lost
    served_twice_is_lost(server.served, ledger.lost)


def kill_and_resume(
    bench: Bench, first: list[str], case: str, budget: int, undisturbed: Totals
) -> tuple[int, Totals]:
    """Kill and resume until all strikes were dealt out, then go on to the end; the kills, and the
    ledger.
    """
    run, kills, resume = bench.folder / "run", 0, ["--resume", "--out", "run"]
    for when in plan(random.Random(case), KILLS, budget, undisturbed.requests):
        started, born = time.time(), (run / "config.yaml").exists()
        kills += strike(bench.start(resume if born else first), run, when, started)
        if (run / "ledger.jsonl").exists():
            assert audit(run / "ledger.jsonl").spent <= budget
    bench.here(resume)
    assert kills >= KILLS * 3 // 4
    return kills, audit(run / "ledger.jsonl")


def served_twice_is_lost(served: list[Served], lost: int) -> None:
    """Every image that was served again had been lost; the repeated request had the same key."""
    keys: dict[tuple[str, ...], set[str]] = {}
    for entry in served:
        keys.setdefault(tuple(entry.queries), set()).add(entry.key)
    repeated = sum(entry.images for entry in served) - sum(len(queries) for queries in keys)
    assert repeated <= lost
    assert all(len(item) == 1 for item in keys.values())


@pytest.mark.integration
@pytest.mark.timeout(7200)
def test_a_run_that_is_stopped_in_the_middle_of_requests_goes_on(tmp_path: Path) -> None:
    """Three times, each for twice as long as a request may take."""
    impatient, ledger = (
        ("--teacher.timeout", "0.5", "--teacher.attempts", "9"),
        tmp_path / "run/ledger.jsonl",
    )
    with Hostile(lambda number: "slow:0.02") as server:
        run = Bench(tmp_path).start(words(server.url, "run", *impatient, budget=800))
        for number in (1, 2, 3):
            while not ledger.exists() or ledger.read_bytes().count(b'"charge"') < 4 * number:
                assert run.poll() is None
                time.sleep(0.002)
            run.send_signal(signal.SIGSTOP)
            time.sleep(1)
            run.send_signal(signal.SIGCONT)
        _, err = run.communicate(timeout=100)
    assert run.returncode == 0, err
    assert "Traceback" not in err
    totals = audit(ledger)
    # Stopped between head and body of a request, it cannot know that nobody could serve it: it
    # stays charged.
    assert totals.spent == 800
    assert server.images <= totals.spent <= server.images + totals.failed
    assert server.questions <= totals.requests


Serving = pytest.importorskip("dfme.teachers.owner.serve.server").Serving


SPEC = ImageSpec((1, 4, 4))
KEY = "sesame/with+odd_characters"


def teacher(spec: ImageSpec = SPEC) -> LinearTeacher:
    return LinearTeacher(spec, num_classes=5, mode="logits")


def extract(serving, out: Path, *more: str, budget: int = 200):
    words = [
        "--teacher",
        "v2",
        "--teacher.url",
        serving.url,
        "--teacher.model",
        "m",
        "--out",
        str(out),
    ]
    return command([*words, *METHOD, *STUDENT, *EVALUATION, "--budget", str(budget), *more])


def agree(serving, out: Path) -> None:
    totals = audit(out / "ledger.jsonl")
    assert serving.meter.images == totals.spent + totals.evaluation_queries == totals.served


@pytest.mark.integration
@pytest.mark.parametrize(
    "mode", ["logits", "probabilities", "probabilities:3", "top_k:2", "top_k:2:3", "label"]
)
@pytest.mark.parametrize(
    ("encoding", "spec"),
    [("binary", SPEC), ("json", ImageSpec((3, 4, 5), levels=256))],
    ids=["floats", "bytes"],
)
def test_what_is_served_is_what_arrives(mode: str, encoding: str, spec: ImageSpec) -> None:
    inner = restrict(teacher(spec), LabelMode.parse(mode))
    x = spec.quantise(torch.rand(7, *spec.shape, generator=torch.Generator().manual_seed(3)))
    with Serving(inner, "m", max_batch=7) as serving:
        remote = connect_v2(
            V2Options(url=serving.url, model="m", encoding=encoding),
            TeacherConfig(kind="v2"),
            torch.device("cpu"),
        )
        assert (remote.spec, remote.num_classes, remote.info.max_batch) == (spec, 5, 7)
        assert str(remote.label_mode) == mode
        got, expected = remote.ask(x, "key"), inner(x)
        remote.close()
        assert serving.meter.images == 7
    torch.testing.assert_close(got, expected.to(got.dtype), rtol=0, atol=1e-6, equal_nan=True)


@pytest.mark.integration
def test_a_run_through_http_is_the_run_in_process_and_two_meters_agree(tmp_path: Path) -> None:
    with Serving(teacher(), "m", max_batch=8) as serving:
        assert extract(serving, tmp_path / "one", "--teacher.in-flight", "1").code == 0
        agree(serving, tmp_path / "one")
    with Serving(teacher(), "m", max_batch=8, requests_per_second=100) as serving:
        ended = extract(serving, tmp_path / "four", "--teacher.price-per-1000", "2.5")
        assert ended.code == 0, ended.err
        agree(serving, tmp_path / "four")
        refused = sum(serving.meter.refused.values())
    assert student(tmp_path / "one") == student(tmp_path / "four")
    summary = json.loads((tmp_path / "four/summary.json").read_text())
    assert sum(summary["service"]["refused"].values()) == refused
    assert summary["cost"] == pytest.approx(
        2.5 * (summary["spent"] + summary["evaluation_queries"]) / 1000
    )


@pytest.mark.integration
def test_a_key_opens_and_is_written_nowhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog, capfd
) -> None:
    caplog.set_level("INFO")
    with Serving(teacher(), "m", key=KEY) as serving:
        monkeypatch.setenv("DFME_TEST_KEY", "another")
        wrong = extract(serving, tmp_path / "wrong", "--teacher.api-key-env", "DFME_TEST_KEY")
        assert wrong.code == 2
        assert "401" in wrong.line
        assert "another" not in wrong.err
        assert serving.meter.images == 0
        monkeypatch.setenv("DFME_TEST_KEY", KEY)
        right = extract(serving, tmp_path / "run", "--teacher.api-key-env", "DFME_TEST_KEY")
        assert right.code == 0, right.err
        agree(serving, tmp_path / "run")
    written = [path for path in (tmp_path / "run").rglob("*") if path.is_file()]
    assert len(written) > 5
    assert [path for path in written if KEY.encode() in path.read_bytes()] == []
    assert KEY not in right.err + caplog.text + "".join(capfd.readouterr())
    assert "DFME_TEST_KEY" in (tmp_path / "run/config.yaml").read_text()
