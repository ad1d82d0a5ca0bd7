"""Detectors read the same bits however a stream is cut; their states resume and stay small."""

import io
import itertools
from dataclasses import replace
from functools import cache

import pytest
import torch
from torch import Tensor
from watched import benign

from dfme.config import detectors as settings
from dfme.config.imports import find_target
from dfme.teachers.owner.watch import DETECTORS
from dfme.teachers.owner.watch.detector import Benign, Detector, Observation

CLASSES = 7


def some(count: int, seed: int, pairs: bool = True) -> Observation:
    """Smooth colour images of a size that is not remembered whole, any answers; ``pairs``: and
    repeats.
    """
    rng = torch.Generator().manual_seed(seed)
    images = (
        torch.rand((count, 3, 5, 5), generator=rng).repeat_interleave(4, 2).repeat_interleave(4, 3)
    )
    if pairs:
        images[count // 2 :: 3] = (images[: len(images[count // 2 :: 3])] + 0.01).clamp(0, 1)
        images[count // 3 :: 7] = images[: len(images[count // 3 :: 7])]
    p_BK = (2 * torch.randn((count, CLASSES), generator=rng)).double().softmax(1)
    return Observation(images, p_BK, (0.7 * torch.randn(count, generator=rng)).double().exp())


@cache
def calibration() -> Benign:
    return Benign(some(90, 1, pairs=False), some(90, 2), CLASSES)


@cache
def asked() -> Observation:
    return some(400, 3)


def calibrated(name: str) -> Detector:
    detector: Detector = find_target(DETECTORS[name])(calibration())
    return detector


def test_the_registry_has_what_options_name() -> None:
    assert tuple(DETECTORS) == settings.DETECTORS
    for name in DETECTORS:
        detector = calibrated(name)
        assert detector.name == name
        assert detector.statistic
        assert detector.threshold > 0
        observations = (benign().plain, benign().corrupted)
        blind = Benign(*(Observation(seen.images_BCHW, seen.p_BK) for seen in observations), 10)
        if name in settings.NEED_FEATURES:
            with pytest.raises(AssertionError, match="without features"):
                find_target(DETECTORS[name])(blind).see(blind.plain)
        else:
            find_target(DETECTORS[name])(blind).see(blind.plain)


@pytest.mark.parametrize("sizes", [(1,), (13, 0, 256, 1, 100), (257, 2)], ids=str)
@pytest.mark.parametrize("name", DETECTORS)
def test_any_cut_into_batches_and_a_state_taken_up_read_the_same_bits(
    name: str, sizes: tuple[int, ...]
) -> None:
    uncut, cut, readings, start = calibrated(name), calibrated(name), [], 0
    expected = uncut.see(asked())
    assert expected.statistic_B.dtype == torch.float64
    assert expected.statistic_B.unique().numel() > 3
    for size in itertools.cycle(sizes):
        readings.append(cut.see(asked()[start : start + size]))
        if (start := start + size) >= 400:
            break
        if 233 <= start < 250 + size:  # taken up from a file, beside which the old one goes on
            file = io.BytesIO()
            torch.save(cut.state_dict(), file)
            cut.see(asked()[:50])
            file.seek(0)
            cut = calibrated(name)
            cut.load_state_dict(torch.load(file, weights_only=True))
    statistic_B = torch.cat([part.statistic_B for part in readings])
    assert torch.equal(statistic_B, expected.statistic_B), (
        "the numbers depend on how the stream is cut: compute each image's by itself"
    )
    assert torch.equal(torch.cat([part.alarm_B for part in readings]), expected.alarm_B)
    torch.testing.assert_close(cut.state_dict(), uncut.state_dict(), rtol=0, atol=0)


@pytest.mark.parametrize("classes", [CLASSES, 1_000])
@pytest.mark.parametrize("name", DETECTORS)
def test_memory_is_bounded_as_it_is_stated(
    name: str, classes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for limit, most in {"MAX_OF_CLASS": 20, "MAX_MEMBERS": 2_000, "MAX_DISTANCES": 300}.items():
        monkeypatch.setattr(f"dfme.teachers.owner.watch.detectors.{limit}", most)

    def widened(seen: Observation) -> Observation:
        return replace(seen, p_BK=torch.nn.functional.pad(seen.p_BK, (0, classes - CLASSES)))

    plain, corrupted, stream = map(
        widened, (calibration().plain, calibration().corrupted, some(1_300, 4))
    )
    detector: Detector = find_target(DETECTORS[name])(Benign(plain, corrupted, classes))
    if name == "duplicates":
        detector.rows["earlier"] = 1_200
    detector.see(stream)
    tensors = (tensor for tensor in detector.state_dict().values() if isinstance(tensor, Tensor))
    size = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    assert size <= detector.memory_mb * 1e6 + 1
    if detector.rows and name != "prada":
        assert size > detector.memory_mb * 1e6 - 200, "all of it is used"
