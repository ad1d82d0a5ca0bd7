"""The learning rates at which the steps are really taken, under every plan of them."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pytest
import torch
from small_runs import run
from tables import exhaustive
from toys import LinearTeacher, make_method, make_parts

from dfme.config.settings import ScheduleConfig
from dfme.methods import METHODS
from dfme.methods.base import Components
from dfme.spec import ImageSpec
from dfme.students.optimizers import LAST_LEAP, Schedule, StepPlan
from dfme.students.trainer import StudentTrainer

SPEC = ImageSpec((1, 8, 8))
LR = 0.05
COSINE = ScheduleConfig(kind="cosine")

PLANS: dict[str, dict[str, object]] = {
    "one step a batch": {},
    "replay": {"replay_steps": 4},
    "steps": {"steps": 60},
    "all afterwards": {"steps": 60, "rounds": (1.0,)},
    "rounds": {"steps": 60, "rounds": (0.3, 1.0)},
    "passes": {"passes": 1, "rounds": (0.3, 1.0), "replay_batch": 32},
}


@pytest.fixture
def rates(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The rate of every student step, as its optimiser has it."""
    rates_taken: list[float] = []
    step = StudentTrainer._step

    def recorded(trainer: StudentTrainer, *batch: torch.Tensor) -> torch.Tensor:
        losses = step(trainer, *batch)
        rates_taken.append(trainer._optimizer._optimizer.param_groups[0]["lr"])
        return losses

    monkeypatch.setattr(StudentTrainer, "_step", recorded)
    return rates_taken


def trained(name: str, budget: int, mode: str = "probabilities", **settings: Any) -> Components:
    """The parts of a run of a method, after its end; batches of 8."""
    student = {"schedule": COSINE, "lr": LR, "count": METHODS[name].students, **settings}
    parts = make_parts(LinearTeacher(SPEC, mode=mode), budget, keeps=name == "knockoff", **student)
    options = {"gan_steps": 1} if name == "dfms" else {"epochs": 20} if name == "knockoff" else {}
    method = make_method(name, parts, **options)
    method.prepare()
    assert run(method, parts)[0]
    assert parts.oracle.ledger.spent == budget
    return parts


@dataclass(frozen=True)
class Case:
    """One run: a method, a plan of its student's steps, and a budget."""

    method: str
    plan: str
    budget: int
    mode: str


def cases() -> Iterator[Case]:
    for method in METHODS:
        for mode in ("probabilities", "label"):
            if mode == "label" and method in ("dfme", "maze"):
                continue
            for plan in PLANS:
                for budget in (5, 43, 200):
                    yield Case(method, plan, budget, mode)


TELLING = [Case("static", plan, 43, "probabilities") for plan in PLANS]
TELLING += [Case("knockoff", plan, 5, "probabilities") for plan in PLANS]
TELLING += [Case(method, "rounds", 43, "probabilities") for method in ("dfme", "disguide")]
TELLING += [Case("knockoff", "rounds", 43, "label")]


def rounds_of(plan: StepPlan, rates: list[float]) -> list[list[float]]:
    """The rates of each part of the steps that has a whole schedule."""
    if len(plan.rounds) == 1:
        return [rates]
    return [rates[begin:end] for begin, end in pairwise(plan.edges) if begin < end]


@pytest.mark.parametrize(
    "case", [*TELLING, *exhaustive(*(case for case in cases() if case not in TELLING))], ids=str
)
def test_rates_fall_from_the_whole_one_and_are_zero_at_the_very_end_alone(
    case: Case, rates: list[float]
) -> None:
    trainer = trained(case.method, case.budget, case.mode, **PLANS[case.plan]).students
    assert len(rates) == trainer.steps == PLANS[case.plan].get("steps", trainer.steps) > 0
    assert trainer._greatest_lr == max(rounds_of(trainer.plan, rates)[-1])
    for part in rounds_of(trainer.plan, rates):
        for before, now in pairwise(part):  # but where a step is rounded to a batch
            of_an_iteration = case.method == "maze" and case.plan == "replay"  # replayed at its end
            assert now <= before + 0.03 * LR or of_an_iteration, "it never rises within a schedule"
        assert sum(rate == 0 for rate in part) <= LAST_LEAP * len(part)
        assert part[0] > LR / 10
        if trainer.plan.during is not None:
            assert part[0] == pytest.approx(LR, rel=0.15 if len(part) > 10 else 1)
        if len(part) > 10:
            assert part[-1] < LR / 10, "it ends low"


