"""A run over HTTP that several test files hold theirs against."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def quiet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on a server that does nothing wrong."""
    import small_runs
    from hostile import Hostile
    from http_runs import extract, finished, meters_agree

    out = tmp_path_factory.mktemp("quiet") / "run"
    with small_runs.no_pictures(), Hostile() as server:
        finished(extract(server, out))
        totals = meters_agree(server, out)
    assert (totals.spent, totals.requests, totals.refused, totals.failed, totals.lost) == (400, 60, 0, 0, 0)
    return out
