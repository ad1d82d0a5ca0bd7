"""The device of a run, its threads, memory and optimisers, checks that are read later, states from
files.
"""

import inspect
import os
import platform
import re
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from dfme.errors import DfmeError, OptionError, Ref, Text, UserError, say

LULL = 1.5  # seconds without a word from a computation, but for one of its steps
MAX_PENDING = 4_096  # flags of an accelerator that wait to be read at most
Eager = TypeVar("Eager", bound=torch.optim.Optimizer)


def _eager(optimizer: type[Eager]) -> type[Eager]:
    """The optimiser without its marks for ``torch.compile``: they import a compiler, which takes
    1.3 s.
    """
    plain = {
        "add_param_group": inspect.unwrap(optimizer.add_param_group),
        "step": torch.no_grad()(inspect.unwrap(optimizer.step)),
    }
    return type(optimizer.__name__, (optimizer,), plain)


SGD = _eager(torch.optim.SGD)
Adam = _eager(torch.optim.Adam)


def on_accelerator(device: torch.device) -> bool:
    """True if the device queues work, so that reading one value waits for everything queued
    before.
    """
    return device.type != "cpu"


class DeferredChecks:
    """Check at once on the CPU; on an accelerator collect flags and read them in one go in
    ``verify``.

    The loop calls ``verify`` before anything that lasts (a log line, a checkpoint, the student's
    file), so a broken value is never kept, only noticed a little later.
    """

    def __init__(self) -> None:
        self._pending: list[tuple[Tensor, Callable[[], Exception]]] = []

    def expect(self, ok: Tensor, error: Callable[[], Exception]) -> None:
        """Require the boolean scalar ``ok``; ``error`` makes the exception to raise if it is
        false.
        """
        if not on_accelerator(ok.device):
            if not bool(ok):
                raise error()
            return
        self._pending.append((ok, error))
        if len(self._pending) >= MAX_PENDING:
            self.verify()

    def verify(self) -> None:
        """Read every pending flag and raise the first error there is."""
        pending = self._pending
        self._pending = []
        if not pending:
            return
        # a hundred are one kernel
        flags = torch.stack([ok.to(pending[0][0].device) for ok, _ in pending]).tolist()
        for ok, (_, error) in zip(flags, pending, strict=True):
            if not ok:
                raise error()


