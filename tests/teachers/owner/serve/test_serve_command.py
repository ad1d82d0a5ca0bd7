"""``run.py serve`` as a person meets it, and the watch behind it: accounts, alarms, the record."""

import json
import os
import re
import shlex
import signal
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pytest
import torch
from clients import question
from defended import WEIGHTS, digits, pairs, queries, watched
from processes import PROJECT, Bench
from refusals import refusal
from toys import LinearTeacher

from dfme.cli.main import main
from dfme.config.settings import TeacherConfig
from dfme.config.values import from_mapping
from dfme.errors import TeacherError
from dfme.oracle.ledger import Ledger, audit
from dfme.oracle.oracle import Oracle
from dfme.spec import ImageSpec
from dfme.teachers.build import make_teacher
from dfme.teachers.open_inference.client import connect_v2
from dfme.teachers.options import ServeConfig, V2Options
from dfme.teachers.owner.defences.wrapper import Defended
from dfme.teachers.owner.watch.record import Recording, account_tag, read_log

OPENING = re.compile(
    r"(?P<name>\S+) at (?P<url>http://127\S+): (?P<what>.*); extract: (?P<command>.*)\n"
)


def problem(words: str, capsys: pytest.CaptureFixture[str]) -> str:
    """The one line on stderr of a command that cannot work."""
    assert main(["serve", *shlex.split(words)]) == 2
    printed = capsys.readouterr()
    assert (printed.out, printed.err.count("\n")) == ("", 1)
    return printed.err


@pytest.mark.integration
def test_it_says_what_is_where_and_counts_until_it_is_stopped(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    key = "only-in-the-environment"
    bench.environment["SERVICE_KEY"] = key
    common = ["serve", "--port", "0", "--device", "cpu"]
    custom = (
        "--teacher meter:Meter --teacher.log own.log --teacher.label-mode top_k:2 --threads 1 "
        "--teacher.defences quota:images=2"
    ).split()
    keyed = "--max-batch 64 --api-key-env SERVICE_KEY".split()
    processes = [bench.start([*common, *words]) for words in (keyed, custom)]
    openings = [
        OPENING.fullmatch(process.stdout.readline()) for process in processes if process.stdout
    ]
    digits, meter = (opening.groupdict() for opening in openings if opening)
    assert (
        digits["what"] == "1x8x8 images, at most 64 a request; 10 classes; label mode probabilities"
    )
    assert meter["what"] == "1x8x8 images; 10 classes; label mode top_k:2"
    assert (digits["name"], meter["name"]) == ("digits", "Meter")
    assert digits["command"] == (
        f"python run.py --teacher v2 --teacher.url {digits['url']} --teacher.model digits "
        "--teacher.api-key-env SERVICE_KEY"
    )
    assert processes[1].stdout.readline().startswith("behind quota:images=2:window=0.0")
    body = question(torch.full((2, 1, 8, 8), 0.5))
    for opening, headers in ((digits, {"X-API-Key": key}), (digits, {}), (meter, {})):
        url = f"{opening['url']}/v2/models/{opening['name']}/infer"
        expected = 200 if headers or opening is meter else 401
        assert httpx2.post(url, json=body, headers=headers).status_code == expected
    assert sum(int(line) for line in (tmp_path / "own.log").read_text().split()) == 2
    for process, number in zip(processes, (signal.SIGTERM, signal.SIGINT), strict=True):
        process.send_signal(number)
    ends = [process.communicate(timeout=60) for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    assert all(end[0].startswith("served 2 images in 1 requests (") for end in ends)
    assert ends[0][0].endswith("; refused 1 requests (unauthorised 1)\n")
    assert "; quota {'images': 2" in ends[1][0]
    assert key not in "".join(text for end in ends for text in end)
    assert [end[1] for end in ends] == ["", ""]


@pytest.mark.integration
@pytest.mark.parametrize(
    ("host", "key", "lines"), [("127.0.0.1", None, 1), ("0.0.0.0", None, 2), ("0.0.0.0", "K", 2)]
)
def test_a_host_that_lets_others_in_is_said(
    monkeypatch: pytest.MonkeyPatch, host: str, key: str | None, lines: int
) -> None:
    import uvicorn

    from dfme.teachers.owner.serve.server import serve

    monkeypatch.setattr(uvicorn.Server, "run", lambda *_, **__: None)
    monkeypatch.setenv("K", "secret")
    lines_told: list[str] = []
    config = ServeConfig(host, 0, "toy", api_key_env=key)
    end = serve(LinearTeacher(ImageSpec((1, 2, 2))), config, lines_told.append)
    assert len(lines_told) == lines
    assert end.startswith("served 0 images")
    if host != "127.0.0.1":
        assert "--teacher.authorised-by" in lines_told[0]
        assert ("WHOEVER REACHES IT CAN QUERY IT" in lines_told[1]) == (key is None)
        assert "secret" not in lines_told[1]


def test_every_mistake_is_named_at_once(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NO_SUCH_KEY", raising=False)
    numbers = (
        "--port 70000 --max-batch 0 --images-per-second 0 --requests-per-second -1 --threads -1"
    )
    flags = re.findall(r"(--[\w.-]+): expected", problem(numbers, capsys))
    assert sorted(flags) == sorted(numbers.split()[::2])
    words = (
        "--model a/b --api-key-env NO_SUCH_KEY --device gpu --teacher.checkpoint nowhere.pt --prt 3"
    )
    line = problem(words, capsys)
    for part in ("--model: ", "NO_SUCH_KEY", "--device: ", "'nowhere.pt'", "did you mean --port?"):
        assert part in line


def test_a_missing_extra_names_what_installs_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert "pip install starlette uvicorn" in problem("--port 0", capsys)


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
                refusal(
                    r"403 .*refused: watch.*answers this key no more",
                    eve,
                    pairs()[80:90],
                    error=Exception,
                )
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
        teacher = make_teacher(config, {"checkpoint": WEIGHTS}, torch.device("cpu"), recorded="log")
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
        refusal(r"403 .*refused: watch", oracle, torch.cat([pairs()] * 5), error=TeacherError)
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
