"""The watch in front of a teacher: it sees what is asked, and under log changes no bit."""

import itertools
import json
from typing import Any

import pytest
import torch
from defended import digits, pairs, queries, watched
from refusals import refusal
from watched import features

from dfme.data import load_dataset
from dfme.errors import Refused
from dfme.teachers.owner.watch import watch as module
from dfme.teachers.owner.watch.detector import Reading, held_out


@pytest.mark.parametrize("mode", [None, "top_k:2", "label"])
def test_answers_under_log_are_those_of_the_unwatched_teacher_bit_by_bit(mode: str | None) -> None:
    teacher, plain = watched("labels,pairs,mahalanobis", mode), digits(mode=mode)
    images = torch.cat([pairs(), queries()[:40]])
    assert str(teacher.label_mode) == str(plain.label_mode)
    for part in images.split(250):
        answers = teacher(part)
        assert torch.equal(answers.nan_to_num(-1), plain(part).nan_to_num(-1))
        assert answers.dtype == plain(part).dtype
    report = teacher.watch.report()
    assert report["images"] == 640
    assert report["detectors"]["pairs"]["first_alarm"], "it was raised, and nothing changed"


def test_probabilities_and_distances_are_those_before_any_defence() -> None:
    teacher, seen = watched("sequential", defences="lattice:n=4", mode="label"), []
    teacher.watch.record = lambda account, number, entry: seen.append((account, number, entry))
    images = queries()[:100]
    for part in images.split(60):
        teacher(part)
    assert [entry[:2] for entry in seen] == [("", 1), ("", 61)]
    assert torch.equal(torch.cat([entry.images_BCHW for *_, entry in seen]), images)
    p = torch.cat([entry.p_BK for *_, entry in seen])
    assert p.dtype == torch.float64
    assert torch.allclose(p, digits(mode="logits")(images).double().softmax(1), atol=1e-12)
    # which are those of the definition: test_features_are_calibrated_on_a_share_of_each_class
    distance_B = torch.cat([entry.distance_B for *_, entry in seen])
    assert torch.allclose(distance_B, features()(images), rtol=1e-4)


def test_the_truth_and_an_honest_users_look_are_not_seen() -> None:
    teacher = watched(on_alarm="refuse")
    assert teacher.watch is not None
    teacher(pairs()[:200])
    state = str(teacher.state_dict())
    assert torch.equal(teacher.undefended(queries()[:50]), digits()(queries()[:50]))
    assert torch.equal(teacher.preview(queries()[:50]), digits()(queries()[:50])), (
        "of another account"
    )
    assert str(teacher.state_dict()) == state
    refusal("", teacher, queries()[:1], error=Refused)


def test_after_an_alarm_refuse_refuses_the_next_request_for_good_and_sees_nothing_of_it() -> None:
    teacher = watched("pairs", on_alarm="refuse")
    assert torch.equal(teacher(pairs()[:20]), digits()(pairs()[:20]))
    assert torch.equal(teacher(pairs()[20:276]), digits()(pairs()[20:276])), (
        "the part with the alarm"
    )
    first = teacher.watch.report()["detectors"]["pairs"]["first_alarm"]
    assert 20 < first <= 276
    state = str(teacher.state_dict())
    for _ in range(2):
        caught = refusal(rf"pairs at image {first} ", teacher, queries()[:5], error=Refused)
        assert (caught.reason, caught.retry) == ("watch", False)
    assert str(teacher.state_dict()) == state
    teacher.watch.account = "another"
    assert torch.equal(teacher(queries()[:5]), digits()(queries()[:5]))


