"""Runs that several test files start from; made once a module, when a test asks for them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nothing disturbed."""
    from small_runs import Metered, clone

    out = tmp_path_factory.mktemp("whole") / "run"
    clone(out, Metered())
    return out


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    """A run with a checkpoint and answers beyond it, and the images its teacher served; to be copied."""
    import small_runs

    out = tmp_path_factory.mktemp("cut_short") / "run"
    return out, small_runs.cut_short(out)


@pytest.fixture
def cut_short(master: tuple[Path, int], tmp_path: Path) -> tuple[Path, int]:
    """A copy of ``master`` of the test's own."""
    shutil.copytree(master[0], tmp_path / "run")
    return tmp_path / "run", master[1]
