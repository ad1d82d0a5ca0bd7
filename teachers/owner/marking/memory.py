"""What a marking keeps on disk so that it goes on after a kill: networks in training, and what was
decided. For the owner's eyes alone.
"""

import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from dfme.errors import RunError, UserError, say
from dfme.files import make_folder
from dfme.nets.files import save_tensors
from dfme.nets.safetensors_file import read_safetensors

FOLDER = "state"
MODE = 0o600
KEEP_SECONDS = 15.0
"""Between two states of one training on disk; more where writing takes long."""
MAX_WRITING = 0.05  # of the time
DAMAGED = say("the state of a marking is damaged; begin anew in another {out}")


class Memory:
    """Files of a marking under ``folder``, each whole or absent."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / FOLDER
        make_folder(self.folder)
        self.folder.chmod(0o700)

    def write(self, name: str, tensors: Mapping[str, Tensor], facts: Mapping[str, str]) -> None:
        save_tensors(self._path(name), tensors, facts, MODE)

    def read(self, name: str) -> tuple[dict[str, Tensor], dict[str, str]] | None:
        """Tensors and facts of that name, None where there are none. RunError for damage."""
        if not self._path(name).exists():
            return None
        try:
            return read_safetensors(self._path(name))
        except UserError as error:
            raise RunError(say("{}: {}", error.message, DAMAGED)) from error

    def restore(self, name: str, net: nn.Module) -> bool:
        """Load a finished network; False where there is none."""
        kept = self.read(name)
        if kept is None:
            return False
        _load(net, kept[0], self._path(name))
        return True

    def finish(self, name: str, net: nn.Module) -> None:
        """Keep a finished network, and forget the state of its training."""
        self.write(name, net.state_dict(), {"format": "pt"})
        self._path(f"{name}.training").unlink(missing_ok=True)

    def clear(self) -> None:
        """Remove all of it: the marking is done."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _path(self, name: str) -> Path:
        return self.folder / f"{name}.safetensors"


class TrainingState:
    """The state of one training: network, optimiser, random streams and steps that are done.

    On a CPU the network is bit by bit the same in the end, however often it was killed.
    """

    def __init__(
        self,
        memory: Memory,
        name: str,
        net: nn.Module,
        optimizer: torch.optim.Optimizer,
        rng: torch.Generator,
    ) -> None:
        self._memory = memory
        self._name = f"{name}.training"
        self._net = net
        self._optimizer = optimizer
        self._rng = rng
        self._kept_at = time.monotonic()
        self._pause = KEEP_SECONDS

    def begin(self) -> int:
        """The steps that are done, with everything as it was after them."""
        kept = self._memory.read(self._name)
        if kept is None:
            return 0
        tensors, facts = kept
        try:
            moments = _part(tensors, "moments.")
            state: dict[int, dict[str, Tensor]] = {}
            for key, value in moments.items():
                number, _, moment = key.partition(".")
                state.setdefault(int(number), {})[moment] = value
            groups = self._optimizer.state_dict()["param_groups"]
            self._optimizer.load_state_dict({"state": state, "param_groups": groups})
            self._rng.set_state(tensors["rng"])
            torch.set_rng_state(tensors["global"])
            done = int(facts["done"])
        except (KeyError, ValueError, RuntimeError, TypeError) as error:
            raise RunError(say("{}: {}", self._memory.folder, DAMAGED)) from error
        _load(self._net, _part(tensors, "net."), self._memory.folder)
        return done

    def keep(self, done: int) -> None:
        """Put it on disk now and then, after so many steps."""
        if time.monotonic() < self._kept_at + self._pause:
            return
        began = time.monotonic()
        tensors = {f"net.{name}": value for name, value in self._net.state_dict().items()}
        for number, moments in self._optimizer.state_dict()["state"].items():
            for name, value in moments.items():
                tensors[f"moments.{number}.{name}"] = value
        tensors["rng"] = self._rng.get_state()
        tensors["global"] = torch.get_rng_state()
        self._memory.write(self._name, tensors, {"done": str(done)})
        self._kept_at = time.monotonic()
        self._pause = max(KEEP_SECONDS, (self._kept_at - began) / MAX_WRITING)


def _part(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {
        name.removeprefix(prefix): value
        for name, value in tensors.items()
        if name.startswith(prefix)
    }


def _load(net: nn.Module, state: Mapping[str, Tensor], path: Path) -> None:
    try:
        net.load_state_dict(dict(state))
    except RuntimeError as error:
        raise RunError(say("{}: {}", path, DAMAGED)) from error


Say = Callable[[int], None]
"""Hears how many steps of a training are done."""
