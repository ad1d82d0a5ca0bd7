"""Which arithmetic a stretch of code runs in, whatever the process-wide settings say.

A finite difference needs all of fp32's 23 bits, and TF32, which cuDNN's convolutions use by
default, keeps
10. PyTorch has two sets of switches: the older ``set_float32_matmul_precision`` and ``allow_tf32``,
    and
``fp32_precision`` per backend and operation, where an unset operation inherits from its backend and
that from ``generic``. The newer decides, and some readers of the older raise where the two
disagree, so for matrix products both are kept in step here.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any, Literal

import torch

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
