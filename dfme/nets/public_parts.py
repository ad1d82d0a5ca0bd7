"""The order in which a backbone computes, as the parts after which it can be cut."""

from __future__ import annotations

from torch import nn

Size = tuple[int, int]


def parts_of(backbone: nn.Module, size: Size) -> list[str]:
    """Names of submodules in order of computation."""
    return [name for name, _ in backbone.named_children()]
