"""DFMS: a GAN of proxy images that asks nothing, then queries that deceive it and spread over the classes."""

import math

import numpy as np
import pytest
import torch
from small_runs import no_pictures
from tiers import exhaustive
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits
from toys import LinearTeacher, make_method, make_parts

import dfme
from dfme.config.settings import ExtractConfig, Job, QueriesConfig, TeacherConfig
from dfme.methods.configs import DfmsConfig
from dfme.methods.gan import CrossEntropy
from dfme.methods.generator_losses import class_diversity, predict
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


# The GAN


def test_the_gans_losses_are_binary_cross_entropies():
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 1))
    real, fake = torch.rand(5, 1, 8, 8), torch.rand(5, 1, 8, 8)
    ones, zeros, bce = torch.ones(5, 1), torch.zeros(5, 1), binary_cross_entropy_with_logits
    torch.testing.assert_close(CrossEntropy().of_generator(net, fake), bce(net(fake), ones))
    expected = bce(net(real), ones) + bce(net(fake), zeros)
    torch.testing.assert_close(CrossEntropy().of_discriminator(net, real, fake), expected)


def test_the_discriminator_learns_to_tell_them_apart(halves):
    _, _, method = begun(proxy=halves, discriminator_lr=2e-3)
    losses = [numbers(method.discriminator_step())["discriminator_loss"] for _ in range(20)]
    assert losses[0] > 1
    assert losses[-1] < 0.3
    real_BCHW = method._passes.draw(20, torch.Generator().manual_seed(0))
    with torch.no_grad():
        assert (method._discriminator.net(real_BCHW) > 0).all()


def test_the_gan_comes_first_asks_nothing_and_makes_images_like_the_proxies(halves):
    teacher, parts, method = begun(proxy=halves, gan_steps=60, batch_size=16, generator_lr=2e-3)
    before = contrast(method)
    assert "60 steps" in method.prepare()[0]
    assert teacher.images == parts.oracle.ledger.spent == 0
    assert abs(before) < 0.2
    assert contrast(method) > 0.5
    assert method.prepare() == ()


def test_a_warm_up_of_the_budget_does_not_hold_the_gan_back():
    """Before the first query a schedule may say zero."""
    from dataclasses import replace

    _, parts, _ = begun()
    method = make_method("dfms", replace(parts, lr_factor=lambda: 0.0), gan_steps=1)
    before = [parameter.detach().clone() for parameter in parts.generator.parameters()]
    method.prepare()
    after = [parameter.detach().clone() for parameter in parts.generator.parameters()]
    assert any(not torch.equal(*pair) for pair in zip(before, after, strict=True))
    method.generator_step(pays=False)
    assert all(torch.equal(*pair) for pair in zip(after, parts.generator.parameters(), strict=True))


# What is paid for


@pytest.mark.parametrize("mode", ["top_k:2", "label", *exhaustive("probabilities", "logits")])
def test_proxies_are_paid_for_first_each_once_then_what_is_generated(halves, mode):
    teacher, parts, method = begun(160, mode=mode, proxy=halves, proxy_share=0.2, student={"replay_steps": 1})
    method.prepare()
    assert method.cost == 16
    generator = [parameter.detach().clone() for parameter in parts.generator.parameters()]
    for step in range(1, 11):
        metrics = numbers(method.step())
        assert teacher.images == parts.oracle.ledger.spent_by_purpose["student"] == 16 * step
        assert ("generator_loss" in metrics) == ("discriminator_loss" in metrics) == (step > 2)
    images = torch.cat([images for images, _ in parts.students.replay.batches(64)])
    assert len(images) == 64, "the toys' replay holds so many"
    assert method._proxy.remaining == 40 - 32
    assert any(not torch.equal(*pair) for pair in zip(generator, parts.generator.parameters(), strict=True))
    assert method.facts == {"variant": "HL" if mode == "label" else "SL"}


def test_the_proxies_answers_are_those_of_distinct_images(halves):
    _, parts, method = begun(160, proxy=halves, proxy_share=0.2, student={"replay_steps": 1})
    for _ in range(2):
        method.step()
    images, answers = next(parts.students.replay.batches(64))
    assert len(images.unique(dim=0)) == 32
    assert images[:, :, :4].min() > images[:, :, 4:].max()
    assert torch.equal(answers, LinearTeacher(SPEC)(images))


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


