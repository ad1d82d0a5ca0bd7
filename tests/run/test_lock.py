"""The lock of a directory where ``flock`` reaches, where it does not, and where a stranger wrote
it.
"""

import errno
import fcntl
import json
import os
import socket
import time
from pathlib import Path

import pytest
from small_runs import SMALL
from tables import all_hold

from dfme.cli.main import main
from dfme.errors import UserError
from dfme.run import directory as directory_module
from dfme.run.directory import DirectoryLock

NODE = json.dumps({"host": "node7", "pid": 4711})


def left(path: Path, age: float, text: str = NODE) -> Path:
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
    file = left(tmp_path, age)
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
    file = left(tmp_path, age)
    held = DirectoryLock(tmp_path)
    assert held.note.startswith(f"{tmp_path}: taken over from process 4711 on node7, ")
    assert json.loads(file.read_text())["pid"] == os.getpid()
    held.close()


def test_of_this_host_flock_decides_alone(tmp_path: Path) -> None:
    left(tmp_path, 0, json.dumps({"host": socket.gethostname(), "pid": 1}))
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
        file = left(tmp_path, 0, text)
        held = DirectoryLock(tmp_path)
        assert json.loads(file.read_text())["pid"] == os.getpid()
        held.close()

    all_hold(holds, ((text,) for text in texts))
    left(tmp_path, 0, json.dumps({"host": "a\x1b[2Jb\n" + "c" * 300, "pid": {"x": "\r"}}))
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
    left(here / "run", 10)
    assert main(words) == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("dfme: --out run: in use by process 4711 on node7, ")
    assert not (here / "run/ledger.jsonl").exists()
    left(here / "run", 130)
    assert main(words) == 0
    assert "run: taken over from process 4711 on node7, 13" in capsys.readouterr().err
