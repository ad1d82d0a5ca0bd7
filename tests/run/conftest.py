"""Runs in these tests draw no report, which takes longer than all the rest."""

from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest
from small_runs import no_pictures, no_rehearsal

FORETELLING = {"test_dry_run", "test_loop", "test_own_parts", "test_timing"}
"""Tests of the time that is foretold, and of what is rehearsed."""


@pytest.fixture(scope="package", autouse=True)
def _no_pictures() -> Iterator[None]:
    with no_pictures():
        yield


@pytest.fixture(scope="module", autouse=True)
def _no_rehearsal(request: pytest.FixtureRequest) -> Iterator[None]:
    with nullcontext() if request.module.__name__ in FORETELLING else no_rehearsal():
        yield


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path
