"""Every method: what a step spends, changes, returns; and that its state is the whole of it."""

import dataclasses
import math
from functools import partial

import pytest
import torch
from tables import exhaustive_rows
from toys import LinearTeacher, make_method, make_parts

from dfme.config.sections import QueriesConfig
from dfme.estimators.base import Objective
from dfme.methods import METHODS
from dfme.methods.base import Components
from dfme.queries import sampler
from dfme.report.metrics import METRICS
from dfme.run.loop import numbers
from dfme.spec import ImageSpec

SPEC = ImageSpec((1, 8, 8))
MODES = {"logits": "logits", "probabilities": "probabilities", "label": "label", "top_k": "top_k:2"}


def modes_of(name: str) -> list[str]:
    return [MODES[kind] for kind in METHODS[name].load().label_modes if kind in MODES]


def parts_for(name: str, teacher: LinearTeacher, budget: int, **options: object) -> Components:
    """Parts with as many students as the method needs."""
    return make_parts(teacher, budget, **{"count": METHODS[name].students, **options})


EVERY = [(name, mode) for name in METHODS for mode in modes_of(name)]


@pytest.mark.parametrize(("name", "mode"), EVERY)
def test_a_step_spends_its_cost_teaches_the_student_and_returns_known_metrics(name, mode):
    teacher = LinearTeacher(SPEC, mode=mode)
    parts = parts_for(name, teacher, 10_000, replay_steps=2)
    method = make_method(name, parts)
    before = {key: value.clone() for key, value in parts.students.delivered.state_dict().items()}
    for step in (1, 2):
        metrics = method.step()
        assert teacher.images == parts.oracle.ledger.spent == step * method.cost
    assert set(metrics) <= set(METRICS)
    assert all(math.isfinite(value) for value in numbers(metrics).values())
    assert any(
        not torch.equal(value, before[key])
        for key, value in parts.students.delivered.state_dict().items()
    )


OF_ALL = [
    {},
    {"evolve": 0.5, "programs": ("noise", "leaves")},
    {"pool": 3, "choose": "random", "balance": False},
    {"pool": 2, "evolve": 0.5},
]
MIXED = {"base": "procedural", "procedural": 0.5, "pool": 2}
OF_GENERATORS = [{"procedural": 0.5}, {"base": "procedural"}, MIXED]
"""Which images are paid for."""


@pytest.mark.parametrize(
    "name", [name for name, entry in METHODS.items() if "queries" in entry.sections]
)
def test_whatever_is_paid_for_a_step_spends_its_cost_and_the_rest_the_rest(name, monkeypatch):
    monkeypatch.setattr(sampler, "READY", 4)
    of_generators = OF_GENERATORS if hasattr(METHODS[name].config(), "latent_size") else []
    for queries in [*OF_ALL, *of_generators]:
        teacher = LinearTeacher(SPEC)
        parts = parts_for(name, teacher, 10_000, queries=QueriesConfig(**queries), replay_steps=1)
        method = make_method(name, parts)
        before = {key: value.clone() for key, value in parts.students.net.state_dict().items()}
        for step in (1, 2):
            metrics = method.step()
            assert teacher.images == parts.oracle.ledger.spent == step * method.cost, queries
        method.finish(5)
        assert teacher.images == 2 * method.cost + 5, queries
        assert len(method.recent[0]) == len(method.recent[1]) == 5, queries
        assert all(math.isfinite(value) for value in numbers(metrics).values()), queries
        after = parts.students.net.state_dict()
        assert any(not torch.equal(value, after[key]) for key, value in before.items()), queries


@pytest.mark.parametrize(
    ("name", "lr", "space"),
    [
        ("dfme", 2e-2, "pre_squash"),
        ("maze", 0.6, "pre_squash"),
        *exhaustive_rows([("dfme", 2e-2, "image")]),
    ],
)
def test_the_generator_learns_to_disagree_with_the_student(name, lr, space):
    """With the student held still, the generator's steps raise the true distance on fresh
    latents.
    """
    teacher = LinearTeacher(SPEC, mode="logits")
    parts = make_parts(teacher, 10**9)
    method = make_method(name, parts, batch_size=32, generator_lr=lr, directions=10, space=space)
    z = torch.randn(512, 8, generator=torch.Generator().manual_seed(5))

    def disagreement() -> float:
        with torch.no_grad():
            parts.students.net.eval()
            x = parts.generator.squash(parts.generator(z))
            return parts.students.distance(parts.students.net(x), teacher.logits(x)).mean().item()

    before = disagreement()
    for _ in range(10):
        method.generator_step(32)
    assert disagreement() > 1.1 * before


def test_the_upstream_gradient_is_the_averaged_true_gradient_on_average():
    """What reaches gen_op, over many directions, is autograd's gradient of the mean objective."""
    teacher = LinearTeacher(SPEC, mode="logits")
    parts = make_parts(teacher, 10**9)
    method = make_method("dfme", parts, directions=4_000, batch_size=4)
    u = torch.randn(4, 1, 8, 8, generator=torch.Generator().manual_seed(1), requires_grad=True)
    net = parts.students.net.eval()
    x = parts.generator.squash(u)
    target = teacher.logits(x)
    objective = -(net(x) - (target - target.mean(1, keepdim=True))).abs().mean(1)
    (truth,) = torch.autograd.grad(objective.mean(), u)
    ask = partial(parts.oracle, purpose="generator")
    value = partial(method.disagreement, parts.students.distance)
    estimate = method.approximate_gradients(
        Objective(ask, value), u.detach(), parts.rng["directions"]
    )
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


def test_batches_that_are_held_out_are_paid_for_but_not_trained_on():
    teacher = LinearTeacher(SPEC)
    parts = make_parts(teacher, 10_000)
    taken = []

    def hold_out(images: torch.Tensor, answers: torch.Tensor) -> bool:
        taken.append(images)
        return len(taken) % 2 == 0

    method = make_method("static", dataclasses.replace(parts, hold_out=hold_out), student_steps=4)
    method.step()
    assert teacher.images == 32
    assert parts.students.steps == 2
