"""Checkpoints: what ``torch.save`` writes, a mark and its SHA-256; saved whole, the one before is
kept. Weights that are lost, because a rate was too high, are found before they are saved.
"""

import hashlib
import math
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, cast

import torch
from torch import Tensor, nn

from dfme.compute.modules import evaluating
from dfme.config.settings import StudentConfig
from dfme.errors import DfmeError, Message, Ref, RunError, TeacherError, say
from dfme.files import open_file, replacing
from dfme.methods.base import Method
from dfme.spec import ImageSpec, LabelMode
from dfme.students.optimizers import weight_decay
from dfme.students.trainer import StudentTrainer

TRIED = 16  # images on which a student is tried once something has failed


class DivergedError(DfmeError):
    """A student or a generator of which ``what`` is lost; ``rate``: the option it follows from, if
    known.
    """

    def __init__(self, what: str, rate: Message | None = None, whose: str = "student") -> None:
        self.what = what
        self.names_rate = rate is not None
        remedy = "" if rate is None else say(", at {}; start a new run with a lower one", rate)
        super().__init__(say("the {} has diverged: {}{}", whose, what, remedy))


@contextmanager
def naming_the_rate(
    config: StudentConfig, trainer: StudentTrainer, method: Method | None = None
) -> Iterator[None]:
    """What fails inside once weights are lost is said as that; ``config``: as the user gave it.

    Of a teacher that fails the error stays as it is.
    """
    try:
        yield
    except TeacherError:
        raise
    except Exception as error:
        if isinstance(error, DivergedError) and error.names_rate:
            raise
        recent = None if method is None or method.recent is None else method.recent[0]
        what = error.what if isinstance(error, DivergedError) else _lost(trainer, recent)
        if what is not None:
            raise DivergedError(what, _rate(config, trainer)) from error
        if method is not None and (lost := _generator_lost(method, tried=True)) is not None:
            raise lost from error
        raise


def require_finite(config: StudentConfig, trainer: StudentTrainer, method: Method) -> None:
    """DfmeError, which names the rate, for weights that are NaN or infinite: they are worth no
    checkpoint.
    """
    if (what := _lost(trainer, None)) is not None:
        raise DivergedError(what, _rate(config, trainer))
    if (lost := _generator_lost(method, tried=False)) is not None:
        raise lost


def _rate(config: StudentConfig, trainer: StudentTrainer) -> Message:
    """The options that the student's steps follow from.

    A step multiplies weights by 1 - lr * weight_decay, too, which grows without end from 2 on.
    """
    settled = trainer.config
    held = 0 if trainer.replay is None else len(trainer.replay)
    decays = settled.optimizer != "adam" and settled.lr * weight_decay(settled, held) >= 2
    rate = say("{}", Ref("student.lr", config.lr))
    return (
        rate + say(" and {}", Ref("student.weight_decay", config.weight_decay)) if decays else rate
    )


def _lost(trainer: StudentTrainer, recent: Tensor | None) -> str | None:
    """What of the students is NaN or infinite, if anything: weights, or scores and slopes on some
    images.
    """
    if not all(_finite(net) for net in (*trainer.nets, trainer.delivered)):
        return "its weights are NaN or infinite"
    if recent is None:
        return None
    for net in trainer.nets:
        with evaluating(net), torch.enable_grad():
            x_BCHW = recent[:TRIED].detach().clone().requires_grad_()
            scores_BK = net(x_BCHW).float()
            likelihood = scores_BK.log_softmax(1).square().sum()
            (slope_BCHW,) = torch.autograd.grad(likelihood, x_BCHW, allow_unused=True)
        slopes = slope_BCHW is None or bool(slope_BCHW.isfinite().all())
        if not slopes or not bool(scores_BK.isfinite().all()):
            return "its scores are NaN or infinite"
    return None


def _generator_lost(method: Method, tried: bool) -> DfmeError | None:
    """The error about a generator whose weights are lost, of a method that trains one.

    ``tried``: or whose images are, which takes random numbers that the run would have taken.
    """
    if not hasattr(method, "generator_optimizer"):
        return None
    what = "its output is beyond all bounds"
    if not _finite(method.generator):
        what = "its weights are NaN or infinite"
    elif not tried or _generates(method):
        return None
    rate = getattr(method.config, "generator_lr", math.nan)
    return DivergedError(what, say("{}", Ref("method.generator_lr", rate)), whose="generator")


@torch.no_grad()
def _generates(method: Method) -> bool:
    """True if the generator's output, before any squashing, is finite, and its square in float32,
    too.
    """
    net = method.generator
    u_BCHW = net(net.draw(TRIED, method.rng["latent"]))
    return bool(u_BCHW.float().square().isfinite().all())


def _finite(net: nn.Module) -> bool:
    """True if no parameter is NaN or infinite; a buffer may be, as a mask is."""
    return all(bool(parameter.isfinite().all()) for parameter in net.parameters())


MARK = b"dfme-sha256:"
TRAILER_BYTES = len(MARK) + hashlib.sha256().digest_size
PAID_AT_ONCE = 1_024  # kept answers that are looked at together when a run goes on: bounds memory
PLAIN = (bool, int, float, str, bytes, type(None))


def previous(path: Path) -> Path:
    """The name of the checkpoint kept from before ``path``: checkpoint.previous.pt for
    checkpoint.pt.
    """
    return path.with_name(f"{path.stem}.previous{path.suffix}")


def save_checkpoint(path: Path, state: dict[str, Any], mode: int = 0o666) -> None:
    """Save nested dicts, lists and tuples of tensors, numbers, strings, bytes and None; the old one
    is kept.

    On the disk when this returns. ``mode``: as of ``replacing``. Raises RunError where the disk
    refuses, with the old checkpoint untouched, and TypeError, naming the entry, for a value that
    ``weights_only`` would not load again.
    """
    _plain(state, "state")
    with replacing(path, keep=previous(path), mode=mode) as file:
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
    from dfme.nets.pickles import NotPlainError, load_plain

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
