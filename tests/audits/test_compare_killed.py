"""What a killed comparison leaves: cells that stop by themselves, and that the next one waits
for.
"""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from dfme.audits.compare import processes
from dfme.run.directory import DirectoryLock
from dfme.run.job import PROJECT

pytestmark = pytest.mark.integration

CELL = """
import pathlib, signal, sys, time
signal.signal(signal.SIGINT, lambda *_: (pathlib.Path("told").touch(), sys.exit()))
pathlib.Path("ready").touch()
time.sleep(60)
"""

KILLED = """
import os, pathlib, sys, time
from dfme.audits.compare import processes
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
    lock = DirectoryLock(tmp_path)
    timer = threading.Timer(0.3, lock.close)
    started = time.monotonic()
    timer.start()
    processes.free(tmp_path)
    timer.join()
    assert 0.2 < time.monotonic() - started < 10
    DirectoryLock(tmp_path).close()
