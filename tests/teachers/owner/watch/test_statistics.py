"""The statistics of detectors against arithmetic; the same bits however a stream is cut."""

import io
import itertools
import math
import random
from collections import Counter
from dataclasses import replace
from functools import cache

import pytest
import torch
from torch import Tensor
from watched import benign, detector, seen, teacher

from dfme.config import defences as settings
from dfme.config.imports import find_target
from dfme.data import load_dataset
from dfme.teachers.owner import features
from dfme.teachers.owner.watch import DETECTORS
from dfme.teachers.owner.watch.detector import Benign, Detector, Observation
from dfme.teachers.owner.watch.detectors import shapiro_wilk, staircase

# W as SciPy 1.17.1 gives it for ``values``, by kind: of 12, 13, 20, 1,000 and 4,999 values
W = {
    "even": [0.9668963633, 0.9656249911, 0.952599421, 0.9550807418, 0.9548984553],
    "skew": [0.8472705548, 0.8452076505, 0.7355475699, 0.8226305456, 0.8242834594],
    "pairs": [0.7977862938, 0.7701929878, 0.7780095943, 0.7643477733, 0.7643308726],
}


def values(kind: str, count: int) -> list[float]:
    even = [place * 7919 % 104_729 / 104_729 for place in range(1, count + 1)]
    if kind == "skew":
        return [value**3 for value in even]
    return (
        [value * (place % 2) + 1e-3 * value for place, value in enumerate(even)]
        if kind == "pairs"
        else even
    )


@pytest.mark.parametrize("kind", W)
def test_shapiro_wilk_is_scipys(kind: str) -> None:
    for count, expected in zip((12, 13, 20, 1000, 4999), W[kind], strict=True):
        sample = torch.tensor(values(kind, count), dtype=torch.float64)
        for shifted in (sample, sample.flip(0) * 7 - 3):
            assert shapiro_wilk(shifted) == pytest.approx(expected, abs=2e-9)


@pytest.mark.parametrize("seed", range(20))
def test_the_ks_distance_is_that_of_two_staircases(seed: int) -> None:
    draw = random.Random(seed)
    first, other = (
        [round(draw.random(), 1 + seed % 3) for _ in range(size)] for size in (1 + seed, 20)
    )
    places = [place + nudge for place in first + other for nudge in (-1e-9, 0, 1e-9)]
    apart = [
        sum(x <= at for x in first) / len(first) - sum(x <= at for x in other) / len(other)
        for at in places
    ]
    one_N, other_M = (torch.tensor(each, dtype=torch.float64) for each in (first, other))
    distance = (staircase(one_N, other_M) - staircase(other_M, other_M)).abs().max()
    assert float(distance) == pytest.approx(max(map(abs, apart)), abs=1e-12)


def cell(p_K: list[float]) -> tuple[int, ...]:
    axes = torch.randn(
        4, 10, generator=torch.Generator().manual_seed(0), dtype=torch.float64
    ).tolist()
    return tuple(
        math.floor(sum(x * y for x, y in zip(axis, p_K, strict=True)) / 0.2) for axis in axes
    )


def test_coverage_counts_the_cells_of_a_window_and_its_threshold_is_that_of_rarefaction() -> None:
    p_BK = (
        (6 * torch.randn((400, 10), generator=torch.Generator().manual_seed(4))).double().softmax(1)
    )
    cells = [cell(p_K) for p_K in p_BK.tolist()]
    coverage = detector("coverage")
    reading = coverage.see(Observation(torch.zeros(400, 1, 8, 8), p_BK))
    counts = [len({*cells[max(0, end - 256) : end]}) for end in range(1, 401)]
    assert reading.statistic_B.tolist() == counts
    honest = Counter(map(cell, [*benign().plain.p_BK.tolist(), *benign().corrupted.p_BK.tolist()]))
    images = honest.total()
    missed = [math.comb(images - count, 256) / math.comb(images, 256) for count in honest.values()]
    expected = sum(1 - chance for chance in missed)
    # P(more than t above the mean) <= exp(-t^2 / (2 (mean + t / 3)))
    above = coverage.threshold - expected
    assert math.exp(-above * above / (2 * (expected + above / 3))) == pytest.approx(1e-4)
    assert reading.alarm_B.nonzero().flatten().tolist() == [
        at for at, count in enumerate(counts) if count > coverage.threshold >= [0, *counts][at]
    ]
    few = Benign(benign().plain[:20], benign().corrupted[:20], 10)
    assert detector("coverage", few).rows == {"cells": 40}  # a shorter window


def test_scores_are_held_against_the_critical_value_of_every_size() -> None:
    """sqrt(-ln(alpha / 2) / 2 (n + m) / (nm)), and the window of 256."""
    scores = detector("scores")
    reference = benign().plain.p_BK.amax(1).sort().values
    p_BK = torch.softmax(
        torch.randn((600, 10), generator=torch.Generator().manual_seed(3)).double(), 1
    )
    reading = scores.see(Observation(torch.zeros(600, 1, 8, 8), p_BK))
    for end in (1, 2, 17, 255, 256, 257, 600):
        window = p_BK[max(0, end - 256) : end].amax(1)
        n, m = len(window), len(reference)
        critical = math.sqrt(-math.log(1e-4 / 2) / 2 * (n + m) / (n * m))
        distance = max(
            abs(float((window <= at).double().mean() - (reference <= at).double().mean()))
            for at in torch.cat([window, reference]).tolist()
        )
        share = float(reading.statistic_B[end - 1]) / scores.threshold
        assert share == pytest.approx(distance / critical, rel=1e-9)