# What the generator minimises


@pytest.mark.parametrize(("later_from", "weight"), [(1.0, 3.0), (0.0, 40.0)])
def test_the_generators_loss_is_the_formula(later_from, weight):
    _, parts, method = begun(diversity=3.0, diversity_later=40.0, later_from=later_from, adversarial=2.0)
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


@pytest.mark.exhaustive
def test_the_class_term_spreads_the_generator_over_the_classes():
    _, parts, method = begun(batch_size=64, generator_lr=1e-2, diversity=100.0, later_from=1.0)
    z = torch.randn(256, 8, generator=torch.Generator().manual_seed(5))

    def unevenness() -> float:
        with torch.no_grad():
            return class_diversity(predict(parts.students.nets, parts.generator.squash(parts.generator(z)))).item()

    before = unevenness()
    for _ in range(20):
        method.generator_step(pays=False)
    assert unevenness() < before - 0.5 * (before + math.log(3))


def test_the_answers_term_costs_nothing_more_and_drives_the_student_from_the_teacher():
    """A teacher that answers the same everywhere, a student held still: the whole slope is the student's."""
    options = {"proxy_share": 0.0, "adversarial": 100.0, "generator_lr": 1e-2, "batch_size": 64}
    teacher, parts, method = begun(10**6, mode="logits", **options)
    teacher.weight.zero_()
    method.step()
    assert teacher.images == method.cost == 128
    parts.students.learn = lambda *_: {}
    z = torch.randn(256, 8, generator=torch.Generator().manual_seed(5))

    def disagreement() -> float:
        with torch.no_grad():
            return parts.students.net.eval()(parts.generator.squash(parts.generator(z))).abs().mean().item()

    before = disagreement()
    for _ in range(20):
        method.generator_step(pays=True)
    assert disagreement() > 1.3 * before


@pytest.mark.parametrize("queries", [{"pool": 2}, {"procedural": 0.5}])
def test_the_answers_term_needs_the_generators_own_images(queries):
    job = Job(
        ExtractConfig(),
        TeacherConfig(),
        {},
        "dfms",
        DfmsConfig(adversarial=1.0),
        queries=QueriesConfig(**queries),
    )
    assert [problem.key for problem in method_problems(job)] == ["method.adversarial"]


# Taken up again


@pytest.mark.parametrize("steps", [3, *exhaustive(1)])
@pytest.mark.parametrize("adversarial", [0.0, 1.0])
def test_k_steps_a_round_trip_and_the_rest_are_n_steps_bit_for_bit(halves, steps, adversarial):
    options = {"proxy": halves, "proxy_share": 0.2, "adversarial": adversarial, "student": {"replay_steps": 2}}
    _, whole_parts, whole = begun(160, **options)
    _, first_parts, first = begun(160, **options)
    for method in (whole, first):
        method.prepare()
        for _ in range(steps):
            method.step()
    teacher, parts, second = begun(160, seed=9, **options)
    second.load_state_dict(first.state_dict())
    parts.students.load_state_dict(first_parts.students.state_dict())
    parts.rng.load_state_dict(first_parts.rng.state_dict())
    parts.oracle.ledger.charge(16 * steps, "student")
    assert second.prepare() == (), "the GAN is not trained again"
    for method in (whole, second):
        for _ in range(3):
            method.step()
    assert teacher.images == 3 * 16
    nets = [(whole_parts.students.net, parts.students.net), (whole_parts.generator, parts.generator)]
    for mine, theirs in (*nets, (whole._discriminator.net, second._discriminator.net)):
        for name, value in mine.state_dict().items():
            assert torch.equal(value, theirs.state_dict()[name]), name


@pytest.mark.parametrize("label_mode", ["label", *exhaustive("probabilities")])
def test_a_whole_run_by_its_name(tmp_path, label_mode):
    teacher = LinearTeacher(SPEC, mode=label_mode)
    with no_pictures():
        result = dfme.extract(
            lambda images: teacher(images).numpy(),
            shape=SPEC.shape,
            num_classes=3,
            label_mode=label_mode,
            budget=130,
            method="dfms",
            method_options={"batch_size": 16, "gan_steps": 2},
            out=tmp_path / "run",
        )
    assert teacher.images == result.summary["spent"] == 130
    assert result.summary["variant"] == ("HL" if label_mode == "label" else "SL")
