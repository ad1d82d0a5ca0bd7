"""Logit adjustment: the mass of classes by arithmetic, and what a student says that cannot tell."""

import math
from types import SimpleNamespace

import pytest
import torch
from toys import small_net

from dfme.config.settings import ExtractConfig, ScheduleConfig, StudentConfig
from dfme.spec import ImageSpec, LabelMode
from dfme.students.class_prior import MIN_SHARE, ClassPrior, adjustment, class_mass
from dfme.students.losses import make_distance
from dfme.students.optimizers import Schedule
from dfme.students.replay import Replay
from dfme.students.trainer import StudentTrainer

SPEC = ImageSpec((1, 4, 4))
CLASSES = 3


def replay_of(answers: torch.Tensor, capacity: int = 1_000) -> Replay:
    replay = Replay(capacity, SPEC, torch.Generator().manual_seed(0))
    replay.add(torch.zeros(len(answers), *SPEC.shape), answers)
    return replay


def test_the_mass_of_labels_is_their_number_and_of_scores_the_sum_of_probabilities() -> None:
    labels = torch.tensor([2, 0, 2, 2])
    assert class_mass(labels, LabelMode("label"), CLASSES).tolist() == [1, 0, 3]
    p = torch.tensor([[0.5, 0.25, 0.25], [0.0, 1.0, 0.0]])
    mass = class_mass(p, LabelMode("probabilities"), CLASSES)
    assert mass.tolist() == pytest.approx([0.5, 1.25, 0.25])
    shifted = p.clamp_min(1e-30).log() + torch.tensor([[5.0], [-7.0]])
    assert class_mass(shifted, LabelMode("logits"), CLASSES).tolist() == pytest.approx(mass)


def test_an_image_without_an_answer_has_no_mass() -> None:
    p = torch.tensor([[0.5, 0.5, 0.0], [math.nan, math.nan, math.nan]])
    mass = class_mass(p, LabelMode("probabilities"), CLASSES)
    assert mass.tolist() == pytest.approx([0.5, 0.5, 0.0])


def test_the_adjustment_is_the_log_of_the_shares_and_of_a_class_never_answered_bounded() -> None:
    added = adjustment(torch.tensor([6.0, 2.0, 0.0], dtype=torch.float64), 0.5)
    logs = [math.log(0.75), math.log(0.25), math.log(MIN_SHARE)]
    assert added.tolist() == pytest.approx([0.5 * (log - sum(logs) / 3) for log in logs])
    assert adjustment(torch.tensor([6.0, 2.0, 0.0]), 0.0).abs().max() == 0
    even = adjustment(torch.zeros(CLASSES, dtype=torch.float64), 1.0)
    assert even.abs().max() < 1e-6


def test_every_answer_that_was_held_counts_once_and_a_state_goes_on() -> None:
    answers = torch.tensor([0, 0, 1, 2])
    replay = replay_of(answers, capacity=6)
    prior = ClassPrior(1.0, LabelMode("label"), CLASSES)
    assert prior.of(replay).softmax(0).tolist() == pytest.approx([0.5, 0.25, 0.25])
    other = ClassPrior(1.0, LabelMode("label"), CLASSES)
    other.load_state_dict(prior.state_dict())
    replay.add(torch.zeros(4, *SPEC.shape), torch.tensor([1, 1, 1, 1]))  # drops the first two
    for counted in (prior, other):
        assert counted.of(replay).softmax(0).tolist() == pytest.approx([0.25, 0.625, 0.125])
        assert counted.of(replay).softmax(0).tolist() == pytest.approx([0.25, 0.625, 0.125])


def trainer_of(strength: float) -> StudentTrainer:
    mode = LabelMode("label")
    student = StudentConfig(lr=0.5, weight_decay=0.0, replay_steps=1, replay_batch=100)
    config = ExtractConfig(student=student, schedule=ScheduleConfig("constant"))
    return StudentTrainer(
        config,
        [small_net(SPEC, num_classes=2)],
        make_distance("cross_entropy", mode),
        Replay(100, SPEC, torch.Generator().manual_seed(0)),
        Schedule(config.schedule, SimpleNamespace(share=0.0)),
        torch.Generator().manual_seed(0),
        prior=ClassPrior(strength, mode, 2) if strength else None,
    )


def test_a_resumed_student_learns_as_if_it_had_never_stopped() -> None:
    whole = trainer_of(1.0)
    first = trainer_of(1.0)
    images = torch.rand(30, *SPEC.shape, generator=torch.Generator().manual_seed(0))
    parts = [torch.tensor([0] * 25 + [1] * 5), torch.tensor([0] * 12 + [1] * 18)]
    for labels in parts:
        whole.learn(images, labels)
    first.learn(images, parts[0])
    resumed = trainer_of(1.0)
    resumed.load_state_dict(first.state_dict())
    assert first.replay is not None
    assert resumed.replay is not None
    resumed.replay._rng.set_state(first.replay._rng.get_state())  # as a checkpoint does
    resumed.learn(images, parts[1])
    for one, other in zip(whole.net.parameters(), resumed.net.parameters(), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize(("strength", "odds"), [(0.0, math.log(9)), (1.0, 0.0)])
def test_a_student_that_cannot_tell_names_classes_as_they_were_asked_or_evenly(
    strength: float, odds: float
) -> None:
    labels = torch.tensor([0] * 90 + [1] * 10)
    trainer = trainer_of(strength)
    images = torch.full((100, *SPEC.shape), 0.5)
    for _ in range(60):
        trainer.learn(images, labels)
    with torch.no_grad():
        scores = trainer.net.eval()(images[:1])[0]
    assert float(scores[0] - scores[1]) == pytest.approx(odds, abs=0.5)
