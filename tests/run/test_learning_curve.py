"""How a learning curve goes on: by curves whose law is known, and by the recorded ones, whose end
is.
"""

import math
from dataclasses import astuple

import pytest

from dfme.run.forecast import (
    GOALS,
    LAW,
    REACH,
    Law,
    RunPace,
    logit,
    pace,
    scores_after_training,
    start_of,
)
from dfme.run.job import PROJECT
from research.recorded_curves import coverage, law_of, read_curves

CURVES = PROJECT / "docs" / "results" / "curves.csv"
IMAGES = 10**9
"""Of which counting errs by nothing."""


def curve(level: float, slope: float, *queries: int) -> list[tuple[int, float]]:
    """Agreements whose logit is ``level`` at 1,000 queries and rises by ``slope`` as they grow
    e-fold.
    """
    return [
        (queries_so_far, 1 / (1 + math.exp(-level - slope * math.log(queries_so_far / 1000))))
        for queries_so_far in queries
    ]


def test_the_level_is_that_of_a_straight_line_of_logits_and_is_drawn_on_by_the_rise():
    start = start_of(curve(1.0, 0.8, 100, 250, 600, 1000), IMAGES)
    assert (start.queries, start.level) == (1000, pytest.approx(1.0))
    assert start.width == pytest.approx(1.0, abs=1e-4)
    # A rise of 1.1 - 0.3 * 1; 0.9 is a logit of ln 9: by hand 1000 * e^((ln 9 - 1) / 0.8)
    assert start.queries_to(Law(1.1, 0.3, 0.0, 0.0), 0.9) == pytest.approx([4466.6] * 3, rel=1e-4)
    assert start.agreement(Law(1.1, 0.3, 0.0, 0.0), 4466.6) == pytest.approx([0.9] * 3, rel=1e-4)
    # and half as steep: twice the distance, 4.4666^2, which is beyond ten times the pilot
    assert start.queries_to(Law(0.4, 0.0, 0.0, 0.0), 0.9) == [None] * 3
    assert start.queries_to(Law(0.4, 0.0, 0.0, 0.0), 0.8) == pytest.approx(
        [1000 * (4 / math.e) ** 2.5] * 3, rel=1e-6
    )


def test_the_level_follows_the_later_scores_more():
    """A line through (1/4, 0), (1/2, 1), (1, 2) and then 2 more."""
    points = [
        (q, 1 / (1 + math.exp(-y))) for q, y in ((250, 0.0), (500, 1.0), (1000, 2.0), (2000, 2.0))
    ]
    x, y, w = [-3, -2, -1, 0], [0, 1, 2, 2], [0.125, 0.25, 0.5, 1]  # x in doublings
    mean_x, mean_y = (sum(map(math.prod, zip(w, scene, strict=True))) / sum(w) for scene in (x, y))
    slope = sum(c * (a - mean_x) * (b - mean_y) for a, b, c in zip(x, y, w, strict=True)) / sum(
        c * (a - mean_x) ** 2 for a, c in zip(x, w, strict=True)
    )
    assert start_of(points, IMAGES).level == pytest.approx(mean_y - slope * mean_x)


def test_the_interval_is_where_lines_so_many_widths_off_reach_the_goal():
    start, law = start_of(curve(1.0, 0.8, 100, 250, 600, 1000), IMAGES), Law(0.6, 0.0, -0.1, 0.2)
    low, expected, high = start.queries_to(law, 0.85)
    assert [low, expected, high] == pytest.approx(
        [1000 * math.exp((logit(0.85) - 1 - z) / (0.6 + z / 4)) for z in (0.2, 0.0, -0.1)], rel=1e-3
    )
    assert start.agreement(law, low or 0)[2] == pytest.approx(0.85, rel=1e-4)
    assert start.agreement(law, high or 0)[0] == pytest.approx(0.85, rel=1e-4)
    assert start.queries_to(Law(0.6, 0.0, -2.5, 0.2), 0.85)[2] is None, (
        "a line that falls never gets there"
    )
    assert start.queries_to(Law(0.6, 0.0, -2.5, 1.0), 0.85)[0] == 1000, (
        "a line that is there at once"
    )


def test_counting_on_few_images_widens_the_interval():
    widths = [
        start_of(curve(1.0, 0.8, 100, 300, 1000), images).width for images in (IMAGES, 400, 100)
    ]
    share = 1 / (1 + math.exp(-1))
    assert widths[1] - widths[0] == pytest.approx(
        1 / math.sqrt(400 * share * (1 - share)), abs=1e-3
    )
    assert widths[2] - widths[0] == pytest.approx(2 * (widths[1] - widths[0]), abs=1e-3)


@pytest.mark.parametrize(
    "points",
    [
        [],
        [(10, 0.5), (20, 0.6)],
        [(10, 0.5)] * 1 + [(20, 0.5), (40, 0.5)],
        curve(1, -0.3, 10, 20, 90),
    ],
)
def test_without_a_rise_nothing_is_drawn_on(points: list[tuple[int, float]]):
    assert start_of(points, 100) is None


def test_a_score_counts_once_for_each_time_that_the_student_learnt():
    lines = [
        (50, 0.1, 0),
        (100, 0.1, None),
        (100, 0.4, 30),
        (150, 0.41, 30),
        (200, None, 60),
        (200, 0.6, 60),
    ]
    records = [
        dict(zip(("queries", "agreement", "student_steps"), item, strict=True)) for item in lines
    ]
    assert scores_after_training(records) == [(100, 0.4), (200, 0.6)]


def test_the_pace_of_queries_and_of_rounds_is_told_apart():
    """Two thousandths of a second for a query, a hundredth for a step."""
    at = [(50, 0), (100, 0), (100, 30), (150, 30), (200, 60)]
    assert astuple(
        pace([{"queries": q, "student_steps": s, "seconds": 0.002 * q + 0.01 * s} for q, s in at])
    ) == pytest.approx((0.002, 0.01))
    following = [
        {"queries": q, "student_steps": q / 10, "seconds": 0.003 * q} for q in (50, 100, 200)
    ]
    assert pace(following) == RunPace(pytest.approx(0.003), 0.0)


def test_the_constants_are_those_of_the_recorded_curves():
    curves = read_curves(CURVES)
    assert law_of(curves) == LAW
    assert CURVES.stat().st_size < 100_000
    assert all(
        curve_of_run.points[-1][0] >= 0.99 * REACH * curve_of_run.pilot for curve_of_run in curves
    )


def test_the_truth_lies_in_the_interval_made_from_other_curves_in_four_of_five():
    covered = [*coverage(read_curves(CURVES))]
    assert {goal for _, goal, _, _ in covered} == set(GOALS)
    for reached in (True, False):
        held = [item[3] for item in covered if item[2] == reached]
        assert len(held) >= 8
        assert sum(held) / len(held) >= 0.8
