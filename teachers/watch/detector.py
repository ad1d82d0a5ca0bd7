"""What every detector has: what it sees, what honest users look like, what it says and remembers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from dfme.compute import held_to, plain_tensor
from dfme.errors import UserError

FEWEST = 20  # held-out images to calibrate on


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


class Reading(NamedTuple):
    """What a detector says after each image."""

    statistic_B: Tensor
    """float64; the larger, the more suspicious."""
    alarm_B: Tensor
    """bool; true at the images at which an alarm rings."""


class Benign:
    """Honest images, never of the training set: ``plain`` as they are, in random order, and ``corrupted``.

    Made once for all detectors of all accounts; what they are held against is computed when it is first wanted.
    UserError where they are too few.
    """

    def __init__(self, plain: Seen, corrupted: Seen, classes: int) -> None:
        if min(len(plain), len(corrupted)) < FEWEST:
            expected = f"expected at least {FEWEST} held-out images to calibrate detectors on"
            raise UserError(f"--teacher.benign: {expected}, got {min(len(plain), len(corrupted))}")
        self.plain, self.corrupted, self.classes = plain, corrupted, classes


class Detector(ABC):
    """A detector over the stream of one account: however the stream is cut into batches, it reads the same bits.

    ``memory_mb``: what it remembers at most. An alarm rings as the statistic rises to ``threshold`` or above it, and
    again only once it was below.
    """

    name: ClassVar[str]
    statistic: ClassVar[str]
    """In words, for a report."""
    threshold: float
    memory_mb: float
    rows: ClassVar[dict[str, int]] = {}
    """Of each tensor of the state whose rows vary, how many it has at most."""

    def __init__(self, benign: Benign) -> None:
        self.benign = benign
        self.state: dict[str, Any] = {}

    def see(self, seen: Seen) -> Reading:
        """The readings after each of the next images."""
        raise NotImplementedError

    @abstractmethod
    def _statistics(self, seen: Seen) -> Tensor:
        """The statistic after each image (B,), float64."""

    def state_dict(self) -> dict[str, Any]:
        """Numbers and tensors, at most ``memory_mb``."""
        return {name: each.clone() if isinstance(each, Tensor) else each for name, each in self.state.items()}

    def load_state_dict(self, state: Any) -> None:
        """Take up what ``state_dict`` gave. ValueError for anything that it cannot have given."""
        raise NotImplementedError
