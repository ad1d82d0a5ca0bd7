"""Calls that have to end in one line for a person."""

from collections.abc import Callable
from typing import Any

import pytest

from dfme.errors import UserError


def refusal(
    pattern: str,
    call: Callable[..., object],
    /,
    *arguments: Any,
    error: type[BaseException] = UserError,
    **options: Any,
) -> Any:
    """The error that the call ends in: one line, in which the pattern is found."""
    with pytest.raises(error, match=pattern or None) as caught:
        call(*arguments, **options)
    assert "\n" not in str(caught.value)
    return caught.value
