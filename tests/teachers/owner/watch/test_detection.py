"""Detectors over honest accounts and logs: counts against brute force; what honest accounts are made of."""

import json
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from pydantic import TypeAdapter
from refusals import refusal
from torch import Tensor
from toys import LinearTeacher
from watched import pairs, procedural

from dfme.compute import modules
from dfme.config.settings import TeacherConfig
from dfme.data import ImageSet
from dfme.errors import RunError
from dfme.measured import Detection, DetectorFacts, LogDetection
from dfme.spec import ImageSpec, LabelMode
from dfme.teachers.build import make_teacher
from dfme.teachers.owner.defences.wrapper import Defended
from dfme.teachers.owner.watch import DETECTORS, detection
from dfme.teachers.owner.watch import record as log_reader
from dfme.teachers.owner.watch.detection import THINNED, Log, detect
from dfme.teachers.owner.watch.detector import (
    BATCH,
    SESSION,
    STREAMS,
    Detector,
    Observation,
    halves,
    held_out,
    session,
)
from dfme.teachers.owner.watch.record import Recording, account_tag
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
    assert TypeAdapter(Detection).validate_json(json.dumps(asdict(seen))) == seen
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
    assert isinstance(seen, LogDetection)
    assert seen.accounts_in_all == 3
    shown = [(account.account, account.images, account.repeats) for account in seen.accounts]
    assert shown == [(account_tag("a"), 150, 10), (account_tag("c"), 90, 0)]
    for account, name in zip(seen.accounts, "ac", strict=True):
        means = ((accounts[name] * 255).round() / 255).mean((1, 2, 3)).double().tolist()
        assert [*account.thinned] == [*THINNED]
        for every, readings in account.thinned.items():
            alarms = raised(means[::every])
            reading = readings["pairs"]
            first = alarms[0] if alarms else None
            assert (reading.first_alarm, reading.alarms) == (first, len(alarms))
            assert reading.largest == pytest.approx(max(means[::every]))
    assert seen.accounts[0].thinned[1]["pairs"].alarms > 5


@pytest.mark.parametrize("kept", [True, False])
def test_a_log_says_what_the_watch_said_that_wrote_it(
    tmp_path: Path, kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(detection, "SESSIONS", 1)
    monkeypatch.setattr(detection, "STREAMS", ("random order",))
    monkeypatch.setattr(detection, "THINNED", (1,))
    config = TeacherConfig(watch=tuple(DETECTORS), benign="digits")
    teacher: Any = make_teacher(config, DIGITS, torch.device("cpu"), recorded="log")
    teacher.watch.record = Recording(tmp_path, 30, 10**6 * kept, print)
    teacher.watch.account = account_tag("a")
    for start in range(0, 400, 100):
        teacher(pairs(procedural("leaves", 200))[start : start + 100])
    live = teacher.watch.report()["detectors"]
    teacher.watch.record = None
    seen = detect(teacher, "digits", log=tmp_path)
    assert isinstance(seen, LogDetection)
    account = seen.accounts[0]
    own = {name: asdict(reading) for name, reading in account.thinned[1].items()}
    assert "mmd" not in own
    assert seen.images_in_all == 400
    assert seen.traffic["mmd"].largest != 0
    assert live["pairs"]["first_alarm"] < 100
    if kept:  # of all scores a log has the top one alone
        unlike = {"coverage": None, "mmd": None}
        assert {**own, **unlike} == {**live, **unlike}
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
        refusal("expected the log of this teacher", Log, tmp_path, spec, classes)
    log = next(tmp_path.glob("log-*"))
    refusal("expected a folder that", Log, tmp_path / "nothing", SPEC, 10)
    log.write_text("")
    refusal("expected a log with images, got none", Log, tmp_path, SPEC, 10)
    log.unlink()
    log.mkdir()
    refusal("expected a log that can be read", Log, tmp_path, SPEC, 10, error=RunError)


SMALL = ImageSpec((1, 5, 5))
LABELS = torch.arange(90) % 9


def numbered(count: int = 90) -> ImageSet:
    """Images whose centre says which one it is, black elsewhere."""
    x = torch.zeros(count, 1, 5, 5)
    x[:, 0, 2, 2] = (torch.arange(count) + 1) / (count + 1)
    return ImageSet("toy", x, LABELS[:count])


def drawn(stream: str, seed: int = 0) -> Tensor:
    parts = [*session(stream, numbered(), torch.arange(90), torch.Generator().manual_seed(seed))]
    assert [len(part) for part in parts] == [BATCH] * (SESSION // BATCH)
    return torch.cat(parts)


def number(x_BCHW: Tensor) -> Tensor:
    return (x_BCHW.amax((1, 2, 3)) * 91).round().long() - 1


@pytest.mark.parametrize("count", [0, 1, 2, 359, 360])
def test_halves_are_two_that_share_no_image(count: int) -> None:
    calibration, measuring = halves(count)
    assert sorted([*calibration.tolist(), *measuring.tolist()]) == [*range(count)]
    assert 0 <= len(calibration) - len(measuring) <= 1
    assert all(map(torch.equal, halves(count), halves(count)))
    assert count < 300 or not torch.equal(halves(count)[0], halves(count, 1)[0])


def test_a_skewed_customer_has_few_classes_and_all_images_of_each() -> None:
    draws = (number(drawn("skewed", seed)) for seed in range(200))
    share_SK = torch.stack(
        [LABELS[each].bincount(minlength=9) / SESSION for each in draws]
    ).double()
    assert share_SK.mean(0).tolist() == pytest.approx([1 / 9] * 9, abs=0.06)
    # of Dirichlet(a, ..., a): the sum of squared shares has mean (a + 1) / (K a + 1)
    expected = 1.3 / (9 * 0.3 + 1)
    assert share_SK.square().sum(1).mean().item() == pytest.approx(expected, rel=0.1)
    top = int(share_SK[0].argmax())
    assert set(number(drawn("skewed", 0)).tolist()) >= {
        *(top == LABELS).nonzero().flatten().tolist()
    }


def test_a_tenth_of_repeats_is_the_image_before_exactly_or_moved_by_a_pixel() -> None:
    exact = moved = 0
    for seed in range(20):
        x = drawn("repeats", seed)
        at = x.flatten(1).argmax(1)
        places = {tuple(divmod(place, 5)) for place in at.tolist()}
        assert places == {(2, 2), (1, 2), (3, 2), (2, 1), (2, 3)}
        off = at != 12
        assert not off[0]
        again = number(x)[1:] == number(x)[:-1]
        assert again[off[1:]].all()  # what is moved is the image before
        moved += int(off.sum())
        exact += int((again & ~off[1:]).sum())
    images = 20 * SESSION
    assert moved / images == pytest.approx(0.05, abs=0.008)
    # one in 90 draws is the same by chance
    assert exact / images == pytest.approx(0.05 + 0.95 / 90, abs=0.012)


def test_no_image_comes_but_from_its_places_and_within_0_and_1() -> None:
    places = torch.arange(10, 40)
    for stream in STREAMS:
        parts = [*session(stream, numbered(), places, torch.Generator().manual_seed(1))]
        assert all(0 <= float(part.min()) <= float(part.max()) <= 1 for part in parts)
        if stream != "corrupted":
            assert {*number(torch.cat(parts)).tolist()} <= {*places.tolist()}
