"""Checkpoints: what ``torch.save`` writes, a mark and its SHA-256; saved whole, the one before is
kept.
"""

import hashlib
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, cast

import torch
from torch import Tensor

from dfme.errors import DfmeError, RunError, say
from dfme.files import open_file, replacing
from dfme.nets.pickles import NotPlainError, load_plain
from dfme.spec import ImageSpec, LabelMode

MARK = b"dfme-sha256:"
TRAILER_BYTES = len(MARK) + hashlib.sha256().digest_size
PAID_AT_ONCE = 1_024  # kept answers that are looked at together when a run goes on: bounds memory
PLAIN = (bool, int, float, str, bytes, type(None))


def previous(path: Path) -> Path:
    """The name of the checkpoint kept from before ``path``: checkpoint.previous.pt for
    checkpoint.pt.
    """
    return path.with_name(f"{path.stem}.previous{path.suffix}")


def save_checkpoint(path: Path, state: dict[str, Any]) -> None:
    """Save nested dicts, lists and tuples of tensors, numbers, strings, bytes and None; the old one
    is kept.

    On the disk when this returns. Raises RunError where the disk refuses, with the old checkpoint
    untouched, and TypeError, naming the entry, for a value that ``weights_only`` would not load
    again.
    """
    _plain(state, "state")
    with replacing(path, keep=previous(path)) as file:
        hashing = _HashingWriter(file)
        try:
            torch.save(state, cast(IO[bytes], hashing))
        except RuntimeError as error:
            raise hashing.error or error from error
        file.write(MARK + hashing.sha256.digest())


def load_checkpoint(path: Path) -> dict[str, Any]:
    """The state that was saved, on the CPU.

    A process killed in the middle of a save may leave only the previous one; that is loaded then.
    Raises RunError for a missing or damaged file, and says whether the previous one is whole.
    """
    if not path.exists() and previous(path).exists():
        path = previous(path)
    problem = _damage(path)
    if problem is None:
        try:
            state = _plain(load_plain(path, trailer=TRAILER_BYTES), "state")
            if isinstance(state, dict) and state:
                return state
            problem = "it holds no state of a run"
        except (NotPlainError, OSError, TypeError) as error:
            problem = str(error)
            if isinstance(error, NotPlainError) and error.imports:
                problem = f"{error}, which are never loaded: that could run any code"
    before = previous(path)
    advice = say("there is no whole one before it either; start a new run in another {out}")
    if path != before and _damage(before) is None:
        advice = say(
            "{} is whole: rename it to {} and resume, nothing is paid twice", before.name, path.name
        )
    raise RunError(say("{}: expected a whole checkpoint, but {}; {}", path, problem, advice))


@contextmanager
def explain_load_errors(checkpoint: Path) -> Iterator[None]:
    """RunError for whatever goes wrong with the state of a checkpoint that is whole, but not of
    this run.
    """
    try:
        yield
    except DfmeError:
        raise
    except Exception as error:
        problem = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        raise RunError(
            say(
                "{}: is whole, but does not fit this run ({}); restore the one that belongs to it "
                "and is of this version, or start a new run in another {out}",
                checkpoint,
                problem,
            )
        ) from error


def require_paid(
    pairs: Iterable[tuple[Tensor, Tensor]], spec: ImageSpec, classes: int, mode: LabelMode
) -> None:
    """ValueError unless all of these are images of ``spec`` with as many answers in ``mode``."""
    label = mode.kind == "label"
    for images, answers in pairs:
        form = ((len(images),), torch.int64) if label else ((len(images), classes), torch.float32)
        received = (*images.shape[1:], images.dtype), (tuple(answers.shape), answers.dtype)
        if not len(images) or received != ((*spec.shape, torch.float32), form):
            raise ValueError(f"expected images {spec.shape} and answers {form}, got {received}")
        if not images.isfinite().all() or not (mode.kind == "top_k" or answers.isfinite().all()):
            raise ValueError("expected images and answers of finite numbers, got NaN or infinity")
        if label and not 0 <= int(answers.min()) <= int(answers.max()) < classes:
            raise ValueError(f"expected labels from 0 to {classes - 1}, got others")


class _HashingWriter:
    """Passes bytes on, hashing them; remembers the disk's error, which PyTorch hides in one of its
    own.
    """

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.sha256 = hashlib.sha256()
        self.error: OSError | None = None

    def write(self, data: bytes) -> int:
        try:
            self._file.write(data)
        except OSError as error:
            self.error = error
            raise
        self.sha256.update(data)
        return len(data)

    def flush(self) -> None:
        self._file.flush()


def _plain(value: object, where: str) -> Any:
    """The value with its containers made anew; TypeError for what has no place in a state."""
    if isinstance(value, dict):
        for key in value:
            if not isinstance(key, str | int):
                raise TypeError(f"{where} has the key {key!r}; expected text or a whole number")
        return {key: _plain(item, f"{where}[{key!r}]") for key, item in value.items()}
    if isinstance(value, list | tuple):
        items = [_plain(item, f"{where}[{index}]") for index, item in enumerate(value)]
        return tuple(items) if isinstance(value, tuple) else items
    if isinstance(value, Tensor):
        if (
            value.layout != torch.strided
            or value.is_meta
            or value.nbytes > value.untyped_storage().nbytes()
        ):
            raise TypeError(f"{where} is no plain tensor with memory of its own")
        resolved = value.detach().resolve_conj().resolve_neg()
        in_place = torch.empty_like(resolved, device="meta").stride() == resolved.stride()
        return resolved if in_place else resolved.contiguous()
    if not isinstance(value, PLAIN):
        raise TypeError(f"{where} is a {type(value).__name__}; expected a tensor, number or text")
    return value


def _damage(path: Path) -> str | None:
    """Damage to the file's bytes, if any."""
    try:
        with open_file(path) as file:
            size = os.fstat(file.fileno()).st_size
            body = size - TRAILER_BYTES
            sha256 = hashlib.sha256()
            while block := file.read(max(min(1 << 20, body - file.tell()), 0)):
                sha256.update(block)
            trailer = file.read(TRAILER_BYTES)
    except FileNotFoundError:
        return "there is none"
    except OSError as error:
        return f"it cannot be read: {error.strerror}"
    if body < 0 or not trailer.startswith(MARK):
        return f"it is cut short ({size} bytes)"
    return None if trailer == MARK + sha256.digest() else "its bytes are not those that were saved"
