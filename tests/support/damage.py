"""Damaged files and random ones, and calls that have to end in one line for a person."""

import contextlib
import hashlib
import io
import json
import os
import resource
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st

from dfme.errors import DfmeError, UserError
from dfme.run.checkpoint import MARK


@contextlib.contextmanager
def file_size_limit(size: int) -> Iterator[None]:
    """A disk that is full once a file has ``size`` bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def flip(at: float) -> Callable[[bytes], bytes]:
    """One bit changed, at this share of the file."""

    def damage(data: bytes) -> bytes:
        place = int(len(data) * at)
        return data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]

    return damage


DAMAGES: dict[str, tuple[str, Callable[[bytes], bytes], str]] = {
    "checkpoint, a bit": ("checkpoint.pt", flip(0.5), "its bytes are not those that were saved"),
    "checkpoint, cut short": (
        "checkpoint.pt",
        lambda data: data[:-1000],
        r"it is cut short \(\d+ bytes\)",
    ),
    "journal, a bit": ("journal/000001.bin", flip(0.1), "expected a whole record of the journal"),
    "ledger, a line gone": (
        "ledger.jsonl",
        lambda data: b"\n".join(data.split(b"\n")[:2] + data.split(b"\n")[3:]),
        r"line 3: expected a ledger's next line: charge 2 follows charge 0",
    ),
    "ledger, empty": (
        "ledger.jsonl",
        lambda data: b"",
        "expected at least the 10 charges that the check",
    ),
    "metrics, a line broken": (
        "metrics.jsonl",
        lambda data: b"{\n" + data,
        "line 1: expected a JSON record",
    ),
}


def fuzz(test: Any) -> Any:
    """A test of the exhaustive tier, on many examples; a failure is told as it is, since to shrink
    one takes minutes.
    """
    on_many = settings(
        max_examples=int(os.environ.get("HYPOTHESIS_MAX_EXAMPLES", "60")),
        deadline=None,
        suppress_health_check=[HealthCheck.function_scoped_fixture],  # one folder for all examples
        phases=[Phase.explicit, Phase.reuse, Phase.generate],
    )
    return pytest.mark.exhaustive(on_many(test))


NUMBERS = (
    st.integers()
    | st.integers(0, 12)
    | st.floats()
    | st.sampled_from([10**12, 10**400, 1e308, -0.0])
)
JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), NUMBERS, st.text(max_size=8), st.just("\ud800")),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=5), inner, max_size=4)
    ),
    max_leaves=6,
)


def only_ours(action: Callable[[], object]) -> DfmeError | None:
    """The error of ours that the action raised, of bounded length; any other is a failure."""
    caught: DfmeError | None = None
    try:
        action()
    except DfmeError as error:
        caught = error
    assert len(str(caught)) < 5_000
    return caught


def mutated(draw: st.DrawFn, data: bytes) -> bytes:
    """The bytes with some replaced, removed, or put in."""
    changed = bytearray(data)
    for _ in range(draw(st.integers(1, 6))):
        start = draw(st.integers(0, len(changed)))
        stop = min(len(changed), start + draw(st.integers(0, 8)))
        changed[start:stop] = draw(st.binary(max_size=8))
    return bytes(changed)


def repacked(archive: bytes, change: Callable[[bytes], bytes]) -> bytes:
    """A zip archive whose pickle is changed and whose checksums are right."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(archive)) as old, zipfile.ZipFile(buffer, "w") as new:
        for name in old.namelist():
            data = old.read(name)
            new.writestr(name, change(data) if name.endswith("data.pkl") else data)
    return buffer.getvalue()


def sealed(body: bytes) -> bytes:
    """A checkpoint's bytes with a trailer that vouches for them."""
    return body + MARK + hashlib.sha256(body).digest()


def saved(value: object, zipped: bool) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer, _use_new_zipfile_serialization=zipped)
    return buffer.getvalue()


def with_header(content: bytes, change: Callable[[dict[str, Any]], object]) -> bytes:
    """A safetensors file with its header changed, and its length right."""
    size = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + size])
    change(header)
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + content[8 + size :]


LAUGHS = "a0: &a0 [ha, ha]\n" + "".join(
    f"a{n}: &a{n} [{f'*a{n - 1}, ' * 9}]\n" for n in range(1, 12)
)
"""YAML whose aliases would unfold into billions of words."""


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
