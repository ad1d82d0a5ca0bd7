"""The student's training: learning, modes, averages, precision, lone images."""

import contextlib

import pytest
import torch
from toys import LinearTeacher, small_net

from dfme.config import StudentConfig
from dfme.losses import make_distance
from dfme.replay import Replay
from dfme.spec import ImageSpec
from dfme.students import StudentTrainer, evaluating

SPEC = ImageSpec((1, 4, 4))
TEACHER = LinearTeacher(SPEC)


def trainer(config: StudentConfig, factor: float = 1.0, precision: str = "fp32") -> StudentTrainer:
    replay = Replay(1_000, SPEC, torch.Generator().manual_seed(0)) if config.replay_steps else None
    return StudentTrainer(
        small_net(SPEC), config, make_distance("l1", TEACHER.label_mode), replay, lambda: factor, precision
    )


def batch(count: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    images = torch.rand(count, 1, 4, 4, generator=torch.Generator().manual_seed(seed))
    return images, TEACHER(images)


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_the_loss_falls(optimizer, precision):
    student = trainer(StudentConfig(optimizer=optimizer, lr=0.02), precision=precision)
    losses = [float(student.learn(*batch(64, seed % 4))["student_loss"]) for seed in range(80)]
    assert sum(losses[-8:]) < 0.5 * sum(losses[:8])
    assert student.net[1].weight.dtype == torch.float32


def test_one_sgd_step_is_the_formula():
    student = trainer(StudentConfig(lr=0.1, momentum=0.0, weight_decay=0.0), factor=0.5)
    images, answers = batch(16)
    reference = small_net(SPEC).train()
    make_distance("l1", TEACHER.label_mode)(reference(images), answers).mean().backward()
    metrics = student.learn(images, answers)
    assert metrics["student_lr"] == 0.05
    for mine, theirs in zip(student.net.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs - 0.05 * theirs.grad)


def test_replay_steps_are_counted_and_train_on_what_was_paid():
    student = trainer(StudentConfig(replay_steps=3, replay_batch=4))
    metrics = student.learn(*batch(8))
    assert student.steps == 4
    assert "replay_loss" in metrics


def test_the_average_is_an_exponential_one_and_is_what_is_delivered():
    student = trainer(StudentConfig(average=0.9))
    expected = student.net[1].weight.detach().clone()
    for seed in range(3):
        student.learn(*batch(16, seed))
        weight = student.net[1].weight.detach()
        expected = weight.clone() if seed == 0 else 0.9 * expected + 0.1 * weight  # the first update copies
    assert student.delivered is not student.net
    torch.testing.assert_close(student.delivered[1].weight, expected)


def test_a_lone_image_can_be_learnt_from():
    assert torch.isfinite(trainer(StudentConfig()).learn(*batch(1))["student_loss"])


@pytest.mark.parametrize("training", [True, False])
def test_evaluating_gives_the_mode_back_also_after_an_error(training):
    net = small_net(SPEC).train(training)
    seen = []
    with contextlib.suppress(RuntimeError), evaluating(net):
        seen.append(net.training)
        raise RuntimeError
    assert seen == [False]
    assert net.training is training
