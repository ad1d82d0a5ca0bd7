"""Links in a run's directory, under every name that a run writes: nothing elsewhere is written or
deleted.
"""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from small_runs import Metered, clone, ctrl_c
from tables import all_hold, exhaustive

from dfme.audits.compare.engines.pool import start
from dfme.audits.compare.session import Session
from dfme.cli.main import main
from dfme.config.sections import WandbConfig
from dfme.errors import DfmeError, RunError
from dfme.report.wandb_run import WandbRun

STUDENT = {"lr": 0.01, "replay_steps": 1, "replay_batch": 8, "replay_store": "disk"}
ON_DISK: dict[str, Any] = {"student": STUDENT, "budget": 300}
FILES = "config.yaml ledger.jsonl metrics.jsonl checkpoint.pt checkpoint.previous.pt".split()
FILES += ["student.safetensors", "summary.json"]


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run stopped at 100 of its 300 images, then at 200, with answers kept on disk."""
    out = tmp_path_factory.mktemp("begun") / "run"
    clone(out, Metered({3: ctrl_c}), **ON_DISK)
    clone(out, Metered({3: ctrl_c}), resume=True, **ON_DISK)
    return out


def contents(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


@pytest.fixture
def unharmed(begun: Path, tmp_path: Path) -> Callable[[str], str]:
    """Put a link under a name of a copy of the run, go on with it, and give what it said, if it
    stopped.

    The link leads to what lay there, or to a file of somebody else's, beside others that a run
    would clear away.
    """

    def go_on(name: str) -> str:
        out = tmp_path / f"run{len(list(tmp_path.iterdir()))}"
        shutil.copytree(begun, out)
        elsewhere, place = out.with_suffix(".elsewhere"), out / name
        elsewhere.mkdir()
        if place.is_dir():
            shutil.move(place, elsewhere / "target")
            for other in ("000000.bin", "queries-000000399.npz", "000099.items", "mine"):
                (elsewhere / "target" / other).write_bytes(b"mine")
        elif place.exists():
            shutil.move(place, elsewhere / "target")
        else:
            (elsewhere / "target").write_bytes(b"mine")
        place.symlink_to(elsewhere / "target")
        before = contents(elsewhere)
        said = ""
        try:
            clone(out, Metered(), resume=True, **ON_DISK)
        except DfmeError as error:
            said = str(error)
        assert contents(elsewhere) == before
        assert "\n" not in said
        return said

    return go_on


def test_a_link_in_the_place_of_a_folder_is_refused_by_its_name(
    unharmed: Callable[[str], str],
) -> None:
    for name in ("journal", "samples", "replay"):
        assert f"/{name}: it is a link" in unharmed(name)


@pytest.mark.parametrize("which", ["files", *exhaustive("within", "drafts")])
def test_a_link_in_the_place_of_a_file_harms_nothing(
    which: str, begun: Path, unharmed: Callable[[str], str]
) -> None:
    within = [name for name in contents(begun) if "/" in name]
    assert {name.partition("/")[0] for name in within} >= {"journal", "samples", "replay"}
    drafts = [f"{name}.tmp" for name in (*FILES, within[0])]
    names = {"files": [*FILES, ".lock"], "within": within, "drafts": drafts}[which]
    all_hold(unharmed, ((name,) for name in names))  # type: ignore[arg-type]


@pytest.mark.integration
def test_wandb_is_not_let_into_a_folder_elsewhere(tmp_path: Path) -> None:
    """It follows the link, so it is not even asked; the run goes on without it."""
    run, elsewhere, lines = tmp_path / "run", tmp_path / "elsewhere", list[str]()
    run.mkdir()
    elsewhere.mkdir()
    (run / "wandb").symlink_to(elsewhere)
    (run / "wandb.json").symlink_to(elsewhere / "file")
    tracked = WandbRun(WandbConfig(mode="offline"), run, {}, lines.append)
    assert tracked._run is None
    assert "wandb: it is a link" in lines[0]
    assert os.listdir(elsewhere) == []


# Comparisons


@pytest.mark.integration
def test_what_a_cell_says_is_not_added_to_a_file_elsewhere(tmp_path: Path) -> None:
    precious, log = tmp_path / "precious", tmp_path / "cell.log"
    precious.write_bytes(b"mine")
    log.symlink_to(precious)
    assert start(["--version"], log, 1).wait(60) == 0
    assert precious.read_bytes() == b"mine"
    assert log.read_text().startswith("dfme ")


def test_the_cells_of_a_comparison_lie_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The folder of all cells, or that of one: nothing is begun in what a link leads to."""
    out, elsewhere = tmp_path / "compared", tmp_path / "elsewhere"
    elsewhere.mkdir()
    words = "compare --methods static --seeds 0 --budgets 100 --out".split()
    with monkeypatch.context() as patch:
        patch.setattr(Session, "run", lambda session, stopped: True)
        assert main([*words, str(out)]) == 130
    for name in ("cells", "cells/static-probabilities-100-seed0"):
        place = out / name
        shutil.rmtree(place, ignore_errors=True)
        place.symlink_to(elsewhere)
        assert main(["compare", "--resume", "--out", str(out)]) == RunError.exit_code
        assert f"cannot write into {place}: it is a link" in capsys.readouterr().err
        assert os.listdir(elsewhere) == []
        place.unlink()
        place.mkdir()
