"""When the students' steps are taken: the plan by arithmetic, and a trainer that keeps to it."""

import pytest
import torch
from loops import fed

from dfme.config.settings import ScheduleConfig, StudentConfig
from dfme.spec import ImageSpec
from dfme.students.optimizers import StepPlan, factor, weight_decay

SPEC = ImageSpec((1, 8, 8))


@pytest.mark.parametrize(
    ("config", "plan"),
    [
        (StudentConfig(), StepPlan(None, 0)),
        (StudentConfig(steps=100), StepPlan(100, 0)),
        (StudentConfig(steps=100, final_share=0.25), StepPlan(75, 25)),
        (StudentConfig(steps=100, final_share=1.0), StepPlan(0, 100)),
    ],
)
def test_a_plan_adds_up_to_the_steps(config, plan):
    assert StepPlan.of(config) == plan
    assert (plan.during or 0) + plan.final == config.steps


def test_progress_runs_from_zero_to_one_over_budget_and_final_steps():
    assert StepPlan(75, 25).progress(0.0, 0) == 0.0
    assert StepPlan(75, 25).progress(0.4, 30) == 0.3
    assert StepPlan(75, 25).progress(1.0, 75) == 0.75
    assert StepPlan(75, 25).progress(1.0, 100) == 1.0
    assert StepPlan(100).progress(0.3, 30) == StepPlan().progress(0.3, 500) == 0.3


MILESTONES = [(0.0, 1.0), (0.0999, 1.0), (0.1, 0.3), (0.3, 0.09), (0.5, 0.027), (1.0, 0.027)]


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        (ScheduleConfig(), MILESTONES),
        (ScheduleConfig(kind="cosine"), [(0.0, 1.0), (0.5, 0.5), (1.0, 0.0)]),
        (ScheduleConfig(kind="constant"), [(0.9, 1.0)]),
        (ScheduleConfig(kind="constant", warmup=0.1), [(0.0, 0.0), (0.05, 0.5), (0.1, 1.0), (0.5, 1.0)]),
    ],
)
def test_learning_rates_follow_the_share_of_the_budget(schedule, expected):
    assert [factor(schedule, share) for share, _ in expected] == pytest.approx([each for _, each in expected])


@pytest.mark.parametrize(("images", "expected"), [(400, 0.05), (1_600, 0.025), (100, 0.1), (25, 0.1)])
def test_weight_decay_falls_with_the_root_of_what_is_held(images, expected):
    config = StudentConfig(weight_decay=0.05, decay_images=400, replay_batch=100)
    assert weight_decay(config, images) == pytest.approx(expected)
    assert weight_decay(StudentConfig(weight_decay=0.05), images) == 0.05


def test_the_optimiser_decays_the_weights_by_it():
    """With no gradient to speak of, a step of SGD takes lr * decay of each weight."""
    _, trainer = fed(8, steps=1, final_share=1.0, weight_decay=0.01, decay_images=64, momentum=0.0, lr=0.5)
    before = [parameter.detach().clone() for parameter in trainer.net.parameters()]
    trainer.train_pending(1)
    for old, now in zip(before, trainer.net.parameters(), strict=True):
        torch.testing.assert_close(now.detach(), old - 0.5 * (now.grad + 0.01 * 8**0.5 * old))


@pytest.mark.parametrize("steps", [37, 4])
def test_steps_are_spread_evenly_over_the_budget_and_none_is_left_out(steps):
    taken, trainer = fed(80, steps=steps)
    assert taken[-1] == steps
    assert steps < 10 or taken == [round(steps * (batch + 1) / 10) for batch in range(10)]
    assert len(trainer.replay) == 64, "the toy's capacity"
    assert trainer.steps_left == 0


def test_the_final_share_is_taken_after_the_budget():
    assert fed(80, steps=20, final_share=1.0)[0] == [0] * 10
    taken, trainer = fed(80, steps=40, final_share=0.25)
    assert taken[-1] == 30
    assert trainer.steps_left == 10
    trainer.train_pending(4)
    assert (trainer.steps, trainer.steps_left) == (34, 6)
    trainer.train_pending(50)
    assert (trainer.steps, trainer.steps_left, trainer.progress) == (40, 0, 1.0)
