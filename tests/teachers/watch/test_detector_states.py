"""Streams cut anywhere read the same bits; states go on, stay small, and let nothing hostile in."""

from __future__ import annotations

import io
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor
from watched import benign

from dfme.compute import plain_tensor
from dfme.config import watch_texts
from dfme.config.imports import find_target
from dfme.errors import UserError
from dfme.teachers.watch import DETECTORS
from dfme.teachers.watch.detector import Benign, Detector, Seen

CLASSES = 7


def some(count: int, seed: int, pairs: bool = True) -> Seen:
    """Smooth colour images of a size that is not remembered whole, any answers; ``pairs``: and repeats."""
    rng = torch.Generator().manual_seed(seed)
    images = torch.rand((count, 3, 5, 5), generator=rng).repeat_interleave(4, 2).repeat_interleave(4, 3)
    if pairs:
        images[count // 2 :: 3] = (images[: len(images[count // 2 :: 3])] + 0.01).clamp(0, 1)
        images[count // 3 :: 7] = images[: len(images[count // 3 :: 7])]
    p_BK = (2 * torch.randn((count, CLASSES), generator=rng)).double().softmax(1)
    return Seen(images, p_BK, (0.7 * torch.randn(count, generator=rng)).double().exp())


@cache
def calibration() -> Benign:
    return Benign(some(90, 1, pairs=False), some(90, 2), CLASSES)


@cache
def asked() -> Seen:
    return some(700, 3)


def made(name: str) -> Detector:
    own: Detector = find_target(DETECTORS[name])(calibration())
    return own


def same(one: Any, other: Any) -> bool:
    assert one.keys() == other.keys()
    return all(
        torch.equal(each, other[k]) and each.dtype == other[k].dtype if isinstance(each, Tensor) else each == other[k]
        for k, each in one.items()
    )


def test_the_registry_has_what_options_name() -> None:
    assert tuple(DETECTORS) == watch_texts.DETECTORS
    for name in DETECTORS:
        own = made(name)
        assert own.name == name
        assert own.statistic
        assert own.threshold > 0
        blind = Benign(*(Seen(each.images_BCHW, each.p_BK) for each in (benign().plain, benign().corrupted)), 10)
        if name in watch_texts.NEED_FEATURES:
            with pytest.raises(AssertionError, match="without features"):
                find_target(DETECTORS[name])(blind).see(blind.plain)
        else:
            find_target(DETECTORS[name])(blind).see(blind.plain)


@pytest.mark.parametrize("name", DETECTORS)
def test_any_cut_into_batches_reads_the_same_bits(name: str) -> None:
    whole = made(name)
    expected = whole.see(asked())
    assert expected.statistic_B.dtype == torch.float64
    assert expected.statistic_B.unique().numel() > 4
    for sizes in ((1,), (13, 0, 256, 1, 100), (257, 2)):
        cut, readings, start = made(name), [], 0
        for number in range(700):
            size = sizes[number % len(sizes)]
            readings.append(cut.see(asked()[start : start + size]))
            if (start := start + size) >= 700:
                break
        statistics, alarms = (torch.cat(each) for each in zip(*readings, strict=True))
        assert torch.equal(statistics, expected.statistic_B)
        assert torch.equal(alarms, expected.alarm_B)
        assert same(cut.state_dict(), whole.state_dict())


@pytest.mark.parametrize("name", DETECTORS)
def test_a_state_taken_up_goes_on_bit_by_bit(name: str) -> None:
    whole, before, after = made(name), made(name), made(name)
    expected = whole.see(asked())
    before.see(asked()[:433])
    file = io.BytesIO()
    torch.save(before.state_dict(), file)
    before.see(asked()[:50])
    file.seek(0)
    state = torch.load(file, weights_only=True)
    after.load_state_dict(state)
    for each in state.values():
        if isinstance(each, Tensor):
            each.zero_()
    reading = after.see(asked()[433:])
    assert torch.equal(reading.statistic_B, expected.statistic_B[433:])
    assert torch.equal(reading.alarm_B, expected.alarm_B[433:])
    assert same(after.state_dict(), whole.state_dict())


def damages(entry: Any, most: int | None) -> list[Any]:
    if not isinstance(entry, Tensor):
        return [None, "1", -1, 1.5, 2**63, True, torch.tensor(1)]
    other = torch.float32 if entry.dtype != torch.float32 else torch.int8
    wrong = [None, 0, entry.tolist(), entry.to(other), entry[None], entry.flatten()[0], entry.to_sparse()]
    wrong += [torch.empty(entry.shape, device="meta", dtype=entry.dtype), entry[:0].new_zeros(5)[::2]]
    if entry.is_floating_point():
        wrong += [torch.full_like(entry, float("nan")), torch.full_like(entry, float("inf"))]
    if most:
        long = entry.new_zeros((1, *entry.shape[1:]))
        wrong += [long.expand(10**12, *entry.shape[1:]), entry.new_zeros((most + 1, *entry.shape[1:]))]
    return wrong


@pytest.mark.parametrize("name", DETECTORS)
def test_what_no_state_can_be_is_refused(name: str) -> None:
    own = made(name)
    own.see(asked()[:300])
    good = own.state_dict()
    for state in (None, [], "state", {}, good | {"more": 1}, {k: v for k, v in good.items() if k != "last"}):
        with pytest.raises(ValueError, match=name):
            own.load_state_dict(state)
    for key, entry in good.items():
        for wrong in damages(entry, own.rows.get(key)):
            with pytest.raises(ValueError, match=name):
                own.load_state_dict(good | {key: wrong})
    assert same(own.state_dict(), good)


@pytest.mark.parametrize("name", DETECTORS)
def test_numbers_that_no_stream_leaves_behind_break_nothing(name: str) -> None:
    """Of the right form, so they are taken; what is asked next is read."""
    rng, own = torch.Generator().manual_seed(0), made(name)
    own.see(asked()[:300])
    for scale in (1.0, -1e308, 1e308):
        state = own.state_dict()
        for key, entry in state.items():
            if isinstance(entry, Tensor) and entry.is_floating_point():
                state[key] = scale * torch.rand(entry.shape, generator=rng, dtype=entry.dtype)
            elif isinstance(entry, Tensor):
                state[key] = torch.randint(0, 2, entry.shape, generator=rng).to(entry.dtype)
            else:
                state[key] = 2**63 - 1
        other = made(name)
        other.load_state_dict(state)
        assert len(other.see(asked()[300:]).statistic_B) == 400


@pytest.mark.parametrize("classes", [CLASSES, 1_000])
@pytest.mark.parametrize("name", DETECTORS)
def test_memory_is_bounded_as_it_is_stated(name: str, classes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dfme.teachers.watch.detectors.MAX_OF_CLASS", 20)
    monkeypatch.setattr("dfme.teachers.watch.detectors.MAX_MEMBERS", 2_000)
    monkeypatch.setattr("dfme.teachers.watch.detectors.MAX_DISTANCES", 300)
    widened = (
        Seen(each.images_BCHW, torch.nn.functional.pad(each.p_BK, (0, classes - CLASSES)), each.distance_B)
        for each in (calibration().plain, calibration().corrupted, some(1_300, 4))
    )
    plain, corrupted, stream = widened
    own: Detector = find_target(DETECTORS[name])(Benign(plain, corrupted, classes))
    if name == "duplicates":
        own.rows["earlier"] = 1_200
    own.see(stream)
    taken = sum(each.numel() * each.element_size() for each in own.state_dict().values() if isinstance(each, Tensor))
    assert taken <= own.memory_mb * 1e6 + 1
    if own.rows and name != "prada":
        assert taken > own.memory_mb * 1e6 - 200, "all of it is used"
    for each in own.state_dict().values():
        if isinstance(each, Tensor):
            plain_tensor(each, "with no memory behind it")


@pytest.mark.parametrize("classes", [2, 10, 1_000])
def test_no_account_takes_64_mb(classes: int) -> None:
    plain = some(90, 1)
    p_BK = torch.nn.functional.pad(plain.p_BK[:, :2], (0, classes - 2))
    own = Benign(*2 * (Seen(plain.images_BCHW, p_BK, plain.distance_B),), classes)
    assert max(find_target(DETECTORS[name])(own).memory_mb for name in DETECTORS) < 64


def test_too_few_images_calibrate_nothing() -> None:
    with pytest.raises(UserError, match="at least 20 images to calibrate on, got 19"):
        Benign(some(90, 1), some(19, 2), CLASSES)