@pytest.mark.parametrize("kind", ["steps", "constant"])
def test_a_budget_of_less_than_a_batch_has_the_whole_schedule(
    kind: str, rates: list[float]
) -> None:
    trained("static", 5, steps=100, schedule=ScheduleConfig(kind))
    expected = [LR] * 100
    if kind == "steps":
        expected = [LR * 0.3 ** sum(step >= due for due in (10, 30, 50)) for step in range(100)]
    assert rates == pytest.approx(expected)


def test_a_student_learns_as_much_from_one_batch_as_from_many() -> None:
    """The same images and steps, paid for at once and in many batches: both learn, and by the same
    rates.
    """
    losses = []
    for budget_of_a_batch in (8, 200):
        parts = make_parts(
            LinearTeacher(SPEC), 200, steps=200, schedule=COSINE, lr=LR, replay_capacity=200
        )
        images = torch.rand(200, 1, 8, 8, generator=torch.Generator().manual_seed(0))
        for part in images.split(budget_of_a_batch):
            parts.students.learn(part, parts.oracle(part, "student"))
        net = parts.students.net.eval()
        truth = LinearTeacher(SPEC)(images)
        losses.append((net(images).softmax(1) - truth).abs().mean().item())
    assert losses[1] == pytest.approx(losses[0], rel=0.5)
    assert max(losses) < 0.2


def test_many_batches_have_the_rate_of_the_share_that_is_spent(rates: list[float]) -> None:
    """To the bit what recipes have always had: each batch's steps at the rate at its end."""
    trained("static", 480, steps=120)
    expected = []
    for batch in range(1, 61):
        expected += [LR * Schedule(COSINE).at(batch / 60)] * 2
    assert rates == expected


def test_steps_whose_last_batch_is_held_out_have_a_schedule_all_the_same(
    rates: list[float],
) -> None:
    parts = make_parts(LinearTeacher(SPEC), 16, steps=40, schedule=COSINE, lr=LR)
    images = torch.rand(16, 1, 8, 8)
    parts.students.learn(images[:8], parts.oracle(images[:8], "student"))
    parts.oracle(images[8:], "student")  # is paid for, and teaches nobody
    while parts.students.steps_left:
        parts.students.train_pending(7)
    assert rates == pytest.approx(
        [LR / 2 * (1 + math.cos(math.pi * step / 40)) for step in range(40)]
    )


@pytest.mark.parametrize("plan", ["steps", "all afterwards", "rounds"])
def test_a_resumed_run_goes_on_at_the_rate_where_it_stopped(plan: str, rates: list[float]) -> None:
    def begun() -> tuple[Components, Callable[[int], None]]:
        parts = make_parts(LinearTeacher(SPEC), 24, schedule=COSINE, lr=LR, **PLANS[plan])
        images = torch.rand(24, 1, 8, 8, generator=torch.Generator().manual_seed(0))

        def batch(number: int) -> None:
            part = images[8 * number : 8 * number + 8]
            parts.students.learn(part, parts.oracle(part, "student"))
            while parts.students.steps_due:
                parts.students.train_pending(3)

        return parts, batch

    _, batch = begun()
    for number in range(3):
        batch(number)
    whole = rates.copy()
    rates.clear()
    first, batch = begun()
    batch(0)
    second, batch = begun()
    second.oracle(torch.rand(8, 1, 8, 8), "student")
    second.students.load_state_dict(first.students.state_dict())
    assert second.students._greatest_lr == first.students._greatest_lr
    batch(1)
    batch(2)
    assert rates == whole


def test_a_step_tells_its_rate_and_where_none_is_taken_there_is_none() -> None:
    parts = make_parts(LinearTeacher(SPEC), 8, steps=10, schedule=COSINE, lr=LR)
    images = torch.rand(8, 1, 8, 8)
    metrics = parts.students.learn(images, parts.oracle(images, "student"))
    assert metrics["student_lr"] == pytest.approx(LR / 2 * (1 + math.cos(math.pi * 0.9)))
    assert metrics["student_lr_greatest"] == LR
    assert "student_lr" not in parts.students.learn(images, LinearTeacher(SPEC)(images))
