"""Calls that have to end in one line for a person, and files that would do harm."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dfme.errors import UserError


def refused(
    words: str,
    call: Callable[..., object],
    /,
    *given: Any,
    error: type[Exception] = UserError,
    **named: Any,
) -> Any:
    """The error, of one line with these words in it, that the call ends in."""
    with pytest.raises(error) as caught:
        call(*given, **named)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
    return caught.value


class Harm:
    """Leaves a file behind when it is unpickled."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> Any:
        return (Path.touch, (self.trace,))
