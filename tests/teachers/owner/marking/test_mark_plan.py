"""How much of a marking fits a time, and the time that is left of it."""

import pytest

from dfme.errors import UserError
from dfme.teachers.owner.marking import plan as plans
from dfme.teachers.owner.marking.options import MarkTools
from dfme.teachers.owner.marking.plan import MarkProgress, Plan, StepSeconds, plan_within

PACE = StepSeconds(copy_step=0.01, teach_step=0.02, scoring=5.0)


def tools(lines: list[str]) -> MarkTools:
    return MarkTools(
        augment=lambda x_BCHW, rng: x_BCHW,
        e_value=lambda hits, marks, p_null: 1.0,
        sure=100.0,
        show=lines.append,
        tell=lines.append,
        duration=lambda seconds: f"{seconds:.0f} s",
    )


def test_without_a_limit_everything_is_done() -> None:
    whole = plan_within(6, PACE, None)
    assert whole == Plan(6, 2000, 1500)
    assert whole.seconds(PACE) == pytest.approx(9 * 20 + 30 + 5)


@pytest.mark.parametrize(
    ("minutes", "expected"),
    [
        (215 / 60, Plan(6, 2000, 1500)),
        (200 / 60, Plan(5, 2000, 1500)),
        (134 / 60, Plan(4, 1500, 1125)),
        (71 / 60, Plan(2, 1000, 750)),
    ],
)
def test_the_largest_plan_that_fits_is_taken(minutes: float, expected: Plan) -> None:
    assert plan_within(6, PACE, minutes) == expected
    assert expected.seconds(PACE) <= 60 * minutes


def test_too_little_time_is_refused_with_what_is_needed() -> None:
    with pytest.raises(UserError, match=r"--minutes: expected at least 1\.2 .*, got 1"):
        plan_within(6, PACE, 1.0)
    with pytest.raises(UserError, match=r"expected at least 1 "):
        plan_within(1, PACE, 0.5)


def test_the_rest_is_foretold_by_the_pace_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(plans.time, "monotonic", lambda: now)
    lines: list[str] = []
    progress = MarkProgress(100.0, tools(lines))
    say = progress.steps("copy", 50, 1.0)
    for done in range(1, 26):
        now += 2.0  # twice as slow as foretold
        say(done)
    assert lines[-1] == "copy: step 25 of 50  150 s left"
    progress.skip(50.0)
    assert progress.left == pytest.approx(50.0)


def test_steps_of_an_earlier_session_are_done_but_say_nothing_of_the_pace() -> None:
    progress = MarkProgress(100.0, tools([]))
    progress.steps("copy", 50, 1.0)(41)
    assert progress._left == pytest.approx(59.0)
    assert progress._done == pytest.approx(1.0)
