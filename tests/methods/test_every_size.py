"""Every size of image and every number of classes goes through a whole run of every method, with
soft.

A run is a cell of the table: two steps and a remainder of the budget. It is thinned to what
follows. Every method meets every row of ``ROWS``, so every shape, number of classes and
architecture there. Rows and methods alternate between soft and hard labels, as on a chessboard, so
every method that takes both meets both, with each number of classes. The report with its pictures
is drawn for one method only, of every row. By default, every row runs with one method, the methods
in turn; the whole table is ``exhaustive``.
"""

from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import small_runs
import torch
from torch import Tensor
from toys import LinearTeacher

import dfme
from dfme.methods import METHODS
from dfme.spec import ImageSpec

pytestmark = pytest.mark.full("pictures")

BATCH, BUDGET_LEFT = 4, 3
SINGLE = 1
"""Outputs of a binary teacher that answers one probability an image; it has two classes."""


class Row(NamedTuple):
    """A teacher, and the student that is to follow it."""

    shape: tuple[int, int, int]
    outputs: int
    arch: str = "auto"
    levels: int | None = None
    bounds: tuple[float, float] = (0.0, 1.0)


ROWS = [
    # grey
    Row((1, 8, 8), 2),
    Row((1, 8, 8), SINGLE, levels=256),
    Row((1, 8, 8), 100, "cnn_small", bounds=(-1.0, 1.0)),
    Row((1, 28, 28), 10, "lenet5", levels=256),
    Row((1, 33, 64), SINGLE, "cnn_small", bounds=(-1.0, 2.0)),
    Row((1, 5, 16), 10, "cnn_medium"),
    # colour
    Row((3, 8, 8), 100, "cnn_small", levels=2),
    Row((3, 9, 13), SINGLE, bounds=(-1.0, 2.0)),
    Row((3, 24, 16), 2, "cnn_medium", levels=256, bounds=(0.0, 255.0)),
    Row((3, 32, 32), 10, "wrn16_1", levels=256),
    Row((3, 32, 32), SINGLE, "cnn_medium"),
    Row((3, 64, 64), 100, "cnn_small", levels=256, bounds=(-1.0, 1.0)),
    # neither
    Row((2, 15, 11), 10, "cnn_small", bounds=(-3.0, -1.0)),
    Row((3, 64, 64), 2, "cnn_small"),
    Row((4, 16, 8), 100, "cnn_small"),
]


SIZES = {
    "batch_size": BATCH,
    "student_steps": 1,
    "latent_size": 6,
    "gan_steps": 2,
    "proxy_share": 0.4,
}


class Cell(NamedTuple):
    """What a step of a method costs in images, the steps that its students take then."""

    cost: int
    student_steps: int = 2
    options: dict[str, float] | None = None
    estimator: dict[str, Any] | None = None


CELLS = {
    "dfme": Cell((1 + 1 + 1) * BATCH, 2 * (1 + 1 + 1)),  # of all three its student learns
    # of its two batches, the first is the generator's own, and only the second is replayed from
    "maze": Cell((1 + 2 + 1) * BATCH, 1 + 2, {"student_steps": 2}, {"directions": 2}),
}
"""Worked out by hand; the other methods pay for the student's one batch alone."""


def options_for(method: str, **sizes: float) -> dict[str, float]:
    return small_runs.small_options(method, **{**SIZES, **sizes})


class Watched(LinearTeacher):
    """Holds every query to the description: its shape, its dtype, its bounds, its lattice."""

    def __init__(self, row: Row) -> None:
        super().__init__(ImageSpec(row.shape, row.bounds, row.levels), row.outputs)
        self.num_classes = max(2, row.outputs)
        self.weight /= self.spec.numel**0.5 * (row.bounds[1] - row.bounds[0])

    def __call__(self, images: Tensor, /) -> Tensor:
        low, high = self.spec.bounds
        assert (images.shape[1:], images.dtype) == (self.spec.shape, torch.float32)
        assert not images.requires_grad
        assert not torch.is_grad_enabled()
        assert low <= float(images.min())
        assert float(images.max()) <= high
        if self.spec.levels is not None:
            steps = (images.double() - low) * (self.spec.levels - 1) / (high - low)
            torch.testing.assert_close(steps, steps.round(), rtol=0, atol=1e-3)
        self.images += len(images)
        logits = self.logits(images)
        return logits.sigmoid() if self.weight.shape[1] == SINGLE else logits.softmax(dim=1)


def cells() -> list[Any]:
    """Every row with every method; labels where the colour of the chessboard says so."""
    table = []
    for column, method in enumerate(METHODS):
        for number, row in enumerate(ROWS):
            hard = (column + number) % 2 == 1 and "label" in METHODS[method].load().label_modes
            name = f"{method}-{'x'.join(map(str, row.shape))}-{row.outputs}-{'hard' if hard else 'soft'}"
            # in turn, by both colours of the chessboard
            by_default = column == (number + number // 4) % len(METHODS)
            marks = [] if by_default else [pytest.mark.exhaustive]
            table.append(pytest.param(method, row, hard, id=name, marks=marks))
    return table


@pytest.mark.parametrize(("method", "row", "hard"), cells())
def test_a_run_of_every_size(tmp_path: Path, method: str, row: Row, hard: bool) -> None:
    teacher, cell = Watched(row), CELLS.get(method, Cell(BATCH))
    budget = 2 * cell.cost + BUDGET_LEFT
    # a report of every size is enough
    with nullcontext() if method == "static" else small_runs.no_pictures():
        result = dfme.extract(
            teacher,
            budget=budget,
            method=method,
            method_options=options_for(method, **(cell.options or {})),
            estimator=cell.estimator,
            label_mode="label" if hard else None,
            student={"arch": row.arch, "lr": 0.01, "replay_steps": 1, "replay_batch": BATCH},
            out=tmp_path / "run",
        )
    assert result.finished
    assert result.summary["spent"] == teacher.images == budget
    assert result.summary["student_steps"] == 2 * cell.student_steps + 2, (
        "of a batch: a fresh and a replay step"
    )
    again = dfme.load_student(tmp_path / "run")
    assert again(torch.rand(3, *row.shape)).shape == (3, teacher.num_classes)
    weights = result.student.state_dict()
    assert all(torch.equal(value, weights[name]) for name, value in again.state_dict().items())
