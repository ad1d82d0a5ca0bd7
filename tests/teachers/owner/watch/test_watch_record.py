"""What ``serve --record`` writes: every image once, nothing for longer than said."""

import hashlib
import json
import os
import re
import stat
import time
import tracemalloc
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dfme.cli.main import main
from dfme.errors import RunError, UserError
from dfme.run.directory import DirectoryLock
from dfme.teachers.owner.watch import record as module
from dfme.teachers.owner.watch.alarms import Alarm, AlarmFile
from dfme.teachers.owner.watch.detector import Observation
from dfme.teachers.owner.watch.record import Recording, account_tag, fingerprints, read_log

ONE, OTHER = account_tag("a key"), account_tag("another")
SHAPE = (1, 8, 8)


class Clock(datetime):
    at = datetime(2026, 11, 23, 23, 59, 59, 500_000, UTC)

    @classmethod
    def now(cls, tz: Any = None) -> datetime:  # type: ignore[override]
        return cls.at


@pytest.fixture(autouse=True)
def _clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Clock, "at", Clock.at)
    monkeypatch.setattr(module, "datetime", Clock)


def seen(count: int, seed: int = 0, distance: bool = True) -> Observation:
    rng = torch.Generator().manual_seed(seed)
    p = torch.rand((count, 10), generator=rng).double().softmax(1)
    images = torch.rand((count, *SHAPE), generator=rng)
    return Observation(
        images, p, torch.rand(count, generator=rng).double() * 9 if distance else None
    )


def recording(folder: Path, days: int, images: int, lines: list[str] | None = None) -> Recording:
    return Recording(folder, days, images, ([] if lines is None else lines).append)


