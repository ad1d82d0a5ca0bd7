"""Knockoff: a pool's images, each paid for once."""

import math

import numpy as np
import pytest
import torch
from toys import Recording, make_method, make_parts

from dfme.config.settings import ExtractConfig, Job, ScheduleConfig, TeacherConfig
from dfme.errors import Ref, UserError
from dfme.methods.configs import KnockoffConfig
from dfme.methods.knockoff import Knockoff
from dfme.run.checks import method_problems
from dfme.spec import ImageSpec, LabelMode
from dfme.students.losses import make_distance

SPEC = ImageSpec((1, 8, 8))


@pytest.fixture
def pool(tmp_path):
    """40 images of one grey each, so that every one can be told from the others."""
    images = np.repeat(np.arange(40, dtype=np.uint8), 64).reshape(40, 8, 8)
    np.savez(tmp_path / "pool.npz", images=images)
    return str(tmp_path / "pool.npz")


def begun(pool, budget=40, mode="probabilities", **student):
    teacher = Recording(SPEC, mode=mode)
    parts = make_parts(teacher, budget, keeps=True, **student)
    return teacher, parts, make_method("knockoff", parts, pool=pool, epochs=3)


def spend(method, parts):
    ledger = parts.oracle.ledger
    while ledger.remaining:
        method.step() if ledger.remaining >= method.cost else method.finish(ledger.remaining)


def test_a_larger_budget_adds_passes_over_all_that_is_held_by_a_schedule_of_their_own(pool):
    """17 of 40 images, then all: 3 passes in steps of 8 each time, also where no more steps than
    before.
    """
    _, parts, method = begun(pool, budget=17, schedule=ScheduleConfig("cosine"))
    spend(method, parts)
    trainer = parts.students
    assert trainer.steps_due_under(17, 17) == 9
    trainer.train_pending(100)
    assert (trainer.steps, trainer.steps_left) == (9, 0)
    _, larger, method = begun(pool, budget=24, schedule=ScheduleConfig("cosine"))
    larger.students.load_state_dict(trainer.state_dict())
    spend(method, larger)
    assert larger.students.steps_due_under(24, 17) == 9, "as many as before, on more"
    metrics = larger.students.train_pending(1)
    assert metrics["student_lr"] == metrics["student_lr_greatest"] == 0.05
    metrics = larger.students.train_pending(100)
    assert (larger.students.steps, larger.students.steps_left) == (18, 0)
    assert 0 < metrics["student_lr"] < 0.01


@pytest.mark.parametrize("mode", ["probabilities", "logits", "top_k:2", "label"])
def test_every_image_is_paid_for_once_and_learnt_from_afterwards(pool, mode):
    teacher, parts, method = begun(pool, budget=37, mode=mode)
    before = {name: value.clone() for name, value in parts.students.net.state_dict().items()}
    spend(method, parts)
    assert method.cost == 8
    assert teacher.images == parts.oracle.ledger.spent_by_purpose["student"] == 37
    greys = torch.cat(teacher.asked)[:, 0, 0, 0].mul(255).round()
    assert len(greys.unique()) == 37
    assert greys.tolist() != sorted(greys.tolist()), "in random order"
    assert all(
        torch.equal(value, before[name]) for name, value in parts.students.net.state_dict().items()
    )
    assert parts.students.steps_left == 3 * 5, "3 passes over 37 images, 8 at a time"
    while parts.students.steps_left:
        assert math.isfinite(parts.students.train_pending(4)["replay_loss"])
    assert parts.students.steps == 15
    assert parts.students.progress == 1
    assert any(
        not torch.equal(value, before[name])
        for name, value in parts.students.net.state_dict().items()
    )


@pytest.mark.parametrize(
    ("student", "during", "in_all"),
    [
        ({"steps": 11, "rounds": (1.0,)}, 0, 11),
        ({"steps": 11}, 11, 11),
        ({"replay_steps": 2}, 5 * 3, 5 * 3),
    ],
)
def test_steps_that_the_student_plans_are_taken_instead(pool, student, during, in_all):
    _, parts, method = begun(pool, **student)
    spend(method, parts)
    assert parts.students.steps == during
    parts.students.train_pending(100)
    assert parts.students.steps == in_all


def test_a_pool_smaller_than_the_budget_is_refused_with_what_would_do(pool):
    with pytest.raises(
        UserError, match=r"40 images, .* 41.*--budget to 40.*larger data set.*procedural"
    ):
        Knockoff.open_pool(KnockoffConfig(pool=pool), SPEC, 41)
    assert Knockoff.open_pool(KnockoffConfig(pool=pool), SPEC, 40).size == 40
    assert Knockoff.open_pool(KnockoffConfig(), SPEC, 10**9).size is None


def test_images_that_are_not_there_are_named_before_anything_loads(tmp_path):
    config = KnockoffConfig(pool="cifar10", root=str(tmp_path))
    (problem,) = method_problems(Job(ExtractConfig(), TeacherConfig(), {}, "knockoff", config))
    assert problem.key == "method.pool"
    assert Ref("method.download", True) in problem.text.pieces


def test_kl_is_the_papers_cross_entropy_up_to_what_no_student_changes():
    kl = make_distance("kl", LabelMode("probabilities"))
    answers = torch.tensor([[0.7, 0.2, 0.1], [0.1, 0.1, 0.8]])
    entropy = -(answers * answers.log()).sum(1)
    for seed in (0, 1):
        scores = torch.randn(2, 3, generator=torch.Generator().manual_seed(seed))
        paper = -(answers * scores.log_softmax(1)).sum(1)
        torch.testing.assert_close(kl(scores, answers), paper - entropy)
