"""Detectors over honest accounts and logs: counts against brute force."""

import json
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor
from toys import LinearTeacher
from watched import pairs, procedural

from dfme.compute import modules
from dfme.config.settings import TeacherConfig
from dfme.errors import RunError, UserError
from dfme.measured import Detection, DetectorFacts
from dfme.spec import ImageSpec, LabelMode
from dfme.teachers.build import make_teacher
from dfme.teachers.owner.defences.wrapper import Defended
from dfme.teachers.owner.watch import DETECTORS, detection
from dfme.teachers.owner.watch import log as log_reader
from dfme.teachers.owner.watch.detection import THINNED, Log, detect
from dfme.teachers.owner.watch.detector import Detector, Observation
from dfme.teachers.owner.watch.record import Recording, account_tag
from dfme.teachers.owner.watch.streams import STREAMS, held_out, session
from dfme.teachers.owner.watch.watch import Watch

SPEC, DIGITS = ImageSpec((1, 8, 8)), {"checkpoint": "teachers/checkpoints/digits.safetensors"}


class Bright(Detector):
    """The mean of the image; an alarm is raised at bright ones."""

    name, statistic = "bright", "the mean of the image"
    threshold: ClassVar[float] = 0.33

    def measure(self, seen: Observation, last: float) -> Tensor:
        return seen.images_BCHW.mean((1, 2, 3)).double()


@pytest.fixture(autouse=True)
def _few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(DETECTORS, "pairs", f"{__name__}:Bright")
    monkeypatch.setattr(detection, "SESSIONS", 2)


def toy(*names: str) -> Defended:
    watching = partial(Watch, names=names, data="digits", on_alarm="log")
    return Defended(LinearTeacher(SPEC, 10), (), LabelMode("probabilities"), watching)


def raised(values: list[float], threshold: float = 0.33) -> list[int]:
    """Where an alarm is raised, from 1, and again only once it was not."""
    return [at + 1 for at, each in enumerate(values) if each > threshold >= ([0.0, *values][at])]


def test_a_long_watch_says_how_far_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    told = list[str]()
    monkeypatch.setattr(modules, "LULL", -1.0)
    detect(toy("labels"), "digits", seed=3, tell=told.append)
    watched = ("watched 1 of 2", "watched 2 of 2", "watched 2")
    assert told == [
        f"{far} honest accounts: {stream}" for stream in STREAMS[:-1] for far in watched
    ]


def test_honest_accounts_are_counted_by_stream_and_session() -> None:
    told = list[str]()
    seen = detect(toy("labels", "pairs"), "digits", "letters", 3, told.append)
    assert (seen.session, seen.calibration_images, seen.measuring_images) == (600, 180, 179)
    assert seen.detectors[0].name == "labels"
    assert seen.detectors[1] == DetectorFacts("pairs", Bright.statistic, 0.33, 0.0001)
    assert Detection.from_json(json.loads(json.dumps(seen.to_json()))) == seen
    rows = {(row.stream, row.detector): row for row in seen.benign}
    assert [*rows] == [(stream, name) for stream in STREAMS for name in ("labels", "pairs")]
    assert len(told) == 5
    for stream in STREAMS:
        data, _, places = held_out("letters" if stream == "other data" else "digits", SPEC)
        places = torch.arange(len(data)) if stream == "other data" else places
        draws = [
            session(stream, data, places, torch.Generator().manual_seed(seed)) for seed in (6, 7)
        ]
        means = [torch.cat([*each]).mean((1, 2, 3)).double().tolist() for each in draws]
        alarms, row = [len(raised(each)) for each in means], rows[stream, "pairs"]
        assert sum(alarms) == row.alarms
        assert sum(count > 0 for count in alarms) == row.sessions_with_alarm
        assert (row.sessions, row.queries, row.units) == (2, 1_200, len(places))
        assert row.per_10000 == 10_000 * row.alarms / 1_200
        assert seen.benign_largest["pairs"][stream] == pytest.approx([*map(max, means)])
    assert any(row.alarms for row in rows.values())


def written(folder: Path, accounts: dict[str, Tensor]) -> None:
    """Write a log of these images, five of an account and then of the next, by the watch of the
    toy.
    """
    teacher = toy("pairs")
    teacher.watch.record = Recording(folder, 30, 10**6, print)
    for start in range(0, max(map(len, accounts.values())), 5):
        for name, x_BCHW in accounts.items():
            teacher.watch.account = account_tag(name)
            if len(part := x_BCHW[start : start + 5]):
                teacher(part)


