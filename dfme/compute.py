"""Which arithmetic a stretch of code runs in, whatever the process-wide settings say.

A finite difference subtracts two nearly equal numbers, so it needs every bit that fp32 has. TF32, which
cuDNN's convolutions use unless told otherwise, keeps 10 of its 23: enough to train, and enough to
turn the estimate into noise without any sign of it.

PyTorch has two sets of switches for this. The older (``set_float32_matmul_precision``, ``allow_tf32``) exists
in every release; from 2.9 on there is also ``fp32_precision``, kept per backend and operation, where an unset
operation inherits from its backend and that from ``generic``. The newer decides, and some readers of the
older raise an error when the two disagree, so for matrix products both are kept in step here.
"""

from __future__ import annotations

import contextlib
import os
import platform
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any, Literal

import torch
from torch import Tensor, nn

from dfme.errors import DfmeError, UserError

Precision = Literal["fp32", "bf16"]
PrecisionSwitch = tuple[str, str]  # backend and operation

_GENERIC: PrecisionSwitch = ("generic", "all")
_BACKENDS = ("cuda", "mkldnn")
_OPERATIONS = ("matmul", "conv", "rnn")
_AUTOCAST_DEVICES = ("cpu", "cuda")


@contextmanager
def ieee_fp32() -> Iterator[None]:
    """Run fp32 matrix products and convolutions in IEEE fp32, with autocast off, on the CPU and on CUDA.

    All settings are as they were on exit, also after an exception. They belong to the process, except
    autocast, which belongs to the thread: what other threads compute meanwhile is IEEE fp32 too. Nesting is
    harmless. Where there is ``fp32_precision``, reading the older ``cudnn.allow_tf32`` inside may raise.
    """
    with ExitStack() as undo:
        for device_type in _AUTOCAST_DEVICES:
            if torch.is_autocast_enabled(device_type):
                undo.enter_context(torch.autocast(device_type, enabled=False))
        if has_fp32_precision():
            _pin_each_operation(undo)
        else:
            _pin_older_switches(undo)
        yield


@contextmanager
def tf32() -> Iterator[None]:
    """Run CUDA's fp32 matrix products and convolutions in TF32: what ``ieee_fp32`` prevents, to measure it."""
    with ieee_fp32(), ExitStack() as undo:
        if not has_fp32_precision():
            for backend in (torch.backends.cuda.matmul, torch.backends.cudnn):
                undo.callback(setattr, backend, "allow_tf32", False)
                setattr(backend, "allow_tf32", True)  # noqa: B010 (the stubs know it of one of the two only)
        else:
            # The backend first: operations that follow it then read as TF32 and stay unset.
            for operation in ("all", *_OPERATIONS):
                if _read(key := ("cuda", operation)) != "tf32":
                    undo.callback(_write, key, "ieee")
                    _write(key, "tf32")
        yield


def autocast(device: torch.device | str, precision: Precision) -> AbstractContextManager[object]:
    """A student's training step in ``precision``: bf16 through autocast, fp32 with everything as it is.

    bf16 belongs around the forward pass and the loss only, and never around an estimate.
    """
    if precision == "bf16":
        return torch.autocast(torch.device(device).type, dtype=torch.bfloat16)
    return nullcontext()


def has_fp32_precision() -> bool:
    """Whether this PyTorch has the switches per backend and operation (2.9 and later)."""
    return hasattr(torch._C, "_get_fp32_precision_getter")


def _pin_older_switches(undo: ExitStack) -> None:
    undo.callback(torch.set_float32_matmul_precision, torch.get_float32_matmul_precision())
    torch.set_float32_matmul_precision("highest")
    undo.callback(setattr, torch.backends.cudnn, "allow_tf32", torch.backends.cudnn.allow_tf32)
    torch.backends.cudnn.allow_tf32 = False


def _pin_each_operation(undo: ExitStack) -> None:
    """Set ``generic`` and the backends to IEEE, and of the operations only those that do not follow them.

    An operation that inherits is left unset: cuDNN's hidden default cannot be written back by name, and a
    fixed value in its place would no longer follow what the user sets above it later.
    """
    undo.callback(_write, _GENERIC, _read(_GENERIC))
    for backend in _BACKENDS:
        whole = (backend, "all")
        undo.callback(_write, whole, _own_value(whole, parent=_GENERIC))
        for operation in _OPERATIONS:
            key = (backend, operation)
            own = _own_value(key, parent=whole)
            if own not in ("none", "ieee"):
                undo.callback(_write, key, own)
                _write(key, "ieee")
        _write(whole, "ieee")
    _pin_older_matmul(undo)


def _pin_older_matmul(undo: ExitStack) -> None:
    """Bring the older switch for matrix products into step; setting it writes the newer ones too."""
    older = torch.get_float32_matmul_precision()
    if older == "highest":
        return
    for backend in _BACKENDS:
        key = (backend, "matmul")
        undo.callback(_write, key, _own_value(key, parent=(backend, "all")))
    undo.callback(torch.set_float32_matmul_precision, older)
    torch.set_float32_matmul_precision("highest")


def _own_value(key: PrecisionSwitch, parent: PrecisionSwitch) -> str:
    """What ``key`` itself is set to, ``none`` where it inherits; leaves the parent at IEEE.

    The getter answers with what is in force, inherited or not: two different parents tell the two apart.
    """
    _write(parent, "tf32")
    under_tf32 = _read(key)
    _write(parent, "ieee")
    under_ieee = _read(key)
    return under_ieee if under_ieee == under_tf32 else "none"


# The public attributes are thin layers over these two, except that ``torch.backends.mkldnn.fp32_precision``
# writes to ``generic``; so the two are called directly.
def _read(key: PrecisionSwitch) -> str:
    return str(torch._C._get_fp32_precision_getter(*key))


def _write(key: PrecisionSwitch, value: str) -> None:
    torch._C._set_fp32_precision_setter(*key, value)


class DeferredChecks:
    """Checks at once on the CPU; on an accelerator collects the flags and reads them together in ``verify``.

    Reading one flag per step would stall a GPU's queue. The loop calls ``verify`` before anything that lasts
    (a log line, a checkpoint, the student's file), so a broken value is never kept, only noticed a little later.
    """

    def __init__(self) -> None:
        self._pending: list[tuple[Tensor, Callable[[], Exception]]] = []

    def expect(self, ok: Tensor, error: Callable[[], Exception]) -> None:
        """Require the boolean scalar ``ok``; ``error`` makes the exception to raise if it is false."""
        if ok.device.type == "cpu":
            if not bool(ok):
                raise error()
        else:
            self._pending.append((ok, error))

    def verify(self) -> None:
        """Read every pending flag and raise the first error there is."""
        pending, self._pending = self._pending, []
        for ok, error in pending:
            if not bool(ok):
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
    net.eval()
    try:
        yield net
    finally:
        net.train(training)
