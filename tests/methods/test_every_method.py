"""Every method: what a step spends, changes, returns; several student batches in one call of the teacher:
what is asked, learnt, counted.
"""

import dataclasses
import math
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import torch
from begun import SPEC, begun
from known_teachers import ScriptedTeacher
from small_runs import small_options
from tables import exhaustive_rows
from torch import Tensor
from toys import LinearTeacher, Recording, make_method, make_parts

from dfme.config.sections import QueriesConfig
from dfme.estimators.base import Objective
from dfme.methods import METHODS
from dfme.methods.base import Ask
from dfme.oracle.oracle import Oracle
from dfme.queries import sampler
from dfme.report.metrics import METRICS
from dfme.run.loop import numbers
from dfme.spec import ImageSpec, TeacherInfo

ALL_KEPT = {"replay_steps": 1, "replay_capacity": 10_000}
MODES = {"logits": "logits", "probabilities": "probabilities", "label": "label", "top_k": "top_k:2"}


def modes_of(name: str) -> list[str]:
    return [MODES[kind] for kind in METHODS[name].load().label_modes if kind in MODES]


@pytest.mark.parametrize(
    ("name", "mode"), [(name, mode) for name in METHODS for mode in modes_of(name)]
)
def test_a_step_spends_its_cost_teaches_the_student_and_returns_known_metrics(name, mode):
    teacher, parts, method = begun(name, mode=mode, student={"replay_steps": 2})
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


SOURCES = [
    {},
    {"evolve": 0.5, "programs": ("noise", "leaves")},
    {"pool": 3, "choose": "random", "balance": False},
    {"pool": 2, "evolve": 0.5},
    # of methods with a generator
    {"procedural": 0.5},
    {"base": "procedural"},
    {"base": "procedural", "procedural": 0.5, "pool": 2},
]
"""Which images are paid for."""


