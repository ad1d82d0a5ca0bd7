"""What both sides need of torch's modules: modes and defaults, optimisers without a compiler that
they would load, checks of values that an accelerator still computes, states for checkpoints.
"""

import inspect
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from dfme.compute.device import on_accelerator
from dfme.errors import DfmeError


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

LBFGS = _eager(torch.optim.LBFGS)


MAX_PENDING = 4_096  # flags of an accelerator that wait to be read at most


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


def copied(state: dict[str, Any]) -> dict[str, Any]:
    """Plain data and tensors as they are now, on the CPU."""
    return {
        name: value.cpu().clone() if isinstance(value, Tensor) else value
        for name, value in state.items()
    }


def validate_like(expected: Any, value: Any, name: str) -> None:
    """Raise ValueError, naming the entry, unless ``found``, from a file, has the form of ``own``.

    A dict has at least the same keys, a tensor the same shape and dtype, a number the same type;
    tensors are finite and numbers lie between 0 and 2^63. None stands for anything, a tensor
    without rows for one with some, and lists may differ in length.
    """
    if expected is None:
        return
    if isinstance(expected, dict):
        fits = isinstance(value, dict) and value.keys() >= expected.keys()
    elif isinstance(expected, list):
        fits = isinstance(value, list)
    elif isinstance(expected, Tensor):
        grows = 1 if expected.ndim and not len(expected) else 0
        fits = isinstance(value, Tensor) and value.dtype == expected.dtype
        fits = (
            fits and value.ndim == expected.ndim and value.shape[grows:] == expected.shape[grows:]
        )
        fits = fits and bool(value.isfinite().all())
    else:
        fits = type(value) is type(expected) and (
            not isinstance(expected, int | float) or 0 <= value < 2**63
        )
    if not fits:
        finite = "finite " if isinstance(expected, Tensor) else ""
        raise ValueError(f"{name}: expected {finite}{_form(expected)}, got {_form(value)}")
    if isinstance(expected, list):
        expected, value = (dict(enumerate(entries)) for entries in (expected, value))
    for key in expected.keys() & value.keys() if isinstance(expected, dict) else ():
        validate_like(expected[key], value[key], f"{name}.{key}")


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


LULL = 1.5  # seconds without a word from a computation, but for one of its steps


class Seldom:
    """Pass on how far a long computation is, unless that was said a moment ago."""

    def __init__(self, say: Callable[[Any], object]) -> None:
        self._say = say
        self._at = time.monotonic()

    def __call__(self, far: Any) -> None:
        if time.monotonic() > self._at + LULL:
            self._at = time.monotonic()
            self._say(far)
