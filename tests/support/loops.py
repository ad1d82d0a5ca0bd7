"""The loop around a toy's parts, and a trainer fed with its whole budget."""

import torch
from command_line import parse_extract
from toys import LinearTeacher, make_parts

from dfme.run import loop
from dfme.run.evaluation import HoldOut
from dfme.run.work import Work
from dfme.spec import ImageSpec

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
