"""A teacher whose answer to an image depends on how many images it was asked before."""

import os
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from dfme.compute.state import validate_like
from dfme.spec import TeacherInfo


class Counting:
    """Every image's scores are those of ``truth``, moved on by one class for each image asked
    before.

    It counts what was ``answered`` and ``witnessed``, what ``truth`` was, and what an ``honest``
    user was.
    """

    defences: tuple[str, ...] = ("counting:moved=0.3",)

    def __init__(
        self, at: dict[int, Callable[[], object]] | None = None, moved: float = 0.3
    ) -> None:
        self.calls = self.answered = self.truths = self.honest = self.witnessed = 0
        self._at = at or {}
        self._weight = torch.randn(64, 10, generator=torch.Generator().manual_seed(7))
        self._moved, self._asked, self._sum = moved, 0, torch.zeros(10)
        self.info = TeacherInfo(
            defences=self.defences, stateful=self, undefended=self.truth, preview=self.served
        )

    @property
    def images(self) -> int:
        """All that was answered and charged, or answered to score with."""
        return self.answered + self.truths

    def truth(self, images: Tensor) -> Tensor:
        self.truths += len(images)
        return self._scores(images)

    def __call__(self, images: Tensor) -> Tensor:
        self.calls += 1
        self._at.get(self.calls, int)()
        self.answered += len(images)
        return self._defended(images)

    def served(self, images: Tensor) -> Tensor:
        self.honest += len(images)
        return self._answers(images, 0)

    def replay_answer(self, images: Tensor, answers: Tensor) -> None:
        self.witnessed += len(images)
        if not torch.equal(self._defended(images), answers):
            raise ValueError(f"{len(images)} answers differ")

    def state_dict(self) -> dict[str, Any]:
        return {"asked": self._asked, "sum": self._sum.clone()}

    def load_state_dict(self, state: Any) -> None:
        validate_like(self.state_dict(), state, "counting")
        self._asked, self._sum = state["asked"], state["sum"]

    def report(self) -> dict[str, Any]:
        return {"asked": self._asked}

    def _scores(self, images: Tensor) -> Tensor:
        return (3 * (images - 0.5).flatten(1) @ self._weight).softmax(dim=1)

    def _answers(self, images: Tensor, asked: int) -> Tensor:
        p_BK = self._scores(images)
        number_B = (asked + torch.arange(len(images)) + self._sum.argmax()) % 10
        return (1 - self._moved) * p_BK + self._moved * torch.eye(10)[number_B]

    def _defended(self, images: Tensor) -> Tensor:
        answers = self._answers(images, self._asked)
        self._asked += len(images)
        self._sum = self._sum * 0.9 + answers.sum(0)
        return answers


def metered(log: str, moved: float = 0.3) -> Counting:
    """For a command line; the images it serves are in the file before it answers."""
    meter = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    class Metering(Counting):
        shape, num_classes = (1, 8, 8), 10

        def __call__(self, images: Tensor) -> Tensor:
            os.write(meter, f"{len(images)}\n".encode())
            return super().__call__(images)

        def truth(self, images: Tensor) -> Tensor:
            os.write(meter, f"{len(images)}\n".encode())
            return super().truth(images)

    return Metering(moved=moved)
