"""The processes of a comparison: so many at once, each with its share of the cores, none left behind."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dfme.audits.compare.engines import pool as processes
from dfme.audits.compare.engines.pool import WorkerPool, last_line, threads_each
from dfme.run.directory import DirectoryLock
from dfme.run.job import PROJECT

pytestmark = pytest.mark.integration


def sleeper(seconds: float) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-S", "-c", f"import time; time.sleep({seconds})"])


def pool_of(begin: Callable[[Any, int], subprocess.Popen[bytes]]) -> WorkerPool:
    """Two workers at once, whose cells are numbers."""
    plan: Any = SimpleNamespace(jobs=2)
    made = WorkerPool(plan, lambda cell: None, print)  # type: ignore[arg-type, return-value]
    made._begin = begin  # type: ignore[method-assign]
    return made


def test_no_more_than_so_many_run_at_once() -> None:
    most = []

    def watched(task: float, slot: int) -> subprocess.Popen[bytes]:
        assert 0 <= slot < 2
        most.append(len(pool.running))
        return sleeper(0.1)

    pool: Any = pool_of(watched)
    ended: list[tuple[float, int]] = []
    seen: set[float] = set()
    watch = lambda: seen.update(pool.running)  # noqa: E731
    pool.run(
        [1, 2, 3, 4, 5], lambda task, code: bool(ended.append((task, code))), lambda: False, watch
    )
    assert seen == {1, 2, 3, 4, 5}
    assert sorted(ended) == [(task, 0) for task in (1, 2, 3, 4, 5)]
    assert max(most) == 1, "one was running when the second began, and never two when another did"


def test_whatever_happens_no_process_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dfme.audits.compare.engines.pool.GRACE_SECONDS", 2.0)
    started: list[subprocess.Popen[bytes]] = []

    def begin(task: int, slot: int) -> subprocess.Popen[bytes]:
        if task == 2:
            raise OSError("no more processes")
        started.append(sleeper(60))
        return started[-1]

    with pytest.raises(OSError, match="no more processes"):
        pool_of(begin).run([1, 2], lambda task, code: False, lambda: False)
    assert started[0].poll() is not None


def test_the_cores_are_shared_unless_the_user_has_decided(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dfme.audits.compare.engines.pool.cores", lambda: 8)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert [threads_each(jobs) for jobs in (1, 2, 3, 20)] == [8, 4, 2, 1]
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert threads_each(2) == 3


def test_the_last_word_of_a_log(tmp_path: Path) -> None:
    log = tmp_path / "cell.log"
    assert last_line(log) == ""
    log.write_text("x" * 20_000 + "\ndfme: no such teacher\n\n")
    assert last_line(log) == "no such teacher"


ENTRY = """
def main(words):
    print("ran", *words)
    return 7
"""
SHIPPED = """
import pickle, pathlib
from entry_here import main
from dfme.audits.compare.engines import Task
from dfme.audits.compare.engines.pool import Call

task = Task(("extract", "--out", "a"), pathlib.Path("a.log"), pathlib.Path("a"), "cpu", main)
pickle.loads(pickle.dumps(Call(task)))()
"""


def test_a_shipped_cell_runs_the_entry_that_it_was_given_and_leaves_its_exit_code(
    tmp_path: Path,
) -> None:
    (tmp_path / "entry_here.py").write_text(ENTRY)
    environment = {**os.environ, "PYTHONPATH": f"{PROJECT}:{tmp_path}"}
    done = subprocess.run(
        [sys.executable, "-c", SHIPPED], cwd=tmp_path, env=environment, timeout=60, check=False
    )
    assert done.returncode == 0
    assert (tmp_path / "a.log").read_text() == "ran extract --out a\n"
    assert (tmp_path / "a.exit").read_text() == "7\n"


CELL = """
import pathlib, signal, sys, time
signal.signal(signal.SIGINT, lambda *_: (pathlib.Path("told").touch(), sys.exit()))
pathlib.Path("ready").touch()
time.sleep(60)
"""

KILLED = """
import os, pathlib, sys, time
from dfme.audits.compare.engines import pool as processes
processes.PROJECT = ""  # where another dfme lies
processes.start(["extract"], pathlib.Path("log"), 1)
while not pathlib.Path("ready").exists():
    time.sleep(0.02)
os.kill(os.getpid(), 9)
"""


def test_the_cells_of_a_killed_comparison_are_told_to_stop(tmp_path: Path) -> None:
    (tmp_path / "dfme").mkdir()
    (tmp_path / "dfme" / "__main__.py").write_text(CELL)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    code = f"import sys; sys.path.insert(0, {str(PROJECT)!r})\n{KILLED}"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, timeout=60)
    assert done.returncode == -signal.SIGKILL
    deadline = time.monotonic() + 20
    while not (tmp_path / "told").exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_cell_waits_for_the_one_that_a_killed_comparison_left(tmp_path: Path) -> None:
    timer = threading.Timer(0.3, DirectoryLock(tmp_path).close)
    started = time.monotonic()
    timer.start()
    processes.free(tmp_path)
    timer.join()
    assert 0.2 < time.monotonic() - started < 10
    DirectoryLock(tmp_path).close()
