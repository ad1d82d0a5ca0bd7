"""Many small cases in one test: every one is looked at, and the failure lists all that do not
hold.
"""

from collections.abc import Callable, Iterable

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
