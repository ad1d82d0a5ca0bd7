"""Small runs in this process, on a teacher that counts, and can be made to stop them in its answers."""

import dataclasses
import json
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from command_line import parse_extract
from torch import Tensor
from toys import LinearTeacher, make_parts

import dfme
from dfme.errors import Refused, TeacherError
from dfme.methods import METHODS
from dfme.nets import generators
from dfme.run import loop
from dfme.run.evaluation import HoldOut
from dfme.run.work import Work
from dfme.spec import ImageSpec

BUDGET, BATCH = 400, 20

SMALL = [
    *"--method.name static --method.batch-size 20 --method.latent-size 16 --budget 100".split(),
    "--student.arch",
    "cnn_small",
    "--evaluation.dataset",
    "none",
    "--evaluation.points",
    "1",
]
"""Flags of a small run by the command line."""


def small_options(method: str, **sizes: float) -> dict[str, float]:
    """Those of the sizes that are options of the method."""
    own = {field.name for field in dataclasses.fields(METHODS[method].config)}
    return {name: size for name, size in sizes.items() if name in own}


class Metered:
    """A teacher that counts what it served, and does at some of its calls what ``at`` says."""

    def __init__(
        self, at: dict[int, Callable[[], object]] | None = None, seconds: float = 0.0
    ) -> None:
        self.served = self.calls = 0
        self._at, self._seconds = at or {}, seconds
        self._weight = torch.randn(64, 10, generator=torch.Generator().manual_seed(7))

    @property
    def images(self) -> int:
        """All that it was asked for and answered."""
        return self.served

    def __call__(self, images: Tensor) -> Tensor:
        self.calls += 1
        self._at.get(self.calls, int)()
        self.served += len(images)
        if self._seconds:
            time.sleep(self._seconds)
        return (3 * (images - 0.5).flatten(1) @ self._weight).softmax(dim=1)


class Recording(Metered):
    """Remembers what it was asked and what it answered."""

    def __init__(self, labels: bool = False) -> None:
        super().__init__()
        self.labels = labels
        self.queries: list[Tensor] = []
        self.answers: list[Tensor] = []

    def __call__(self, images: Tensor) -> Tensor:
        answers = super().__call__(images)
        self.queries.append(images.clone())
        self.answers.append(answers.argmax(1) if self.labels else answers.clone())
        return self.answers[-1]


class Labels(Metered):
    """Answers the top classes alone."""

    def __call__(self, images: Tensor) -> Tensor:
        return super().__call__(images).argmax(1)


def ctrl_c() -> None:
    signal.raise_signal(signal.SIGINT)


def break_down() -> None:
    """End the run without a checkpoint; nothing was served, so the images are given back."""
    raise Refused("ConnectionError: gone", "gone", retry=False)


def clone(
    out: Path,
    teacher: Callable[[Tensor], Tensor],
    budget: int = BUDGET,
    resume: bool | str = False,
    **changes: Any,
) -> dfme.Result:
    """A small run: four steps of five batches, scored on what it held back."""
    settings: dict[str, Any] = {
        "method": "static",
        "method_options": {"batch_size": BATCH, "latent_size": 16},
        "student": {"lr": 0.01, "replay_steps": 1, "replay_batch": 8, "average": 0.9},
        "evaluation": {"dataset": "none", "points": 4},
    }
    return dfme.extract(
        teacher,
        shape=(1, 8, 8),
        num_classes=10,
        budget=budget,
        out=out,
        resume=resume,
        **settings | changes,
    )


def student(out: Path) -> bytes:
    return (out / "student.safetensors").read_bytes()


def resumes_as(whole: Path, out: Path, served: int, **changes: Any) -> dfme.Result:
    """A run whose teachers served so many images ends as ``whole`` did, and nothing is paid twice."""
    teacher = Metered()
    result = clone(out, teacher, resume=True, **changes)
    assert (result.finished, served + teacher.served) == (True, BUDGET)
    assert student(out) == student(whole)
    return result


SESSION = {
    *"seconds stretches benign_queries started ended wall_seconds".split(),
    *"queries_per_second requests refused lost".split(),
}


def lasting(out: Path) -> dict[str, Any]:
    """The summary, without what only says how the run went."""
    summary = json.loads((out / "summary.json").read_text())
    return {key: value for key, value in summary.items() if key not in SESSION}


def queries(out: Path) -> list[int]:
    """Of every evaluation; between them lines are written by the clock."""
    records = map(json.loads, (out / "metrics.jsonl").read_text().splitlines())
    return [record["queries"] for record in records if "seconds" in record]


@contextmanager
def _left_out(target: str) -> Iterator[None]:
    """This function of a run does nothing meanwhile."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(target, lambda *_, **__: None)
        yield


no_pictures = partial(_left_out, "dfme.run.run.write_report")
"""Drawing the report takes longer than all the rest; the tests of whole processes do draw it."""
no_rehearsal = partial(_left_out, "dfme.run.build.rehearse")
"""No steps are timed on noise before the first query, for what no test here looks at."""


@contextmanager
def narrow_generators() -> Iterator[None]:
    """The paper's generator, proven in tests/nets, takes most of a small run with its 128
    channels.
    """
    stages = generators._stages

    def narrow(height: int, width: int) -> tuple[list[tuple[int, int]], list[int]]:
        sizes, widths = stages(height, width)
        return sizes, [16] * len(widths)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(generators, "_stages", narrow)
        yield


def cut_short(out: Path) -> int:
    """A run stopped by Ctrl-C, then by its teacher: a checkpoint and answers beyond it. The images
    served.
    """
    first, second = Metered({7: ctrl_c}), Metered({4: break_down})
    assert not clone(out, first).finished
    with pytest.raises(TeacherError, match="gone; all that was paid is kept: call extract again"):
        clone(out, second, resume=True)
    return first.served + second.served


JOB = parse_extract(["--method.name", "static"])
SPEC = ImageSpec((1, 8, 8))


class Listener:
    def __init__(self) -> None:
        self.evaluated: list[int] = []
        self.sheets: list[int] = []

    def step(self, queries, metrics) -> None: ...

    def evaluation(self, queries, metrics) -> None:
        self.evaluated.append(queries)

    def samples(self, queries, images, answers) -> None:
        assert len(images) == len(answers) > 0
        self.sheets.append(queries)


def run(method, parts, points=5, stopped=lambda: False, kept=None, goal=None):
    listener = Listener()
    finished = loop.run(
        method,
        parts.oracle,
        HoldOut(parts.oracle.label_mode, parts.oracle.spec),
        listener,
        loop.Progress(),
        parts.deferred,
        work=Work(JOB, method),
        points=points,
        checkpoint_seconds=1e9,
        keep=lambda: (kept if kept is not None else []).append(parts.oracle.ledger.spent),
        stopped=stopped,
        goal=goal,
    )
    return finished, listener


def fed(budget: int, **student: object):
    """A trainer with the toy's whole budget spent in batches of 8."""
    parts = make_parts(LinearTeacher(SPEC), budget, **student)
    taken, rng = [], torch.Generator().manual_seed(0)
    for _ in range(budget // 8):
        images = torch.rand(8, 1, 8, 8, generator=rng)
        parts.students.learn(images, parts.oracle(images, "student"))
        taken.append(parts.students.steps)
    return taken, parts.students