def test_of_a_large_request_what_comes_after_the_alarm_is_not_answered() -> None:
    """5,000 images at once: looked at in parts of 256, refused as a whole."""
    large, records = torch.cat([queries()[:300], *[pairs()] * 8])[:5_000], list[Any]()
    teacher = watched("pairs", on_alarm="refuse", defences="quota:images=9000")
    teacher.watch.record = lambda account, number, seen: records.append((number, len(seen)))
    caught = refusal("an alarm was raised for this account", teacher, large, error=Refused)
    first = teacher.watch.report()["detectors"]["pairs"]["first_alarm"]
    parts = -(-first // 256)
    assert (caught.reason, caught.retry) == ("watch", False)
    assert records == [(1 + 256 * part, 256) for part in range(parts)]
    assert teacher.watch.report()["images"] == 256 * parts < 5_000
    assert teacher.report()["quota"] == {"images": 0, "refused": 0, "window": 0}
    answers, plain = watched("pairs", on_alarm="label")(large), digits()(large)
    assert torch.equal(answers[: 256 * parts], plain[: 256 * parts])
    top = torch.nn.functional.one_hot(plain.argmax(1), 10)
    assert torch.equal(answers[256 * parts :], top[256 * parts :])


@pytest.mark.parametrize("mode", ["probabilities", "probabilities:2", "label", "top_k:2"])
def test_after_an_alarm_label_tells_the_top_class_alone(mode: str) -> None:
    teacher, plain = watched("pairs", mode, on_alarm="label"), digits(mode=mode)
    assert torch.equal(teacher(pairs()[:256]).nan_to_num(-1), plain(pairs()[:256]).nan_to_num(-1))
    answers, top = teacher(queries()[:200]), digits()(queries()[:200]).argmax(1)
    if mode == "label":
        assert torch.equal(answers, top)
    else:
        assert torch.equal(answers.nan_to_num(0), torch.nn.functional.one_hot(top, 10).float())
    both = watched("pairs", mode, on_alarm="label", defences="misinform:wrong=roll:tau=1")
    both(pairs()[:300])
    assert not torch.equal(both(queries()[:9]), answers[:9]), "that of the defended answer"


def test_figures_are_those_of_the_readings_and_every_alarm_and_window_is_a_line() -> None:
    """Against a detector of arithmetic alone: the statistic is minus or plus the number of the
    image.
    """
    teacher = watched("pairs,labels")
    watch = teacher.watch
    for sign, detector in zip((1, -1), watch._current().detectors.values(), strict=True):
        at = iter(range(1, 10_000))

        def see(seen: Any, at: Any = at, sign: int = sign) -> Any:
            numbers = torch.tensor(list(itertools.islice(at, len(seen))))
            return Reading(sign * numbers.double(), numbers % 70 == 0)

        detector.see = see  # type: ignore[method-assign]
    for part in queries()[:701].split(130):
        teacher(part)
    report = watch.report()["detectors"]
    keys = ("first_alarm", "alarms", "largest", "largest_600")
    assert [report["pairs"][key] for key in keys] == [70, 10, 701, 600]
    assert [report["labels"][key] for key in keys] == [70, 10, -1, -1]
    lines = watch.drain()
    assert watch.drain() == []
    alarms = [
        (line["images"], line["alarm"], line["statistic"]) for line in lines if "alarm" in line
    ]
    rung = range(70, 701, 70)
    assert sorted(alarms) == [
        (n, *detector) for n in rung for detector in (("labels", -n), ("pairs", n))
    ]
    windows = [(line["images"], line["largest"]) for line in lines if "largest" in line]
    assert windows == [(n, {"pairs": n, "labels": -(n - 49)}) for n in range(50, 701, 50)]
    json.dumps(lines, allow_nan=False)


def test_accounts_are_kept_apart_and_of_too_many_a_quiet_one_is_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    teacher, alone = watched("pairs,labels"), watched("pairs,labels")
    watch = teacher.watch
    for number, part in enumerate(pairs().split(100)):
        for account in ("honest", "other"):
            watch.account = account
            teacher(part if account == "other" else queries()[number * 50 : number * 50 + 50])
    for account, images in (("honest", queries()[:300]), ("other", pairs())):
        watch.account, alone.watch.account = account, account
        for part in images.split(50 if account == "honest" else 100):
            alone(part)
        assert watch.report() == alone.watch.report()
        assert bool(watch.report()["detectors"]["pairs"]["first_alarm"]) == (account == "other")
    monkeypatch.setattr(module, "MAX_ACCOUNTS", 3)
    for account in ("a", "b", "c"):
        watch.account = account
        teacher(queries()[:1])
    assert [*watch.state_dict()] == ["other", "b", "c"]


def test_it_is_calibrated_on_one_half_of_the_held_out_images_plain_and_corrupted() -> None:
    test, calibrating, _ = held_out("digits", digits().spec)
    watch = watched("labels").watch
    plain, worse = watch._benign.plain, watch._benign.corrupted
    assert torch.equal(plain.images_BCHW, load_dataset("digits", "test").batch(calibrating))
    assert torch.equal(plain.p_BK.argmax(1), digits()(test.batch(calibrating)).argmax(1))
    assert len(worse) == 180
    assert (
        0.5 < float((plain.images_BCHW != worse.images_BCHW).flatten(1).any(1).double().mean()) <= 1
    )
