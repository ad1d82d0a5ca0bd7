"""What detectors have in common: what they see, what they say, and what honest users look like."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from dfme.compute import held_to, plain_tensor
from dfme.errors import UserError
from dfme.teachers.watch.likeness import nearest_before, rows_of

MIN_BENIGN = 20  # held-out images to calibrate on
MAX_TOGETHER = 256  # images looked at together


@dataclass(frozen=True, eq=False)
class Seen:
    """Images of one account, in the order in which they came, as the owner's side sees them; all on the CPU.

    ``images_BCHW``: float32 within 0 and 1, the spec's bounds taken out. ``p_BK``: probabilities before any defence,
    float64. ``distance_B``: the squared Mahalanobis distance of the features to the nearest class, float64, where the
    teacher's network is at hand.
    """

    images_BCHW: Tensor
    p_BK: Tensor
    distance_B: Tensor | None = None

    def __len__(self) -> int:
        return len(self.p_BK)

    def __getitem__(self, part: slice) -> Seen:
        distance_B = None if self.distance_B is None else self.distance_B[part]
        return Seen(self.images_BCHW[part], self.p_BK[part], distance_B)

    @cached_property
    def rows_BR(self) -> Tensor:
        return rows_of(self.images_BCHW)

    @cached_property
    def log_distances(self) -> list[float]:
        assert self.distance_B is not None, "a detector that looks into the network, and a teacher without features"
        return [math.log(max(each, 1e-300)) for each in self.distance_B.tolist()]  # a vector's last bits vary by place


class Reading(NamedTuple):
    """After each image the statistic, float64, the larger the more suspicious; and whether an alarm rings at it."""

    statistic_B: Tensor
    alarm_B: Tensor


class Benign:
    """Honest images, never of the training set: ``plain`` as they are, in random order, and ``corrupted``.

    Made once for all detectors of all accounts. UserError where images are too few, or all the same.
    """

    def __init__(self, plain: Seen, corrupted: Seen, classes: int) -> None:
        self.plain, self.corrupted, self.classes = plain, corrupted, classes
        if (fewer := min(len(plain), len(corrupted))) < MIN_BENIGN:
            raise UserError(f"--teacher.benign: expected at least {MIN_BENIGN} images to calibrate on, got {fewer}")

    @cached_property
    def nearest(self) -> float:
        """As near as .1 % come to another of the 1,024 before: of up to 2,048 images, without repeats."""
        some_NR = self.plain.rows_BR[:2_048]
        near_N = nearest_before(some_NR, some_NR[:0], 1_024)[0][1:]
        if not (near_N > 0).any():
            raise UserError("--teacher.benign: expected images that differ, got the same one many times")
        return float(near_N[near_N > 0].quantile(0.001))

    @cached_property
    def shares_K(self) -> Tensor:
        """Of the teacher's classes."""
        return self.plain.p_BK.argmax(1).bincount(minlength=self.classes).double() / len(self.plain)

    @cached_property
    def log_distance(self) -> tuple[float, float]:
        """Mean and standard deviation of log distances, of images plain and corrupted together."""
        logs_N = torch.tensor(self.plain.log_distances + self.corrupted.log_distances).double()
        return float(logs_N.mean()), max(float(logs_N.std(correction=0)), 1e-9)


class Detector(ABC):
    """A detector over the stream of one account: however the stream is cut into batches, it reads the same bits.

    An alarm rings as the statistic rises above ``threshold``, and again only once it was not. ``state``: numbers, and
    tensors; ``rows``: of those that grow, how many rows they have at most. ``statistic``: in words, for a report.
    """

    name: ClassVar[str]
    statistic: ClassVar[str]
    threshold: float

    def __init__(self, benign: Benign) -> None:
        self.benign = benign
        self.state: dict[str, Any] = {"last": torch.zeros(1).double()}
        self.rows: dict[str, int] = {}

    @property
    def memory_mb(self) -> float:
        """What the state takes at most, MB."""
        tensors = {name: each for name, each in self.state.items() if isinstance(each, Tensor)}
        most = (self.rows.get(k, len(v)) * v.shape[1:].numel() * v.element_size() for k, v in tensors.items())
        return math.ceil(sum(most) / 100) / 1e4

    def see(self, seen: Seen) -> Reading:
        """The readings after each of the next images."""
        if len(seen) > MAX_TOGETHER:
            readings = [self.see(seen[start : start + MAX_TOGETHER]) for start in range(0, len(seen), MAX_TOGETHER)]
            return Reading(*map(torch.cat, zip(*readings, strict=True)))
        statistic_B1 = torch.cat([self.state["last"], self._statistics(seen, float(self.state["last"]))])
        self.state["last"] = statistic_B1[-1:]
        return Reading(statistic_B1[1:], self._rings(statistic_B1))

    @abstractmethod
    def _statistics(self, seen: Seen, last: float) -> Tensor:
        """The statistic after each image (B,), float64; B may be 0. ``last``: what it was before them."""

    def _rings(self, statistic_B1: Tensor) -> Tensor:
        """Where an alarm rings (B,); the first statistic is that before the first image."""
        above_B1 = statistic_B1 > self.threshold
        return above_B1[1:] & ~above_B1[:-1]

    def _keep(self, name: str, new_BR: Tensor) -> None:
        """The last rows, as many as there may be."""
        self.state[name] = torch.cat([self.state[name], new_BR])[-self.rows[name] :]

    def _share(self, name: str, new_B: Tensor, fewest: int) -> Tensor:
        """The share that is true of the last ones kept, or of ``fewest`` where they are fewer, after each new one."""
        had = len(self.state[name])
        total_N1 = torch.cat([torch.zeros(1, dtype=torch.bool), self.state[name], new_B]).cumsum(0)
        self._keep(name, new_B)
        end_B = torch.arange(had + 1, len(total_N1))
        start_B = (end_B - self.rows[name]).clamp_(min=0)
        return (total_N1[end_B] - total_N1[start_B]).double() / (end_B - start_B).clamp_(min=fewest)

    def state_dict(self) -> dict[str, Any]:
        return {name: each.clone() if isinstance(each, Tensor) else each for name, each in self.state.items()}

    def load_state_dict(self, state: Any) -> None:
        """Take up what ``state_dict`` gave. ValueError for anything that it cannot have given."""
        own = self.state_dict()
        for name, most in self.rows.items() if isinstance(state, dict) else ():
            found = plain_tensor(state.get(name), f"{self.name}.{name}")
            own[name] = own[name].new_empty(min(len(found) if found.ndim else 0, most), *own[name].shape[1:])
        held = held_to(own, state, self.name)
        self.state = {name: each.cpu().clone() if isinstance(each, Tensor) else each for name, each in held.items()}
