"""The query sampler draws images from generator, programs and evolution, and selects the best of a pool."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from dfme.compute import evaluating, on_accelerator
from dfme.config.settings import QueriesConfig
from dfme.nets.generators import DrawImages, GeneratorNet
from dfme.queries.evolution import Evolution
from dfme.queries.selection import choose
from dfme.randomness import Streams
from dfme.spec import ImageSpec

CHUNK = 4_096
"""Candidates in one forward pass of the students; fewer where they are large."""


class QuerySampler:
    """Draws the images to pay for, quantised as the teacher takes them.

    ``generator`` of None: all images that are not bred are drawn by ``draw``. The generator stays in its mode, and
    makes whole batches even where fewer images are wanted, for its batch statistics. ``students`` score the pool, once
    they are ``trained``.
    """

    def __init__(
        self,
        config: QueriesConfig,
        spec: ImageSpec,
        generator: GeneratorNet | None,
        draw: DrawImages | None,
        students: Sequence[nn.Module],
        streams: Streams,
        batch_size: int,
        evolution: Evolution | None = None,
        trained: Callable[[], bool] = lambda: True,
    ) -> None:
        self._config = config
        self._spec = spec
        self._generator = generator
        self._draw = draw
        self._students = students
        self._streams = streams
        self._batch_size = batch_size
        self._evolution = evolution
        self._trained = trained

    @property
    def by_students(self) -> bool:
        """Whether what is drawn depends on the students, or on answers that came before."""
        return self._config.pool > 1 or self._evolution is not None

    def drawn(self, count: int) -> int:
        """How many of ``count`` images that are neither bred nor chosen a program draws: the last ones."""
        return count if self._generator is None else round(count * self._config.procedural)

    @torch.no_grad()
    def images(self, count: int) -> Tensor:
        """``count`` images to pay for, selected from ``pool`` times as many candidates."""
        config = self._config
        if config.pool == 1 or not self._trained():
            return self._candidates(count)
        # The last, smaller batch is chosen from as many candidates as any other.
        x_NCHW = self._candidates(self._batch_size * config.pool)
        rng = self._streams["choice"]
        chosen_B = choose(self._scores(x_NCHW), count, config.choose, config.balance, rng)
        return x_NCHW[chosen_B]

    def _candidates(self, count: int) -> Tensor:
        """``count`` quantised images, the configured share from each source."""
        return self._spec.quantise(torch.cat(self._parts(count)))

    def _parts(self, count: int) -> list[Tensor]:
        if self._evolution is None or not self._evolution.ready:
            return self._fresh(count)
        most, rng = round(count * self._config.evolve), self._streams["evolution"]
        if on_accelerator(rng.device):
            return [self._evolution.replace(torch.cat(self._fresh(count)), most, rng)]
        bred_BCHW = self._evolution.draw(most, rng)
        return [*self._fresh(count - len(bred_BCHW)), bred_BCHW]

    def _fresh(self, count: int) -> list[Tensor]:
        drawn = self.drawn(count)
        return [part for part in (self._generated(count - drawn), self._drawn(drawn)) if part is not None]

    def _generated(self, count: int) -> Tensor | None:
        if not count:
            return None
        assert self._generator is not None
        batches = []
        for _ in range(math.ceil(count / self._batch_size)):
            z_BZ = self._generator.draw(self._batch_size, self._streams["latent"])
            batches.append(self._generator.squash(self._generator(z_BZ)))
        return torch.cat(batches)[:count]

    def _drawn(self, count: int) -> Tensor | None:
        if not count:
            return None
        assert self._draw is not None
        return self._draw(count, self._streams["procedural"])

    def _scores(self, x_NCHW: Tensor) -> Tensor:
        """Every student's scores (E, N, K), by its frozen statistics."""
        return torch.stack([self._scores_of(net, x_NCHW) for net in self._students])

    def _scores_of(self, net: nn.Module, x_NCHW: Tensor) -> Tensor:
        with evaluating(net):
            return torch.cat([net(part) for part in x_NCHW.split(self._spec.at_once(CHUNK))]).float()
