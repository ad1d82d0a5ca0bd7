"""Damage to a run's files, and a disk that is full."""

import contextlib
import resource
from collections.abc import Callable, Iterator


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
