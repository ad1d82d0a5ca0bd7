"""Links in a run's directory, under every name that a run writes: nothing elsewhere is written or deleted."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import small_runs
from small_runs import Metered, clone
from tables import all_hold

from dfme.benchmarks.compare.processes import start
from dfme.benchmarks.compare.session import Session
from dfme.cli.main import main
from dfme.config.settings import WandbConfig
from dfme.errors import DfmeError, RunError
from dfme.report.wandb_run import WandbRun
from dfme.run.retrain import retrain

ON_DISK: dict[str, Any] = {"student": {"lr": 0.01, "replay_steps": 1, "replay_batch": 8, "replay_store": "disk"}}
FOLDERS = ("journal", "samples", "replay")
FILES = (
    *("config.yaml", "ledger.jsonl", "metrics.jsonl", "checkpoint.pt", "checkpoint.previous.pt"),
    *("student.safetensors", "summary.json", ".lock"),
)
WITHIN = ("journal/000001.bin", "journal/000002.bin", "samples/queries-000000400.npz", "replay/000000.items")
DRAFTS = tuple(f"{name}.tmp" for name in (*FILES[:-1], WITHIN[2]))


@pytest.fixture(scope="module", autouse=True)
def _no_pictures() -> Iterator[None]:
    with small_runs.no_pictures():
        yield


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run stopped at 100 of its 400 images, then at 200, with answers kept on disk."""
    out = tmp_path_factory.mktemp("begun") / "run"
    clone(out, Metered({3: small_runs.ctrl_c}), **ON_DISK)
    clone(out, Metered({3: small_runs.ctrl_c}), resume=True, **ON_DISK)
    return out


def contents(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def unharmed(begun: Path, tmp_path: Path) -> Callable[[str], str]:
    """Put a link under a name of a copy of the run, go on with it, and give what it said, if it stopped.

    The link leads to what lay there, or to a file of somebody else's, beside others that a run would clear away.
    """
    numbers = itertools.count()

    def go_on(name: str) -> str:
        out = Path(shutil.copytree(begun, tmp_path / f"run{next(numbers)}"))
        elsewhere, place = out.with_suffix(".elsewhere"), out / name
        elsewhere.mkdir()
        if name in FOLDERS:
            shutil.move(place, elsewhere / "folder")
            for other in ("000000.bin", "queries-000000399.npz", "000099.items", "mine"):
                (elsewhere / "folder" / other).write_bytes(b"mine")
            place.symlink_to(elsewhere / "folder")
        else:
            (elsewhere / "file").write_bytes(b"mine")
            if place.exists():
                shutil.move(place, elsewhere / "file")
            place.symlink_to(elsewhere / "file")
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


def test_a_link_in_the_place_of_a_folder_is_refused_by_its_name(unharmed: Callable[[str], str]) -> None:
    """What lay behind ``journal`` and ``samples`` was written to, and deleted."""

    def holds(name: str) -> None:
        said = unharmed(name)
        assert said.startswith("cannot write into "), said
        assert f"/{name}: it is a link; put the folder itself there" in said

    all_hold(holds, ((name,) for name in FOLDERS))


@pytest.mark.parametrize("names", [FILES, WITHIN, DRAFTS], ids=["files", "within", "drafts"])
def test_a_link_in_the_place_of_a_file_harms_nothing(names: tuple[str, ...], unharmed: Callable[[str], str]) -> None:
    all_hold(unharmed, ((name,) for name in names))  # type: ignore[arg-type]


def test_a_new_run_in_a_directory_with_links_alone(tmp_path: Path) -> None:
    """Two names may be there before a run begins: what one that was killed at its very start has left."""
    precious = tmp_path / "precious"
    precious.write_bytes(b"mine")
    for name in (".lock", "config.yaml.tmp"):
        out = tmp_path / name.strip(".")
        out.mkdir()
        (out / name).symlink_to(precious)
        with contextlib.suppress(DfmeError):
            clone(out, Metered())
        assert precious.read_bytes() == b"mine"


def test_wandb_is_not_let_into_a_folder_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It follows the link, so it is not even asked; the run goes on without it."""
    run, elsewhere, told = tmp_path / "run", tmp_path / "elsewhere", list[str]()
    run.mkdir()
    elsewhere.mkdir()
    (run / "wandb").symlink_to(elsewhere)
    (run / "wandb.json").symlink_to(elsewhere / "file")
    tracked = WandbRun(WandbConfig(mode="offline"), run, {}, told.append)
    assert not tracked.active
    assert "wandb: it is a link; put the folder itself there; the run goes on without it" in told[0]
    assert os.listdir(elsewhere) == []


def test_retrain_reads_kept_answers_behind_a_link_and_writes_none(begun: Path, tmp_path: Path) -> None:
    run, elsewhere = tmp_path / "run", tmp_path / "elsewhere"
    shutil.copytree(begun, run)
    clone(run, Metered(), resume=True, **ON_DISK)
    shutil.move(run / "replay", elsewhere)
    (run / "replay").symlink_to(elsewhere)
    before = contents(elsewhere)
    from dfme.config.settings import ExtractConfig, StudentConfig

    retrain(run, tmp_path / "again", ExtractConfig(student=StudentConfig(steps=2, replay_batch=8)), lambda line: None)
    assert contents(elsewhere) == before


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
    words = ["compare", "--methods", "static", "--seeds", "0", "--budgets", "100"]
    with monkeypatch.context() as patch:
        patch.setattr(Session, "run", lambda session, stopped: True)
        assert main([*words, "--out", str(out)]) == 130

    def holds(name: str) -> None:
        place = out / name
        shutil.rmtree(place, ignore_errors=True)
        place.symlink_to(elsewhere)
        assert main(["compare", "--resume", "--out", str(out)]) == RunError.exit_code
        assert f"cannot write into {place}: it is a link" in capsys.readouterr().err
        assert os.listdir(elsewhere) == []
        place.unlink()
        place.mkdir()

    all_hold(holds, (("cells",), ("cells/static-probabilities-100-seed0",)))
