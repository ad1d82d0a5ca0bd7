"""Choice among all images of a pool that were not asked: once as a round of the students begins."""

import math
import time
from typing import Any

import torch
from torch import Tensor

from dfme.compute.device import Streams
from dfme.config.sections import QueriesConfig
from dfme.queries.pool import ImageSource, Pool
from dfme.queries.programs import SKETCH, Sketch
from dfme.queries.sampler import choose
from dfme.spec import ImageSpec
from dfme.students.trainer import StudentTrainer

CHUNK = 256  # images that the students score at once; fewer where they are large
CENTRES = 10  # that a rehearsal chooses
TIMED_SECONDS = 0.1  # in which a rehearsal scores ever more images of the pool
AT_ONCE = 256  # centres whose distances to all images are computed at once


def k_centre(space_ND: Tensor, centres_M: Tensor, count: int) -> Tensor:
    """Indices (count,) of points, each the farthest from all centres so far, in that order.

    ``space_ND``: the points; distances are Euclidean. ``centres_M``: indices of the first centres,
    at least one, which are not chosen. Source: the greedy choice of Sener & Savarese (ICLR 2018,
    arXiv 1708.00489), whose radius is at most twice the best one.
    """
    distance_N = torch.full((len(space_ND),), math.inf, device=space_ND.device)
    for part_M in centres_M.split(AT_ONCE):
        nearest_N = torch.cdist(space_ND, space_ND[part_M]).amin(dim=1)
        distance_N = torch.minimum(distance_N, nearest_N)
    distance_N[centres_M] = -1.0
    chosen = []
    for _ in range(count):
        farthest = distance_N.argmax()
        chosen.append(farthest)
        distance_N = torch.minimum(distance_N, _distances(space_ND, farthest))
        distance_N[farthest] = -1.0
    return torch.stack(chosen) if chosen else centres_M[:0]


def _distances(space_ND: Tensor, centre: Tensor) -> Tensor:
    squares_N: Tensor = (space_ND - space_ND[centre]).square().sum(dim=1)
    return squares_N.sqrt()


class ChosenPool:
    """A pool in the order that the students choose as their rounds begin, each for its images.

    Those of the first round are random. ``config``: how they choose; they do not unless its
    ``pool`` is all, and this one has an end. ``images``: different ones that the budget pays for.
    ``batch``: those of a step.
    """

    def __init__(
        self,
        pool: ImageSource,
        spec: ImageSpec,
        config: QueriesConfig,
        students: StudentTrainer,
        streams: Streams,
        images: int,
        batch: int,
    ) -> None:
        self._pool = pool
        self._spec = spec
        self._config = config
        self._students = students
        self._streams = streams
        self._images = images
        self._batch = batch
        self._chosen_at = 0  # steps of the students that chose
        self._seconds: float | None = None  # of choosing, for an image that is paid for

    def draw(self, count: int, rng: torch.Generator) -> Tensor:
        """The next images (B, C, H, W), by the stream of pools in place of ``rng``."""
        if self._config.pool == "all" and isinstance(self._pool, Pool):
            sketch = SKETCH.get()
            if sketch is not None:
                self._rehearse(self._pool, count, sketch)
            elif self._students.steps != self._chosen_at:
                self._choose(self._pool)
        return self._pool.draw(count, self._streams["pool"])

    def state_dict(self) -> dict[str, Any]:
        return {"pool": self._pool.state_dict(), "chosen_at": self._chosen_at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._pool.load_state_dict(state["pool"])
        self._chosen_at = state["chosen_at"]

    @torch.no_grad()
    def _choose(self, pool: Pool) -> None:
        """Put first those images that the students would be told about until their next round."""
        config = self._config
        asked_M, left_N = pool.places(self._streams["pool"])
        count = min(len(left_N), self._until_next_round())
        if config.choose == "kcenter":
            places_N = torch.cat([asked_M, left_N])
            vote_NK = self._scores(pool, places_N).softmax(dim=2).mean(dim=0)
            centres_M = torch.arange(len(asked_M), device=vote_NK.device)
            chosen_M = k_centre(vote_NK, centres_M, count)
        else:
            places_N = left_N
            scores_ENK = self._scores(pool, places_N)
            rng = self._streams["choice"]
            chosen_M = choose(scores_ENK, count, config.choose, config.balance, rng)
        pool.put_first(places_N[chosen_M.cpu()])
        self._chosen_at = self._students.steps

    def _until_next_round(self) -> int:
        """Images of whole batches until a round of the students is due."""
        share = self._students.schedule.share
        due = min((due for due in self._students.plan.rounds if due > share), default=1.0)
        batches = math.ceil(round((due - share) * self._images / self._batch, 6))
        return min(batches * self._batch, math.ceil(round((1 - share) * self._images, 6)))

    def _scores(self, pool: Pool, places_N: Tensor) -> Tensor:
        """Scores (E, N, K) of the students on the images at these places."""
        device = self._streams["pool"].device
        parts = places_N.split(self._spec.at_once(CHUNK))
        quantised = (self._spec.quantise(pool.images(part, device)) for part in parts)
        return torch.cat([self._students.scores(x_BCHW) for x_BCHW in quantised], dim=1)

    def _rehearse(self, pool: Pool, count: int, sketch: Sketch) -> None:
        """Owe the time of choosing, as if it were spread evenly over what is paid for."""
        if self._seconds is None:
            began = time.perf_counter()
            self._seconds = self._foretold(pool)
            sketch.owe(began - time.perf_counter())
        sketch.owe(count * self._seconds)

    @torch.no_grad()
    def _foretold(self, pool: Pool) -> float:
        """Seconds of choosing for an image that is paid for: all of the pool is scored before each
        round but the first.
        """
        rounds = self._students.config.rounds
        places_N = torch.arange(pool.size)
        began = time.perf_counter()
        scored = 1
        while True:
            before = time.perf_counter()
            scores_ENK = self._scores(pool, places_N[:scored])
            now = time.perf_counter()
            if scored >= min(CHUNK, pool.size) or now - began > TIMED_SECONDS:
                break
            scored *= 2
        passes = 1 if self._students.keeps_features else len(rounds) - 1
        seconds = passes * pool.size / self._images * (now - before) / scored
        if self._config.choose != "kcenter":
            return seconds
        space_NK = torch.rand(pool.size, scores_ENK.shape[2], device=scores_ENK.device)
        k_centre(space_NK, torch.arange(1), 1)  # the first call is slow
        before = time.perf_counter()
        k_centre(space_NK, torch.arange(1), CENTRES)
        # what was asked before a round is a centre in it, too
        centres = 1 + sum(rounds[:-1])
        return seconds + centres * (time.perf_counter() - before) / CENTRES
