"""Detectors of near and of foreign images: who is found by them, and who is not."""

import math

import pytest
import torch
from torch import Tensor
from watched import benign, detector, drawn, held_out, in_turn, pairs, procedural, seen, worn

from dfme.teachers.owner.watch import detector as module
from dfme.teachers.owner.watch.detector import Benign, Observation, nearest_before, rows_of
from dfme.teachers.owner.watch.detectors import shapiro_wilk

RNG = torch.Generator


def stream(*shape: int, seed: int = 0) -> Tensor:
    return torch.rand(shape, generator=RNG().manual_seed(seed))


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 5, 4), (3, 32, 32), (1, 28, 20), (2, 16, 16)])
@pytest.mark.parametrize("window", [3, 100])
def test_the_nearest_before_is_the_one_that_loops_find(shape, window, monkeypatch) -> None:
    monkeypatch.setattr(module, "MAX_PAST", 7)
    images_BCHW = stream(40, *shape)
    images_BCHW[30] = images_BCHW[28]
    images_BCHW[20:25] = images_BCHW[5:10]
    images_BCHW[35] = images_BCHW[33] + 1e-6
    looks = (images_BCHW * 255).round().double()
    if looks[0].numel() > 256:
        edges = [
            [(n * size // 16, -(-(n + 1) * size // 16)) for n in range(16)] for size in shape[1:]
        ]
        parts = [looks[..., a:b, c:d].flatten(1) for a, b in edges[0] for c, d in edges[1]]
        looks = torch.stack([each.sum(1) / each.shape[1] for each in parts], 1).round()
    looks = looks.flatten(1) / 255
    rows = rows_of(images_BCHW)
    nearest, repeated = (torch.cat(both) for both in zip(
        nearest_before(rows[:25], rows[:0], window), nearest_before(rows[25:], rows[:25], window), strict=True
    ))  # fmt: skip
    for at in range(40):
        before = range(max(0, at - window), at)
        apart = min((float((looks[at] - looks[each]).norm()) for each in before), default=math.inf)
        assert float(nearest[at]) == pytest.approx(apart, abs=1e-9)
        assert bool(repeated[at]) == any(
            torch.equal(images_BCHW[at], images_BCHW[each]) for each in before
        )
    assert not repeated[35], "it differs, below 8 bits"


@pytest.mark.parametrize("step", [None, 1e-3])
@pytest.mark.parametrize("directions", [1, 10])
def test_finite_differences_are_pairs(directions: int, step: float | None) -> None:
    images = pairs(procedural("leaves", 1_100 // (directions + 1)), directions, step)
    reading = detector("pairs").see(seen(images, inside=False))
    assert float(reading.statistic_B[-1]) == pytest.approx(
        directions / (directions + 1), abs=1 / 512
    )
    assert int(reading.alarm_B.nonzero()[0]) < 64


def test_what_sends_no_pairs_is_no_pair_and_dfme_is_found_before_query_600() -> None:
    """It asks a batch, the same batch moved, then five batches for the student."""
    for program in ("leaves", "strokes", "noise", "generators"):
        assert float(detector("pairs").see(drawn(program)).statistic_B.max()) < 0.02
    honest = seen(torch.cat([held_out(True), held_out(False)]), inside=False)
    assert float(detector("pairs").see(honest).statistic_B.max()) == 0
    images = procedural("generators", 600)
    batches = torch.cat([images[:256], pairs(images[:256], 1, 1e-3)[1::2], images[256:]])
    for name in ("pairs", "duplicates"):
        assert int(detector(name).see(seen(batches, inside=False)).alarm_B.nonzero()[0]) + 1 < 600


def test_retries_are_counted_apart_and_ring_nothing() -> None:
    images = held_out(True)[
        torch.randint(len(held_out(True)), (600,), generator=RNG().manual_seed(0))
    ]
    duplicates, stream = detector("duplicates"), seen(images, inside=False)
    again = [
        any(torch.equal(images[at], images[earlier]) for earlier in range(at)) for at in range(600)
    ]
    readings = [
        earlier.see(stream) for earlier in (duplicates, detector("pairs"), detector("prada"))
    ]
    assert not any(bool(earlier.alarm_B.any()) for earlier in readings)
    assert duplicates.state["repeats"] == sum(again) > 400
    assert float(readings[0].statistic_B[-1]) < 10


def test_duplicates_ring_at_every_fiftieth_hit() -> None:
    reading = detector("duplicates").see(seen(pairs(procedural("noise", 160)), inside=False))
    rung = reading.alarm_B.nonzero()[:, 0]
    assert reading.statistic_B[rung].tolist() == [50.0, 100.0, 150.0]
    assert reading.statistic_B[rung - 1].tolist() == [49.0, 99.0, 149.0]


@pytest.mark.parametrize("step", [None, 1e-3])
def test_prada_rings_at_query_120_on_pairs_of_digits(step: float | None) -> None:
    """Ten first ones of their class, and 110 distances: the first test of more than 100."""
    reading = detector("prada").see(seen(pairs(in_turn(10), 1, step), inside=False))
    assert int(reading.alarm_B.nonzero()[0]) + 1 == 120
    assert float(reading.statistic_B[118]) == 0


def test_prada_is_its_authors_algorithm() -> None:
    """Written down once more, image by image, on the images' 8 bits."""
    parts = [procedural("strokes", 150), pairs(procedural("leaves", 60)), held_out(True)]
    stream = seen(torch.cat(parts), inside=False)
    images, tops = (
        (stream.images_BCHW * 255).round().double().flatten(1) / 255,
        stream.p_BK.argmax(1),
    )
    sets, counted, limits, distances = ({}, {}, {}, {})  # type: tuple[dict, ...]
    statistic, statistics = 0.0, list[float]()
    for number, (image, top) in enumerate(zip(images, tops.tolist(), strict=True), 1):
        if top not in sets:
            sets[top], counted[top], limits[top], distances[top] = [image], [0.0], 0.0, []
        else:
            nearest = min(float((image - member).norm()) for member in sets[top])
            distances[top].append((number, nearest))
            if nearest > limits[top]:
                sets[top].append(image)
                counted[top].append(nearest)
                mean = sum(counted[top]) / len(counted[top])
                sd = math.sqrt(
                    sum((member - mean) ** 2 for member in counted[top]) / len(counted[top])
                )
                limits[top] = max(limits[top], mean - sd)
        if number % 10 == 0:
            pooled = sorted(
                pair for member in distances.values() if len(member) >= 10 for pair in member
            )
            d = torch.tensor([member for _, member in pooled], dtype=torch.float64)
            d = d[(d - d.mean()).abs() < 3 * d.std(correction=0)] if len(d) > 100 else d
            statistic = 1 - shapiro_wilk(d) if len(d) > 100 else statistic
        statistics.append(statistic)
    prada = detector("prada")
    assert prada.see(stream).statistic_B.tolist() == pytest.approx(statistics, abs=1e-9)
    for top in range(10):
        assert len(prada.state[f"set {top}"]) == len(sets.get(top, []))
    assert max(statistics) > 0.02


@pytest.mark.parametrize("program", ["leaves", "strokes", "noise", "generators"])
def test_data_free_queries_ring(program: str) -> None:
    first = {
        name: int(detector(name).see(drawn(program)[:150]).alarm_B.nonzero()[0]) + 1
        for name in ("labels", "scores", "mahalanobis", "sequential", "sprt")
    }
    assert first["sequential"] == first["sprt"] == 3, "three images of z 4"
    assert first["mahalanobis"] == 33, "more than half of 64"
    assert first["scores"] <= 60
    assert first["labels"] <= 150


def test_held_out_images_ring_nothing() -> None:
    stream = seen(held_out(True))
    for name in ("labels", "scores", "coverage", "mahalanobis", "sequential", "sprt"):
        assert not detector(name).see(stream).alarm_B.any(), name
    for name in ("mahalanobis", "coverage"):
        assert not detector(name).see(seen(worn(held_out(True)))).alarm_B.any()
    # many doubtful answers of many kinds, and few
    assert 100 < int(detector("coverage").see(drawn("pen")[:300]).alarm_B.nonzero()[0]) < 150
    assert not detector("coverage").see(drawn("text")).alarm_B.any()


def test_worn_images_belong_to_what_the_sequential_tests_are_calibrated_on() -> None:
    plain = Benign(benign().plain, benign().plain, 10)
    rng = torch.Generator().manual_seed(0)
    draws = [torch.randint(179, (300,), generator=rng) for _ in range(6)]
    sessions = [seen(worn(held_out(True)[draw], seed)) for seed, draw in enumerate(draws)]
    early = [
        sum(
            bool(detector("sequential", honest).see(session[:100]).alarm_B.any())
            for session in sessions
        )
        for honest in (plain, benign())
    ]
    assert early[0] == 6
    assert early[1] <= 3


def test_an_alarm_rings_once_until_the_statistic_was_below() -> None:
    honest, foreign = seen(held_out(True)), drawn("noise")[:100]
    both = [honest, foreign, honest, foreign]
    names = ("images_BCHW", "p_BK", "distance_B")
    stream = Observation(*(torch.cat([getattr(each, name) for each in both]) for name in names))
    reading = detector("mahalanobis").see(stream)
    above = (reading.statistic_B > 0.5).tolist()
    rises = [at for at in range(len(above)) if above[at] and not (at and above[at - 1])]
    assert reading.alarm_B.nonzero()[:, 0].tolist() == rises
    assert len(rises) == 2
    assert sum(above) > 150
