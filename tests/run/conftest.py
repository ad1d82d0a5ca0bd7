"""Runs in these tests draw no report, which takes longer than all the rest."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from small_runs import no_pictures


@pytest.fixture(scope="package", autouse=True)
def _no_pictures() -> Iterator[None]:
    with no_pictures():
        yield


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path
