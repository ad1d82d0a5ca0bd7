"""Images and answers already paid for, kept to train on again."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from dfme.spec import ImageSpec


class Replay:
    """First in, first out; drawn from uniformly, with replacement, on one device.

    Images are kept as 8-bit integers when the wire carries at most 256 levels, which is exact, and as
    float32 otherwise. Memory is reserved when the first batch comes: ``capacity`` images.
    """

    def __init__(self, capacity: int, spec: ImageSpec, rng: torch.Generator) -> None:
        self._capacity = capacity
        self._spec = spec
        self._rng = rng
        self._images: Tensor | None = None
        self._answers: Tensor | None = None
        self._added = 0

    def __len__(self) -> int:
        return min(self._added, self._capacity)

    def full_size(self, classes: int) -> int:
        """Bytes that it holds when full, with scores of so many classes."""
        return self._capacity * (self._spec.numel * (1 if self._coded else 4) + 4 * classes)

    def add(self, images_BCHW: Tensor, answers: Tensor) -> None:
        """Keep a batch of paid images and their answers; the oldest make room."""
        if self._images is None or self._answers is None:
            self._reserve(images_BCHW, answers)
        assert self._images is not None
        assert self._answers is not None
        coded = self._encode(images_BCHW)[-self._capacity :]
        answers = answers[-self._capacity :]
        start = self._added % self._capacity
        head = min(len(coded), self._capacity - start)
        self._images[start : start + head] = coded[:head]
        self._answers[start : start + head] = answers[:head]
        self._images[: len(coded) - head] = coded[head:]
        self._answers[: len(coded) - head] = answers[head:]
        self._added += len(coded)

    def sample(self, count: int) -> tuple[Tensor, Tensor]:
        """``count`` images (float32, within the bounds) with their answers."""
        assert self._images is not None, "nothing was added yet"
        assert self._answers is not None
        index_B = torch.randint(len(self), (count,), generator=self._rng, device=self._images.device)
        # index_select gathers whole rows, three times as fast as indexing does on a CPU.
        return self._decode(self._images.index_select(0, index_B)), self._answers.index_select(0, index_B)

    def state_dict(self) -> dict[str, Any]:
        held = len(self)
        return {
            "added": self._added,
            "images": None if self._images is None else self._images[:held].clone(),
            "answers": None if self._answers is None else self._answers[:held].clone(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up what ``state_dict`` gave. ValueError for a state of another spec or capacity."""
        self._added = int(state["added"])
        held = 0 if state["images"] is None else len(state["images"])
        if held != len(self) or (held and tuple(state["images"].shape[1:]) != self._spec.shape):
            raise ValueError(f"replay: expected {len(self)} images {self._spec.shape}, got {held} of another replay")
        if not held:
            return
        device = self._rng.device
        images, answers = state["images"].to(device), state["answers"].to(device)
        self._reserve(images, answers)
        assert self._images is not None
        assert self._answers is not None
        self._images[: len(images)] = images
        self._answers[: len(answers)] = answers

    def _reserve(self, images: Tensor, answers: Tensor) -> None:
        dtype = torch.uint8 if self._coded else torch.float32
        size, device = self._capacity, images.device
        self._images = torch.empty(size, *images.shape[1:], dtype=dtype, device=device)
        self._answers = torch.empty(size, *answers.shape[1:], dtype=answers.dtype, device=device)

    @property
    def _coded(self) -> bool:
        return self._spec.levels is not None and self._spec.levels <= 256

    def _encode(self, images: Tensor) -> Tensor:
        return self._spec.encode(images) if self._coded else images

    def _decode(self, coded: Tensor) -> Tensor:
        return self._spec.decode(coded) if self._coded else coded
