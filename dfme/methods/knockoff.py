"""Knockoff Nets: stealing functionality of black-box models (Orekondy, Schiele, Fritz; CVPR 2019; arXiv 1812.02766)."""

from __future__ import annotations

from typing import Any, ClassVar

from torch import Tensor

from dfme.methods.base import Parts
from dfme.methods.configs import KnockoffConfig
from dfme.methods.teaching import Taught, Teaching
from dfme.queries.pool import ImageSource, open_images, require_enough
from dfme.spec import LABEL_KINDS, ImageSpec, LabelKind


class Knockoff(Taught):
    """Pays for images of a pool, each once, in random order: cost = B images. The student learns from them afterwards.

    Once the budget has run out it takes ``epochs`` passes over all that was paid for, by the schedule of those
    passes. Where the student's configuration plans steps or replay steps, these are taken in place of the passes.

    Differences from the paper, with the paper's values:

    - the paper's adversary has natural images of another kind (ImageNet, OpenImages); without any, the pool is
      ``procedural``, images drawn by a program; a folder of pictures or a data set is ``pool``;
    - this is the paper's ``random`` strategy; its ``adaptive`` one needs a pool that is labelled, and is left out;
    - the paper minimises the cross-entropy with the full posterior, which is ``student.loss: kl``: they differ by
      the teacher's entropy, which no student changes. ``auto`` is L1 for scores, which was measured to follow
      better (``dfme/students/losses.py``), and cross-entropy for labels;
    - optimiser, schedule and architecture are options (``student``, ``schedule``); the paper trains pretrained
      ImageNet networks for 100 to 200 epochs by SGD of momentum .5 and a rate of .01, x0.1 every 60 epochs;
    - an epoch is as many draws as there are images, uniform and with replacement, not a permutation of them; of
      more images than ``student.replay_capacity`` the last ones are kept;
    - the last student is reported, never the best on the evaluation set.
    """

    label_modes: ClassVar[tuple[LabelKind, ...]] = LABEL_KINDS

    def __init__(self, config: KnockoffConfig, parts: Parts) -> None:
        self.cost = config.batch_size
        self._parts = parts
        self._pool: ImageSource = parts.opened
        self._teaching = Teaching(parts, self._images, config.batch_size)
        parts.trainer.train_afterwards(config.epochs, parts.oracle.ledger.budget)

    @staticmethod
    def open(config: KnockoffConfig, spec: ImageSpec, budget: int) -> ImageSource:
        """The pool. UserError where it cannot be read, or has fewer images than the budget asks for."""
        pool = open_images(config.pool, config, spec)
        require_enough(pool, budget, "--method.pool")
        return pool

    @property
    def facts(self) -> dict[str, Any]:
        return {"pool": self._pool.name}

    def _images(self, count: int) -> Tensor:
        parts = self._parts
        return parts.oracle.spec.quantise(self._pool.draw(count, parts.streams["pool"]))

    def state_dict(self) -> dict[str, Any]:
        return {"pool": self._pool.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._pool.load_state_dict(state["pool"])
