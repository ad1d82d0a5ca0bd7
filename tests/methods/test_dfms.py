"""DFMS: a GAN of proxy images that asks nothing, then queries that deceive it and spread over the classes.
Knockoff: a pool's images, each paid for once.
"""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from begun import SPEC, begun
from tables import exhaustive
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits
from toys import LinearTeacher, Recording, make_method, make_parts

from dfme.config.sections import QueriesConfig
from dfme.config.settings import ExtractConfig, Job, ScheduleConfig, TeacherConfig
from dfme.errors import Ref, UserError
from dfme.methods.configs import DfmsConfig, KnockoffConfig
from dfme.methods.generator_losses import CrossEntropy
from dfme.methods.knockoff import Knockoff
from dfme.queries.pool import Passes, Pool
from dfme.run.checks import method_problems
from dfme.run.loop import numbers
from dfme.spec import LabelMode
from dfme.students.losses import make_distance

FEW = {"gan_steps": 3}


@pytest.fixture
def halves(tmp_path):
    """Forty images, bright above and dark below, of one grey each below."""
    images = np.zeros((40, 8, 8), dtype=np.uint8)
    images[:, :4] = np.random.default_rng(0).integers(195, 256, (40, 4, 8))
    images[:, 4:] = np.arange(40)[:, None, None]
    np.savez(tmp_path / "halves.npz", images=images)
    return str(tmp_path / "halves.npz")


def contrast(method) -> float:
    """How much brighter the upper half of what is generated is."""
    images_BCHW = method.generate(256)
    return (images_BCHW[:, :, :4].mean() - images_BCHW[:, :, 4:].mean()).item()


def test_the_gans_losses_are_binary_cross_entropies():
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 1))
    real, fake = torch.rand(5, 1, 8, 8), torch.rand(5, 1, 8, 8)
    ones, zeros, bce = torch.ones(5, 1), torch.zeros(5, 1), binary_cross_entropy_with_logits
    torch.testing.assert_close(CrossEntropy().of_generator(net, fake), bce(net(fake), ones))
    expected = bce(net(real), ones) + bce(net(fake), zeros)
    torch.testing.assert_close(CrossEntropy().of_discriminator(net, real, fake), expected)


def test_the_gan_comes_first_asks_nothing_and_makes_images_like_the_proxies(halves):
    teacher, parts, method = begun(
        "dfms", proxy=halves, gan_steps=35, batch_size=16, generator_lr=5e-3
    )
    before = contrast(method)
    assert "35 steps" in method.prepare()[0]
    assert teacher.images == parts.oracle.ledger.spent == 0
    assert abs(before) < 0.2
    assert contrast(method) > 0.5
    assert method.prepare() == ()


def test_a_warm_up_of_the_budget_does_not_hold_the_gan_back():
    """Before the first query a schedule may say zero."""
    _, parts, _ = begun("dfms", **FEW)
    method = make_method("dfms", replace(parts, lr_factor=lambda: 0.0), gan_steps=1)
    before = [parameter.detach().clone() for parameter in parts.generator.parameters()]
    method.prepare()
    after = [parameter.detach().clone() for parameter in parts.generator.parameters()]
    assert any(not torch.equal(*pair) for pair in zip(before, after, strict=True))
    method.generator_step(pays=False)
    assert all(torch.equal(*pair) for pair in zip(after, parts.generator.parameters(), strict=True))


@pytest.mark.parametrize("mode", ["top_k:2", "label", *exhaustive("probabilities", "logits")])
def test_proxies_are_paid_for_first_each_once_then_what_is_generated(halves, mode):
    teacher, parts, method = begun(
        "dfms", 160, mode, student={"replay_steps": 1}, proxy=halves, proxy_share=0.2, **FEW
    )
    method.prepare()
    assert method.cost == 16
    generator = [parameter.detach().clone() for parameter in parts.generator.parameters()]
    for step in range(1, 11):
        metrics = numbers(method.step())
        if step == 2:
            asked, _ = next(parts.students.replay.batches(64))
            assert len(asked.unique(dim=0)) == 32, "of distinct images"
            assert asked[:, :, :4].min() > asked[:, :, 4:].max()
        assert teacher.images == parts.oracle.ledger.spent_by_purpose["student"] == 16 * step
        assert ("generator_loss" in metrics) == ("discriminator_loss" in metrics) == (step > 2)
    images = torch.cat([images for images, _ in parts.students.replay.batches(64)])
    assert len(images) == 64, "the toys' replay holds so many"
    assert method._proxy.remaining == 40 - 32
    assert any(
        not torch.equal(*pair) for pair in zip(generator, parts.generator.parameters(), strict=True)
    )
    assert method.facts == {"variant": "HL" if mode == "label" else "SL"}


