"""Rows of a table that only the ``exhaustive`` tier runs."""

from collections.abc import Iterable
from typing import Any

import pytest


def exhaustive(*values: Any) -> list[Any]:
    """Values of one parameter."""
    return [pytest.param(value, marks=pytest.mark.exhaustive) for value in values]


def exhaustive_rows(rows: Iterable[tuple[Any, ...]]) -> list[Any]:
    """Rows of several parameters."""
    return [pytest.param(*row, marks=pytest.mark.exhaustive) for row in rows]
