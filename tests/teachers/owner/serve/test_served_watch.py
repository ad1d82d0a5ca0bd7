"""A watched teacher behind ``run.py serve``: meters that agree, accounts apart, what follows an
alarm.
"""

import json
import os
import re
import signal
import stat
import subprocess
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pytest
import torch
from clients import question
from defended import WEIGHTS, digits, pairs, queries, watched
from processes import PROJECT, Bench

from dfme.cli.main import main
from dfme.config.settings import TeacherConfig
from dfme.config.values import from_mapping
from dfme.errors import TeacherError
from dfme.oracle.ledger import Ledger, audit
from dfme.oracle.oracle import Oracle
from dfme.teachers.build import make_teacher
from dfme.teachers.open_inference.client import connect_v2
from dfme.teachers.options import V2Options
from dfme.teachers.owner.defences.wrapper import Defended
from dfme.teachers.owner.watch.record import Recording, account_tag, read_log

Serving = pytest.importorskip("dfme.teachers.owner.serve.server").Serving

KEYS = {"EVE_KEY": "eve-has-this-key", "USER_KEY": "a-user-has-that-one"}
EVE, USER = map(account_tag, KEYS.values())


def ask(url: str, images: Any, key: str) -> int:
    """Status of a request with this key."""
    url = f"{url}/v2/models/digits/infer"
    return httpx2.post(
        url, json=question(images), headers={"X-API-Key": key}, timeout=20
    ).status_code


@pytest.mark.integration
def test_of_two_accounts_the_one_with_pairs_rings_and_is_refused(tmp_path: Path) -> None:
    """A stream of pairs and an honest one in turns: answers, alarms, meters, the record and the
    refusal.
    """
    teacher, alarms = watched("pairs,sequential", on_alarm="refuse"), list[str]()
    teacher.watch.record = Recording(tmp_path / "log", 3, 10**6, alarms.append)
    honest = queries()[1:300:2]
    with Serving(teacher, "digits", key=[*KEYS.values()], tell=alarms.append) as serving:
        clients = []
        for name in KEYS:
            os.environ[name] = KEYS[name]
            options = V2Options(
                url=serving.url, model="digits", api_key_env=name, allow_env=(name,)
            )
            clients.append(connect_v2(options, TeacherConfig(kind="v2"), torch.device("cpu")))
        eve, user = clients
        for start in range(0, 150, 10):
            part = honest[start : start + 10]
            assert torch.equal(user(part), teacher.undefended(part))
            if start == 0:  # in this request both detectors ring, and it is answered
                assert torch.equal(eve(pairs()[:80]), teacher.undefended(pairs()[:80]))
            else:
                with pytest.raises(
                    Exception, match=r"403 .*refused: watch.*answers this key no more"
                ):
                    eve(pairs()[80:90])
        metrics = httpx2.get(f"{serving.url}/metrics", headers={"X-API-Key": KEYS["USER_KEY"]}).text
        for client in clients:
            client.close()
        assert serving.meter.images == 80 + 150
        assert serving.meter.refused == {"watch": 14}
    teacher.watch.account = EVE
    rung = teacher.watch.report()["detectors"]
    teacher.watch.account = USER
    quiet = teacher.watch.report()
    assert quiet["images"] == 150
    assert [each["alarms"] for each in quiet["detectors"].values()] == [0, 0]
    for name, each in rung.items():
        assert (
            f'dfme_watch_alarms_total{{model="digits",detector="{name}"}} {each["alarms"]}'
            in metrics
        )
        assert (
            f'dfme_watch_first_alarm{{model="digits",detector="{name}"}} {each["first_alarm"]}'
            in metrics
        )
        counted = f"image {each['first_alarm']} that it asked, evaluation images included"
        assert alarms.count(f"ALARM: {name}, account {EVE}, {counted}") == 1
    assert len(alarms) == 2
    assert not re.search(f"{EVE}|{USER}", metrics)
    # The log has every image with its distance, and no key is in it or in what was shown.
    batches = [*read_log(tmp_path / "log", (1, 8, 8))]
    for tag, images in ((EVE, pairs()[:80]), (USER, honest)):
        batches_of_tag = [each for each in batches if each.account == tag]
        pixels = images.mul(255).round().byte().numpy()
        assert np.array_equal(np.concatenate([each.images for each in batches_of_tag]), pixels)
        assert np.isfinite(np.concatenate([each.distance for each in batches_of_tag])).all()
    text = "".join(path.read_text(errors="ignore") for path in (tmp_path / "log").iterdir())
    assert not any(key in text + metrics + " ".join(alarms) for key in KEYS.values())


def test_a_record_without_a_watch_changes_no_answer_and_has_distances_where_there_are_honest_images() -> (
    None
):
    for benign in (None, "digits"):
        config = from_mapping(TeacherConfig, {"benign": benign, "label_mode": "label"})
        teacher = make_teacher(config, {"checkpoint": WEIGHTS}, torch.device("cpu"), recorded=True)
        records = list[Any]()
        assert isinstance(teacher, Defended)
        teacher.watch.record = lambda *entry, records=records: records.append(entry)
        assert torch.equal(teacher(queries()[:50]), digits(mode="label")(queries()[:50]))
        ((account, number, seen),) = records
        assert (account, number, len(seen)) == ("", 1, 50)
        assert (seen.distance_B is None) == (benign is None)
        assert teacher.watch.report() == {"images": 50, "on_alarm": "log", "detectors": {}}
        assert teacher.watch.drain() == []


