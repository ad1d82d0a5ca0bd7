"""Detectors of foreign images: attacks ring, honest images do not, and what is calibrated on
what.
"""

import pytest
import torch
from watched import benign, detector, drawn, held_out, seen, worn

from dfme.teachers.owner.watch.detector import Benign, Observation

PROGRAMS = ("leaves", "strokes", "noise", "generators")


@pytest.mark.parametrize("program", PROGRAMS)
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
