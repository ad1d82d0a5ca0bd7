"""Knockoff Nets (Orekondy, Schiele, Fritz; CVPR 2019; arXiv 1812.02766): pools of images."""

from typing import Any

from torch import Tensor

from dfme.methods.base import Components, Method
from dfme.methods.configs import KnockoffConfig
from dfme.queries.pool import ImageSource, open_pool, require_enough
from dfme.spec import ImageSpec


class Knockoff(Method):
    """Pay for each image of a pool once, in random order: cost = B images. Students learn
    afterwards.

    Once the budget has run out it takes ``epochs`` passes over all that was paid for, by the
    schedule of those passes; under a larger budget passes over all that is held then follow, by a
    schedule of their own. Where the student's configuration plans steps or replay steps, these are
    taken in place of the passes.

    Differences from the paper, with the paper's values:

    - the paper's adversary has natural images of another kind (ImageNet, OpenImages); without any,
      the pool is ``procedural``, images drawn by a program; a folder of pictures or a data set is
      ``pool``;
    - this is the paper's ``random`` strategy; its ``adaptive`` one needs a pool that is labelled,
      and is left out;
    - the paper minimises the cross-entropy with the full posterior, which is ``student.loss: kl``:
      they differ by the teacher's entropy, which no student changes. ``auto`` is L1 for scores,
      which was measured to follow better (``dfme/students/losses.py``), and cross-entropy for
      labels;
    - optimiser, schedule and architecture are options (``student``, ``schedule``); the paper trains
      pretrained ImageNet networks for 100 to 200 epochs by SGD of momentum .5 and a rate of .01,
      x0.1 every 60 epochs;
    - an epoch is as many draws as there are images, uniform and with replacement, not a permutation
      of them; of more images than ``student.replay_capacity`` the last ones are kept;
    - the last student is reported, never the best on the evaluation set.
    """

    config: KnockoffConfig

    def __init__(self, config: KnockoffConfig, components: Components) -> None:
        super().__init__(config, components)
        assert components.pool is not None
        self._pool = self._own_parts["pool"] = components.pool
        self.students.train_afterwards(
            config.epochs, self.oracle.ledger.budget // self.oracle.times
        )

    @staticmethod
    def open_pool(config: KnockoffConfig, spec: ImageSpec, budget: int) -> ImageSource:
        """The pool. UserError where it cannot be read, or has fewer images than the budget asks
        for.
        """
        pool = open_pool(config.pool, spec, config.root, download=config.download)
        require_enough(pool, budget, "method.pool")
        return pool

    @property
    def cost(self) -> int:
        return self.config.batch_size

    def query_images(self, count: int) -> Tensor:
        """The pool's next images."""
        return self.oracle.spec.quantise(self._pool.draw(count, self.rng["pool"]))

    @property
    def facts(self) -> dict[str, Any]:
        return {"pool": self._pool.name}
