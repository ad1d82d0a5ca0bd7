"""Runs on services that fail for good: one line, the right exit code, nothing asked in vain, and
then on.
"""

import ctypes
from collections.abc import Callable
from pathlib import Path

import pytest
from hostile import Hostile
from processes import MOST, Bench, Ended, extract, finished, meters_agree, resume, student
from tables import exhaustive

from dfme.oracle.ledger import Totals

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("at_once")]

AT = 17
"""The question from which on a server fails."""
ONE = ("--teacher.in-flight", "1")


def from_then_on(fault: str) -> Callable[[int], str | None]:
    return lambda number: fault if number >= AT else None


def explains(ended: Ended, out: Path, *reasons: str) -> None:
    """The run ended in one line that says why, that nothing is lost, and how to go on; and it can
    go on.
    """
    assert ended.code == 3, ended.err
    assert all(reason in ended.line for reason in reasons), ended.line
    assert "all that was paid is kept" in ended.line
    assert ended.line.endswith(f"--resume --out {out}"), ended.line
    assert (out / "checkpoint.pt").exists()
    assert not (out / "summary.json").exists()


def goes_on(server: Hostile, out: Path, like: Path | None, unseen: int = 0) -> Totals:
    """Once the service is mended, the run ends, with the student of the run that met no fault."""
    server.plan = {}
    finished(resume(out))
    totals = meters_agree(server, out, unseen)
    assert totals.spent == 400
    assert like is None or student(out) == student(like)
    return totals


@pytest.mark.parametrize(
    "fault", ["status:401", "redirect", *exhaustive("status:403", "status:404")]
)
def test_refused_for_good_on_the_way(fault: str, quiet: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    with Hostile() as other, Hostile(from_then_on(fault)) as server:
        if fault == "redirect":
            server.plan = from_then_on(f"redirect:{other.url}/v2/models/m/infer")
        explains(extract(server, out), out, fault.removeprefix("status:"))
        assert server.questions < AT + 25
        totals = meters_agree(server, out)
        assert (totals.spent, totals.failed, totals.lost) == (server.images, 0, 0)
        goes_on(server, out, quiet)
        assert server.images == 400
        assert other.requests == []


@pytest.mark.parametrize("in_flight", [1, 4])
def test_a_server_that_is_gone_and_comes_back(in_flight: int, quiet: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    with Hostile(from_then_on("die")) as server:  # also on connections that were open already
        ended = extract(
            server, out, "--teacher.patience", "0.3", "--teacher.in-flight", str(in_flight)
        )
        explains(ended, out, "connection", server.url)
        meters_agree(
            server, out, unseen=in_flight - 1
        )  # they may wait in the backlog when the port closes
        assert resume(out).code == 2  # what the model is cannot be asked either
        server.up()
        # What was reset in the backlog may have been served, for all that the client knows: it
        # stays charged.
        failed = goes_on(server, out, None, unseen=in_flight - 1).failed
        assert failed <= (in_flight - 1) * MOST
        assert server.images == 400 - failed
        assert failed or student(out) == student(quiet)


UNUSABLE = [
    "nan",
    "garbage_json",
    *exhaustive("one_image_less", "garbage_bytes", "swapped", "not_http"),
]


@pytest.mark.parametrize("fault", UNUSABLE)
def test_an_unusable_answer_is_asked_for_again_a_few_times_only(fault: str, tmp_path: Path) -> None:
    out = tmp_path / "run"
    with Hostile(from_then_on(fault)) as server:
        explains(extract(server, out, *ONE), out, "attempts")
        totals = meters_agree(server, out)
        assert 2 <= server.questions - (AT - 1) <= 5
        assert totals.failed == (server.questions - (AT - 1)) * server.served[-1].images
        goes_on(server, out, None)
        assert server.images == 400


@pytest.mark.parametrize("attempts", ["1", "4"])
def test_who_never_answers_is_asked_as_often_as_the_options_say(
    attempts: str, tmp_path: Path
) -> None:
    with Hostile(from_then_on("reset_served")) as server:
        ended = extract(server, tmp_path / "run", "--teacher.attempts", attempts, *ONE)
        explains(ended, tmp_path / "run")
        assert server.questions == AT - 1 + int(attempts)
        meters_agree(server, tmp_path / "run")


def refused_at_once(ended: Ended, out: Path, *reasons: str) -> None:
    assert ended.code == 2, ended.err
    assert all(reason in ended.line for reason in reasons), ended.line
    assert not out.exists()


@pytest.mark.parametrize(("page", "reason"), [(404, "404"), ({"name": "m"}, "m")])
def test_a_service_without_the_model(page: object, reason: str, tmp_path: Path) -> None:
    with Hostile(pages={"/v2/models/m": page}) as server:
        refused_at_once(extract(server, tmp_path / "run"), tmp_path / "run", reason)
        assert server.questions == 0
    refused_at_once(extract(server, tmp_path / "run"), tmp_path / "run", server.url)  # nobody there


def test_a_torn_record_loses_that_part_of_the_batch_alone(quiet: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    with Hostile({AT: "status:404"}) as server:
        assert extract(server, out, *ONE).code == 3
        segment, torn = max((out / "journal").iterdir()), server.served[-1].images
        segment.write_bytes(segment.read_bytes()[:-3])
        assert goes_on(server, out, quiet).lost == torn
        assert server.images == 400 + torn
        assert server.served[AT - 1].queries == server.served[AT - 2].queries


@pytest.mark.exhaustive
def test_a_run_directory_that_became_read_only(quiet: Path, tmp_path: Path) -> None:
    """A process of its own, without the privilege of root to write all the same."""
    out = tmp_path / "run"
    with Hostile({AT: "status:404"}) as server:
        assert extract(server, out, *ONE).code == 3
        asked, modes = (
            server.questions,
            {out / "ledger.jsonl": 0o444, out / "journal": 0o555, out: 0o555},
        )
        for path, mode in modes.items():
            path.chmod(mode)
        code, _, err = Bench(tmp_path).run(
            ["--resume", "--out", str(out)], preexec_fn=without_privilege
        )
        for path, mode in modes.items():
            path.chmod(mode | 0o200)
        assert (code, server.questions) == (2, asked), err
        assert [line for line in err.splitlines() if line.startswith("dfme: ")] == err.splitlines()[
            -1:
        ]
        assert "denied" in err
        goes_on(server, out, quiet)


def without_privilege() -> None:
    """Root as anybody else before the permissions of files."""
    ctypes.CDLL(None).prctl(24, 1, 0, 0, 0)
