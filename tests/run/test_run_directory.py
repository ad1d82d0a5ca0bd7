"""The run directory: fresh or resumable, the summary last; checkpoints: whole, or damage that is named.
Its lock where ``flock`` reaches, where it does not, and where a stranger wrote it.
"""

import errno
import fcntl
import json
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch
from damage import file_size_limit
from hypothesis import given, settings
from hypothesis import strategies as st
from small_runs import SMALL, Metered, clone
from tables import all_hold

from dfme.cli.main import main
from dfme.errors import RunError, UserError
from dfme.methods.static import Static
from dfme.run import directory as directory_module
from dfme.run.checkpoint import load_checkpoint, previous, save_checkpoint
from dfme.run.directory import DirectoryLock, RunDirectory


def test_a_new_directory_is_made_with_its_parents(tmp_path: Path) -> None:
    directory = RunDirectory.create(tmp_path / "runs" / "x")
    directory.write_config("seed: 0\n")
    begun = os.path.relpath(Path.cwd(), tmp_path / "runs/x")
    assert directory.config.read_text().startswith(
        f"seed: 0\n# relative paths begin at, from here: {begun}\n"
    )
    assert not directory.has_checkpoint


def test_the_layout_is_the_documented_one(tmp_path: Path) -> None:
    with RunDirectory.create(tmp_path) as run:
        layout = {
            path.relative_to(tmp_path).as_posix()
            for path in vars(run).values()
            if isinstance(path, Path)
        }
    assert layout - {"."} == {
        *(
            "config.yaml adapter.yaml ledger.jsonl journal metrics.jsonl checkpoint.pt "
            "checkpoint.previous.pt student.safetensors watch.jsonl queries summary.json"
        ).split()
    }


@pytest.mark.parametrize("out", ["file", "file/x", "/proc/x", "/dev/null"])
def test_what_cannot_be_a_directory_is_refused(tmp_path: Path, out: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"^--out .*cannot create the run directory: "):
        RunDirectory.create(tmp_path / out)


def test_resuming_needs_a_ledger_beside_a_checkpoint(tmp_path: Path) -> None:
    with RunDirectory.create(tmp_path) as run:
        run.write_config("seed: 0")
    RunDirectory.open_for_resume(tmp_path).close()
    save_checkpoint(run.checkpoint, {"step": 1})
    with pytest.raises(RunError, match=r"ledger.jsonl: missing, beside a checkpoint"):
        RunDirectory.open_for_resume(tmp_path)
    run.ledger.touch()
    with RunDirectory.open_for_resume(tmp_path) as again:
        assert again.has_checkpoint


def test_free_names_count_up(tmp_path: Path) -> None:
    for name in ("digits", "digits-2"):
        assert RunDirectory.free_name(tmp_path / "digits").name == name
        (tmp_path / name).mkdir()


def test_the_summary_is_whole_or_absent(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path)
    with file_size_limit(10), pytest.raises(RunError, match=r"summary.json"):
        run.write_summary({"method": "dfme", "accuracy": 0.5})
    assert not run.summary.exists()
    run.write_summary({"method": "dfme", "accuracy": None})
    assert json.loads(run.summary.read_text()) == {"method": "dfme", "accuracy": None}


def raising(failure: type[BaseException]) -> Callable[..., NoReturn]:
    def fail(*_: object) -> NoReturn:
        raise failure

    return fail