def test_a_small_proxy_set_runs_out_and_generated_images_follow(halves):
    teacher, _, method = begun("dfms", 1_000, proxy=halves, proxy_share=1.0, **FEW)
    for _ in range(4):
        method.step()
    assert method._proxy.remaining == 0
    assert teacher.images == 4 * 16


def test_passes_show_every_image_once_each_and_go_on_where_they_were():
    images = torch.arange(10, dtype=torch.uint8).view(10, 1, 1, 1).expand(10, 1, 8, 8).contiguous()
    passes, rng = Passes(Pool("ten", images, SPEC)), torch.Generator().manual_seed(0)
    drawn = torch.cat([passes.draw(4, rng) for _ in range(5)])[:, 0, 0, 0].mul(255).round()
    assert drawn[:10].sort().values.tolist() == drawn[10:].sort().values.tolist() == list(range(10))
    assert drawn[:10].tolist() != drawn[10:].tolist()
    assert len(passes.draw(25, rng)) == 25
    other = Passes(Pool("ten", images, SPEC))
    other.load_state_dict(passes.state_dict())
    again = torch.Generator()
    again.set_state(rng.get_state())
    assert torch.equal(passes.draw(7, rng), other.draw(7, again))


@pytest.mark.parametrize(("later_from", "weight"), [(1.0, 3.0), (0.0, 40.0)])
def test_the_generators_loss_is_the_formula(later_from, weight):
    options = {"diversity": 3.0, "diversity_later": 40.0, "adversarial": 2.0}
    _, parts, method = begun("dfms", later_from=later_from, **options, **FEW)
    u = torch.randn(8, 1, 8, 8)
    x = parts.generator.squash(u)
    scores = parts.students.net.eval()(x)
    mean = scores.softmax(1).mean(0)
    found_out = binary_cross_entropy_with_logits(method._discriminator.net(x), torch.ones(8, 1))
    expected = found_out + weight * (mean * mean.log()).sum()
    torch.testing.assert_close(method.generator_loss(u), expected)
    answers = LinearTeacher(SPEC)(x)
    apart = parts.students.distance(scores, answers).mean()
    torch.testing.assert_close(method.generator_loss(u, answers), expected - 2 * apart)


def test_the_answers_term_costs_nothing_more_and_drives_the_student_from_the_teacher():
    """A teacher that answers the same everywhere, a student held still: the whole slope is the
    student's.
    """
    options = {"proxy_share": 0.0, "adversarial": 100.0, "generator_lr": 2e-2, "batch_size": 64}
    teacher, parts, method = begun("dfms", 10**6, "logits", **options, **FEW)
    teacher.weight.zero_()
    method.step()
    assert teacher.images == method.cost == 128
    parts.students.learn = lambda *_: {}
    z = torch.randn(256, 8, generator=torch.Generator().manual_seed(5))

    def disagreement() -> float:
        with torch.no_grad():
            scores = parts.students.net.eval()(parts.generator.squash(parts.generator(z)))
            return scores.abs().mean().item()

    before = disagreement()
    for _ in range(8):
        method.generator_step(pays=True)
    assert disagreement() > 1.3 * before


@pytest.mark.parametrize("queries", [{"pool": 2}, {"procedural": 0.5}])
def test_the_answers_term_needs_the_generators_own_images(queries):
    config, sources = DfmsConfig(adversarial=1.0), QueriesConfig(**queries)
    job = Job(ExtractConfig(), TeacherConfig(), {}, "dfms", config, queries=sources)
    assert [problem.key for problem in method_problems(job)] == ["method.adversarial"]


# Knockoff


@pytest.fixture
def pool(tmp_path):
    """40 images of one grey each, so that every one can be told from the others."""
    np.savez(
        tmp_path / "pool.npz", images=np.repeat(np.arange(40, dtype=np.uint8), 64).reshape(40, 8, 8)
    )
    return str(tmp_path / "pool.npz")


def knocked_off(pool, budget=40, mode="probabilities", **student):
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
    _, parts, method = knocked_off(pool, budget=17, schedule=ScheduleConfig("cosine"))
    spend(method, parts)
    trainer = parts.students
    assert trainer.steps_due_under(17, 17) == 9
    trainer.train_pending(100)
    assert (trainer.steps, trainer.steps_left) == (9, 0)
    _, larger, method = knocked_off(pool, budget=24, schedule=ScheduleConfig("cosine"))
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
    teacher, parts, method = knocked_off(pool, budget=37, mode=mode)
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
    assert (parts.students.steps, parts.students.progress) == (15, 1)
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
    _, parts, method = knocked_off(pool, **student)
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
