"""Detectors of all traffic: one stream of all accounts, and the test by MMD against its formula."""

import io
import json
import math
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from refusals import refusal
from torch import Tensor
from toys import LinearTeacher
from watched import benign, drawn, held_out, seen

from dfme.errors import Refused
from dfme.spec import ImageSpec, LabelMode
from dfme.teachers.owner.defences.wrapper import Defended
from dfme.teachers.owner.guard.gate import Gate
from dfme.teachers.owner.guard.meter import Meter
from dfme.teachers.owner.watch import watch as module
from dfme.teachers.owner.watch.alarms import AlarmFile, WindowLargest
from dfme.teachers.owner.watch.detection import detect
from dfme.teachers.owner.watch.detector import (
    BATCH,
    SESSION,
    Benign,
    Detector,
    Observation,
    session,
)
from dfme.teachers.owner.watch.detector import (
    held_out as of_data,
)
from dfme.teachers.owner.watch.traffic import MmdDetector
from dfme.teachers.owner.watch.watch import Watch

SPEC = ImageSpec((1, 8, 8))


class Light(Detector):
    """The mean of the image, of all accounts."""

    of_all_traffic = True
    threshold = 0.33

    def measure(self, seen: Observation, last: float) -> Tensor:
        return seen.images_BCHW.mean((1, 2, 3)).double()


class Count(Detector):
    """How many images came, whoever asked."""

    of_all_traffic = True
    threshold = 25.5

    def measure(self, seen: Observation, last: float) -> Tensor:
        return last + torch.arange(1, len(seen) + 1)


def watched(*names: str, on_alarm: Any = "log") -> Defended:
    watching = partial(Watch, names=names, data="digits", on_alarm=on_alarm)
    return Defended(LinearTeacher(SPEC, 10), (), LabelMode("probabilities"), watching)


def ask(teacher: Defended, account: str, images_BCHW: Tensor) -> None:
    assert teacher.watch is not None
    teacher.watch.account = account
    teacher(images_BCHW)


def noise(count: int, seed: int = 0) -> Tensor:
    return torch.rand(count, 1, 8, 8, generator=torch.Generator().manual_seed(seed))


# What a watch makes of them


@pytest.mark.parametrize("on_alarm", ["log", "refuse", "label"])
def test_accounts_are_one_stream_whose_alarm_names_and_refuses_nobody(
    tmp_path: Path, on_alarm: str
) -> None:
    teacher = watched("labels", f"{__name__}:Count", on_alarm=on_alarm)
    watch = teacher.watch
    assert watch is not None
    watch.alarmed = AlarmFile(tmp_path / "alarms.jsonl", print)
    plain = LinearTeacher(SPEC, 10)
    for number in range(6):
        watch.account = f"account {number}"
        images_BCHW = held_out(False)[number * 10 : number * 10 + 10]
        answers = teacher(images_BCHW)
        assert torch.equal(answers, plain(images_BCHW)), "nobody is cut"
    counted = watch.report()["detectors"][f"{__name__}:Count"]
    assert (counted["first_alarm"], counted["alarms"], counted["largest"]) == (26, 1, 60)
    assert watch.report()["images"] == 10
    assert watch.report()["detectors"]["labels"]["first_alarm"] is None
    line = json.loads((tmp_path / "alarms.jsonl").read_text())
    assert (line["account"], line["image"], line["statistic"]) == ("all", 26, 26)
    events = [event for event in watch.take_events() if isinstance(event, WindowLargest)]
    assert [(event.account, event.images) for event in events] == [("all", 50)]


def test_an_account_with_an_alarm_of_its_own_is_refused_as_before() -> None:
    teacher = watched("labels", f"{__name__}:Count", on_alarm="refuse")
    one = held_out(False)[:1].repeat(200, 1, 1, 1)
    ask(teacher, "thief", one)
    refusal(
        "an alarm was raised for this account .labels", ask, teacher, "thief", one, error=Refused
    )
    ask(teacher, "another", one[:10])
    assert teacher.watch is not None
    assert teacher.watch.report()["detectors"][f"{__name__}:Count"]["largest"] == 210


