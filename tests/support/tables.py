"""Many small cases in one test, and rows that only the exhaustive tier runs."""

from collections.abc import Callable, Iterable
from typing import Any

import pytest


def all_hold(check: Callable[..., None], cases: Iterable[tuple[object, ...]]) -> None:
    """``check(*case)`` for each case."""
    offenders, table = [], list(cases)
    for case in table:
        try:
            check(*case)
        except (Exception, pytest.fail.Exception) as error:
            offenders.append(f"{case!r:.200}: {type(error).__name__}: {error}")
    assert table, "no case"
    assert not offenders, "\n".join(offenders)


def exhaustive(*values: Any) -> list[Any]:
    """Values of one parameter."""
    return [pytest.param(value, marks=pytest.mark.exhaustive) for value in values]


def exhaustive_rows(rows: Iterable[tuple[Any, ...]]) -> list[Any]:
    """Rows of several parameters."""
    return [pytest.param(*row, marks=pytest.mark.exhaustive) for row in rows]
