"""Images that a method reads beside what it generates: a pool by its name, drawn once, or pass after pass."""

from __future__ import annotations

import copy
from typing import Any, Protocol

import torch
from torch import Tensor

from dfme.sources import Procedural
from dfme.sources.pool import EndlessPool, Pool, Source, open_pool
from dfme.spec import ImageSpec


class Place(Protocol):
    """A method's configuration that says where images lie."""

    @property
    def root(self) -> str: ...

    @property
    def download(self) -> bool: ...


def open_images(name: str, place: Place, spec: ImageSpec) -> Pool | EndlessPool:
    """The images called so (``dfme.sources.pool``), as a method's own options say. UserError where they are not."""
    return open_pool(name, spec, root=place.root, download=place.download, download_flag="--method.download true")


def by_programs(pool: Source, spec: ImageSpec, programs: tuple[str, ...]) -> Source:
    """The pool; one without an end draws by these programs."""
    return pool if pool.size is not None else EndlessPool(Procedural(spec, programs))


class Passes:
    """A pool without an end: drawn to its last image, then again in another order."""

    def __init__(self, pool: Source) -> None:
        self._whole = copy.copy(pool)
        self._pool = copy.copy(pool)

    def draw(self, count: int, rng: torch.Generator) -> Tensor:
        """``count`` images (B, C, H, W), float32 within the bounds, on the device of ``rng``."""
        parts: list[Tensor] = []
        while count > 0:
            if self._pool.remaining == 0:
                self._pool = copy.copy(self._whole)
            left = self._pool.remaining
            parts.append(self._pool.draw(count if left is None else min(count, left), rng))
            count -= len(parts[-1])
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def state_dict(self) -> dict[str, Any]:
        return self._pool.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._pool.load_state_dict(state)
