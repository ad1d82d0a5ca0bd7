"""When the students' steps are taken, and what a round of training leaves of their weights."""

import pytest
import torch
from small_runs import fed, run
from toys import LinearTeacher, make_method, make_parts

from dfme.config.settings import ExtractConfig, Job, ScheduleConfig, StudentConfig, TeacherConfig
from dfme.methods import METHODS
from dfme.run.checks import method_problems
from dfme.spec import ImageSpec
from dfme.students.optimizers import Schedule, StepPlan, weight_decay
from dfme.students.trainer import shrink_and_perturb

SPEC = ImageSpec((1, 8, 8))
QUARTERS = StepPlan(0, (30, 30, 30), (0.25, 0.5, 1.0))


@pytest.mark.parametrize(
    ("config", "plan"),
    [
        (StudentConfig(), StepPlan()),
        (StudentConfig(steps=100), StepPlan(100)),
        (StudentConfig(steps=100, rounds=(1.0,)), StepPlan(0, (100,))),
    ],
)
def test_a_plan_adds_up_to_the_steps(config, plan):
    assert StepPlan.of(config, 1_000) == plan
    assert plan.edges[-1] == config.steps


def test_progress_is_the_share_spent_or_how_far_the_last_round_is():
    assert StepPlan(100).progress(0.3, 30) == StepPlan().progress(0.3, 500) == 0.3
    assert StepPlan(0, (100,)).progress(1.0, 25) == 0.25


MILESTONES = [(0.0, 1.0), (0.0999, 1.0), (0.1, 0.3), (0.3, 0.09), (0.5, 0.027), (1.0, 0.027)]


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        (ScheduleConfig(), MILESTONES),
        (ScheduleConfig(kind="cosine"), [(0.0, 1.0), (0.5, 0.5), (1.0, 0.0)]),
        (ScheduleConfig(kind="constant"), [(0.9, 1.0)]),
    ],
)
def test_learning_rates_follow_the_share_of_the_budget(schedule, expected):
    assert [Schedule(schedule).at(share) for share, _ in expected] == pytest.approx(
        [factor for _, factor in expected]
    )


@pytest.mark.parametrize(
    ("images", "expected"), [(400, 0.05), (1_600, 0.025), (100, 0.1), (25, 0.1)]
)
def test_weight_decay_falls_with_the_root_of_what_is_held(images, expected):
    assert weight_decay(
        StudentConfig(weight_decay=0.05, decay_images=400, replay_batch=100), images
    ) == pytest.approx(expected)
    assert weight_decay(StudentConfig(weight_decay=0.05), images) == 0.05


def test_the_optimiser_decays_the_weights_by_it():
    """With no gradient to speak of, a step of SGD takes lr * decay of each weight."""
    _, trainer = fed(
        8, steps=1, rounds=(1.0,), weight_decay=0.01, decay_images=64, momentum=0.0, lr=0.5
    )
    before = [parameter.detach().clone() for parameter in trainer.net.parameters()]
    trainer.train_pending(1)
    for old, now in zip(before, trainer.net.parameters(), strict=True):
        torch.testing.assert_close(now.detach(), old - 0.5 * (now.grad + 0.01 * 8**0.5 * old))


@pytest.mark.parametrize("steps", [37, 4])
def test_steps_are_spread_evenly_over_the_budget_and_none_is_left_out(steps):
    steps_taken, trainer = fed(80, steps=steps)
    assert steps_taken[-1] == steps
    assert steps < 10 or steps_taken == [round(steps * (batch + 1) / 10) for batch in range(10)]
    assert len(trainer.replay) == 64, "the toy's capacity"
    assert trainer.steps_left == 0


def test_a_lone_round_is_taken_after_the_budget():
    steps_taken, trainer = fed(80, steps=10, rounds=(1.0,))
    assert steps_taken == [0] * 10
    assert trainer.steps_left == 10
    trainer.train_pending(4)
    assert (trainer.steps, trainer.steps_left) == (4, 6)
    trainer.train_pending(50)
    assert (trainer.steps, trainer.steps_left, trainer.progress) == (10, 0, 1.0)


