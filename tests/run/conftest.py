"""Runs in these tests draw no report, which takes longer than all the rest."""

from collections.abc import Iterator

import pytest
from small_runs import no_pictures


@pytest.fixture(scope="module", autouse=True)
def _no_pictures() -> Iterator[None]:
    with no_pictures():
        yield