def test_forgetting_accounts_forgets_no_traffic_and_a_state_is_taken_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "MAX_ACCOUNTS", 2)
    names = ("labels", "mmd", f"{__name__}:Count")
    teacher, other = watched(*names), watched(*names)
    for number in range(5):
        ask(teacher, f"{number}", noise(30, number))
    state = teacher.state_dict()
    assert [*state["watch"]] == ["3", "4", "all traffic"]
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    other.load_state_dict(torch.load(file, weights_only=True))
    for each in (teacher, other):
        ask(each, "4", noise(100, 9))
    assert teacher.watch is not None
    assert other.watch is not None
    assert teacher.watch.report() == other.watch.report()
    assert teacher.watch.report()["detectors"][names[2]]["largest"] == 250
    teacher.watch.load_state_dict({})
    assert teacher.watch.report()["detectors"][names[2]]["largest"] is None
    old = {tag: part for tag, part in state["watch"].items() if tag != "all traffic"}
    teacher.watch.load_state_dict(old)  # of a run that had no such detector
    assert [*teacher.watch.state_dict()] == ["3", "4"]


def test_behind_a_service_the_alarm_is_counted_and_told_without_an_account() -> None:
    told = list[str]()
    meter = Meter()
    gate = Gate(watched(f"{__name__}:Count", on_alarm="refuse"), None, meter, told.append)
    images = held_out(False)[:10]
    scores_BK = LinearTeacher(SPEC, 10)(images).numpy()
    for number in range(5):
        gate.admit(f"account {number}", 10)
        answers = gate.defend(f"account {number}", images.numpy(), scores_BK, None)
        assert (answers == scores_BK).all()
    name = f"{__name__}:Count"
    ending = "all traffic, image 26 of all accounts, evaluation images included"
    assert told == [f"ALARM: {name}, {ending}"]
    assert (meter.alarms[name], meter.first_alarms) == (1, {name: 26})


def test_split_over_accounts_an_attack_raises_the_same_alarm() -> None:
    first = set[int]()
    for accounts in (1, 7):
        detector = MmdDetector(benign())
        watch = watched("mmd").watch
        assert watch is not None
        watch._traffic = watch._new(True)
        watch._traffic.detectors["mmd"] = detector
        for start in range(0, 600, 20):
            watch.account = f"{start // 20 % accounts}"
            watch.observe(drawn("text")[start : start + 20])
        first.add(watch.report()["detectors"]["mmd"]["first_alarm"])
    assert len(first) == 1
    assert first <= {128, 256}


# How they are measured


