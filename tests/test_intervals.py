"""Statistics beside published figures and scipy's."""

import pytest
from scipy import stats

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


@pytest.mark.parametrize("degrees", [1, 1.7, 2, 4, 30.5, 1_000])
@pytest.mark.parametrize("value", [0.0, 0.3, 2.0, 12.7, 500.0])
def test_the_t_distribution_is_scipys(degrees: float, value: float) -> None:
    expected = stats.t.cdf(value, degrees) - stats.t.cdf(-value, degrees)
    assert within_t(value, degrees) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ([0.60, 0.61, 0.62], [0.70, 0.71, 0.72]),
        ([0.5, 0.6, 0.7], [0.70, 0.75, 0.80]),
        ([0.5, 0.5001], [0.6, 0.6002]),
        ([0.5, 0.51, 0.55, 0.52, 0.5], [0.54, 0.56, 0.53, 0.55, 0.57]),
        ([0.5, 0.7], [0.9, 0.91]),
    ],
)
def test_means_differ_where_welchs_test_of_scipy_says_so(
    first: list[float], second: list[float]
) -> None:
    (one, other) = (spread(values) for values in (first, second))
    assert one is not None
    assert other is not None
    expected = stats.ttest_ind(first, second, equal_var=False).pvalue < 0.05
    assert means_differ(one, other) == means_differ(other, one) == expected


def test_a_single_value_tells_no_difference_and_equal_values_tell_each() -> None:
    assert not means_differ(Spread(0.1, None, 1), Spread(0.9, 0.01, 3))
    assert means_differ(Spread(0.1, 0.0, 3), Spread(0.2, 0.0, 3))
    assert not means_differ(Spread(0.1, 0.0, 3), Spread(0.1, 0.0, 3))