def test_rounds_take_parts_of_the_steps_like_passes_over_what_they_hold():
    rounds = (0.16, 0.36, 1.0)
    assert StepPlan.of(StudentConfig(steps=200, rounds=rounds), 1_000).final == (40, 60, 100)
    passes = StepPlan.of(
        StudentConfig(passes=64, rounds=rounds, replay_batch=1), 10**6, 10**6
    ).final
    assert [steps / passes[-1] for steps in passes] == pytest.approx([0.4, 0.6, 1.0], rel=1e-4)
    assert QUARTERS.edges == [0, 30, 60, 90]


def test_what_is_owed_follows_the_share_of_the_budget_spent():
    """The last but one is a step of a service that jumps over a round."""
    before = {(0.0, 0): 0, (0.249, 0): 0, (0.25, 0): 30, (0.25, 12): 18, (0.3, 30): 0}
    owed = before | {(0.5, 30): 30, (0.99, 60): 0, (0.6, 0): 60, (1, 60): 30}
    assert {at: QUARTERS.steps_due(*at) for at in owed} == owed


def test_under_a_larger_budget_those_rounds_come_that_lie_beyond_what_is_spent():
    """All of 100 are spent, then 300 may be: 150 and 300 lie beyond, 75 does not."""
    grown = QUARTERS.goes_on(QUARTERS, spent=1.0, since=100 / 300)
    assert grown.edges == [0, 30, 60, 90, 120, 150]
    owed = {(100, 90): 0, (149, 90): 0, (150, 90): 30, (150, 100): 20}
    owed |= {(299, 120): 0, (300, 120): 30, (300, 60): 90}
    assert {at: grown.steps_due(at[0] / 300, at[1]) for at in owed} == owed
    assert [grown.progress(0.5, steps) for steps in (90, 105, 119)] == pytest.approx(
        [0, 0.5, 29 / 30]
    )
    assert [grown.round_at(steps) for steps in (90, 100, 120, 150)] == [3, -1, 4, -1]


def test_a_budget_that_grows_in_the_midst_keeps_the_rounds_that_were_due():
    grown = QUARTERS.goes_on(
        QUARTERS, spent=0.6, since=0.06
    )  # 25 and 50 were due; 250, 500 and 1,000 come
    assert grown.edges[-1] == 150
    assert [grown.steps_due(queries / 1_000, 40) for queries in (60, 249, 250, 1_000)] == [
        20,
        20,
        50,
        110,
    ]
    again = grown.goes_on(
        QUARTERS, spent=0.6, since=0.3
    )  # 250 and 500 were due; 1,000 and 2,000 come
    assert (again.edges[-1], again.steps_due(0.4, 120), again.steps_due(0.5, 120)) == (180, 0, 30)


PASSES = StudentConfig(passes=2, rounds=(0.16, 0.64, 1.0), replay_batch=100)


def test_passes_take_steps_by_what_is_held():
    """Of 5,000 images 800, 3,200 and 5,000 are held: 5, 2.5 and 2 passes in steps of 100."""
    plan = StepPlan.of(PASSES, 5_000)
    assert plan == StepPlan(0, (40, 80, 100), PASSES.rounds)
    assert plan.edges == [0, 40, 120, 220]
    assert StepPlan.of(PASSES, 5_000, most=800).final == (40, 40, 40), "the replay holds no more"
    assert StepPlan.of(PASSES, 4_999).final == (40, 80, 100), (
        "a last batch that is not full is a step"
    )
    assert StepPlan.of(StudentConfig(passes=2, rounds=(1.0,), steps=50), 5_000).final == (50,), (
        "steps go first"
    )


def test_under_a_larger_budget_rounds_that_were_due_keep_their_steps():
    """Of 5,000 and then of 20,000 images: 12,800 and 20,000 lie beyond the 3,300 that are spent."""
    grown = StepPlan.of(PASSES, 5_000).goes_on(StepPlan.of(PASSES, 20_000), spent=0.66, since=0.165)
    assert grown.edges == [0, 40, 120, 280, 480]
    assert [grown.steps_due(queries / 20_000, 100) for queries in (3_300, 12_800, 20_000)] == [
        20,
        180,
        380,
    ]