def sources_of_methods():
    """Every method with every kind of images; by default in turn."""
    rows = []
    for name, entry in METHODS.items():
        kinds = SOURCES if hasattr(entry.config(), "latent_size") else SOURCES[:4]
        for number, queries in enumerate(kinds if "queries" in entry.sections else []):
            marks = [pytest.mark.exhaustive] if (len(rows) + number // 4) % 3 else []
            rows.append(pytest.param(name, queries, marks=marks))
    return rows


@pytest.mark.parametrize(("name", "queries"), sources_of_methods())
def test_whatever_is_paid_for_a_step_spends_its_cost_and_the_rest_the_rest(
    name, queries, monkeypatch
):
    monkeypatch.setattr(sampler, "READY", 4)
    teacher, parts, method = begun(
        name, student={"queries": QueriesConfig(**queries), "replay_steps": 1}
    )
    before = {key: value.clone() for key, value in parts.students.net.state_dict().items()}
    for step in (1, 2):
        metrics = method.step()
        assert teacher.images == parts.oracle.ledger.spent == step * method.cost
    method.finish(5)
    assert teacher.images == 2 * method.cost + 5
    assert len(method.recent[0]) == len(method.recent[1]) == 5
    assert all(math.isfinite(value) for value in numbers(metrics).values())
    after = parts.students.net.state_dict()
    assert any(not torch.equal(value, after[key]) for key, value in before.items())


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
    options = {"batch_size": 32, "generator_lr": lr, "directions": 10, "space": space}
    teacher, parts, method = begun(name, 10**9, "logits", **options)
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
    teacher, parts, method = begun("dfme", 10**9, "logits", directions=4_000, batch_size=4)
    u = torch.randn(4, 1, 8, 8, generator=torch.Generator().manual_seed(1), requires_grad=True)
    net = parts.students.net.eval()
    x = parts.generator.squash(u)
    target = teacher.logits(x)
    (truth,) = torch.autograd.grad(
        (-(net(x) - (target - target.mean(1, keepdim=True))).abs().mean(1)).mean(), u
    )
    objective_of_answers = Objective(
        partial(parts.oracle, purpose="generator"),
        partial(method.disagreement, parts.students.distance),
    )
    upstream = (
        method.approximate_gradients(
            objective_of_answers, u.detach(), parts.rng["directions"]
        ).grad_BCHW
        / 4
    )
    cosine = torch.nn.functional.cosine_similarity(upstream.flatten(), truth.flatten(), dim=0)
    scale = (upstream * truth).sum() / truth.square().sum()
    assert cosine > 0.98
    assert 0.9 < scale < 1.1


def test_static_never_moves_its_generator():
    _, parts, method = begun("static")
    before = [parameter.clone() for parameter in parts.generator.parameters()]
    for _ in range(3):
        method.step()
    assert all(torch.equal(a, b) for a, b in zip(before, parts.generator.parameters(), strict=True))


def test_batches_that_are_held_out_are_paid_for_but_not_trained_on():
    teacher = LinearTeacher(SPEC)
    parts = make_parts(teacher, 10_000)
    batches = []

    def hold_out(images: torch.Tensor, answers: torch.Tensor) -> bool:
        batches.append(images)
        return len(batches) % 2 == 0

    make_method("static", dataclasses.replace(parts, hold_out=hold_out), student_steps=4).step()
    assert teacher.images == 32
    assert parts.students.steps == 2


# With learn_from all, every paid answer is learnt from once


@pytest.mark.parametrize("reuse", [True, False])
@pytest.mark.parametrize("form", ["forward", "central"])
@pytest.mark.parametrize(("name", "store"), [("dfme", {}), ("maze", {"store": "all"})])
def test_every_answer_that_is_paid_for_is_learnt_from_once(name, store, form, reuse):
    options = {"directions": 3, "generator_steps": 2, "student_steps": 3, **store}
    options |= {"learn_from": "all", "form": form, "reuse": reuse and form != "central"}
    teacher, parts, method = begun(name, student=ALL_KEPT, **options)
    for step in (1, 2):
        method.step()
        held = len(parts.students.replay)
        assert held == teacher.images == parts.oracle.ledger.spent == step * method.cost
    assert parts.students.steps == 2 * method.cost // 8 * 2, (
        "a step on each batch, and a replay step"
    )
    images, answers = zip(*parts.students.replay.batches(8), strict=True)
    assert torch.allclose(torch.cat(answers), teacher(torch.cat(images)), atol=1e-6)


def test_mazes_neighbours_are_held_beside_the_last_student_batch():
    options = {"learn_from": "all", "directions": 2, "student_steps": 3, "store": "last"}
    _, parts, method = begun("maze", student=ALL_KEPT, **options)
    method.step()
    assert len(parts.students.replay) == 8 * 3 + 8, (
        "the generator's images, two neighbours each, and a batch"
    )


# Several student batches in one call

BATCH, STEPS = 8, 5


@pytest.fixture
def one_call() -> Iterator[pytest.MonkeyPatch]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Oracle, "on_own_accelerator", True)
        yield patch


def method_of(name: str, teacher: LinearTeacher, budget: int = 10_000, **options: Any) -> Any:
    student = {"replay_steps": 1, **options.pop("student", {})}
    queries = options.pop("queries", None)
    parts = make_parts(teacher, budget, queries=queries, count=METHODS[name].students, **student)
    return make_method(
        name, parts, batch_size=BATCH, **small_options(name, student_steps=STEPS), **options
    )


