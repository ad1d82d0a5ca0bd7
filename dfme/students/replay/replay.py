"""The replay: a window of what was paid for last, drawn from at random."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

import torch
from torch import Tensor

from dfme.spec import ImageSpec
from dfme.students.replay.coding import Coding, ReplayPrecision
from dfme.students.replay.disk import DiskStore, disk_bytes
from dfme.students.replay.hardness import Hardness
from dfme.students.replay.memory import MemoryStore

ReplayOrder = Literal["uniform", "hard"]


class Sample(NamedTuple):
    """Images (float32, within the bounds), their answers as the teacher gave them, and the items' numbers (int64)."""

    images_BCHW: Tensor
    answers: Tensor
    slots_B: Tensor


class Store(Protocol):
    """Where items lie, by their number: coded images and answers, numbered from the first that was ever kept."""

    def write(self, first: int, coded_BCHW: Tensor, answers: Tensor, /) -> None: ...

    def read(self, slots_B: Tensor, /) -> tuple[Tensor, Tensor]: ...

    def state_dict(self, first: int, end: int, /) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any], first: int, end: int, shape: tuple[int, ...], /) -> None: ...

    def close(self) -> None: ...


class Replay:
    """The last ``capacity`` items, first in, first out; drawn from with replacement, on ``rng``'s device.

    ``order``: uniform, or hard (those with the largest last loss first; see ``Hardness``). ``precision``: of images
    that are not kept as 8-bit integers (see ``Coding``). ``folder``: where the items lie on disk, with hardly any of
    them in this process's memory; without one they lie on ``rng``'s device.
    """

    def __init__(
        self,
        capacity: int,
        spec: ImageSpec,
        rng: torch.Generator,
        *,
        order: ReplayOrder = "uniform",
        precision: ReplayPrecision = "float32",
        folder: Path | None = None,
    ) -> None:
        self._capacity = capacity
        self._coding = Coding(spec, precision)
        self._rng = rng
        self._device = rng.device
        self._on_disk = folder is not None
        self._store: Store = MemoryStore(capacity, rng.device) if folder is None else DiskStore(folder, self._coding)
        self._hardness = Hardness(capacity, rng.device) if order == "hard" else None
        self._added = 0

    def __len__(self) -> int:
        return min(self._added, self._capacity)

    @property
    def added(self) -> int:
        """Items that were ever kept; the number of the next."""
        return self._added

    def full_size(self, classes: int) -> int:
        """Bytes that it takes in a checkpoint when full, with scores of so many classes."""
        items = 0 if self._on_disk else self._coding.image_bytes + 4 * classes
        return self._capacity * (items + (4 if self._hardness else 0))

    def disk_size(self, classes: int) -> int:
        """Bytes that its folder takes when full; older items stay until the checkpoint after next."""
        return disk_bytes(self._coding, self._capacity, classes) if self._on_disk else 0

    def add(self, images_BCHW: Tensor, answers: Tensor) -> None:
        """Keep a batch of paid images and their answers; the oldest make room. RunError where a disk refuses."""
        images_BCHW, answers = images_BCHW[-self._capacity :], answers[-self._capacity :]
        self._store.write(self._added, self._coding.encode(images_BCHW), answers)
        if self._hardness is not None:
            self._hardness.renew(self._added, len(images_BCHW))
        self._added += len(images_BCHW)

    def sample(self, count: int) -> Sample:
        """``count`` items; at least one must have been added."""
        assert self._added, "nothing was added yet"
        drawn = count if self._hardness is None else 2 * count
        place_B = torch.randint(len(self), (drawn,), generator=self._rng, device=self._device)
        slots_B = self._oldest + (place_B - self._oldest) % self._capacity
        if self._hardness is not None:
            slots_B = self._hardness.hardest(slots_B, count)
        return self._read(slots_B)

    def note(self, slots_B: Tensor, loss_B: Tensor) -> None:
        """The loss of each of these items; of no effect in the order uniform, or on items that are gone."""
        if self._hardness is not None:
            self._hardness.note(slots_B, loss_B, self._oldest)

    def batches(self, count: int) -> Iterator[tuple[Tensor, Tensor]]:
        """All images and answers held, ``count`` at a time, the oldest first."""
        end = self._added
        for start in range(self._oldest, end, count):
            yield self._read(torch.arange(start, min(start + count, end), device=self._device))[:2]

    def state_dict(self) -> dict[str, Any]:
        """Plain tensors and numbers; what is kept on disk is on the disk when this returns, and is not in it."""
        held = len(self)
        return {
            "added": self._added,
            "held": held,
            "precision": self._coding.precision,
            "hardness": None if self._hardness is None else self._hardness.state(held),
            "items": self._store.state_dict(self._oldest, self._added),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up what ``state_dict`` gave; a state without hardness leaves all items infinitely hard.

        Raises ValueError for a state of another spec, precision or capacity, or of items kept elsewhere, and
        RunError for files on disk that are missing, cut short or of another run.
        """
        added, held, hardness = int(state["added"]), int(state["held"]), state["hardness"]
        if held != min(added, self._capacity) or state["precision"] != self._coding.precision:
            expected = f"{min(added, self._capacity)} items, {self._coding.precision}"
            raise ValueError(f"replay: expected {expected}, got {held}, {state['precision']}, of another replay")
        self._store.load_state_dict(state["items"], added - held, added, self._coding.spec.shape)
        if self._hardness is not None and hardness is not None:
            self._hardness.load(hardness)
        self._added = added

    def close(self) -> None:
        """Close what is open on disk; closing twice is no error."""
        self._store.close()

    @property
    def _oldest(self) -> int:
        """The number of the oldest item held."""
        return self._added - len(self)

    def _read(self, slots_B: Tensor) -> Sample:
        coded_BCHW, answers = self._store.read(slots_B)
        # Coded they are smallest, so they travel to an accelerator before they are images again.
        return Sample(self._coding.decode(coded_BCHW.to(self._device)), answers.to(self._device), slots_B)
