"""Every method: what a step spends, changes, returns; and that its state is the whole of it."""

import math

import pytest
import torch
from toys import LinearTeacher, make_method, make_parts

from dfme.loop import numbers
from dfme.methods import METHODS
from dfme.spec import ImageSpec
from dfme.tracking import METRICS

SPEC = ImageSpec((1, 8, 8))
MODES = {"logits": "logits", "probabilities": "probabilities", "label": "label", "top_k": "top_k:2"}


def modes_of(name: str) -> list[str]:
    method = make_method(name, make_parts(LinearTeacher(SPEC), 10_000))
    return [MODES[kind] for kind in method.label_modes if kind in MODES]


EVERY = [(name, mode) for name in METHODS for mode in modes_of(name)]


@pytest.mark.parametrize(("name", "mode"), EVERY)
def test_a_step_spends_its_cost_teaches_the_student_and_returns_known_metrics(name, mode):
    teacher = LinearTeacher(SPEC, mode=mode)
    parts = make_parts(teacher, 10_000, replay_steps=2)
    method = make_method(name, parts)
    before = {key: value.clone() for key, value in method.student.state_dict().items()}
    for step in (1, 2):
        metrics = method.step()
        assert teacher.images == parts.oracle.ledger.spent == step * method.cost
    assert set(metrics) <= set(METRICS)
    assert all(math.isfinite(value) for value in numbers(metrics).values())
    assert any(not torch.equal(value, before[key]) for key, value in method.student.state_dict().items())


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("images", [1, 7, 8, 9, 15])
def test_finish_spends_exactly_what_is_left(name, images):
    teacher = LinearTeacher(SPEC)
    method = make_method(name, make_parts(teacher, images))
    method.finish(images)
    assert teacher.images == images


@pytest.mark.parametrize("name", METHODS)
def test_k_steps_a_round_trip_and_the_rest_are_n_steps_bit_for_bit(name):
    options = {"replay_steps": 2, "average": 0.9}
    straight = make_method(name, make_parts(LinearTeacher(SPEC), 10_000, **options))
    parts = make_parts(LinearTeacher(SPEC), 10_000, **options)
    first = make_method(name, parts)
    for _ in range(3):
        straight.step()
        first.step()
    other = make_parts(LinearTeacher(SPEC), 10_000, seed=99, **options)
    second = make_method(name, other)
    second.load_state_dict(first.state_dict())
    other.streams.load_state_dict(parts.streams.state_dict())
    for _ in range(2):
        straight.step()
        second.step()
    for key, value in straight.student.state_dict().items():
        assert torch.equal(value, second.student.state_dict()[key]), key


def test_dfme_costs_what_the_paper_says():
    method = make_method("dfme", make_parts(LinearTeacher(SPEC), 10_000), generator_steps=2, directions=3)
    assert method.cost == 8 * (2 * (3 + 1) + 2)
    central = make_method("dfme", make_parts(LinearTeacher(SPEC), 10_000), directions=3, form="central")
    assert central.cost == 8 * (2 * 3 + 2)


@pytest.mark.parametrize("space", ["pre_squash", "image"])
def test_the_generator_learns_to_disagree_with_the_student(space):
    """With the student held still, DFME's generator steps raise the true distance on fresh latents."""
    teacher = LinearTeacher(SPEC, mode="logits")
    parts = make_parts(teacher, 10**9)
    options = {"batch_size": 64, "generator_lr": 1e-2, "directions": 20, "space": space}
    method = make_method("dfme", parts, **options)
    z = torch.randn(512, 8, generator=torch.Generator().manual_seed(5))

    def disagreement() -> float:
        with torch.no_grad():
            parts.trainer.net.eval()
            x = parts.generator.squash(parts.generator(z))
            return parts.trainer.distance(parts.trainer.net(x), teacher.logits(x)).mean().item()

    before = disagreement()
    for _ in range(20):
        method._generator_step()
    assert disagreement() > 1.1 * before


def test_the_upstream_gradient_is_the_averaged_true_gradient_on_average():
    """What reaches gen_op, over many directions, is autograd's gradient of the mean objective."""
    teacher = LinearTeacher(SPEC, mode="logits")
    parts = make_parts(teacher, 10**9)
    method = make_method("dfme", parts, directions=4_000, batch_size=4)
    u = torch.randn(4, 1, 8, 8, generator=torch.Generator().manual_seed(1), requires_grad=True)
    net = parts.trainer.net.eval()
    x = parts.generator.squash(u)
    target = teacher.logits(x)
    objective = -(net(x) - (target - target.mean(1, keepdim=True))).abs().mean(1)
    (truth,) = torch.autograd.grad(objective.mean(), u)
    estimate = method._estimator.estimate(method._disagreement.objective(), u.detach(), parts.streams["directions"])
    upstream = estimate.grad_BCHW / 4
    cosine = torch.nn.functional.cosine_similarity(upstream.flatten(), truth.flatten(), dim=0)
    scale = (upstream * truth).sum() / truth.square().sum()
    assert cosine > 0.98
    assert 0.9 < scale < 1.1


def test_static_never_moves_its_generator():
    parts = make_parts(LinearTeacher(SPEC), 10_000)
    method = make_method("static", parts)
    before = [parameter.clone() for parameter in parts.generator.parameters()]
    for _ in range(3):
        method.step()
    assert all(torch.equal(a, b) for a, b in zip(before, parts.generator.parameters(), strict=True))


def test_an_examiners_batches_are_paid_for_but_not_trained_on():
    import dataclasses

    teacher = LinearTeacher(SPEC)
    parts = make_parts(teacher, 10_000)
    taken = []

    def examiner(images: torch.Tensor, answers: torch.Tensor) -> bool:
        taken.append(images)
        return len(taken) % 2 == 0

    method = make_method("static", dataclasses.replace(parts, examiner=examiner), student_steps=4)
    method.step()
    assert teacher.images == 32
    assert parts.trainer.steps == 2