@pytest.mark.parametrize(
    "name",
    [
        name
        for name, entry in METHODS.items()
        if "label" in entry.load().label_modes and name != "knockoff"
    ],
)
def test_the_same_images_in_the_same_order_teach_the_same(
    name: str, one_call: pytest.MonkeyPatch
) -> None:
    """By labels, which no rounding changes with the size of a call."""
    few = {"gan_steps": 1, "proxy_share": 0.0} if name == "dfms" else {}
    teachers, methods = [Recording(SPEC, mode="label") for _ in range(2)], []
    for teacher, at_once in zip(teachers, (True, False), strict=True):
        one_call.setattr(Oracle, "on_own_accelerator", at_once)
        methods.append(method_of(name, teacher, **few))
        methods[-1].prepare()
        for _ in range(2):
            methods[-1].step()
        methods[-1].finish(3 * BATCH + 3)
    together, apart = teachers
    assert [len(batch) for batch in together.asked] == [STEPS * BATCH] * 2 + [3 * BATCH + 3]
    assert [len(batch) for batch in apart.asked] == [BATCH] * (2 * STEPS + 3) + [3]
    assert torch.equal(torch.cat(together.asked), torch.cat(apart.asked))
    weights, others = (method.students.delivered.state_dict() for method in methods)
    assert all(torch.equal(value, others[key]) for key, value in weights.items())
    assert [method.students.steps for method in methods] == [2 * (2 * STEPS + 4)] * 2
    assert [len(method.recent[0]) for method in methods] == [3, 3]


@pytest.mark.parametrize("name", METHODS)
def test_what_is_said_to_be_asked_is_asked_charged_and_counted(
    name: str, one_call: pytest.MonkeyPatch
) -> None:
    calls: list[Ask] = []
    ask = Oracle.__call__

    def watched(oracle: Oracle, images: Tensor, purpose: Any = "student") -> Tensor:
        calls.append(Ask(purpose, len(images)))
        return ask(oracle, images, purpose)

    one_call.setattr(Oracle, "__call__", watched)
    teacher = LinearTeacher(SPEC)
    method = method_of(name, teacher, **({"gan_steps": 1} if name == "dfms" else {}))
    method.prepare()
    for _ in range(2):
        asks, cost = method.asks(), method.cost
        spent, requests = teacher.images, method.oracle.ledger.requests
        calls.clear()
        method.step()
        assert calls == asks
        assert sum(call.images for call in calls) == cost == teacher.images - spent
        assert method.oracle.ledger.requests == requests + len(asks)
        assert len([call for call in calls if call.purpose == "student"]) == 1, (
            "one call for all batches of the students"
        )
    assert method.oracle.ledger.spent == teacher.images


def test_a_call_is_cut_to_what_the_teacher_takes_and_held_out_batches_stay_whole(
    one_call: pytest.MonkeyPatch,
) -> None:
    teacher, sizes = Recording(SPEC, mode="label"), list[int]()
    teacher.info = TeacherInfo(max_batch=12)
    parts = dataclasses.replace(
        make_parts(teacher, 1_000), hold_out=lambda x, _: bool(sizes.append(len(x)))
    )
    method = make_method("static", parts, batch_size=BATCH, student_steps=STEPS)
    method.step()
    method.finish(11)
    assert [len(batch) for batch in teacher.asked] == [12, 12, 12, 4, 11]
    assert sizes == [BATCH] * STEPS + [8, 3]


@pytest.mark.parametrize(
    "options",
    [
        {"queries": QueriesConfig(pool=2)},
        {"queries": QueriesConfig(evolve=0.5)},
        {"student": {"steps": 500}},
    ],
    ids=["pool", "evolve", "planned steps"],
)
def test_batches_are_asked_one_by_one_where_steps_in_between_matter(
    options: dict[str, Any], one_call: pytest.MonkeyPatch
) -> None:
    method = method_of("static", LinearTeacher(SPEC), **options)
    assert method.asks() == [Ask("student", BATCH)] * STEPS


def test_batches_are_asked_one_by_one_of_a_service_on_the_cpu_and_where_images_are_large() -> None:
    assert method_of("static", LinearTeacher(SPEC)).batches_at_once == 1
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dfme.oracle.oracle.on_accelerator", lambda device: True)
        here, service = LinearTeacher(SPEC), ScriptedTeacher()
        service.spec = SPEC
        assert method_of("static", service).batches_at_once == 1
        method = method_of("static", here)
        assert method.batches_at_once > STEPS
        method.oracle.spec = ImageSpec((3, 640, 640))
        assert method.batches_at_once == 1
