"""One random stream per purpose, so that a change in one place does not shift the draws of
another.
"""

import hashlib
from typing import Any

import torch


def derived_seed(seed: int, purpose: str) -> int:
    """A seed for ``purpose``, independent of the others and the same on every machine."""
    digest = hashlib.blake2b(f"{seed}/{purpose}".encode(), digest_size=7).digest()
    return int.from_bytes(digest, "big")


class Streams:
    """Named generators on one device, made when first asked for; their states go into the
    checkpoint.

    torch's own global state is part of ``state_dict``, since layers such as dropout draw from it.
    """

    def __init__(self, seed: int, device: torch.device) -> None:
        self._seed = seed
        self._device = device
        self._streams: dict[str, torch.Generator] = {}

    def __getitem__(self, purpose: str) -> torch.Generator:
        if purpose not in self._streams:
            stream = torch.Generator(self._device)
            stream.manual_seed(derived_seed(self._seed, purpose))
            self._streams[purpose] = stream
        return self._streams[purpose]

    def state_dict(self) -> dict[str, Any]:
        on_device = torch.cuda.get_rng_state(self._device) if self._device.type == "cuda" else None
        return {
            "streams": {purpose: stream.get_state() for purpose, stream in self._streams.items()},
            "global": torch.get_rng_state(),
            "device": on_device,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up what ``state_dict`` gave."""
        for purpose, stream_state in state["streams"].items():
            self[purpose].set_state(stream_state)
        torch.set_rng_state(state["global"])
        if state["device"] is not None:
            torch.cuda.set_rng_state(state["device"], self._device)
