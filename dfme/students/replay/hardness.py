"""How hard each kept item was when the student last saw it, for a replay that takes the hard ones first."""

from __future__ import annotations

import math

import torch
from torch import Tensor


class Hardness:
    """The last loss of each of ``capacity`` items, by item number, on one device; infinite until there is one.

    ``hardest`` is a tournament: of candidates drawn at random, those with the largest last loss are kept. A
    heuristic of ours after the experience replay of CaBaGe (arXiv 2409.10643), which also turns to difficult
    samples. Its work grows with the batch and not with what is held, where drawing in proportion to the loss
    would sum over all items at every step; and as candidates are drawn uniformly, no item is taken more often
    than twice its share, however large its loss.
    """

    def __init__(self, capacity: int, device: torch.device) -> None:
        self._capacity = capacity
        # The last place takes what is noted of items that are gone, so that no device has to wait for a mask.
        self._loss = torch.full((capacity + 1,), math.inf, device=device)

    def renew(self, first: int, count: int) -> None:
        """Items ``first`` to ``first + count`` are new: nothing is known of them."""
        start = first % self._capacity
        head = min(count, self._capacity - start)
        self._loss[start : start + head] = math.inf
        self._loss[: count - head] = math.inf

    def note(self, slots_B: Tensor, loss_B: Tensor, oldest: int) -> None:
        """These items' losses, of those from ``oldest`` on; the largest of an item that stands there twice."""
        place_B = torch.where(slots_B >= oldest, slots_B % self._capacity, self._capacity)
        # A maximum does not depend on the order in which a device writes; an assignment would.
        self._loss.index_fill_(0, place_B, -math.inf)
        self._loss.scatter_reduce_(0, place_B, loss_B.detach().float(), "amax")

    def hardest(self, slots_B: Tensor, count: int) -> Tensor:
        """The ``count`` of these items whose last loss is largest; of equals, those named first."""
        order_B = self._loss[slots_B % self._capacity].argsort(descending=True, stable=True)
        return slots_B[order_B[:count]]

    def state(self, held: int) -> Tensor:
        """The losses of the ``held`` items, for a checkpoint."""
        return self._loss[:held].clone()

    def load(self, loss_B: Tensor) -> None:
        """Take up what ``state`` gave."""
        self._loss.fill_(math.inf)
        self._loss[: len(loss_B)] = loss_B.to(self._loss.device)