def choose_device(name: str) -> torch.device:
    """Device by name; ``auto`` is a GPU if present. UserError for unknown or missing ones."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise OptionError("device", f"expected auto, cpu, cuda or cuda:N, got {name!r}") from None
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        found = torch.cuda.device_count()
        raise UserError(
            say(
                "{}: this machine has {} CUDA devices; choose another, or cpu",
                Ref("device", name),
                found,
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


THREADS_GIVEN = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
)  # a person's or a scheduler's number for torch

WORTH = 0.65
"""Share of what twice the threads could give that they must give to be taken, so 1.3 times the pace
of one. Measured: two threads give steps of 45 ms 1.5 to 1.6 times the pace. Where the machine gets
busy they wait for each other, and go at half the pace of one (docs/precision.md)."""

SHORT_STEP = 0.01  # seconds of one core, below which a step is left to it
LONG_STEP = 0.25  # seconds of one core, from which on a step's operations keep every thread at work
ROUNDS = 5
ROUND_SECONDS = 0.015
ROUNDS_SECONDS = 0.3
PILOT_IMAGES = 8


def worthwhile_threads(
    step: Callable[[int], object],
    images: int,
    most: int,
    wall: Callable[[], float] = time.perf_counter,
    busy: Callable[[], float] = time.process_time,
) -> int:
    """Choose the number of torch threads, 1 to ``most``, by timing some steps on so many
    ``images``.

    The threads are doubled for as long as that pays (``WORTH``): the usual pace of the more is held
    against the best of the fewer, so that a gain that comes and goes is none. A step longer than
    ``LONG_STEP`` is not measured: it is worth all. ``wall``, ``busy``: seconds gone by, and of
    those on a core. torch's number is as it was afterwards.
    """

    def pace(threads: int) -> float:
        torch.set_num_threads(threads)
        started = wall()
        steps = 0
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
        threads = 1
        started = wall()
        while threads < most:
            more = min(2 * threads, most)
            paces = list[tuple[float, float]]()
            while len(paces) < ROUNDS and (not paces or wall() - started < ROUNDS_SECONDS):
                paces.append((pace(threads), pace(more)))
            fewer, doubled = zip(*paces, strict=True)
            if max(statistics.median(doubled) * WORTH * more, SHORT_STEP) > min(fewer) * threads:
                break
            threads = more
        return threads
    finally:
        torch.set_num_threads(was)


class Seldom:
    """Pass on how far a long computation is, unless that was said a moment ago."""

    def __init__(self, say: Callable[[Any], object]) -> None:
        self._say = say
        self._at = time.monotonic()

    def __call__(self, far: Any) -> None:
        if time.monotonic() > self._at + LULL:
            self._at = time.monotonic()
            self._say(far)


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
    found = os.environ.get(name)
    if found not in fit and (found is not None or torch.cuda.is_initialized()):
        expected = f"expected {name}={fit[0]} before CUDA starts"
        raise OptionError("deterministic", f"{expected}, got {found}; set it to that")
    was = torch.get_deterministic_debug_mode(), cudnn.deterministic, cudnn.benchmark
    torch.set_deterministic_debug_mode("error")
    cudnn.deterministic = True
    cudnn.benchmark = False
    os.environ[name] = found or fit[0]
    try:
        yield
    except RuntimeError as error:
        if "does not have a deterministic implementation" not in (said := str(error)):
            raise
        cause = said.partition(", but")[0]
        raise DfmeError(say("{deterministic}: {}; start a new run without it", cause)) from error
    finally:
        torch.set_deterministic_debug_mode(was[0])
        cudnn.deterministic, cudnn.benchmark = was[1:]
        if found is None:
            del os.environ[name]


def copied(state: dict[str, Any]) -> dict[str, Any]:
    """Plain data and tensors as they are now, on the CPU."""
    return {
        name: each.cpu().clone() if isinstance(each, Tensor) else each
        for name, each in state.items()
    }


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
        said = ". ".join(text.splitlines()[0].split(". ")[:3]) if text else "no more to be had"
        advice = say("start a new run with a smaller {}", large)
        raise DfmeError(say("out of memory on {}: {}; {}", device, said, advice)) from error


@contextmanager
def defaults_kept(subject: str, error: type[DfmeError]) -> Iterator[None]:
    """Raise ``error`` if others' code changes PyTorch's defaults, which all that follows has.

    The default dtype, the default device and the recording of gradients are as before in any case.
    """
    before = _defaults()
    cause: Exception | None = None
    try:
        yield
    except Exception as problem:  # which the change may be the cause of
        cause = problem
    after = _defaults()
    changed = [f"{name} to {value}" for name, value in after.items() if value != before[name]]
    if changed:
        device = before["default device"]
        torch.set_default_dtype(before["default dtype"])
        torch.set_default_device(None if device.type == "cpu" else device)
        torch.set_grad_enabled(before["recording of gradients"])
        raise error(
            f"{subject}: it sets PyTorch's {' and its '.join(changed)}, for the whole process; "
            "expected these left as they are: give its own tensors a dtype and a device"
        ) from cause
    if cause is not None:
        raise cause


def _defaults() -> dict[str, Any]:
    return {
        "default dtype": torch.get_default_dtype(),
        "default device": torch.get_default_device(),
        "recording of gradients": torch.is_grad_enabled(),
    }


def validate_like(own: Any, found: Any, name: str) -> None:
    """Raise ValueError, naming the entry, unless ``found``, from a file, has the form of ``own``.

    A dict has at least the same keys, a tensor the same shape and dtype, a number the same type;
    tensors are finite and numbers lie between 0 and 2^63. None stands for anything, a tensor
    without rows for one with some, and lists may differ in length.
    """
    if own is None:
        return
    if isinstance(own, dict):
        fits = isinstance(found, dict) and found.keys() >= own.keys()
    elif isinstance(own, list):
        fits = isinstance(found, list)
    elif isinstance(own, Tensor):
        grows = 1 if own.ndim and not len(own) else 0
        fits = isinstance(found, Tensor) and found.dtype == own.dtype
        fits = fits and found.ndim == own.ndim and found.shape[grows:] == own.shape[grows:]
        fits = fits and bool(found.isfinite().all())
    else:
        fits = type(found) is type(own) and (not isinstance(own, int | float) or 0 <= found < 2**63)
    if not fits:
        finite = "finite " if isinstance(own, Tensor) else ""
        raise ValueError(f"{name}: expected {finite}{_form(own)}, got {_form(found)}")
    if isinstance(own, list):
        own, found = (dict(enumerate(each)) for each in (own, found))
    for key in own.keys() & found.keys() if isinstance(own, dict) else ():
        validate_like(own[key], found[key], f"{name}.{key}")


def _form(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"{value.dtype} {tuple(value.shape)}"
    if isinstance(value, dict):
        return f"entries {', '.join(map(str, value))}"[:100]
    return (
        f"list of {len(value)}"
        if isinstance(value, list)
        else f"{type(value).__name__} {value!r}"[:60]
    )


@contextmanager
def evaluating(net: nn.Module) -> Iterator[nn.Module]:
    """``net`` in eval mode, and back in the mode it was found in: statistics frozen, images
    independent.
    """
    training = net.training
    _set_mode(net, training=False)
    try:
        yield net
    finally:
        _set_mode(net, training=training)


def _set_mode(net: nn.Module, *, training: bool) -> None:
    """``net.train(training)`` in a tenth of its time, which for ResNet-18 equals a dozen
    launches.
    """
    modules = [net]
    while modules:
        module = modules.pop()
        if type(module).train is nn.Module.train and "training" in vars(module):
            vars(module)["training"] = training
            modules += [child for child in module._modules.values() if child is not None]
        else:  # it has its own idea of a mode
            module.train(training)
