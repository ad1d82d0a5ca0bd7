"""The replay: a window of what was paid for last, drawn from at random."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from dfme.compute import held_to
from dfme.spec import ImageSpec
from dfme.students.replay.disk import DiskStore, disk_bytes
from dfme.students.replay.layout import Coding, segment_items
from dfme.students.replay.memory import MemoryStore

FILLED = 4_096  # items read at once from the files into a mirror; fewer of large images


def capacity_within(size: int, spec: ImageSpec, answer: int, on_disk: bool, ever: int) -> int:
    """The most items that take ``size`` bytes at most, of ``ever`` in all; on disk with what lies beside the window."""
    coding = Coding(spec)
    item = coding.item_bytes(answer) if on_disk else coding.image_bytes + answer
    beside = 2 * segment_items(item) if on_disk and size // item < ever else 0
    return max(0, size // item - beside)


class Store(Protocol):
    """Where items lie, by their number: coded images and answers, numbered from the first that was ever kept."""

    def write(self, first: int, coded_BCHW: Tensor, answers: Tensor, /) -> None: ...

    def read(self, slots_B: Tensor, /) -> tuple[Tensor, Tensor]: ...

    def state_dict(self, first: int, end: int, /) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any], first: int, end: int, like_CHW: Tensor, /) -> None: ...

    def close(self) -> None: ...


class Replay:
    """The last ``capacity`` items, first in, first out; drawn from with replacement, on ``rng``'s device.

    ``folder``: where the items lie on disk, with hardly any of them in this process's memory; without one they lie
    on ``rng``'s device.
    """

    def __init__(self, capacity: int, spec: ImageSpec, rng: torch.Generator, folder: Path | None = None) -> None:
        self.capacity, self.spec = capacity, spec
        self._coding = Coding(spec)
        self._rng = rng
        self._device = rng.device
        self.on_disk = folder is not None
        self._store: Store = MemoryStore(capacity, rng.device) if folder is None else DiskStore(folder, self._coding)
        self._mirror: MemoryStore | None = None
        self._added = 0

    def __len__(self) -> int:
        return min(self._added, self.capacity)

    def mirror(self) -> None:
        """Before anything is kept: draw from a copy on the device, so that no file is read; they stay the record."""
        self._mirror = MemoryStore(self.capacity, self._device)

    @property
    def added(self) -> int:
        """Items that were ever kept; the number of the next."""
        return self._added

    def items_size(self, answer: int) -> int:
        """Bytes of its items when full, wherever they lie, with answers of so many bytes."""
        return self.capacity * (self._coding.image_bytes + answer)

    def full_size(self, answer: int) -> int:
        """Bytes that it takes in a checkpoint when full."""
        return 0 if self.on_disk else self.items_size(answer)

    def disk_size(self, answer: int, ever: int) -> int:
        """Bytes that its folder takes once ``ever`` items came; older ones stay until the checkpoint after next."""
        return disk_bytes(self._coding.item_bytes(answer), self.capacity, ever) if self.on_disk else 0

    def add(self, images_BCHW: Tensor, answers: Tensor) -> None:
        """Keep a batch of paid images and their answers; the oldest make room. RunError where a disk refuses."""
        images_BCHW, answers = images_BCHW[-self.capacity :], answers[-self.capacity :]
        coded_BCHW = self._coding.encode(images_BCHW)
        for store in filter(None, (self._store, self._mirror)):
            store.write(self._added, coded_BCHW, answers)
        self._added += len(images_BCHW)

    def sample(self, count: int) -> tuple[Tensor, Tensor]:
        """``count`` images (float32, within the bounds) and the teacher's answers; one at least was added before."""
        assert self._added, "nothing was added yet"
        place_B = torch.randint(len(self), (count,), generator=self._rng, device=self._device)
        return self._read(self._oldest + (place_B - self._oldest) % self.capacity)

    def batches(self, count: int) -> Iterator[tuple[Tensor, Tensor]]:
        """All images and answers held, ``count`` at a time, the oldest first."""
        end = self._added
        for start in range(self._oldest, end, count):
            yield self._read(torch.arange(start, min(start + count, end), device=self._device))

    def state_dict(self) -> dict[str, Any]:
        """Plain tensors and numbers; what is kept on disk is on the disk when this returns, and is not in it."""
        held = len(self)
        return {
            "added": self._added,
            "held": held,
            "items": self._store.state_dict(self._oldest, self._added),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up what ``state_dict`` gave.

        Raises ValueError for a state of another spec or capacity, or of items kept elsewhere, and RunError for files
        on disk that are missing, cut short or of another run.
        """
        added, held = (held_to(0, state[name], f"replay, {name}") for name in ("added", "held"))
        if held != min(added, self.capacity):
            raise ValueError(f"replay: expected {min(added, self.capacity)} items, got {held}, of another replay")
        like_CHW = torch.empty(self._coding.spec.shape, dtype=self._coding.dtype, device="meta")
        self._store.load_state_dict(state["items"], added - held, added, like_CHW)
        self._added = added
        count, mirror = self.spec.at_once(FILLED), self._mirror
        if mirror is not None:
            for start in range(self._oldest, added, count):
                mirror.write(start, *self._store.read(torch.arange(start, min(start + count, added))))

    def close(self) -> None:
        """Close what is open on disk; closing twice is no error."""
        self._store.close()

    @property
    def _oldest(self) -> int:
        """The number of the oldest item held."""
        return self._added - len(self)

    def _read(self, slots_B: Tensor) -> tuple[Tensor, Tensor]:
        coded_BCHW, answers = (self._mirror or self._store).read(slots_B)
        # Coded they are smallest, so they travel to an accelerator before they are images again.
        return self._coding.decode(coded_BCHW.to(self._device)), answers.to(self._device)
