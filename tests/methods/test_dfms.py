"""DFMS: a GAN of proxy images that asks nothing, then queries that deceive it and spread over the
classes.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch
from tables import exhaustive
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits
from toys import LinearTeacher, make_method, make_parts

from dfme.config.sections import QueriesConfig
from dfme.config.settings import ExtractConfig, Job, TeacherConfig
from dfme.methods.configs import DfmsConfig
from dfme.methods.generator_losses import CrossEntropy
from dfme.queries.pool import Passes, Pool
from dfme.run.checks import method_problems
from dfme.run.loop import numbers
from dfme.spec import ImageSpec

SPEC = ImageSpec((1, 8, 8))


@pytest.fixture
def halves(tmp_path):
    """Forty images, bright above and dark below, of one grey each below."""
    images = np.zeros((40, 8, 8), dtype=np.uint8)
    images[:, :4] = np.random.default_rng(0).integers(195, 256, (40, 4, 8))
    images[:, 4:] = np.arange(40)[:, None, None]
    np.savez(tmp_path / "halves.npz", images=images)
    return str(tmp_path / "halves.npz")


def begun(budget=1_000, seed=0, mode="probabilities", student=None, **options):
    teacher = LinearTeacher(SPEC, mode=mode)
    parts = make_parts(teacher, budget, seed=seed, **(student or {}))
    return teacher, parts, make_method("dfms", parts, **{"gan_steps": 3, **options})


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
    teacher, parts, method = begun(proxy=halves, gan_steps=35, batch_size=16, generator_lr=5e-3)
    before = contrast(method)
    assert "35 steps" in method.prepare()[0]
    assert teacher.images == parts.oracle.ledger.spent == 0
    assert abs(before) < 0.2
    assert contrast(method) > 0.5
    assert method.prepare() == ()


def test_a_warm_up_of_the_budget_does_not_hold_the_gan_back():
    """Before the first query a schedule may say zero."""
    _, parts, _ = begun()
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
        160, mode=mode, proxy=halves, proxy_share=0.2, student={"replay_steps": 1}
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
    teacher, _, method = begun(1_000, proxy=halves, proxy_share=1.0)
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
    _, parts, method = begun(
        diversity=3.0, diversity_later=40.0, later_from=later_from, adversarial=2.0
    )
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
    teacher, parts, method = begun(10**6, mode="logits", **options)
    teacher.weight.zero_()
    method.step()
    assert teacher.images == method.cost == 128
    parts.students.learn = lambda *_: {}
    z = torch.randn(256, 8, generator=torch.Generator().manual_seed(5))

    def disagreement() -> float:
        with torch.no_grad():
            return (
                parts.students.net.eval()(parts.generator.squash(parts.generator(z)))
                .abs()
                .mean()
                .item()
            )

    before = disagreement()
    for _ in range(8):
        method.generator_step(pays=True)
    assert disagreement() > 1.3 * before


@pytest.mark.parametrize("queries", [{"pool": 2}, {"procedural": 0.5}])
def test_the_answers_term_needs_the_generators_own_images(queries):
    config, sources = DfmsConfig(adversarial=1.0), QueriesConfig(**queries)
    job = Job(ExtractConfig(), TeacherConfig(), {}, "dfms", config, queries=sources)
    assert [problem.key for problem in method_problems(job)] == ["method.adversarial"]