@pytest.mark.parametrize("failure", [ZeroDivisionError, KeyboardInterrupt])
def test_a_run_that_fails_before_its_first_charge_leaves_no_directory(
    failure: type[BaseException], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "run"
    monkeypatch.setattr(Static, "prepare", raising(failure))
    with pytest.raises(failure):
        clone(out, Metered())
    assert not out.exists()
    monkeypatch.setattr(
        Static, "prepare", lambda _: (out / "own.log").touch() or raising(failure)()
    )
    with pytest.raises(failure):
        clone(out, Metered())
    assert [path.name for path in out.iterdir()] == ["own.log"], "what is not the run's stays"


# Checkpoints


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "checkpoint.pt"


def test_everything_a_run_holds_comes_back(path: Path) -> None:
    rng = torch.Generator().manual_seed(3)
    plain = [1, 2.5, True, None, "text", b"bytes", (1, 2), 2**70]
    save_checkpoint(
        path, {"net": {"weight": torch.arange(3.0)}, "rng": rng.get_state(), "plain": plain}
    )
    again = load_checkpoint(path)
    assert again["plain"] == torch.load(path, weights_only=True)["plain"] == plain
    assert again["net"]["weight"].tolist() == [0.0, 1.0, 2.0]
    assert torch.equal(
        torch.rand(5, generator=rng), torch.rand(5, generator=rng.set_state(again["rng"]))
    )


def test_after_a_kill_between_the_two_renames_the_one_before_is_loaded(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    renames, rename = [], os.replace

    def killed_at_the_second(old: Path, new: Path) -> None:
        renames.append(new)
        if len(renames) == 2:
            raise KeyboardInterrupt
        rename(old, new)

    save_checkpoint(path, {"step": 1})
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", killed_at_the_second)
        with pytest.raises(KeyboardInterrupt):
            save_checkpoint(path, {"step": 2})
    assert not path.exists()
    assert load_checkpoint(path) == {"step": 1}
    save_checkpoint(path, {"step": 2})
    assert (load_checkpoint(path), load_checkpoint(previous(path))) == ({"step": 2}, {"step": 1})
    assert sorted(each.name for each in path.parent.iterdir()) == [
        "checkpoint.previous.pt",
        "checkpoint.pt",
    ]


@given(st.data())
@settings(max_examples=25, deadline=None)
def test_damage_anywhere_is_found(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("run") / "checkpoint.pt"
    save_checkpoint(path, {"x": torch.arange(20.0)})
    content = bytearray(path.read_bytes())
    place = data.draw(st.integers(0, len(content) - 1))
    if data.draw(st.booleans()):
        content = content[:place]
    else:
        content[place] ^= data.draw(st.integers(1, 255))
    path.write_bytes(content)
    with pytest.raises(RunError, match=r"expected a whole checkpoint, but .*start a new run"):
        load_checkpoint(path)


def test_a_full_disk_leaves_the_old_checkpoint_untouched(path: Path) -> None:
    save_checkpoint(path, {"step": 1})
    before = path.read_bytes()
    for size in (0, 5_000, 300_000):
        with (
            file_size_limit(size),
            pytest.raises(RunError, match=r"cannot write .*free some space"),
        ):
            save_checkpoint(path, {"x": torch.zeros(100_000)})
    assert path.read_bytes() == before
    assert [*path.parent.iterdir()] == [path]


@pytest.mark.parametrize(
    ("state", "where"),
    [
        ({"a": [0, {"b": Path("x")}]}, r"state\['a'\]\[1\]\['b'\] is a PosixPath"),
        ({"a": {1, 2}}, r"state\['a'\] is a set"),
        ({"a": {(1, 2): 3}}, r"state\['a'\] has the key \(1, 2\)"),
    ],
)
def test_what_could_not_be_loaded_is_not_saved(
    path: Path, state: dict[str, Any], where: str
) -> None:
    with pytest.raises(TypeError, match=where):
        save_checkpoint(path, state)
    assert not list(path.parent.iterdir())


# The lock

NODE = json.dumps({"host": "node7", "pid": 4711})


def lock_of(path: Path, age: float, text: str = NODE) -> Path:
    """A lock whose holder gave its latest sign of life ``age`` seconds ago, by the file system's
    clock.
    """
    file = path / ".lock"
    file.write_text(text)
    now = file.stat().st_mtime
    os.utime(file, (now - age, now - age))
    return file


def test_it_names_host_and_process_and_is_empty_once_given_back(tmp_path: Path) -> None:
    held = DirectoryLock(tmp_path)
    assert json.loads((tmp_path / ".lock").read_text()) == {
        "host": socket.gethostname(),
        "pid": os.getpid(),
    }
    with pytest.raises(
        UserError, match=f"in use by process {os.getpid()}; wait for it to end, stop it"
    ):
        DirectoryLock(tmp_path)
    held.close()
    held.close()
    assert (tmp_path / ".lock").read_bytes() == b""


@pytest.mark.parametrize("age", [0, 110, -100])
def test_a_young_beat_from_another_host_refuses_though_flock_is_free(
    tmp_path: Path, age: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "time", lambda: 1e8)  # this host's clock is years off
    file = lock_of(tmp_path, age)
    before = file.stat().st_mtime
    with pytest.raises(UserError, match=rf"^--out .*4711 on node7, .* {120 - age} s if it is gone"):
        DirectoryLock(tmp_path)
    assert (file.read_text(), file.stat().st_mtime) == (NODE, before), "looking is no beat"
    assert [path.name for path in tmp_path.iterdir()] == [".lock"]


@pytest.mark.parametrize("age", [130, 1e6, -130, -1e9])
def test_an_old_one_or_one_yet_to_come_is_taken_over_and_said(
    tmp_path: Path, age: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "time", lambda: 1e8)
    file = lock_of(tmp_path, age)
    held = DirectoryLock(tmp_path)
    assert held.note.startswith(f"{tmp_path}: taken over from process 4711 on node7, ")
    assert json.loads(file.read_text())["pid"] == os.getpid()
    held.close()


def test_of_this_host_flock_decides_alone(tmp_path: Path) -> None:
    lock_of(tmp_path, 0, json.dumps({"host": socket.gethostname(), "pid": 1}))
    held = DirectoryLock(tmp_path)
    assert held.note == ""
    held.close()


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP])
def test_a_file_system_without_locks_is_named_with_the_option(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def flock(fd: int, operation: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(fcntl, "flock", flock)
    with pytest.raises(UserError, match=r"-o flock"):
        DirectoryLock(tmp_path)


def test_the_holder_beats_and_leaves_another_s_lock_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(directory_module, "BEAT_SECONDS", 0.01)
    held, file = DirectoryLock(tmp_path), tmp_path / ".lock"
    os.utime(file, (0, 0))
    while file.stat().st_mtime == 0:
        time.sleep(0.005)
    file.write_text(NODE)  # that host took over: this one had been out of reach
    held.close()
    assert file.read_text() == NODE


def test_what_a_stranger_wrote_is_no_holder_and_steers_no_terminal(tmp_path: Path) -> None:
    texts = ["", "4711", "null", "[1]", '{"host": "node7"}', "\0" * 9, "[" * 600]
    texts.append('{"host": "' + "n" * 10**7 + '"}')

    def holds(text: str) -> None:
        file = lock_of(tmp_path, 0, text)
        held = DirectoryLock(tmp_path)
        assert json.loads(file.read_text())["pid"] == os.getpid()
        held.close()

    all_hold(holds, ((text,) for text in texts))
    lock_of(tmp_path, 0, json.dumps({"host": "a\x1b[2Jb\n" + "c" * 300, "pid": {"x": "\r"}}))
    with pytest.raises(UserError) as refusal:
        DirectoryLock(tmp_path)
    assert str(refusal.value).isprintable()
    assert len(str(refusal.value)) < 400


@pytest.mark.parametrize("kind", ["pipe", "folder", "link", "dead link"])
def test_what_is_no_file_is_refused_at_once(tmp_path: Path, kind: str) -> None:
    out, file = tmp_path / "run", tmp_path / "run/.lock"
    out.mkdir()
    (tmp_path / "precious").write_text("mine")
    make = {
        "pipe": lambda: os.mkfifo(file),
        "folder": file.mkdir,
        "link": lambda: file.symlink_to(tmp_path / "precious"),
        "dead link": lambda: file.symlink_to(tmp_path / "nowhere"),
    }
    make[kind]()
    with pytest.raises(UserError, match=r"^--out .*run: cannot write to the directory"):
        DirectoryLock(out)
    assert (tmp_path / "precious").read_text() == "mine"
    assert not (tmp_path / "nowhere").exists()


def test_a_person_is_told_of_the_other_host_in_one_line(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [*SMALL, *"--out run --resume auto".split()]
    (here / "run").mkdir()
    lock_of(here / "run", 10)
    assert main(words) == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("dfme: --out run: in use by process 4711 on node7, ")
    assert not (here / "run/ledger.jsonl").exists()
    lock_of(here / "run", 130)
    assert main(words) == 0
    assert "run: taken over from process 4711 on node7, 13" in capsys.readouterr().err
