"""Learning rates follow the share of the budget."""

import pytest

from dfme.config.settings import ScheduleConfig
from dfme.students.schedule import factor


@pytest.mark.parametrize(
    ("share", "expected"), [(0.0, 1.0), (0.0999, 1.0), (0.1, 0.3), (0.3, 0.09), (0.5, 0.027), (1.0, 0.027)]
)
def test_steps_multiply_at_the_papers_milestones(share, expected):
    assert factor(ScheduleConfig(), share) == pytest.approx(expected)


@pytest.mark.parametrize(("share", "expected"), [(0.0, 1.0), (0.5, 0.5), (1.0, 0.0)])
def test_cosine_falls_to_zero_at_the_end(share, expected):
    assert factor(ScheduleConfig(kind="cosine"), share) == pytest.approx(expected)


def test_constant():
    assert factor(ScheduleConfig(kind="constant"), 0.9) == 1.0
