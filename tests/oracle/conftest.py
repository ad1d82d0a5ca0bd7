"""A run over HTTP that several tests hold theirs against; no test waits between attempts."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import small_runs

from dfme.oracle.retry import RateLimiter


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """How often a service is asked stays as it is."""
    monkeypatch.setattr(RateLimiter, "pause", lambda self, seconds: None)
    with small_runs.no_pictures():
        yield


@pytest.fixture
def at_once() -> Iterator[None]:
    """Nor does a refusal slow anything down."""
    from processes import no_waiting

    with no_waiting():
        yield


@pytest.fixture(scope="session")
def quiet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on a server that does nothing wrong."""
    from hostile import Hostile
    from processes import extract, finished, meters_agree

    out = tmp_path_factory.mktemp("quiet") / "run"
    with small_runs.no_pictures(), Hostile() as server:
        finished(extract(server, out))
        totals = meters_agree(server, out)
    assert (totals.spent, totals.requests, totals.refused, totals.failed, totals.lost) == (
        400,
        60,
        0,
        0,
        0,
    )
    return out
