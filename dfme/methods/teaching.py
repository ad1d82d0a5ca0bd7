"""The half that every generator-based method shares: generate, pay for the answers, let the student learn."""

from __future__ import annotations

from collections import deque
from typing import Any

import torch
from torch import Tensor

from dfme.methods.base import Metrics, Parts


class Teaching:
    """Batches of generated images, answered by the teacher and learnt by the student.

    The generator stays in train mode while it generates, as in the paper, so its running statistics move.
    """

    def __init__(self, parts: Parts, batch_size: int, remember: int = 1) -> None:
        """``remember``: batches kept in ``paid``; more than one are part of the state."""
        self._oracle = parts.oracle
        self._generator = parts.generator
        self._trainer = parts.trainer
        self._examiner = parts.examiner
        self._rng = parts.streams["latent"]
        self._batch_size = batch_size
        self.paid: deque[tuple[Tensor, Tensor]] = deque(maxlen=remember)

    @property
    def recent(self) -> tuple[Tensor, Tensor] | None:
        """The last batch paid for, and its answers."""
        return self.paid[-1] if self.paid else None

    def spend(self, images: int) -> Metrics:
        """Pay for exactly ``images`` answers, in batches; the last may be smaller. Returns the last metrics."""
        metrics: Metrics = {}
        while images > 0:
            count = min(images, self._batch_size)
            x_BCHW = self.images(count)
            metrics |= self.take(x_BCHW, self._oracle(x_BCHW, "student"))
            images -= count
        return metrics

    def take(self, x_BCHW: Tensor, answers: Tensor) -> Metrics:
        """Let the student learn from a batch that is paid for, unless it is held back to score it on."""
        self.paid.append((x_BCHW, answers))
        if self._examiner is not None and self._examiner(x_BCHW, answers):
            return {}
        return self._trainer.learn(x_BCHW, answers)

    @torch.no_grad()
    def images(self, count: int) -> Tensor:
        """``count`` generated images as the wire carries them; a whole batch is generated for its statistics' sake."""
        z_BZ = self._generator.draw(self._batch_size, self._rng)
        return self._oracle.spec.quantise(self._generator.squash(self._generator(z_BZ))[:count])

    def state_dict(self) -> dict[str, Any]:
        kept = list(self.paid) if (self.paid.maxlen or 1) > 1 else []
        return {"generator": self._generator.state_dict(), "trainer": self._trainer.state_dict(), "paid": kept}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._generator.load_state_dict(state["generator"])
        self._trainer.load_state_dict(state["trainer"])
        device = self._rng.device
        self.paid.extend((images.to(device), answers.to(device)) for images, answers in state["paid"])
