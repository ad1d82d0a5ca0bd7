"""The device of a run: which it is, how it repeats, and what to say when its memory is used up."""

import os
import platform
import re
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from dfme.errors import DfmeError, OptionError, Ref, Text, UserError, say


def on_accelerator(device: torch.device) -> bool:
    """True if the device queues work, so that reading one value waits for everything queued
    before.
    """
    return device.type != "cpu"


def choose_device(name: str) -> torch.device:
    """Device by name; ``auto`` is a GPU if present. UserError for unknown or missing ones."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise OptionError("device", "expected auto, cpu, cuda or cuda:N", repr(name)) from None
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        count = torch.cuda.device_count()
        raise UserError(
            say(
                "{}: this machine has {} CUDA devices; choose another, or cpu",
                Ref("device", name),
                count,
            )
        )
    return device


def device_name(device: torch.device) -> str:
    """A device as a record names it: the GPU's model, or the CPU's kind."""
    return (
        torch.cuda.get_device_name(device)
        if device.type == "cuda"
        else f"cpu ({platform.machine()})"
    )


@contextmanager
def deterministic(on: bool, device: torch.device) -> Iterator[None]:
    """Where ``on``, a GPU's kernels give the same bits every time; a CPU's do so anyway. Undone on
    exit.

    UserError where cuBLAS, which looks as CUDA starts, cannot; DfmeError for an operation that
    cannot.
    """
    if not on or device.type != "cuda":
        yield
        return
    name = "CUBLAS_WORKSPACE_CONFIG"
    fit = (":4096:8", ":16:8")
    cudnn = torch.backends.cudnn
    before = os.environ.get(name)
    if before not in fit and (before is not None or torch.cuda.is_initialized()):
        expected = f"expected {name}={fit[0]} before CUDA starts"
        raise OptionError("deterministic", f"{expected}, got {before}; set it to that")
    was = torch.get_deterministic_debug_mode(), cudnn.deterministic, cudnn.benchmark
    torch.set_deterministic_debug_mode("error")
    cudnn.deterministic = True
    cudnn.benchmark = False
    os.environ[name] = before or fit[0]
    try:
        yield
    except RuntimeError as error:
        if "does not have a deterministic implementation" not in (text := str(error)):
            raise
        cause = text.partition(", but")[0]
        raise DfmeError(say("{deterministic}: {}; start a new run without it", cause)) from error
    finally:
        torch.set_deterministic_debug_mode(was[0])
        cudnn.deterministic, cudnn.benchmark = was[1:]
        if before is None:
            del os.environ[name]


LARGE = say("{method.batch_size}, {student.replay_batch} or {student.replay_capacity}")


@contextmanager
def within_memory(device: torch.device, large: Text = LARGE) -> Iterator[None]:
    """One line that says what to do where memory is not enough; ``large``: the options that take
    less.
    """
    try:
        yield
    except (MemoryError, RuntimeError) as error:  # on a CPU torch raises a plain RuntimeError
        text = str(error)
        if isinstance(error, RuntimeError) and not re.search("out of memory|allocate memory", text):
            raise
        # CUDA says much more
        reason = ". ".join(text.splitlines()[0].split(". ")[:3]) if text else "no more to be had"
        message = f"out of memory on {device}: {reason}; start a new run with a smaller {large}"
        raise DfmeError(message) from error
