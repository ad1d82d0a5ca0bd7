"""Where the tensors live."""

from __future__ import annotations

import torch

from dfme.errors import UserError


def choose_device(name: str) -> torch.device:
    """The device by name; ``auto`` is a GPU where there is one. UserError if it is none, or not on this machine."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise UserError(f"--device: expected auto, cpu, cuda or cuda:N, got {name!r}") from None
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        found = torch.cuda.device_count()
        raise UserError(f"--device {name}: this machine has {found} CUDA devices; choose another, or cpu")
    return device
