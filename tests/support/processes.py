"""Whole runs, most in processes of their own, and a teacher that meters them by means independent
of ours.
"""

import contextlib
import io
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from small_runs import no_pictures

from dfme.cli.main import main

PROJECT = Path(__file__).resolve().parents[2]

METER = '''
"""A teacher whose meter is a file: served images are on it before it answers. Not too fast to be met."""

import os
import time

import torch


class Meter:
    shape = (1, 8, 8)
    num_classes = 10

    def __init__(self, log: str) -> None:
        self._log = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self._weight = torch.randn(64, 10, generator=torch.Generator().manual_seed(7))

    def __call__(self, images):
        os.write(self._log, f"{len(images)}\\n".encode())
        time.sleep(0.01)
        return (3 * (images - 0.5).flatten(1) @ self._weight).softmax(dim=1)
'''


def in_this_process(words: Sequence[str]) -> tuple[int, str, str]:
    """``python run.py words`` without a process of its own: exit code, standard output, standard
    error.
    """
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main([*words])
    return code, out.getvalue(), err.getvalue()


class Bench:
    """A folder with a metering teacher in it, where runs are started as a person would start
    them.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)
        (folder / "meter.py").write_text(METER)
        self.environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        self.environment["PYTHONPATH"] = f"{folder}:{PROJECT}:{PROJECT}/tests/support"

    def flags(self, out: str, *more: str) -> list[str]:
        """A run on the metering teacher into ``out``, whose meter is ``out`` + .log."""
        return [
            "extract",
            "--teacher",
            "meter:Meter",
            "--teacher.log",
            f"{out}.log",
            "--out",
            out,
            *more,
        ]

    def start(self, words: Sequence[str], **options: Any) -> subprocess.Popen[str]:
        """``python run.py words`` as a process whose output is not yet read."""
        pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        command = [sys.executable, str(PROJECT / "run.py"), *words]
        return subprocess.Popen(command, cwd=self.folder, env=self.environment, **pipes, **options)

    def run(self, words: Sequence[str], **options: Any) -> tuple[int, str, str]:
        """``python run.py words`` to its end: exit code, standard output, standard error."""
        process = self.start(words, **options)
        out, err = process.communicate(timeout=220)
        return process.returncode, out, err

    def here(self, words: Sequence[str]) -> str:
        """The same in this process, drawing nothing; it ends well. Its standard error."""
        with contextlib.chdir(self.folder), no_pictures(), pytest.MonkeyPatch.context() as patch:
            patch.syspath_prepend(str(self.folder))
            patch.delitem(sys.modules, "meter", raising=False)
            code, _, err = in_this_process(words)
        assert code == 0, err
        return err

    def served(self, out: str) -> int:
        """Images that the teacher of the run in ``out`` answered, by its own meter."""
        log = self.folder / f"{out}.log"
        return sum(int(line) for line in log.read_text().split()) if log.exists() else 0

    def summary(self, out: str) -> dict[str, Any]:
        """The run's summary.json."""
        return json.loads((self.folder / out / "summary.json").read_text())  # type: ignore[no-any-return]

    def evaluations(self, out: str) -> list[dict[str, float]]:
        """The run's records of how good the student was, in the order of the file."""
        lines = (self.folder / out / "metrics.jsonl").read_text().splitlines()
        return [
            record
            for record in map(json.loads, lines)
            if "agreement" in record or "accuracy" in record
        ]

    def student(self, out: str) -> bytes:
        """The bytes of the student that the run delivered."""
        return (self.folder / out / "student.safetensors").read_bytes()
