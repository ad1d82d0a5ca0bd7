"""Whole runs, most in processes of their own or over HTTP, and when to kill them."""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from hostile import Hostile, Served
from numpy.typing import NDArray
from protocols import code, truth
from small_runs import no_pictures
from small_runs import student as student
from torch import Tensor

from dfme.cli.main import main
from dfme.oracle.ledger import Totals, audit
from dfme.oracle.oracle import Oracle
from dfme.oracle.retry import Pace, RateLimiter

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


KILLS = int(os.environ.get("DFME_KILLS", "3"))
OF_THE_SESSIONS = {"seconds", "queries_per_second", "requests", "refused", "lost"}
"""What a record says of how the run went, which kills do change."""

WRITE_UP = (
    "checkpoint.pt",
    "student.safetensors",
    "curve.png",
    "losses.png",
    "samples.png",
    "report.html",
)


@dataclass(frozen=True)
class Strike:
    """When to kill: ``delay`` seconds after the run directory first satisfies ``moment``."""

    moment: Callable[[Path, float], bool]
    delay: float


def at_once(run: Path, started: float) -> bool:
    return True


def after(requests: int) -> Callable[[Path, float], bool]:
    """Once so many requests are on the ledger, and at least one of them is of this session."""
    return lambda run, started: (
        written(run / "ledger.jsonl", started)
        and (run / "ledger.jsonl").read_bytes().count(b'"charge"') >= requests
    )


def saving(run: Path, started: float) -> bool:
    """In the middle of the save of a checkpoint."""
    return (run / "checkpoint.pt.tmp").exists()


def writing_up(name: str, budget: int) -> Callable[[Path, float], bool]:
    """Once a file of the end of a run is there, of this session."""
    return lambda run, started: (
        written(run / name, started) and audit(run / "ledger.jsonl").spent == budget
    )


def written(path: Path, started: float) -> bool:
    return path.exists() and path.stat().st_mtime > started