def test_labels_are_decayed_counts() -> None:
    tops = [place * place % 7 for place in range(200)]
    p_BK = torch.nn.functional.one_hot(torch.tensor(tops), 10).double()
    usual = [float((benign().plain.p_BK.argmax(1) == top).double().mean()) for top in range(10)]
    shares = list(usual)
    statistics = (
        detector("labels").see(Observation(torch.zeros(200, 1, 8, 8), p_BK)).statistic_B.tolist()
    )
    for top, statistic in zip(tops, statistics, strict=True):
        shares = [share * (1 - 1 / 64) + (label == top) / 64 for label, share in enumerate(shares)]
        apart = sum(abs(x - y) for x, y in zip(shares, usual, strict=True)) / 2
        assert statistic == pytest.approx(apart, abs=1e-12)


def test_the_sequential_tests_are_their_formulae() -> None:
    stream = seen(torch.rand((40, 1, 8, 8), generator=torch.Generator().manual_seed(0)) * 0.3)
    both = [*benign().plain.log_distances, *benign().corrupted.log_distances]
    mean = sum(both) / len(both)
    sd = math.sqrt(sum((log_distance - mean) ** 2 for log_distance in both) / len(both))
    cusum = ratio = 0.0
    alternate = [25.0 * 3 ** (place % 7) for place in range(40)]
    stream = Observation(stream.images_BCHW, stream.p_BK, torch.tensor(alternate).double())
    statistics = [
        detector(name).see(stream).statistic_B.tolist() for name in ("sequential", "sprt")
    ]
    low, seen_low = math.log(0.01 / (1 - 1e-4)), False
    for place, distance in enumerate(alternate):
        z = min(max((math.log(distance) - mean) / sd, -4.0), 4.0)
        cusum = max(0.0, cusum + z - 0.5)
        ratio += 1.0 * (z - 1.0 / 2)
        seen_low |= ratio <= low
        ratio = 0.0 if ratio <= low else ratio
        assert statistics[0][place] == pytest.approx(cusum, abs=1e-9)
        assert statistics[1][place] == pytest.approx(ratio, abs=1e-9)
    assert seen_low, "the test began anew at least once"
    assert detector("sprt").threshold == pytest.approx(math.log(0.99 / 1e-4))


def test_features_are_calibrated_on_a_share_of_each_class(monkeypatch: pytest.MonkeyPatch) -> None:
    """So many of each class are asked, and distances are by their means and covariance."""
    train = load_dataset("digits", "train", shape=(1, 8, 8))
    digits = teacher()
    batches = []
    with monkeypatch.context() as patch:
        patch.setattr(features, "MAX_TRAIN", 300)
        as_asked = features.as_asked
        patch.setattr(
            features,
            "as_asked",
            lambda x, digits: batches.append(as_asked(x, digits)) or batches[-1],
        )
        few = features.Mahalanobis(digits, "digits", "benign")
    every_ND = as_asked(train.batch(slice(None)), digits).flatten(1)
    places = [(every_ND == image_D).all(1).nonzero()[0, 0] for image_D in batches[0].flatten(1)]
    classes_N = train.required_labels[torch.stack(places)]
    assert classes_N.bincount().tolist() == [30] * 10
    last = [layer for layer in digits.info.network.modules() if isinstance(layer, torch.nn.Linear)][
        -1
    ]
    read = []
    with last.register_forward_hook(
        lambda layer, given, out: read.append(given[0].detach().double())
    ):
        digits(batches[0])
        digits(every_ND[:5].view(-1, 1, 8, 8))
    centred = read[0] - torch.stack([read[0][classes_N == label].mean(0) for label in classes_N])
    cov = centred.T @ centred / 300 + features.RIDGE * torch.eye(centred.shape[1])
    apart = [read[1] - read[0][classes_N == label].mean(0) for label in range(10)]
    expected = torch.stack(
        [(layer * torch.linalg.solve(cov, layer.T).T).sum(1) for layer in apart]
    ).amin(0)
    assert few(every_ND[:5].view(-1, 1, 8, 8)).tolist() == pytest.approx(
        expected.tolist(), rel=1e-4
    )


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
        assert detector.statistic
        assert detector.threshold > 0
        assert detector.of_all_traffic == (name in settings.OF_ALL_TRAFFIC)
        observations = (benign().plain, benign().corrupted)
        blind = Benign(*(Observation(seen.images_BCHW, seen.p_BK) for seen in observations), 10)
        if name in settings.NEED_FEATURES:
            with pytest.raises(AssertionError, match="without features"):
                find_target(DETECTORS[name])(blind).see(blind.plain)
        else:
            find_target(DETECTORS[name])(blind).see(blind.plain)


@pytest.mark.parametrize("sizes", [(1, 3), (13, 0, 256, 1, 100), (257, 2)], ids=str)
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
    assert torch.equal(torch.cat([part.statistic_B for part in readings]), expected.statistic_B)
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
