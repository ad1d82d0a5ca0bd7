"""The device of a run, its threads, its memory, checks that are read later, and states from files."""

from __future__ import annotations

import os
import platform
import shutil
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from dfme.errors import DfmeError, UserError

MAX_PENDING = 4_096
"""Flags of an accelerator that wait to be read at most."""


def on_accelerator(device: torch.device) -> bool:
    """Whether work on the device is queued: whoever reads one of its values waits for all that was queued before."""
    return device.type != "cpu"


class DeferredChecks:
    """Checks at once on the CPU; on an accelerator collects the flags and reads them by one transfer in ``verify``.

    Reading one flag per step would stall a GPU's queue. The loop calls ``verify`` before anything that lasts
    (a log line, a checkpoint, the student's file), so a broken value is never kept, only noticed a little later.
    """

    def __init__(self) -> None:
        self._pending: list[tuple[Tensor, Callable[[], Exception]]] = []

    def expect(self, ok: Tensor, error: Callable[[], Exception]) -> None:
        """Require the boolean scalar ``ok``; ``error`` makes the exception to raise if it is false."""
        if not on_accelerator(ok.device):
            if not bool(ok):
                raise error()
            return
        self._pending.append((ok, error))
        if len(self._pending) >= MAX_PENDING:
            self.verify()

    def verify(self) -> None:
        """Read every pending flag and raise the first error there is."""
        pending, self._pending = self._pending, []
        if not pending:
            return
        flags = torch.stack([ok.to(pending[0][0].device) for ok, _ in pending]).tolist()  # a hundred are one kernel
        for ok, (_, error) in zip(flags, pending, strict=True):
            if not ok:
                raise error()


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


THREADS_GIVEN = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
"""Variables by which a person or a scheduler says how many threads torch takes."""

WORTH = 0.75
"""Share of what twice the threads could give that they must give to be taken. Heuristic: two threads must make a step
1.5 times as fast. What gives less on an idle machine loses by far on a busy one, where threads wait for each other."""

LONG_STEP = 0.25  # seconds of one core, from which on a step's operations keep every thread at work
ROUNDS, ROUND_SECONDS, ROUNDS_SECONDS = 3, 0.015, 0.1
PILOT_IMAGES = 8


def worthwhile_threads(
    step: Callable[[int], object],
    images: int,
    most: int,
    wall: Callable[[], float] = time.perf_counter,
    busy: Callable[[], float] = time.process_time,
) -> int:
    """How many threads of torch, from 1 to ``most``, are worth taking for steps on so many ``images``, by taking some.

    ``step`` works on the number of images that it is given. The threads are doubled for as long as that pays
    (``WORTH``): the usual pace of the more is held against the best of the fewer, so that a gain that comes and goes is
    none. A step longer than ``LONG_STEP`` is not measured: it is worth all. ``wall``, ``busy``: seconds gone by, and of
    those on a core. torch's number is as it was afterwards.
    """

    def pace(threads: int) -> float:
        torch.set_num_threads(threads)
        started, steps = wall(), 0
        while (taken := wall() - started) < ROUND_SECONDS or not steps:
            step(images)
            steps += 1
        return taken / steps

    was = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        few = min(images, PILOT_IMAGES)
        step(few)  # whatever is made once
        began = busy()
        step(few)
        if (busy() - began) * images / few > LONG_STEP:
            return most
        threads, started = 1, wall()
        while threads < most:
            more, paces = min(2 * threads, most), list[tuple[float, float]]()
            while len(paces) < ROUNDS and (not paces or wall() - started < ROUNDS_SECONDS):
                paces.append((pace(threads), pace(more)))
            fewer, doubled = zip(*paces, strict=True)
            if statistics.median(doubled) * WORTH * more > min(fewer) * threads:
                break
            threads = more
        return threads
    finally:
        torch.set_num_threads(was)


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


