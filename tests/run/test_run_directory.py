"""The run directory: fresh or resumable, one process at a time, the summary last."""

import hashlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest
from damage import file_size_limit
from small_runs import Metered, break_down, clone

from dfme.errors import RunError, TeacherError, UserError
from dfme.methods.static import Static
from dfme.run.checkpoint import save_checkpoint
from dfme.run.directory import RunDirectory, require_space

HOLDER = """
import sys, time
from pathlib import Path
from dfme.run.directory import RunDirectory
directory = RunDirectory.create(Path(sys.argv[1]))
directory.write_config("budget: 1")
print("locked", flush=True)
time.sleep(60)
"""


def test_a_new_directory_is_made_with_its_parents(tmp_path: Path) -> None:
    directory = RunDirectory.create(tmp_path / "runs" / "x")
    directory.write_config("seed: 0\n")
    above = f"seed: 0\n# relative paths begin at, from here: {os.path.relpath(Path.cwd(), tmp_path / 'runs/x')}\n"
    said = f"# sha256 of the lines above: {hashlib.sha256(above.encode()).hexdigest()}\n"
    assert directory.config.read_text() == above + said
    assert not directory.has_checkpoint


def test_the_layout_is_the_documented_one(tmp_path: Path) -> None:
    with RunDirectory.create(tmp_path) as run:
        found = {path.relative_to(tmp_path).as_posix() for path in vars(run).values() if isinstance(path, Path)}
    assert found - {"."} == {
        "config.yaml",
        "adapter.yaml",
        "ledger.jsonl",
        "journal",
        "metrics.jsonl",
        "checkpoint.pt",
        "checkpoint.previous.pt",
        "student.safetensors",
        "samples",
        "watch.jsonl",
        "summary.json",
        "report.html",
    }


def test_a_directory_with_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(UserError, match="--resume to go on with its run, or choose another --out"):
        RunDirectory.create(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


@pytest.mark.parametrize("out", ["file", "file/x", "/proc/x", "/dev/null"])
def test_what_cannot_be_a_directory_is_refused(tmp_path: Path, out: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"^--out .*cannot create the run directory: "):
        RunDirectory.create(tmp_path / out)


def test_resuming_needs_a_run(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no config.yaml; check --out, or leave out --resume"):
        RunDirectory.open_for_resume(tmp_path)
    with RunDirectory.create(tmp_path) as run:
        run.write_config("seed: 0")
    RunDirectory.open_for_resume(tmp_path).close()
    save_checkpoint(run.checkpoint, {"step": 1})
    with pytest.raises(RunError, match=r"ledger.jsonl: missing, beside a checkpoint"):
        RunDirectory.open_for_resume(tmp_path)
    run.ledger.touch()
    with RunDirectory.open_for_resume(tmp_path) as again:
        assert again.has_checkpoint


@pytest.mark.integration
def test_a_second_process_is_kept_out_until_the_first_dies(tmp_path: Path) -> None:
    out = tmp_path / "run"
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, str(out)], stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "locked\n"
        with pytest.raises(UserError, match=rf"in use by process {holder.pid}"):
            RunDirectory.open_for_resume(out)
    finally:
        holder.send_signal(signal.SIGKILL)
        holder.communicate()
    RunDirectory.open_for_resume(out).close()


def test_the_lock_holds_within_a_process_and_ends_with_close(tmp_path: Path) -> None:
    with RunDirectory.create(tmp_path) as first:
        with pytest.raises(UserError, match=rf"in use by process {os.getpid()}"):
            RunDirectory.create(tmp_path)
        first.close()
    RunDirectory.create(tmp_path).close()


def test_free_names_count_up(tmp_path: Path) -> None:
    base = tmp_path / "digits"
    names = []
    for _ in range(3):
        names.append(RunDirectory.free_name(base).name)
        (tmp_path / names[-1]).mkdir()
    assert names == ["digits", "digits-2", "digits-3"]


def test_the_summary_is_whole_or_absent(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path)
    with file_size_limit(10), pytest.raises(RunError, match=r"summary.json"):
        run.write_summary({"method": "dfme", "accuracy": 0.5})
    assert not run.summary.exists()
    run.write_summary({"method": "dfme", "accuracy": None})
    assert json.loads(run.summary.read_text()) == {"method": "dfme", "accuracy": None}
    run.withdraw_summary()
    assert not run.summary.exists()


def test_space_is_asked_for_in_words(tmp_path: Path) -> None:
    require_space(tmp_path, 1)
    with pytest.raises(UserError, match=r"expected 1000000000000.0 MB of free space, got [\d.]+ MB"):
        require_space(tmp_path / "to" / "be made", 10**18)


def raising(failure: type[BaseException]) -> Callable[..., NoReturn]:
    def fail(*_: object) -> NoReturn:
        raise failure

    return fail


@pytest.mark.parametrize("failure", [ZeroDivisionError, KeyboardInterrupt])
def test_a_run_that_fails_before_its_first_charge_leaves_no_directory(
    failure: type[BaseException], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Static, "prepare", raising(failure))
    for out in (tmp_path / "run", tmp_path / "run"):  # the second is not told to choose another --out
        with pytest.raises(failure):
            clone(out, Metered(), progress=True)
        assert not out.exists()
    assert "go on with" not in capsys.readouterr().err
    monkeypatch.setattr(Static, "prepare", lambda _: (tmp_path / "run" / "own.log").touch() or raising(failure)())
    with pytest.raises(failure):
        clone(tmp_path / "run", Metered())
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["own.log"], "what is not the run's stays"


def test_a_run_that_fails_after_a_charge_is_kept(tmp_path: Path) -> None:
    with pytest.raises(TeacherError, match="all that was paid is kept"):
        clone(tmp_path / "run", Metered({1: break_down}))
    assert (tmp_path / "run" / "ledger.jsonl").is_file()
    assert clone(tmp_path / "run", Metered(), resume=True).finished
