"""Runs on a service that failed: damaged files, full disks, read-only directories, and a second process."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from pathlib import Path

import pytest
import small_runs
from damage import DAMAGES, file_size_limit
from hostile import Hostile
from http_runs import MOST, Ended, extract, finished, meters_agree, mostly, no_waiting, resume, student
from processes import Bench

from dfme.oracle.ledger import audit

pytestmark = pytest.mark.integration

AT = 17
"""The question at which a server fails."""


@pytest.fixture(scope="module", autouse=True)
def _surroundings() -> Iterator[None]:
    with small_runs.no_pictures(), no_waiting():
        yield


IN_SHORT = ("checkpoint, a bit", "journal, a bit")
"""The damages that the fast tests look at; the slow ones look at the others."""


@pytest.mark.parametrize("damage", mostly(IN_SHORT, sorted({*DAMAGES} - {*IN_SHORT})))
def test_damage_after_a_failure_is_explained_and_nothing_is_asked(damage: str, quiet: Path, tmp_path: Path) -> None:
    out, (name, change, _) = tmp_path / "run", DAMAGES[damage]
    with Hostile({AT: "status:404"}) as server:
        assert extract(server, out, "--checkpoint-seconds", "0.001").code == 3
        data, asked = (out / name).read_bytes(), server.questions
        (out / name).write_bytes(change(data))
        ended = resume(out)
        assert (ended.code, server.questions) == (2, asked), ended.err
        assert Path(name).name in ended.line
        (out / name).write_bytes(data)
        finished(resume(out))
        assert meters_agree(server, out).spent == server.images == 400
    assert student(out) == student(quiet)


def test_a_torn_record_loses_that_part_of_the_batch_alone(quiet: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    with Hostile({AT: "status:404"}) as server:
        assert extract(server, out, "--teacher.in-flight", "1").code == 3
        served, segment = server.images, max((out / "journal").iterdir())
        torn = server.served[-1].images
        segment.write_bytes(segment.read_bytes()[:-3])
        server.plan = {}
        finished(resume(out))
        totals = meters_agree(server, out)
        assert (totals.spent, totals.lost, server.images) == (400, torn, 400 + torn)
        assert server.served[AT - 1].queries == server.served[AT - 2].queries
    assert student(out) == student(quiet)
    assert served < 400


@pytest.mark.parametrize("in_flight", ["1", "4"])
@pytest.mark.parametrize("more", mostly([8_000], [100, 84_000]))
def test_a_full_disk_in_the_middle_of_a_batch(more: int, in_flight: str, quiet: Path, tmp_path: Path) -> None:
    """No file may have so many bytes ``more`` than config.yaml, the first that a run writes."""
    out = tmp_path / "run"
    with Hostile() as server:
        with file_size_limit((quiet / "config.yaml").stat().st_size + more):
            ended = extract(server, out, "--teacher.in-flight", in_flight)
        assert ended.code == 2
        assert "cannot write" in ended.line
        begun = out.exists()  # a run that fails before its first charge leaves no directory
        first = audit(out / "ledger.jsonl").spent if begun else server.images
        finished(resume(out) if begun else extract(server, out))
        totals = meters_agree(server, out)
    assert totals.lost <= int(in_flight) * MOST
    assert (totals.spent, server.images) == (400, 400 + totals.lost)
    assert student(out) == student(quiet)
    assert first <= 400


@pytest.mark.exhaustive
def test_a_run_directory_that_became_read_only(quiet: Path, tmp_path: Path) -> None:
    """A process of its own, without the privilege of root to write all the same."""
    bench = Bench(tmp_path)
    out = tmp_path / "run"
    with Hostile({AT: "status:404"}) as server:
        assert extract(server, out, "--teacher.in-flight", "1").code == 3
        asked, server.plan = server.questions, {}
        (out / "ledger.jsonl").chmod(0o444)
        (out / "journal").chmod(0o555)
        out.chmod(0o555)
        code, _, err = bench.run(["--resume", "--out", str(out)], preexec_fn=without_privilege)
        out.chmod(0o755)
        (out / "journal").chmod(0o755)
        (out / "ledger.jsonl").chmod(0o644)
        assert (code, server.questions) == (2, asked), err
        assert [line for line in err.splitlines() if line.startswith("dfme: ")] == err.splitlines()[-1:]
        assert "denied" in err
        finished(resume(out))
        assert meters_agree(server, out).spent == server.images == 400
    assert student(out) == student(quiet)


def without_privilege() -> None:
    """Root as anybody else before the permissions of files: CAP_DAC_OVERRIDE (1) is given up at the next exec."""
    ctypes.CDLL(None).prctl(24, 1, 0, 0, 0)


def test_a_second_process_on_one_run_directory_is_refused(quiet: Path, tmp_path: Path) -> None:
    out, seconds = tmp_path / "run", list[Ended]()

    def plan(number: int) -> None:
        if number == AT:
            seconds.append(resume(out))

    with Hostile(plan) as server:
        finished(extract(server, out))
        assert server.questions == 60
        assert meters_agree(server, out).lost == 0
    assert [second.code for second in seconds] == [2]
    assert student(out) == student(quiet)
