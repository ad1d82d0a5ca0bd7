"""States for checkpoints: copied, and held to the form that is expected."""

from typing import Any

from torch import Tensor


def copied(state: dict[str, Any]) -> dict[str, Any]:
    """Plain data and tensors as they are now, on the CPU."""
    return {
        name: each.cpu().clone() if isinstance(each, Tensor) else each
        for name, each in state.items()
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
