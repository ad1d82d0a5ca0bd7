"""Small runs over HTTP by the command line in this process, against the hostile server."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from hostile import Hostile, Served
from numpy.typing import NDArray
from processes import in_this_process
from protocols import code, truth
from small_runs import student as student
from torch import Tensor

from dfme.oracle.ledger import Totals, audit
from dfme.oracle.oracle import Oracle
from dfme.oracle.retry import Pace, RateLimiter

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
