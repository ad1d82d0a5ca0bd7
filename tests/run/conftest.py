"""Where a run is started by the command line in these tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from small_runs import no_pictures


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty current directory; no report is drawn."""
    monkeypatch.chdir(tmp_path)
    with no_pictures():
        yield tmp_path
