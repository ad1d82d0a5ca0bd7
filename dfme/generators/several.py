"""Several generators side by side: each makes its part of every batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import cast

import torch
from torch import Tensor, nn

from dfme.generators.base import GeneratorNet
from dfme.spec import ImageSpec


class Several(GeneratorNet):
    """``members`` take equal parts of a batch in their order, the first ones an image more where it does not divide.

    Each is normalised by, and trained on, its own images only (cf. CaBaGe, arXiv 2409.10643).
    """

    def __init__(self, members: Sequence[GeneratorNet], spec: ImageSpec) -> None:
        super().__init__(spec)
        self.members = nn.ModuleList(members)

    def forward(self, latent_BL: Tensor) -> Tensor:
        parts = latent_BL.tensor_split(len(self.members))
        return torch.cat([member(part) for member, part in zip(self.members, parts, strict=True) if len(part)])

    @contextmanager
    def watched(self) -> Iterator[list[Tensor]]:
        """Of every call, what all members read, together once the last one has read."""
        with ExitStack() as stack:
            read = [stack.enter_context(member.watched()) for member in self._nets()]
            together = _Together(read)
            hook = self.register_forward_hook(lambda *_: together.collect())
            try:
                yield together
            finally:
                hook.remove()

    def draw(self, count: int, rng: torch.Generator) -> Tensor:
        """``count`` latents, which are alike for all members."""
        return self._nets()[0].draw(count, rng)

    def _nets(self) -> list[GeneratorNet]:
        return [cast(GeneratorNet, member) for member in self.members]


class _Together(list[Tensor]):
    """Batches read, of all members in one tensor each."""

    def __init__(self, read: Sequence[list[Tensor]]) -> None:
        super().__init__()
        self._read = read

    def collect(self) -> None:
        self.append(torch.cat([part for each in self._read for part in each]))
        for each in self._read:
            each.clear()
