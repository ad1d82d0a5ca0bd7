"""States for checkpoints: copied, and held to the form that is expected."""

from typing import Any

from torch import Tensor


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