def listed(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


def pixels(observation: Observation) -> Any:
    return np.rint(observation.images_BCHW.numpy() * 255).astype(np.uint8)


def test_what_is_written_is_read_again_by_account_and_in_order(tmp_path: Path) -> None:
    warnings: list[str] = []
    record, first, third = recording(tmp_path, 3, 10**6, warnings), seen(1_100), seen(3, 2)
    record(ONE, 1, first)
    record(OTHER, 1, seen(7, 1, False))
    Clock.at += timedelta(seconds=1)
    record(ONE, 1_101, third)
    images = {
        f"images-2026-11-{rest}-1x8x8.u8" for rest in (f"23-{ONE}", f"23-{OTHER}", f"24-{ONE}")
    }
    assert {*listed(tmp_path)} == images | {"log-2026-11-23.jsonl", "log-2026-11-24.jsonl"}
    batches = [*read_log(tmp_path, SHAPE)]
    batches_of_one = [batch for batch in batches if batch.account == ONE]
    assert {batch.account for batch in batches} == {ONE, OTHER}
    p = torch.cat([first.p_BK, third.p_BK])
    expected = {
        "number": np.arange(1, 1_104),
        "top": p.argmax(1).numpy(),
        "score": p.amax(1).numpy(),
    }
    expected["images"] = np.concatenate([pixels(first), pixels(third)])
    expected["distance"] = np.concatenate([first.distance_B, third.distance_B])
    for name, values in expected.items():
        assert np.array_equal(
            np.concatenate([getattr(batch, name) for batch in batches_of_one]), values
        )
    digests = [
        int(hashlib.blake2b(batch.tobytes(), digest_size=8).hexdigest(), 16)
        for batch in pixels(first)
    ]
    assert np.concatenate([batch.digest for batch in batches_of_one])[:1_100].tolist() == digests
    assert batches_of_one[0].at[0] == "2026-11-23T23:59:59.500Z"
    (other,) = (batch for batch in batches if batch.account == OTHER)
    assert np.isnan(other.distance).all()
    assert warnings == []
    for path in map(tmp_path.joinpath, listed(tmp_path)):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert "a key" not in "".join(path.read_text(errors="ignore") for path in tmp_path.iterdir())


def test_a_fingerprint_is_that_of_arithmetic_and_hardly_moves_with_a_small_change() -> None:
    grey = torch.randint(256, (5, 1, 16, 24), generator=torch.Generator().manual_seed(0)).byte()
    means = grey.double().view(5, 8, 2, 8, 3).mean((2, 4)).flatten(1).tolist()
    expected = ["".join("01"[value > sum(row) / 64] for value in row) for row in means]
    assert fingerprints(grey) == [f"{int(bits, 2):016x}" for bits in expected]
    assert fingerprints(grey.repeat(1, 3, 1, 1)) == fingerprints(grey)
    assert all(len(each) == 16 for each in fingerprints(grey[:, :, :5, :3]))
    smooth = torch.linspace(0, 250, 64).view(1, 1, 8, 8).byte()
    apart = int(fingerprints(smooth)[0], 16) ^ int(fingerprints(smooth + 3)[0], 16)
    assert apart.bit_count() <= 2


def test_nothing_stays_longer_than_said_and_nothing_else_is_deleted(tmp_path: Path) -> None:
    staying = [
        "notes.txt",
        "log-2026-11-22.jsonl.bak",
        f"images-2026-11-01-{ONE}.u8",
        "log-2026-11-22.jsonl",
    ]
    gone = ["log-2026-11-21.jsonl", "log-2025-12-31.jsonl", f"images-2026-11-20-{OTHER}-1x8x8.u8"]
    for name in (*staying, *gone):
        (tmp_path / name).write_text("")
    outside = tmp_path.parent / "outside.jsonl"
    outside.write_text("mine")
    (tmp_path / "log-2026-11-19.jsonl").symlink_to(outside)
    record = recording(tmp_path, 2, 0)  # of today and yesterday
    assert listed(tmp_path) == sorted(staying)
    assert outside.read_text() == "mine"
    record(ONE, 1, seen(2))
    Clock.at += timedelta(days=1)
    record.expire()
    assert "log-2026-11-22.jsonl" not in listed(tmp_path)
    assert "log-2026-11-23.jsonl" in listed(tmp_path)
    Clock.at += timedelta(days=1)
    record.expire()
    assert listed(tmp_path) == sorted(staying[:3])


def test_images_stop_at_the_cap_which_is_said_once(tmp_path: Path) -> None:
    lines: list[str] = []
    record = recording(tmp_path, 9, 64 * 25, lines)
    for number in range(3):
        record(ONE, 1 + 10 * number, seen(10, number))
    assert lines == ["the images recorded reach 0.0016 MB: no more are kept, only lines about them"]
    (path,) = tmp_path.glob("images-*")
    assert path.stat().st_size == 64 * 20
    (batch,) = read_log(tmp_path, SHAPE)
    assert (len(batch.at), batch.images) == (30, None)
    places = [json.loads(line)["image"] for line in (tmp_path / "log-2026-11-23.jsonl").open()]
    assert places[18:22] == [18, 19, None, None]


def test_a_kill_tears_the_last_line_and_no_other(tmp_path: Path) -> None:
    recording(tmp_path, 9, 10**6)(ONE, 1, seen(5))
    log, images = tmp_path / "log-2026-11-23.jsonl", tmp_path / f"images-2026-11-23-{ONE}-1x8x8.u8"
    log.write_bytes(log.read_bytes()[:-20])
    images.write_bytes(images.read_bytes() + b"half an image")
    (batch,) = read_log(tmp_path, SHAPE)
    assert batch.number.tolist() == [1, 2, 3, 4]
    again = seen(2, 5)
    recording(tmp_path, 9, 10**6)(ONE, 1, again)
    (batch,) = read_log(tmp_path, SHAPE)
    assert batch.number.tolist() == [1, 2, 3, 4, 1, 2]
    assert np.array_equal(batch.images[-2:], pixels(again))


def test_a_disk_that_takes_no_more_ends_the_record_and_not_the_deletion(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SWEEP_SECONDS", 0.01)
    lines: list[str] = []
    record, old = recording(tmp_path, 1, 0, lines), tmp_path / "log-2026-11-21.jsonl"
    (tmp_path / "log-2026-11-23.jsonl").symlink_to(tmp_path / "elsewhere")
    for _ in range(2):
        record(ONE, 1, seen(1))
    (line,) = lines
    assert line.startswith("WARNING: nothing is recorded from here on: ")
    assert not (tmp_path / "elsewhere").exists()
    old.write_text("a line\n")
    deadline = time.monotonic() + 10
    while old.exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not old.exists()


def test_one_server_at_a_time_writes_into_a_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with closing(DirectoryLock(tmp_path)):
        assert main(["serve", "--port", "0", "--record", str(tmp_path), "--retain-days", "3"]) == 2
    printed = capsys.readouterr().err
    assert re.fullmatch(
        r"dfme: --record .*: in use by process \d+; .* or choose another --record\n", printed
    )


def test_a_log_of_a_stranger_costs_no_memory_and_ends_in_one_line(tmp_path: Path) -> None:
    recording(tmp_path, 9, 10**6)(ONE, 1, seen(3))
    log, images = tmp_path / "log-2026-11-23.jsonl", tmp_path / f"images-2026-11-23-{ONE}-1x8x8.u8"
    lines = [json.loads(line) for line in log.open()]
    log.write_text(
        "".join(json.dumps(line) + "\n" for line in ({**lines[0], "more": "x" * 9}, *lines[1:]))
    )
    (batch,) = read_log(tmp_path, SHAPE)
    assert batch.images.shape == (3, 1, 8, 8)
    for shape in ("1x32768x32768", "0x0x0", f"1x{10**15}x{10**15}"):
        images = images.rename(tmp_path / f"images-2026-11-23-{ONE}-{shape}.u8")
        with images.open("r+b") as file:
            file.truncate(2**31)
        tracemalloc.start()
        with pytest.raises(RunError, match=rf"{shape}\.u8: expected the log of this teacher"):
            [*read_log(tmp_path, SHAPE)]
        assert tracemalloc.get_traced_memory()[1] < 10**7
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("old", "new"), [('"number"', '"n"'), ('"score": ', '"score": "x'), ("{", "[")]
)
def test_a_line_of_anybodys_is_an_error_in_words(old: str, new: str, tmp_path: Path) -> None:
    recording(tmp_path, 9, 0)(ONE, 1, seen(2))
    log = tmp_path / "log-2026-11-23.jsonl"
    log.write_text(log.read_text().replace(old, new))
    with pytest.raises(RunError, match=r"log-2026-11-23\.jsonl: expected lines"):
        [*read_log(tmp_path, SHAPE)]
    log.unlink()
    with pytest.raises(UserError, match=r"expected a folder that run\.py serve --record wrote"):
        [*read_log(tmp_path, SHAPE)]


@pytest.mark.parametrize(
    "torn", [b'{"at": "2026", "detec', b"x", b'{"whole": 1}', b'{"whole": 1}\n{"at', b"", None]
)
def test_an_alarm_has_a_line_of_its_own_also_after_one_that_a_crash_tore(
    torn: bytes | None, tmp_path: Path
) -> None:
    path, content = tmp_path / "alarms.jsonl", b"" if torn is None else b'{"first": 1}\n' + torn
    path.write_bytes(content)
    for image in (1, 2):
        AlarmFile(path, pytest.fail)(Alarm(ONE, "pairs", 0.5, 0.25, image, is_first=True))
    *evidence, first, second, end = path.read_bytes().split(b"\n")
    assert b"\n".join(evidence) == content.removesuffix(b"\n")  # it stays as it is
    assert [json.loads(line)["image"] for line in (first, second)] == [1, 2]
    assert end == b""