@pytest.mark.parametrize(
    ("held", "batch"), [(10, 64), (4_000, 64), (8_000, 125), (16_384, 256), (10**6, 256)]
)
def test_a_growing_replay_batch_goes_with_what_is_held(held: int, batch: int):
    assert StudentConfig(replay_batch="growing").batch(held) == batch
    assert StudentConfig(replay_batch=32).batch(held) == 32


@pytest.mark.parametrize(
    ("steps", "progress"), [(0, 0.0), (15, 0.5), (30, 0.0), (45, 0.5), (89, 29 / 30), (90, 1.0)]
)
def test_each_round_has_the_whole_schedule(steps: int, progress: float):
    assert QUARTERS.progress(0.4, steps) == pytest.approx(progress)


def test_the_loop_trains_in_rounds_and_scores_the_student_after_each():
    parts = make_parts(LinearTeacher(SPEC), 160, steps=300, rounds=(0.3, 0.7, 1.0))
    ends = parts.students.plan.edges
    ledger, trainer = parts.oracle.ledger, parts.students
    steps_taken: list[tuple[int, int]] = []

    def watched() -> bool:
        steps_taken.append((ledger.spent, trainer.steps))
        return False

    finished, listener = run(make_method("static", parts), parts, points=2, stopped=watched)
    assert finished
    between = [
        {steps for spent, steps in steps_taken if low < spent < high}
        for low, high in ((0, 48), (48, 112))
    ]
    assert between == [{0}, {ends[1]}], "no step is taken between rounds"
    assert (parts.students.steps, parts.students.steps_left) == (300, 0)
    # In steps of 16 images: a quarter and an eighth, the rounds' ends (48, 112, 160), and the two
    # halves.
    assert listener.evaluated == [32, 48, 48, 80, 112, 160, 160]


@pytest.mark.parametrize("shrink", [0.0, 0.4, 1.0])
def test_a_round_begins_with_part_of_the_weights_and_the_rest_anew(shrink: float):
    _, trainer = fed(
        80, steps=30, rounds=(0.25, 1.0), shrink=shrink, lr=1e-9, weight_decay=0.0, average=0.5
    )
    trainer.train_pending(10)
    before = [parameter.detach().clone() for parameter in trainer.net.parameters()]
    buffers = [buffer.clone() for buffer in trainer.net.buffers()]
    fresh = trainer._fresh(1)[0]
    shrink_and_perturb(trainer.net, fresh, 1.0)
    assert all(map(torch.equal, buffers, trainer.net.buffers())), "statistics stay"
    trainer.train_pending(1)
    for old, new, now in zip(before, fresh.parameters(), trainer.net.parameters(), strict=True):
        torch.testing.assert_close(now, shrink * old + (1 - shrink) * new, atol=1e-6, rtol=0)
    for now, averaged in zip(trainer.net.parameters(), trainer.delivered.parameters(), strict=True):
        torch.testing.assert_close(
            averaged, now
        )  # an average over the last round would remember what it was


@pytest.mark.parametrize(
    ("student", "keys"),
    [
        ({"rounds": (0.5, 1.0)}, ["student.rounds"]),  # without steps
        ({"rounds": (0.5, 1.0), "passes": 2}, []),
        ({"passes": 2}, ["student.passes"]),
        ({"rounds": (0.25, 0.5, 1.0), "steps": 2}, ["student.rounds"]),
        (
            {"rounds": (1.0,), "steps": 10, "replay_steps": 2},
            [],
        ),  # steps go before replay steps, here too
        ({"rounds": (0.25, 0.5, 1.0), "steps": 3}, []),
        ({"decay_images": 100}, ["student.decay_images"]),
        ({"decay_images": 100, "replay_steps": 1}, []),
    ],
)
def test_plans_that_rule_each_other_out_are_refused(student: dict[str, object], keys: list[str]):
    config = ExtractConfig(student=StudentConfig(**student))
    job = Job(config, TeacherConfig(), {}, "static", METHODS["static"].config())
    assert [problem.key for problem in method_problems(job)] == keys


@pytest.mark.parametrize("rounds", [(0.5, 0.9), (0.5, 0.5, 1.0)])
def test_rounds_are_increasing_shares_up_to_the_whole(rounds: tuple[float, ...]):
    with pytest.raises(
        ValueError, match="expected increasing shares of the budget, the last one 1"
    ):
        StudentConfig(rounds=rounds, steps=10)
