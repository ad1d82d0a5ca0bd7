"""Several student batches in one call of the teacher: what is asked, learnt, counted."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from known_teachers import ScriptedTeacher
from small_runs import small_options
from torch import Tensor
from toys import LinearTeacher, Recording, make_method, make_parts

from dfme.config.sections import QueriesConfig
from dfme.methods import METHODS
from dfme.methods.base import Ask
from dfme.oracle.oracle import Oracle
from dfme.spec import ImageSpec, TeacherInfo

SPEC = ImageSpec((1, 8, 8))
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


LABELS = [
    name
    for name, entry in METHODS.items()
    if "label" in entry.load().label_modes and name != "knockoff"
]


@pytest.mark.parametrize("name", LABELS)
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
    assert [len(each) for each in together.asked] == [STEPS * BATCH] * 2 + [3 * BATCH + 3]
    assert [len(each) for each in apart.asked] == [BATCH] * (2 * STEPS + 3) + [3]
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
        students = [call for call in calls if call.purpose == "student"]
        assert len(students) == 1, "one call for all batches of the students"
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
    assert [len(each) for each in teacher.asked] == [12, 12, 12, 4, 11]
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
