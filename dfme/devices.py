"""Where the tensors live."""

from __future__ import annotations

import contextlib
import os
import platform
import shutil
from collections.abc import Iterator

import torch

from dfme.errors import DfmeError, UserError


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


def device_name(device: torch.device) -> str:
    """A device as a record names it: the GPU's model, or the CPU's kind."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else f"cpu ({platform.machine()})"


def require_compiler(device: torch.device) -> None:
    """UserError where torch.compile would find no compiler: C++ on a CPU, C on a GPU."""
    variable, names = ("CC", ("gcc", "clang")) if device.type == "cuda" else ("CXX", ("g++", "clang++"))
    named = os.environ.get(variable)
    tried = (named,) if named else names
    if not any(shutil.which(name) for name in tried):
        raise UserError(
            f"--compile: expected a compiler ({' or '.join(tried)}) on the PATH, found none; "
            f"install one, name it in {variable}, or leave --compile out"
        )


LARGE = "--method.batch-size, --student.replay-batch or --student.replay-capacity"


@contextlib.contextmanager
def within_memory(device: torch.device, large: str = LARGE) -> Iterator[None]:
    """One line that says what to do in place of torch's message where the memory is not enough.

    ``large``: the flags that less memory is taken with.
    """
    try:
        yield
    except (MemoryError, RuntimeError) as error:  # on a CPU torch raises a plain RuntimeError
        text = str(error)
        if not isinstance(error, MemoryError) and "out of memory" not in text and "allocate memory" not in text:
            raise
        raise DfmeError(
            f"out of memory on {device}: {text.splitlines()[0] if text else 'no more to be had'}; start a new run "
            f"with a smaller {large}"
        ) from error
