"""Where the command line is started in these tests, and a stand-in for what runs a job."""

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from command_line import PARSED, RECIPE, SERVING

from dfme.config.settings import Job


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A current directory with a recipe, a file of weights and modules of one's own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    modules = {"own_teachers": PARSED, "own_broken": "x = 1\ny = x / 0\n", "own": SERVING}
    for name, text in modules.items():
        monkeypatch.delitem(sys.modules, name, raising=False)
        (tmp_path / f"{name}.py").write_text(text)
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    (tmp_path / "weights.pt").touch()
    return tmp_path


@pytest.fixture
def fake_build(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """``dfme.run.build`` replaced by one that only notes what it is asked to run."""
    calls: list[tuple[Any, ...]] = []
    module = ModuleType("dfme.run.build")

    def run_job(
        job: Job, *, teacher: Any = None, resume: bool = False, console: bool = True, **_: Any
    ) -> Any:
        calls.append((job, teacher, resume, console))
        return SimpleNamespace(finished=True)

    module.run_job = run_job  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "dfme.run.build", module)
    return calls
