"""``--resume auto``: one line that begins a run, goes on with it, and has nothing to do once it is finished."""

from __future__ import annotations

import hashlib
import os
import signal
import time
from pathlib import Path

import pytest
from processes import Bench
from small_runs import BUDGET, SMALL, Metered, clone, ctrl_c, student

from dfme.cli.main import main
from dfme.errors import UserError
from dfme.oracle.ledger import audit
from dfme.run.directory import RunDirectory
from dfme.run.job import PROJECT

pytestmark = pytest.mark.usefixtures("here")

FILE = f"""
budget: 100
method: {{name: static, latent_size: 16}}
student: {{arch: cnn_small, steps: 10}}
evaluation: {{dataset: none, points: 1}}
teacher: {{kind: torch, checkpoint: {PROJECT}/teachers/checkpoints/digits.safetensors}}
"""
LINE = ["--config", "mine.yaml", "--out", "run", "--resume", "auto"]


def files() -> dict[str, str]:
    return {
        str(path): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in Path("run").rglob("*")
        if path.is_file() and path.name != ".lock"
    }


def test_the_same_line_twice_does_nothing_twice(capsys: pytest.CaptureFixture[str]) -> None:
    Path("mine.yaml").write_text(FILE)
    assert main(LINE) == 0
    before = files()
    capsys.readouterr()
    assert main(LINE) == main(["--out", "run", "--resume", "auto"]) == main(["--out", "run", "--resume=auto"]) == 0
    assert capsys.readouterr().err.count("finished before with all of its 100 queries, nothing was asked now") == 3
    assert files() == before
    assert "resume: false" in Path("run/config.yaml").read_text()


def test_other_settings_than_the_run_s_are_refused_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    Path("mine.yaml").write_text(FILE)
    assert main(LINE) == 0
    before = files()
    Path("mine.yaml").write_text(FILE.replace("latent_size: 16", "latent_size: 17") + "seed: 3\n")
    assert main(LINE) == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.startswith("dfme: --resume: this run was started with other values of seed, method.latent_size (see")
    assert main([*LINE, "--dry-run"]) == 2
    assert "--dry-run: expected no --resume" in capsys.readouterr().err
    assert files() == before


@pytest.mark.parametrize("left", [[], [".lock"], [".lock", "config.yaml.tmp"]])
def test_what_a_process_killed_at_its_beginning_leaves_is_begun_anew(left: list[str]) -> None:
    Path("run").mkdir()
    for name in left:
        Path("run", name).write_text("budg")
    Path("mine.yaml").write_text(FILE)
    assert main(LINE) == 0
    assert audit(Path("run/ledger.jsonl")).spent == 100


def test_what_is_no_run_is_left_alone_and_a_directory_must_be_named(capsys: pytest.CaptureFixture[str]) -> None:
    Path("mine.yaml").write_text(FILE)
    Path("run").mkdir()
    Path("run/thesis.tex").touch()
    assert main(LINE) == 2
    assert "'run' exists; give another --out; there is no run in it" in capsys.readouterr().err
    assert [path.name for path in Path("run").iterdir()] == ["thesis.tex"]
    for words in (["--resume", "auto"], ["--config", "mine.yaml", "--resume", "auto"]):
        assert main(words) == 2
        assert capsys.readouterr().err.startswith("dfme: --resume: expected --out as well")
    assert main([*LINE[:4], "--resume", "maybe"]) == 2
    assert "expected true or false or auto, got 'maybe'" in capsys.readouterr().err


def test_from_python_one_call_begins_goes_on_and_is_finished(here: Path) -> None:
    first, second, third = Metered({3: ctrl_c}), Metered(), Metered()
    out = here / "run"
    assert not clone(out, first, resume="auto").finished
    assert clone(out, second, resume="auto").finished
    assert clone(out, third, resume="auto").finished
    assert (first.served + second.served, third.served) == (BUDGET, 0)
    clone(here / "whole", Metered())
    assert student(out) == student(here / "whole")
    with pytest.raises(UserError, match=r"expected out=\.\.\. as well"):
        clone(None, third, resume="auto")  # type: ignore[arg-type]


def test_a_directory_in_use_is_said_to_be_so_before_it_is_said_to_be_full(tmp_path: Path) -> None:
    with RunDirectory.create(tmp_path) as run:
        run.write_config("seed: 0")
        with pytest.raises(UserError, match=f"in use by process {os.getpid()}"):
            RunDirectory.create(tmp_path)
    with pytest.raises(UserError, match="got one with files"):
        RunDirectory.create(tmp_path)


@pytest.mark.integration
def test_two_at_once_run_once_and_a_killed_one_ends_as_if_never_killed(tmp_path: Path) -> None:
    bench, whole = Bench(tmp_path / "bench"), Bench(tmp_path / "whole")
    small = [*SMALL, "--budget", "2000", "--checkpoint-seconds", "0"]
    words = bench.flags("run", *small, "--resume", "auto")
    pair = [bench.start(words) for _ in range(2)]
    while all(process.poll() is None for process in pair):
        time.sleep(0.01)
    while not (bench.folder / "run/checkpoint.pt").exists():
        time.sleep(0.01)
    for process in pair:
        process.send_signal(signal.SIGKILL)
    said = [process.communicate()[1] for process in pair]
    codes = sorted(process.returncode for process in pair)
    assert codes == [-signal.SIGKILL, 2], said
    assert sum("in use by process" in text for text in said) == 1
    code, _, err = bench.run(words)
    assert code == 0, err
    code, _, err = bench.run(words)
    assert code == 0, err
    assert "nothing was asked now" in err
    assert whole.run(whole.flags("run", *small))[0] == 0
    record = audit(bench.folder / "run/ledger.jsonl")
    assert record.spent + record.lost == bench.served("run")
    assert student(bench.folder / "run") == student(whole.folder / "run")