def test_honest_traffic_is_all_accounts_of_a_stream_in_turn() -> None:
    name = f"{__name__}:Light"
    found = detect(watched(name, "labels"), "digits", seed=3, sessions=2)
    data, _, places_N = of_data("digits", SPEC)
    order = torch.arange(2).repeat_interleave(SESSION // BATCH)
    order = order[torch.randperm(len(order), generator=torch.Generator().manual_seed(3))]
    for row in (row for row in found.benign if row.detector == name):
        rngs = [torch.Generator().manual_seed(60 + number) for number in range(2)]
        accounts = [session(row.stream, data, places_N, rng) for rng in rngs]
        traffic_N = torch.cat([next(accounts[number]) for number in order.tolist()])
        light = traffic_N.mean((1, 2, 3)).double()
        rises_N = (light > 0.33) & ~torch.cat([torch.zeros(1), light[:-1]]).gt(0.33)
        alarms = [int(part.sum()) for part in rises_N.split(SESSION)]
        assert (row.sessions, row.queries, row.alarms) == (2, 1_200, sum(alarms))
        assert row.sessions_with_alarm == sum(map(bool, alarms))
        largest = [float(part.max()) for part in light.split(SESSION)]
        assert found.benign_largest[name][row.stream] == pytest.approx(largest)
    assert {row.sessions for row in found.benign} == {2}


# The test itself


def scores(count: int, seed: int, sharpness: float = 3.0) -> Tensor:
    rng = torch.Generator().manual_seed(seed)
    return (sharpness * torch.randn(count, 4, generator=rng, dtype=torch.float64)).softmax(1)


def made(count: int, seed: int, worn: float = 3.0) -> Benign:
    plain, corrupted = (
        Observation(noise(count, seed), scores(count, seed + half, sharpness))
        for half, sharpness in ((0, 3.0), (500_000, worn))
    )
    return Benign(plain, corrupted, 4)


def test_the_statistic_is_the_unbiased_mmd_over_its_largest_after_exchanges() -> None:
    """By loops over pairs, in float64, for one class and plain partners alone."""
    detector = MmdDetector(made(24, 1))
    detector.FLIPS = 30  # type: ignore[misc]
    p_NK = scores(24, 7)
    plain = detector.benign.plain.p_BK
    logs = [p.clamp(min=1e-4).log() - p.clamp(min=1e-4).log().mean(1, True) for p in (p_NK, plain)]
    gaps = [float((a - b).norm()) for i, a in enumerate(logs[1]) for b in logs[1][:i]]
    median = sorted(gaps)[(len(gaps) - 1) // 2]

    def kernel(a: Tensor, b: Tensor) -> float:
        square = float((a - b).square().sum())
        scales = (0.5, 1, 2, 4)
        return sum(math.exp(-square / (2 * (s * median) ** 2)) for s in scales) / 4

    def mmd(pairs: list[tuple[Tensor, Tensor]]) -> float:
        total = 0.0
        for i, (x, y) in enumerate(pairs):
            for u, v in pairs[:i]:
                total += 2 * (kernel(x, u) + kernel(y, v) - kernel(x, v) - kernel(y, u))
        return total / (len(pairs) * (len(pairs) - 1))

    pairs = [*zip(*logs, strict=True)]
    rng = torch.Generator().manual_seed(0)
    sign_NF = torch.randint(2, (detector.WINDOW, 30), generator=rng)[:24]
    exchanged = [
        mmd([(x, y) if sign else (y, x) for (x, y), sign in zip(pairs, sign_N, strict=True)])
        for sign_N in sign_NF.T[:30].tolist()
    ]
    got = detector._ratio([part.float() for part in logs[:1]], [logs[1].float()])
    assert got == pytest.approx(mmd(pairs) / max(exchanged), rel=2e-3)


def test_honest_windows_exceed_the_bound_as_rarely_as_it_says() -> None:
    """At 1 in 20; the least over three mixes, of which one is true, is rarer still."""
    single = least = 0
    trials = 200
    for seed in range(trials):
        detector = MmdDetector(made(64, 1_000 + seed, worn=1.0))
        detector.FLIPS = 19  # type: ignore[misc]
        window = detector._by_stratum(scores(64, 900_000 + seed))
        ratios = [detector._ratio(window, mix) for mix in detector._mixes]
        single += ratios[0] > 1
        least += min(ratios) > 1
    assert 0.02 < single / trials < 0.05 + 2.6 * math.sqrt(0.05 * 0.95 / trials)
    assert least <= single


def test_a_change_of_the_classes_mix_or_of_wear_alone_is_no_alarm_and_other_scores_are() -> None:
    detector = MmdDetector(made(800, 1, worn=1.0))
    honest = scores(4_000, 2)
    one_class = honest[honest.argmax(1) == 2][:512]
    assert detector.look(honest[:512]) < 1
    assert detector.look(one_class) < 1
    assert detector.look(scores(512, 3, sharpness=1.0)) < 1  # as worn as benign images may be
    assert detector.look(scores(512, 4, sharpness=0.3)) > 2
    assert detector.look(torch.cat([honest[:384], scores(128, 4, sharpness=0.3)])) > 1.25


def test_an_image_asked_again_counts_once_and_few_pairs_say_nothing() -> None:
    detector = MmdDetector(benign())
    assert detector.see(drawn("text")[:20]).statistic_B.tolist() == [0] * 20
    again = drawn("text")[:20]
    for _ in range(30):
        detector.see(again)
    assert len(detector.state["scores"]) == 20
    assert float(detector.state["last"]) == 0
    assert detector.state["images"] == 620


def test_held_out_digits_raise_no_alarm_and_drawn_images_do() -> None:
    honest = MmdDetector(benign())
    assert not honest.see(seen(held_out(True))).alarm_B.any()
    assert MmdDetector(benign()).see(drawn("text")[:512]).alarm_B.any()


@pytest.mark.parametrize("images", [20, 23, 24])
def test_with_as_few_benign_images_as_are_allowed_it_is_not_blind(images: int) -> None:
    def sure(count: int, seed: int, scale: float) -> Observation:
        rng = torch.Generator().manual_seed(seed)
        p_BK = (scale * torch.randn(count, 10, generator=rng, dtype=torch.float64)).softmax(1)
        return Observation(torch.rand(count, 1, 4, 4, generator=rng), p_BK)

    detector = MmdDetector(Benign(sure(images, 0, 8), sure(images, 1, 8), 10))
    reading = detector.see(sure(256, 2, 0.3))
    assert reading.alarm_B.any()