def plan(rng: random.Random, kills: int, budget: int, requests: int) -> list[Strike]:
    """Kills in the order in which a run meets them: at its start, on its way, at the end of its
    budget.
    """
    early, late = max(1, kills // 9), max(1, kills // 5)
    # Loading torch takes two seconds at least: later than this, a fast machine is done before it is
    # struck.
    strikes = [Strike(at_once, rng.uniform(0.0, 2.5)) for _ in range(early)]
    for target in sorted(rng.randrange(requests) for _ in range(kills - early - late)):
        moment = saving if rng.random() < 0.2 else after(target)
        strikes.append(Strike(moment, rng.choice([0.0, rng.uniform(0.0, 0.08)])))
    names = sorted((rng.choice(WRITE_UP) for _ in range(late)), key=WRITE_UP.index)
    return strikes + [Strike(writing_up(name, budget), rng.uniform(0.0, 0.1)) for name in names]


def strike(process: subprocess.Popen[str], run: Path, when: Strike, started: float) -> bool:
    """Kill the process at the moment; says whether it was still alive then, or else had ended
    well.
    """
    while process.poll() is None and not when.moment(run, started):
        time.sleep(0.001)
    time.sleep(when.delay)
    process.send_signal(signal.SIGKILL)
    _, err = process.communicate()
    assert process.returncode in (0, -signal.SIGKILL), err
    return process.returncode != 0


def scores(records: list[dict[str, float]]) -> list[dict[str, float]]:
    """Records without what only says how the run went."""
    return [
        {key: value for key, value in record.items() if key not in OF_THE_SESSIONS}
        for record in records
    ]


KILLED_AT_A_WRITE = """
import os
import sys

folder, number = os.path.realpath(sys.argv[1]), int(sys.argv[2])
seen = 0


def heard(event, arguments):
    global seen
    written = event == "open" and arguments[2] & (os.O_WRONLY | os.O_RDWR)
    if not written and event not in ("os.rename", "os.remove", "os.mkdir"):
        return
    if isinstance(arguments[0], int) or not os.path.realpath(os.fsdecode(arguments[0])).startswith(folder):
        return
    seen += 1
    if seen == number:
        os.kill(os.getpid(), 9)


from dfme.cli.main import main

sys.addaudithook(heard)
code = main(sys.argv[3:])
print("writes", seen)
sys.exit(code)
"""
"""A program: a folder, a number, a command's words; it is killed before that many of its writes
there.
"""


BATCH, MOST = 20, 8
"""Images that the method asks for at once, and that one request carries: 8 + 8 + 4."""

STUDENT = (
    "--student.lr .01 --student.replay-steps 1 --student.replay-batch 8 --student.average .9"
).split()
METHOD = f"--method.name static --method.batch-size {BATCH} --method.latent-size 16".split()
EVALUATION = "--evaluation.dataset none --evaluation.points 4".split()


class Ended(NamedTuple):
    """How a command ended: exit code and what it wrote to the error output."""

    code: int
    err: str

    @property
    def line(self) -> str:
        """The one line that says what was wrong."""
        assert "Traceback" not in self.err
        (said,) = [line for line in self.err.splitlines() if line.startswith("dfme: ")]
        return said


def words(url: str, out: Path | str, *more: str, budget: int = 400) -> list[str]:
    """The words of a small run on the teacher at ``url``."""
    teacher = (
        f"--teacher v2 --teacher.url {url} --teacher.model m --teacher.max-batch {MOST}".split()
    )
    return [
        *teacher,
        *METHOD,
        *STUDENT,
        *EVALUATION,
        "--budget",
        str(budget),
        "--out",
        str(out),
        *more,
    ]


def command(argv: list[str]) -> Ended:
    """What ``python run.py`` does with these words."""
    code, _, err = in_this_process(argv)
    return Ended(code, err)


def extract(server: Hostile, out: Path, *more: str, budget: int = 400) -> Ended:
    return command(words(server.url, out, *more, budget=budget))


def resume(out: Path, *more: str) -> Ended:
    return command(["--resume", "--out", str(out), *more])


def finished(ended: Ended) -> None:
    assert ended.code == 0, ended.err


def summary(out: Path) -> dict[str, Any]:
    return json.loads((out / "summary.json").read_text())  # type: ignore[no-any-return]


def meters_agree(server: Hostile, out: Path, unseen: int = 0) -> Totals:
    """Hold the ledger, and the summary if there is one, against the server's own count.

    ``unseen``: images of at most so many questions were sent on connections that the server never
    accepted; the client cannot know that, and counts them as lost.
    """
    totals = audit(out / "ledger.jsonl")
    counted = totals.spent + totals.evaluation_queries + totals.lost
    assert 0 <= counted - (server.images + server.dropped) <= unseen * MOST
    assert totals.spent == sum(totals.spent_by_purpose.values()) <= totals.budget
    if (out / "summary.json").exists():
        same = tuple(
            "budget spent spent_by_purpose evaluation_queries requests refused failed lost".split()
        )
        assert {name: summary(out)[name] for name in same} == {
            name: getattr(totals, name) for name in same
        }
    return totals


class Witness:
    """Sees every answer that a run in this process makes use of."""

    def __init__(self) -> None:
        self.used: list[tuple[NDArray[Any], NDArray[Any]]] = []

    @property
    def images(self) -> int:
        return sum(len(images) for images, _ in self.used)

    def all_true(self) -> None:
        """Each answer is, bit by bit, the server's model's answer to the very image that was
        asked.
        """
        for images, answers in self.used:
            np.testing.assert_array_equal(answers, truth(images), strict=True)

    def all_served(self, served: list[Served]) -> None:
        """Each of them was served: none is invented."""
        given = {
            x: y for entry in served for x, y in zip(entry.queries, entry.answers, strict=True)
        }
        for images, answers in self.used:
            assert [given[code(x)] for x in images] == [code(y) for y in answers]

    @contextlib.contextmanager
    def watching(self) -> Iterator[Witness]:
        call = Oracle.__call__

        def watched(oracle: Oracle, images: Tensor, purpose: Any = "student") -> Tensor:
            answers = call(oracle, images, purpose)
            self.used.append(
                (images.detach().cpu().numpy().copy(), answers.detach().cpu().numpy().copy())
            )
            return answers

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Oracle, "__call__", watched)
            yield self


@contextlib.contextmanager
def no_waiting() -> Iterator[None]:
    """Whoever tries again does so at once; how often and for how long is still the run's own
    business.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RateLimiter, "pause", lambda self, seconds: None)
        patch.setattr(Pace, "refused", lambda *given: None)
        yield
