"""Where a run computes, in which arithmetic, and from which random streams, so that it repeats.

A finite difference needs all of fp32's 23 bits, and TF32, which cuDNN's convolutions use by
default, keeps 10. PyTorch has two sets of switches: the older ``set_float32_matmul_precision`` and
``allow_tf32``, and ``fp32_precision`` per backend and operation, where an unset operation inherits
from its backend and that from ``generic``. The newer decides, and some readers of the older raise
where the two disagree, so for matrix products both are kept in step here.
"""

import hashlib
import os
import platform
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any, Literal

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


PrecisionSwitch = tuple[str, str]  # backend and operation

_GENERIC: PrecisionSwitch = ("generic", "all")
_BACKENDS = ("cuda", "mkldnn")
_OPERATIONS = ("matmul", "conv", "rnn")
_AUTOCAST_DEVICES = ("cpu", "cuda")


@contextmanager
def ieee_fp32() -> Iterator[None]:
    """Run fp32 matrix products and convolutions in IEEE fp32, with autocast off, on the CPU and on
    CUDA.

    All settings are put back on exit. They belong to the process, except autocast, which is the
    thread's. Nesting is harmless. Reading the older ``cudnn.allow_tf32`` inside may raise.
    """
    with ExitStack() as undo:
        for device_type in _AUTOCAST_DEVICES:
            if torch.is_autocast_enabled(device_type):
                undo.enter_context(torch.autocast(device_type, enabled=False))
        _pin_each_operation(undo)
        yield


@contextmanager
def tf32() -> Iterator[None]:
    """Run CUDA fp32 products and convolutions in TF32, which ``ieee_fp32`` prevents, to measure
    it.
    """
    with ieee_fp32(), ExitStack() as undo:
        # The backend first: operations that follow it then read as TF32 and stay unset.
        for operation in ("all", *_OPERATIONS):
            if _read(key := ("cuda", operation)) != "tf32":
                undo.callback(_write, key, "ieee")
                _write(key, "tf32")
        yield


@contextmanager
def arithmetic(
    name: Literal["auto", "ieee", "tf32", "bf16"], device: torch.device
) -> Iterator[None]:
    """Run what is inside in IEEE fp32, TF32 or under bf16 autocast, whatever holds outside; all is
    put back.

    ``auto`` is what holds outside, without autocast. On a CPU TF32 is IEEE fp32 (``has_tf32``).
    """
    pinned: AbstractContextManager[None] = ieee_fp32()
    if name == "auto":
        pinned = nullcontext()
    elif name == "tf32":
        pinned = tf32()
    with pinned, torch.autocast(device.type, torch.bfloat16, enabled=name == "bf16"):
        yield


def has_tf32(device: torch.device) -> bool:
    """True if fp32 products on ``device`` can run in TF32: NVIDIA's GPUs from Ampere on."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0)


def has_fast_bf16(device: torch.device) -> bool:
    """True for a CPU with instructions for bf16, as torch describes it (AVX512-BF16, which AMX
    implies).
    """
    told: Callable[[], dict[str, Any]] = getattr(
        torch.cpu, "get_capabilities", dict
    )  # torch 2.9 has it not
    return device.type == "cpu" and bool(told().get("avx512_bf16"))


def in_force() -> tuple[object, ...]:
    """Settings that decide in which arithmetic CUDA's kernels run that are started now."""
    return _read(("cuda", "matmul")), _read(("cuda", "conv"))


def _pin_each_operation(undo: ExitStack) -> None:
    """Set to IEEE all but what inherits: cuDNN's hidden default could not be written back by
    name.
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
    # Bring the older switch for matrix products into step; setting it writes the newer ones too.
    if (older := torch.get_float32_matmul_precision()) != "highest":
        for backend in _BACKENDS:
            key = (backend, "matmul")
            undo.callback(_write, key, _own_value(key, parent=(backend, "all")))
        undo.callback(torch.set_float32_matmul_precision, older)
        torch.set_float32_matmul_precision("highest")


def _own_value(key: PrecisionSwitch, parent: PrecisionSwitch) -> str:
    """Own setting of ``key``, ``none`` if it inherits; leaves the parent at IEEE.

    The getter answers with what is in force, inherited or not: two different parents tell the two
    apart.
    """
    _write(parent, "tf32")
    under_tf32 = _read(key)
    _write(parent, "ieee")
    under_ieee = _read(key)
    return under_ieee if under_ieee == under_tf32 else "none"


# The public attributes are thin layers over these two, except that
# ``torch.backends.mkldnn.fp32_precision`` writes to ``generic``; so the two are called directly.
def _read(key: PrecisionSwitch) -> str:
    return str(torch._C._get_fp32_precision_getter(*key))


def _write(key: PrecisionSwitch, value: str) -> None:
    torch._C._set_fp32_precision_setter(*key, value)


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
