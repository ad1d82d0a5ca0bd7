"""A replay's items in memory: a ring of tensors on one device."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from dfme.compute import held_to, plain_tensor


class MemoryStore:
    """The last ``capacity`` items; item n lies at place n modulo the capacity.

    Memory is reserved when the first batch comes.
    """

    def __init__(self, capacity: int, device: torch.device) -> None:
        self._capacity = capacity
        self._device = device
        self._images: Tensor | None = None
        self._answers: Tensor | None = None

    def write(self, first: int, coded_BCHW: Tensor, answers: Tensor) -> None:
        """Items ``first`` and on, at most ``capacity`` of them; they take the place of the oldest."""
        images_kept, answers_kept = self._reserved(coded_BCHW, answers)
        start = first % self._capacity
        head = min(len(coded_BCHW), self._capacity - start)
        for kept, new in ((images_kept, coded_BCHW), (answers_kept, answers)):
            kept[start : start + head] = new[:head]
            kept[: len(new) - head] = new[head:]

    def read(self, slots_B: Tensor) -> tuple[Tensor, Tensor]:
        """The coded images and the answers of these items."""
        assert self._images is not None, "nothing was added yet"
        assert self._answers is not None
        place_B = slots_B % self._capacity
        # index_select gathers whole rows, three times as fast as indexing does on a CPU.
        return self._images.index_select(0, place_B), self._answers.index_select(0, place_B)

    def state_dict(self, first: int, end: int) -> dict[str, Any]:
        """Copies of the items from ``first`` to ``end``, which are all that it holds, by place."""
        held = end - first
        return {
            "kind": "memory",
            "images": None if self._images is None else self._images[:held].clone(),
            "answers": None if self._answers is None else self._answers[:held].clone(),
        }

    def load_state_dict(self, state: dict[str, Any], first: int, end: int, like_CHW: Tensor) -> None:
        """Take up what ``state_dict`` gave for images such as this. ValueError for the state of another replay."""
        if state["kind"] != "memory":
            raise ValueError(f"replay: expected items kept in memory, got items kept on {state['kind']}")
        if held := end - first:
            images = held_to(like_CHW.new_empty(held, *like_CHW.shape), state["images"], "replay, images")
            answers = plain_tensor(state["answers"], "replay, answers")
            if len(answers) != held:
                raise ValueError(f"replay: expected {held} answers, got {len(answers)}")
            self._images = self._answers = None  # room is made for answers such as these
            images_kept, answers_kept = self._reserved(images, answers)
            images_kept[:held] = images
            answers_kept[:held] = answers

    def close(self) -> None:
        """Nothing to close."""

    def _reserved(self, images: Tensor, answers: Tensor) -> tuple[Tensor, Tensor]:
        """Room for ``capacity`` items such as these."""
        if self._images is None or self._answers is None:
            self._images, self._answers = (
                torch.empty(self._capacity, *like.shape[1:], dtype=like.dtype, device=self._device)
                for like in (images, answers)
            )
        return self._images, self._answers
