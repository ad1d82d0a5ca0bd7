"""The state of a custom defence or detector: what a checkpoint can keep, in one form."""

from typing import Any

from torch import Tensor

from dfme.compute.modules import validate_like
from dfme.errors import DfmeError

STORABLE = (bool, int, float, str, Tensor)


def custom_state(thing: object, subject: str, error: type[DfmeError]) -> dict[str, Any]:
    """The dict ``state`` of a user's object, empty without one. Raises ``error`` for anything
    else.
    """
    state = getattr(thing, "state", {})
    expected = f"{subject}: its state: expected a dict of numbers and tensors by name"
    if not isinstance(state, dict):
        raise error(f"{expected}, got {type(state).__name__} {state!r:.60}")
    for name, value in state.items():
        if not isinstance(name, str) or not isinstance(value, STORABLE):
            raise error(f"{expected}, got {type(value).__name__} {value!r:.60} under {name!r:.40}")
    return state


def require_form(
    form: dict[str, Any], state: dict[str, Any], subject: str, error: type[DfmeError]
) -> None:
    """Raise ``error`` unless a state still has the types and shapes of ``form``, as resuming
    needs.
    """
    try:
        validate_like(form, state, "state")
    except ValueError as problem:
        raise error(
            f"{subject}: its state changes its form, so no run could resume: {problem}"
        ) from None
