"""Statistics beside published figures and scipy's."""

import pytest

from dfme.statistics import Spread, difference_interval, means_differ, spread, within_t


def test_the_interval_of_a_difference_is_newcombes_example() -> None:
    """Stat. Med. 17 (1998), table II, example (a), method 10: 56 of 70 against 48 of 80."""
    low, high = difference_interval(56 / 70, 70, 48 / 80, 80)
    assert (low, high) == (pytest.approx(0.0524, abs=5e-5), pytest.approx(0.3339, abs=5e-5))
    back = difference_interval(48 / 80, 80, 56 / 70, 70)
    assert back == (pytest.approx(-high), pytest.approx(-low))
    # at the ends it stays within what a difference can be
    low, high = difference_interval(1.0, 10, 0.0, 10)
    assert 0 < low < high == 1.0


VALUES = (0.0, 0.3, 2.0, 12.7, 500.0)
WITHIN = {
    1: (0.0, 0.1855472, 0.7048328, 0.9499757, 0.9987268),
    1.7: (0.0, 0.2031971, 0.7945099, 0.9889782, 0.9999785),
    2: (0.0, 0.2075143, 0.8164966, 0.9938571, 0.999996),
    4: (0.0, 0.2208786, 0.8838835, 0.9997786, 1.0),
    30.5: (0.0, 0.2337877, 0.9455263, 1.0, 1.0),
    1000: (0.0, 0.2357605, 0.9542297, 1.0, 1.0),
}
"""By degrees of freedom, the probability of t within each of these values on both sides, as
scipy 1.17.1 has it (``stats.t.cdf``).
"""


@pytest.mark.parametrize("degrees", WITHIN)
def test_the_t_distribution_is_scipys(degrees: float) -> None:
    for value, expected in zip(VALUES, WITHIN[degrees], strict=True):
        assert within_t(value, degrees) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(
    ("first", "second", "p"),
    [
        ([0.6, 0.61, 0.62], [0.7, 0.71, 0.72], 0.0002552),
        ([0.5, 0.6, 0.7], [0.7, 0.75, 0.8], 0.1045),
        ([0.5, 0.5001], [0.6, 0.6002], 3.395e-05),
        ([0.5, 0.51, 0.55, 0.52, 0.5], [0.54, 0.56, 0.53, 0.55, 0.57], 0.02091),
        ([0.5, 0.7], [0.9, 0.91], 0.2009),
    ],
)
def test_means_differ_where_welchs_test_says_so(
    first: list[float], second: list[float], p: float
) -> None:
    """``p``: of ``ttest_ind(first, second, equal_var=False)`` of scipy 1.17.1."""
    (one, other) = (spread(values) for values in (first, second))
    assert one is not None
    assert other is not None
    assert means_differ(one, other) == means_differ(other, one) == (p < 0.05)


def test_a_single_value_tells_no_difference_and_equal_values_tell_each() -> None:
    assert not means_differ(Spread(0.1, None, 1), Spread(0.9, 0.01, 3))
    assert means_differ(Spread(0.1, 0.0, 3), Spread(0.2, 0.0, 3))
    assert not means_differ(Spread(0.1, 0.0, 3), Spread(0.1, 0.0, 3))
