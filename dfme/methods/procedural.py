"""Queries drawn by a program, with no data and no training; or the images of a pool."""

from dataclasses import replace

from dfme.methods.base import Components, Method
from dfme.methods.configs import ProceduralConfig
from dfme.queries.chosen import ChosenPool
from dfme.queries.pool import ImageSource, open_pool, require_enough
from dfme.queries.programs import PROCEDURAL
from dfme.spec import ImageSpec


class Procedural(Method):
    """Spends the whole budget on the student, on images of ``queries.programs``: cost = B * d
    images.

    Differences from a paper: none, this is our baseline. That images drawn by simple programs can
    stand in for real ones is shown, for pre-training, by Baradad et al. 2021 (Learning to see by
    looking at noise, arXiv 2106.05963).

    With a ``pool`` of pictures each of them is asked once at most. With ``queries.pool``
    ``all`` the students choose among those that are left as each of their rounds but the first
    begins:

    - by entropy, or by ``kcenter``, in the space of the student's probabilities, as ActiveThief
      does (Pal et al., AAAI 2020). Differences from it: sizes of the rounds, training and nets are
      options of ours; the images of adversarial distance (DFAL) are left out;
    - ``random`` and ``balance``: classes take turns, those that the students see, as images of
      rare classes are preferred by SwiftThief (Lee et al., IJCAI 2024), whose contrastive training
      is not part of this.
    """

    config: ProceduralConfig

    def __init__(self, config: ProceduralConfig, components: Components) -> None:
        super().__init__(config, components)
        self._pool = components.pool
        if self._pool is None:
            return
        oracle = self.oracle
        chosen = ChosenPool(
            self._pool,
            oracle.spec,
            components.sources,
            self.students,
            self.rng,
            images=oracle.ledger.budget // oracle.times,
            batch=config.batch_size * config.student_steps,
        )
        self._own_parts["pool"] = chosen
        one_by_one = replace(components.sources, pool=1)
        self.queries = replace(self.queries, config=one_by_one, draw=chosen.draw)

    @staticmethod
    def open_pool(config: ProceduralConfig, spec: ImageSpec, budget: int) -> ImageSource | None:
        """The pool, None where images are drawn. UserError where it cannot be read, or has fewer
        images than the budget asks for.
        """
        if config.pool == PROCEDURAL:
            return None
        pool = open_pool(config.pool, spec, config.root, download=config.download)
        require_enough(pool, budget, "method.pool")
        return pool

    @property
    def facts(self) -> dict[str, str]:
        """``pool``: its name, where there is one."""
        return {} if self._pool is None else {"pool": self._pool.name}