def test_accounts_of_a_log_and_their_thinned_streams(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_reader, "LINES_AT_ONCE", 7)
    monkeypatch.setattr(detection, "ACCOUNTS", 2)
    rng = torch.Generator().manual_seed(0)
    accounts = dict[str, Tensor]()
    for name, count in {"a": 150, "b": 40, "c": 90}.items():
        light = torch.rand(count, 1, 8, 8, generator=rng)
        accounts[name] = light * torch.rand(count, 1, 1, 1, generator=rng)
    accounts["a"][20:30] = accounts["a"][10]
    written(tmp_path, accounts)
    seen = detect(toy("pairs"), "digits", log=tmp_path)
    assert seen.left_out == {}
    assert [row.stream for row in seen.benign] == [*STREAMS[:-1]]
    log = seen.log
    assert log is not None
    assert log.accounts_in_all == 3
    shown = [(account.account, account.images, account.repeats) for account in log.accounts]
    assert shown == [(account_tag("a"), 150, 10), (account_tag("c"), 90, 0)]
    for account, name in zip(log.accounts, "ac", strict=True):
        means = ((accounts[name] * 255).round() / 255).mean((1, 2, 3)).double().tolist()
        assert [*account.thinned] == [*THINNED]
        for every, readings in account.thinned.items():
            alarms = raised(means[::every])
            reading = readings["pairs"]
            first = alarms[0] if alarms else None
            assert (reading.first_alarm, reading.alarms) == (first, len(alarms))
            assert reading.largest == pytest.approx(max(means[::every]))
    assert log.accounts[0].thinned[1]["pairs"].alarms > 5


@pytest.mark.parametrize("kept", [True, False])
def test_a_log_says_what_the_watch_said_that_wrote_it(
    tmp_path: Path, kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(detection, "SESSIONS", 1)
    monkeypatch.setattr(detection, "STREAMS", ("random order",))
    monkeypatch.setattr(detection, "THINNED", (1,))
    config = TeacherConfig(watch=tuple(DETECTORS), benign="digits")
    teacher: Any = make_teacher(config, DIGITS, torch.device("cpu"), recorded=True)
    teacher.watch.record = Recording(tmp_path, 30, 10**6 * kept, print)
    teacher.watch.account = account_tag("a")
    for start in range(0, 400, 100):
        teacher(pairs(procedural("leaves", 200))[start : start + 100])
    live = teacher.watch.report()["detectors"]
    teacher.watch.record = None
    seen = detect(teacher, "digits", log=tmp_path)
    assert seen.log is not None
    account = seen.log.accounts[0]
    own = {name: asdict(reading) for name, reading in account.thinned[1].items()}
    assert live["pairs"]["first_alarm"] < 100
    if kept:  # of all scores a log has the top one alone
        assert {**own, "coverage": None} == {**live, "coverage": None}
        assert seen.left_out == {}
        return
    assert seen.left_out == {"prada": "the log has not all images (--record-images)"}
    same = ("labels", "scores", "mahalanobis", "sequential", "sprt")
    assert {name: own[name] for name in same} == {name: live[name] for name in same}
    assert own["pairs"]["first_alarm"] < 100  # by the fingerprints of images that are all different
    assert own["pairs"]["largest"] > 0.3
    assert account.repeats == 0
    assert sum(row.alarms for row in seen.benign if row.detector == "pairs") == 0


def test_a_log_of_another_teacher_is_none(tmp_path: Path) -> None:
    written(tmp_path, {"a": torch.rand(30, 1, 8, 8)})
    Log(tmp_path, SPEC, 10)
    for spec, classes in ((ImageSpec((1, 4, 16)), 10), (SPEC, 2)):
        with pytest.raises(UserError, match="expected the log of this teacher"):
            Log(tmp_path, spec, classes)
    log = next(tmp_path.glob("log-*"))
    with pytest.raises(UserError, match="expected a folder that"):
        Log(tmp_path / "nothing", SPEC, 10)
    log.write_text("")
    with pytest.raises(UserError, match="expected a log with images, got none"):
        Log(tmp_path, SPEC, 10)
    log.unlink()
    log.mkdir()
    with pytest.raises(RunError, match="expected a log that can be read"):
        Log(tmp_path, SPEC, 10)
