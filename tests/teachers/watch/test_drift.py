"""Detectors of foreign images: attacks ring, honest images do not, and what is calibrated on what."""

import pytest
import torch
from watched import benign, detector, drawn, held_out, seen, worn

from dfme.data import load_dataset
from dfme.teachers.watch.detector import Benign, Observation
from dfme.teachers.watch.detectors import MahalanobisDetector

PROGRAMS = ("leaves", "strokes", "noise", "generators")


@pytest.mark.parametrize("program", PROGRAMS)
def test_data_free_queries_ring(program: str) -> None:
    first = {
        name: int(detector(name).see(drawn(program)).alarm_B.nonzero()[0]) + 1
        for name in ("labels", "scores", "mahalanobis", "sequential", "sprt")
    }
    assert first["sequential"] == first["sprt"] == 3, "three images of z 4"
    assert first["mahalanobis"] == 33, "more than half of 64"
    assert first["scores"] <= 60
    assert first["labels"] <= 150


def test_held_out_images_ring_nothing() -> None:
    asked = seen(held_out(True))
    for name in ("labels", "scores", "mahalanobis", "sequential", "sprt"):
        assert not detector(name).see(asked).alarm_B.any(), name
    assert not detector("mahalanobis").see(seen(worn(held_out(True)))).alarm_B.any()


def test_who_calibrates_on_training_images_flags_more_than_was_said() -> None:
    images = load_dataset("digits", "train").images
    trained = seen(images)
    test = seen(load_dataset("digits", "test").images)

    def flagged(own: Benign) -> float:
        made = detector("mahalanobis", own)
        assert isinstance(made, MahalanobisDetector)
        return sum(each > made.limit for each in test.log_distances) / len(test)

    assert flagged(Benign(trained, trained, 10)) > 0.05, "of 1 % that the limit stands for"
    assert flagged(benign()) < 0.025


def test_worn_images_belong_to_what_the_sequential_tests_are_calibrated_on() -> None:
    plain = Benign(benign().plain, benign().plain, 10)
    rng = torch.Generator().manual_seed(0)
    sessions = [
        seen(worn(held_out(True)[torch.randint(179, (300,), generator=rng)], seed)) for seed in range(6)
    ]
    early = {
        own: sum(bool(detector("sequential", own).see(each).alarm_B[:100].any()) for each in sessions)
        for own in (plain, benign())
    }
    assert early[plain] == 6
    assert early[benign()] <= 3


def test_an_alarm_rings_once_until_the_statistic_was_below() -> None:
    honest, foreign = seen(held_out(True)), drawn("noise")[:100]
    both = [honest, foreign, honest, foreign]
    stream = Observation(
        *(torch.cat([getattr(each, k) for each in both]) for k in ("images_BCHW", "p_BK", "distance_B"))
    )
    reading = detector("mahalanobis").see(stream)
    above = (reading.statistic_B > 0.5).tolist()
    rises = [at for at in range(len(above)) if above[at] and not (at and above[at - 1])]
    assert reading.alarm_B.nonzero()[:, 0].tolist() == rises
    assert len(rises) == 2
    assert sum(above) > 150
