"""Services that fail for good: one line, the right exit code, nothing asked in vain; and the run goes on later."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import small_runs
from hostile import Hostile, every
from http_runs import Ended, extract, finished, meters_agree, mostly, no_waiting, resume, student

pytestmark = pytest.mark.integration

AT = 17
"""The question from which on a server fails."""


@pytest.fixture(scope="module", autouse=True)
def _surroundings() -> Iterator[None]:
    with small_runs.no_pictures(), no_waiting():
        yield


def from_then_on(fault: str) -> Callable[[int], str | None]:
    return lambda number: fault if number >= AT else None


def explains(ended: Ended, out: Path, *reasons: str) -> None:
    """The run ended in one line that says why, that nothing is lost, and how to go on; and it can go on."""
    assert ended.code == 3, ended.err
    assert all(reason in ended.line for reason in reasons), ended.line
    assert "all that was paid is kept" in ended.line
    assert ended.line.endswith(f"--resume --out {out}"), ended.line
    assert (out / "checkpoint.pt").exists()
    assert not (out / "summary.json").exists()


@pytest.mark.parametrize("fault", mostly(["status:401", "redirect"], ["status:403", "status:404"]))
def test_refused_for_good_on_the_way(fault: str, quiet: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    with Hostile(from_then_on(fault)) as server:
        explains(extract(server, out), out, fault.removeprefix("status:"))
        assert server.questions < AT + 25
        totals = meters_agree(server, out)
        assert (totals.spent, totals.failed, totals.lost) == (server.images, 0, 0)
        server.plan = {}
        finished(resume(out))
        assert meters_agree(server, out).spent == server.images == 400
    assert student(out) == student(quiet)


def test_a_redirect_elsewhere_on_the_way(quiet: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    with Hostile() as other, Hostile(from_then_on(f"redirect:{other.url}/v2/models/m/infer")) as server:
        explains(extract(server, out, "--teacher.in-flight", "1"), out, "redirect")
        assert (server.questions, other.requests) == (AT, [])
        server.plan = {}
        finished(resume(out))
        assert meters_agree(server, out).spent == server.images == 400
    assert student(out) == student(quiet)


@pytest.mark.parametrize("in_flight", [1, 4])
def test_a_server_that_is_gone_for_good_and_one_day_is_there_again(in_flight: int, quiet: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    with Hostile(from_then_on("die")) as server:  # also on connections that were open already
        ended = extract(server, out, "--teacher.patience", "0.3", "--teacher.in-flight", str(in_flight))
        explains(ended, out, "connection", server.url)
        meters_agree(server, out)
        assert resume(out).code == 2  # what the model is cannot be asked either
        server.plan = {}
        server.up()
        finished(resume(out))
        totals = meters_agree(server, out)
    assert (totals.spent, totals.failed, server.images) == (400, 0, 400)
    assert student(out) == student(quiet)


@pytest.mark.parametrize(
    "fault", mostly(["nan", "garbage_json"], ["one_image_less", "garbage_bytes", "swapped", "not_http"])
)
def test_an_unusable_answer_is_asked_for_again_a_few_times_only(fault: str, tmp_path: Path) -> None:
    out = tmp_path / "run"
    with Hostile(from_then_on(fault)) as server:
        explains(extract(server, out, "--teacher.in-flight", "1"), out, "attempts")
        totals = meters_agree(server, out)
        assert 2 <= server.questions - (AT - 1) <= 5
        assert totals.failed == (server.questions - (AT - 1)) * server.served[-1].images
        server.plan = {}
        finished(resume(out))
        assert meters_agree(server, out).spent == server.images == 400


@pytest.mark.parametrize("attempts", ["1", "4"])
def test_who_never_answers_is_asked_as_often_as_the_options_say(attempts: str, tmp_path: Path) -> None:
    out = tmp_path / "run"
    with Hostile(from_then_on("reset_served")) as server:
        explains(extract(server, out, "--teacher.attempts", attempts, "--teacher.in-flight", "1"), out)
        assert server.questions == AT - 1 + int(attempts)
        meters_agree(server, out)


# Before the first query


def refused_at_once(ended: Ended, out: Path, *reasons: str) -> None:
    assert ended.code == 2, ended.err
    assert all(reason in ended.line for reason in reasons), ended.line
    assert not out.exists()


@pytest.mark.parametrize(
    ("pages", "reason"),
    [
        ({"/v2/models/m": 404}, "404"),
        ({"/v2/models/m": 401}, "401"),
        ({"/v2/models/m": {"name": "m"}}, "m"),
        ({"/v2/models/m": ["no"]}, "m"),
    ],
)
def test_a_service_without_the_model(pages: dict[str, object], reason: str, tmp_path: Path) -> None:
    with Hostile(pages=pages) as server:
        refused_at_once(extract(server, tmp_path / "run"), tmp_path / "run", reason)
        assert server.questions == 0


def test_nobody_there(tmp_path: Path) -> None:
    with Hostile() as server:
        pass
    refused_at_once(extract(server, tmp_path / "run"), tmp_path / "run", server.url)


def test_the_key_is_sent_and_shown_to_nobody_else(quiet: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOSTILE_KEY", "s3cr3t-k3y")
    out, key = tmp_path / "run", ("--teacher.api-key-env", "HOSTILE_KEY")
    with Hostile(need=("Authorization", "Bearer s3cr3t-k3y"), plan=every(5, ["failed", "status:429/0"])) as server:
        refused_at_once(extract(server, out), out, "401")
        finished(extract(server, out, *key))
        meters_agree(server, out)
    assert not [path for path in out.rglob("*") if path.is_file() and b"s3cr3t-k3y" in path.read_bytes()]


# Certificates


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[str, ssl.SSLContext]]:
    """The file of an authority, and a server's contexts by whom their certificates are for."""
    trustme = pytest.importorskip("trustme")
    mine, other = trustme.CA(), trustme.CA()
    issued = {"this machine": mine.issue_cert("127.0.0.1"), "elsewhere": mine.issue_cert("elsewhere.example")}
    issued["unknown"] = other.issue_cert("127.0.0.1")
    contexts = {name: ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER) for name in issued}
    for name, certificate in issued.items():
        certificate.configure_cert(contexts[name])
    file = tmp_path_factory.mktemp("ca") / "ca.pem"
    mine.cert_pem.write_to_path(str(file))
    return str(file), contexts


@pytest.mark.parametrize("whose", ["elsewhere", "unknown"])
def test_a_wrong_certificate(
    whose: str, authority: tuple[str, dict[str, ssl.SSLContext]], quiet: Path, tmp_path: Path
) -> None:
    """From the start; and in the middle of a run, where the question before is the last on its connection."""
    file, contexts = authority
    out, trust = tmp_path / "run", ("--teacher.ca-file", file)
    with Hostile(tls=contexts[whose]) as server:
        refused_at_once(extract(server, out, *trust), out, "certificate")
        assert server.requests == []
    with Hostile(tls=contexts["this machine"]) as server:
        refused_at_once(extract(server, out), out, "certificate")

        def plan(number: int) -> str | None:
            server.tls = contexts[whose if number == AT else "this machine"]
            return "die:0" if number == AT else None

        server.plan = plan
        explains(extract(server, out, *trust, "--teacher.in-flight", "1"), out, "certificate")
        assert meters_agree(server, out).spent == server.images
        server.tls = contexts["this machine"]
        finished(resume(out))
        assert meters_agree(server, out).spent == server.images == 400
    assert student(out) == student(quiet)