@pytest.mark.integration
def test_a_large_request_with_an_alarm_in_it_is_refused_whole_and_charged_nothing_on_both_sides(
    tmp_path: Path,
) -> None:
    teacher = watched("pairs", on_alarm="refuse")
    assert teacher.watch is not None
    with Serving(teacher, "digits") as serving:
        options = V2Options(url=serving.url, model="digits")
        client = connect_v2(options, TeacherConfig(kind="v2"), torch.device("cpu"))
        ledger = Ledger(5_000, tmp_path / "ledger.jsonl")
        oracle = Oracle(client, ledger)
        assert torch.equal(oracle(queries()[:300]), digits()(queries()[:300]))
        with pytest.raises(TeacherError, match=r"403 .*refused: watch"):
            oracle(torch.cat([pairs()] * 5))
        assert (
            serving.meter.images == ledger.spent == audit(tmp_path / "ledger.jsonl").served == 300
        )
        assert serving.meter.refused == {"watch": 1}
        client.close()


@pytest.mark.integration
def test_the_curl_line_of_the_docs_works() -> None:
    page = (PROJECT / "docs/teachers.md").read_text()
    (line,) = re.findall(r"^    (curl .*)$", page, re.MULTILINE)
    with Serving(digits(), "digits") as serving:
        line = line.replace("http://127.0.0.1:8080", serving.url)
        curl = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=30)
    (output,) = json.loads(curl.stdout)["outputs"]
    assert output["shape"] == [1, 10]
    assert sum(output["data"]) == pytest.approx(1, abs=1e-3)


@pytest.mark.integration
def test_the_command_says_who_is_watched_and_records_from_its_first_image(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.environment |= KEYS
    line = (
        f"serve --port 0 --device cpu --api-key-env {','.join(KEYS)} --record log --retain-days 7"
    )
    process = bench.start(
        f"{line} --watch sequential --benign digits --alarm-file alarms.jsonl".split()
    )
    opening, *facts = [process.stdout.readline() for _ in range(4)]
    url = re.search(r"http://127\.0\.0\.1:\d+", opening)
    assert url is not None, process.communicate()
    assert "--teacher.api-key-env EVE_KEY" in opening
    assert facts == [
        "watched by sequential; on an alarm: log\n",
        f"accounts: EVE_KEY {EVE}, USER_KEY {USER}\n",
        "recording digests and scores, deleted after 7 days\n",
    ]
    assert ask(url[0], pairs()[:20], KEYS["EVE_KEY"]) == 200
    assert ask(url[0], queries()[:2], KEYS["USER_KEY"]) == 200
    assert ask(url[0], queries()[:2], "another") == 401
    process.send_signal(signal.SIGKILL)
    out, err = process.communicate(timeout=60)
    assert re.fullmatch(rf"ALARM: sequential, account {EVE}, image \d+ that it asked, .*\n", out), (
        err
    )
    lines = [
        json.loads(line) for path in (tmp_path / "log").glob("*.jsonl") for line in path.open()
    ]
    seen = [(line["account"], line["number"]) for line in lines]
    assert seen == [(EVE, n) for n in range(1, 21)] + [(USER, 1), (USER, 2)]
    assert all(line["distance"] > 0 and line["image"] is None for line in lines)
    first, *_ = (json.loads(line) for line in (tmp_path / "alarms.jsonl").open())
    assert [*first] == ["at", "account", "detector", "statistic", "threshold", "image"]
    assert (first["account"], first["detector"], first["threshold"]) == (EVE, "sequential", 8.0)
    assert f"image {first['image']} " in out
    assert first["statistic"] > 8
    assert stat.S_IMODE((tmp_path / "alarms.jsonl").stat().st_mode) == 0o600


SERVE = {
    "--record log": "--retain-days",
    "--retain-days 3": "--retain-days",
    "--record-images true": "--record-images",
    "--record log --retain-days 0": "--retain-days",
    "--record log --retain-days 1000000": "--retain-days",
    "--record log --retain-days 1 --record-max-mb 1e308": "--record-max-mb",
    "--threads 1000000000": "--threads",
    "--port 0 --host ..": "--host .. --port 0",
    "--alarm-file alarms.jsonl": "--alarm-file",
    "--on-alarm refuse": "--on-alarm",
    "--benign digits": "--benign",
    "--watch pairs": "--teacher.benign",
    "--watch pears --benign digits": "--watch",
    "--watch pairs --benign digits --teacher.watch labels": "--watch",
    "--api-key-env EVE_KEY,EVE_KEY": "--api-key-env",
    "--api-key-env EVE_KEY,NO_SUCH": "--api-key-env",
}
"""Words -> the flag that the one line names."""


@pytest.mark.parametrize("words", SERVE)
def test_what_cannot_be_is_said_before_anything_is_loaded(
    words: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EVE_KEY", "a key")
    assert main(["serve", *words.split()]) == 2
    printed = capsys.readouterr().err
    assert printed.startswith(f"dfme: {SERVE[words]}: ")
    assert printed.count("\n") == 1
