"""What methods share: paying for the answers to some images, and letting the students learn from them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from torch import Tensor

from dfme.methods.base import Metrics, Parts

Images = Callable[[int], Tensor]
"""So many images (count, C, H, W) to pay for, as the wire carries them."""


class Teaching:
    """Batches of images, answered by the teacher and learnt by the students."""

    def __init__(self, parts: Parts, images: Images, batch_size: int, remember: int = 1) -> None:
        """``remember``: batches kept in ``paid``; more than one are part of the state."""
        self._oracle = parts.oracle
        self._trainer = parts.trainer
        self._examiner = parts.examiner
        self._device = parts.streams["latent"].device
        self._images = images
        self._batch_size = batch_size
        self.paid: deque[tuple[Tensor, Tensor]] = deque(maxlen=remember)

    @property
    def recent(self) -> tuple[Tensor, Tensor] | None:
        """The last batch paid for, and its answers."""
        return self.paid[-1] if self.paid else None

    def spend(self, images: int, keep_all: bool = True) -> Metrics:
        """Pay for exactly ``images`` answers, in batches; the last may be smaller. Returns the last metrics.

        Without ``keep_all``, only the last batch is held for replay.
        """
        metrics: Metrics = {}
        while images > 0:
            count = min(images, self._batch_size)
            images -= count
            metrics |= self.ask(self._images(count), keep_all or images == 0)
        return metrics

    def ask(self, x_BCHW: Tensor, keep: bool = True) -> Metrics:
        """Pay for the answers to these images, and let the students learn from them (``take``)."""
        return self.take(x_BCHW, self._oracle(x_BCHW, "student"), keep)

    def take(self, x_BCHW: Tensor, answers: Tensor, keep: bool = True) -> Metrics:
        """Let the students learn from a batch that is paid for, unless it is held back to score them on.

        Only a batch to ``keep`` is held for replay.
        """
        self.paid.append((x_BCHW, answers))
        if self._examiner is not None and self._examiner(x_BCHW, answers):
            return {}
        return self._trainer.learn(x_BCHW, answers, keep)

    def state_dict(self) -> dict[str, Any]:
        return {"paid": list(self.paid) if (self.paid.maxlen or 1) > 1 else []}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.paid.extend((images.to(self._device), answers.to(self._device)) for images, answers in state["paid"])


class Taught:
    """What a method is that has nothing to prepare, and pays for images with its students alone.

    Each overrides what it does otherwise. ``cost`` and ``_teaching`` are its own.
    """

    cost: int
    _teaching: Teaching

    @property
    def facts(self) -> dict[str, Any]:
        return {}

    def prepare(self) -> tuple[str, ...]:
        return ()

    def step(self) -> Metrics:
        return self._teaching.spend(self.cost)

    def finish(self, images: int) -> Metrics:
        return self._teaching.spend(images)

    @property
    def recent(self) -> tuple[Tensor, Tensor] | None:
        return self._teaching.recent

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """There is nothing to take up: images follow from the run's random streams."""