@contextmanager
def deterministic(on: bool, device: torch.device) -> Iterator[None]:
    """Where ``on``, a GPU's kernels give the same bits every time; a CPU's do so anyway. Undone on exit.

    UserError where cuBLAS, which looks once, as CUDA starts, cannot; DfmeError for an operation without such a kernel.
    """
    if not on or device.type != "cuda":
        yield
        return
    name, fit, cudnn = "CUBLAS_WORKSPACE_CONFIG", (":4096:8", ":16:8"), torch.backends.cudnn
    found = os.environ.get(name)
    if found not in fit and (found is not None or torch.cuda.is_initialized()):
        raise UserError(f"--deterministic: expected {name}={fit[0]} before CUDA starts, got {found}; set it to that")
    was = torch.get_deterministic_debug_mode(), cudnn.deterministic, cudnn.benchmark
    torch.set_deterministic_debug_mode("error")
    cudnn.deterministic, cudnn.benchmark = True, False
    os.environ[name] = found or fit[0]
    try:
        yield
    except RuntimeError as error:
        if "does not have a deterministic implementation" not in (said := str(error)):
            raise
        raise DfmeError(f"--deterministic: {said.partition(', but')[0]}; start a new run without it") from error
    finally:
        torch.set_deterministic_debug_mode(was[0])
        cudnn.deterministic, cudnn.benchmark = was[1:]
        if found is None:
            del os.environ[name]


LARGE = "--method.batch-size, --student.replay-batch or --student.replay-capacity"


@contextmanager
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
        said = ". ".join(text.splitlines()[0].split(". ")[:3]) if text else "no more to be had"  # CUDA says much more
        raise DfmeError(f"out of memory on {device}: {said}; start a new run with a smaller {large}") from error


def plain_tensor(found: Any, name: str) -> Tensor:
    """``found``, from a file, if it is an ordinary tensor: every element has a place of its own in memory.

    Kernels work on memory as if every tensor were so. ValueError, with ``name``, for anything else.
    """
    if type(found) is not Tensor or found.layout != torch.strided or found.is_meta or found.is_neg() or found.is_conj():
        raise ValueError(f"{name}: expected a plain tensor, got {_form(found)}")
    if torch.empty_like(found, device="meta").stride() != found.stride():
        raise ValueError(f"{name}: expected a tensor with memory of its own, got a view of {_form(found)}")
    return found.detach()


def held_to(own: Any, found: Any, name: str) -> Any:
    """``found``, from a file, once it has the form of ``own``, whose place it takes: no more and no less.

    A dict has the same keys, a list the same length. A tensor has the same shape and dtype, is plain and finite; a
    number has the same type and lies between 0 and 2^63. Raises ValueError, naming the entry, for anything else.
    """
    if isinstance(own, dict):
        if isinstance(found, dict) and found.keys() == own.keys():
            return {key: held_to(value, found[key], f"{name}.{key}") for key, value in own.items()}
    elif isinstance(own, list):
        if isinstance(found, list) and len(found) == len(own):
            return [held_to(*pair, f"{name}.{place}") for place, pair in enumerate(zip(own, found, strict=True))]
    elif isinstance(own, Tensor):
        found = plain_tensor(found, name)
        if (found.shape, found.dtype) == (own.shape, own.dtype):
            if not found.isfinite().all():  # nothing heals: what is paid for from here on would be lost
                raise ValueError(f"{name}: expected finite numbers, got NaN or infinity")
            return found
    elif type(found) is type(own) and (not isinstance(own, int | float) or 0 <= found < 2**63):
        return found
    expected = f"{type(own).__name__} from 0 up" if type(own) in (int, float) else _form(own)
    raise ValueError(f"{name}: expected {expected}, got {_form(found)}")


def take_up(part: Any, found: Any, name: str) -> None:
    """Load the state ``found``, from a file, into a net or an optimiser of ours. ValueError, naming the entry."""
    if isinstance(part, nn.Module):
        part.load_state_dict(held_to(part.state_dict(), found, name))
    else:
        part.load_state_dict(found, name)


def _form(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"{value.dtype} {tuple(value.shape)} ({value.layout}, {value.device})"
    return f"{type(value).__name__} of {len(value)}" if isinstance(value, dict | list) else repr(value)[:60]


@contextmanager
def evaluating(net: nn.Module) -> Iterator[nn.Module]:
    """``net`` in eval mode, and back in the mode it was found in: statistics frozen, images independent."""
    training = net.training
    _set_mode(net, training=False)
    try:
        yield net
    finally:
        _set_mode(net, training=training)


def _set_mode(net: nn.Module, *, training: bool) -> None:
    """``net.train(training)`` in a tenth of its time, which for a ResNet-18 is that of some dozen launches."""
    modules = [net]
    while modules:
        module = modules.pop()
        if type(module).train is nn.Module.train and "training" in vars(module):
            vars(module)["training"] = training
            modules += [child for child in module._modules.values() if child is not None]
        else:  # it has its own idea of a mode
            module.train(training)
