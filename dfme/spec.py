"""The vocabulary both sides of the API share: images, answers, teachers. No torch at run time.

Shape legend used throughout the project: B images in a batch, C channels, H height, W width, K
classes, Z latent size, M directions. A tensor's name ends in its axes where it has several: x_BCHW,
scores_BK.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

from dfme.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor
    from torch.nn import Module

Shape = tuple[int, int, int]
"""Channels, height and width of an image."""

SMALL_SIDE = 16
"""Longest side in pixels of small images, for which students have a net and a training of their
own.
"""

AT_ONCE = 25_000_000
"""Numbers in a batch of images larger than 64x64, at most: 100 MB, and some GB within a network."""

MAX_NUMBERS = 100_000_000
"""Numbers in an image, at most: 400 MB."""

LabelKind = Literal["logits", "probabilities", "top_k", "label"]
LABEL_KINDS: tuple[LabelKind, ...] = ("logits", "probabilities", "top_k", "label")


@dataclass(frozen=True)
class ImageSpec:
    """The images a teacher takes: (C, H, W), the range of a pixel, and how many values the wire can
    carry.

    ``levels=256`` says that pixels travel as 8-bit integers: only ``low + i * (high - low) / 255``
    exist. ``levels=None`` says that pixels travel as floats.
    """

    shape: Shape
    bounds: tuple[float, float] = (0.0, 1.0)
    levels: int | None = None

    def __post_init__(self) -> None:
        if len(self.shape) != 3 or any(size < 1 for size in self.shape):
            raise UserError(
                f"expected three positive sizes C,H,W, got {tuple(self.shape)}",
                about="image shape",
            )
        if self.numel > MAX_NUMBERS:
            sizes = ",".join(map(str, self.shape))
            raise UserError(
                f"expected at most {MAX_NUMBERS:,} numbers in all, got {sizes}",
                about="image shape",
            )
        low, high = self.bounds
        if not (math.isfinite(low) and math.isfinite(high) and low < high):
            raise UserError(
                f"expected two finite numbers low < high, got {low}, {high}",
                about="image bounds",
            )
        if self.levels is not None and self.levels < 2:
            raise UserError(
                f"expected at least 2 (256 for 8-bit images), got {self.levels}",
                about="image levels",
            )

    def __str__(self) -> str:
        low, high = self.bounds
        levels = "floats" if self.levels is None else f"{self.levels} levels"
        return f"{'x'.join(map(str, self.shape))} within {low:g} and {high:g}, as {levels}"

    @property
    def numel(self) -> int:
        """Pixels times channels: the D of the estimators' formulae."""
        return math.prod(self.shape)

    def at_once(self, most: int) -> int:
        """Batch size: ``most``; for images larger than 64x64 as many as take equal memory."""
        pixels = math.prod(self.shape[1:])
        return (
            most
            if pixels <= 64 * 64
            else max(1, min(most * 64 * 64 // pixels, AT_ONCE // self.numel))
        )

    def quantise(self, x_BCHW: Tensor) -> Tensor:
        """The image as the wire carries it: clamped to the bounds, rounded to the lattice if
        any.
        """
        low, high = self.bounds
        x_BCHW = x_BCHW.clamp(low, high)
        if self.levels is None:
            return x_BCHW
        # in place on the clamped copy: large images take much memory
        x_BCHW.sub_(low).div_(self.step).round_().mul_(self.step).add_(low)
        return x_BCHW.clamp_(low, high)

    @property
    def step(self) -> float:
        """From one level to the next."""
        assert self.levels is not None
        return (self.bounds[1] - self.bounds[0]) / (self.levels - 1)

    @property
    def has_codes(self) -> bool:
        """True if a byte holds the number of a level."""
        return self.levels is not None and self.levels <= 256

    def encode(self, x_BCHW: Tensor) -> Tensor:
        """The numbers of the nearest levels, uint8, from 0 at the lower bound; only for up to 256
        levels.
        """
        assert self.levels is not None
        assert self.has_codes
        level_BCHW = (x_BCHW - self.bounds[0]).div_(self.step).round_()
        return level_BCHW.clamp_(0, self.levels - 1).byte()

    def decode(self, codes_BCHW: Tensor) -> Tensor:
        """The images whose levels have these numbers, float32: bit for bit what ``quantise``
        returns.
        """
        low, high = self.bounds
        return codes_BCHW.float().mul_(self.step).add_(low).clamp_(low, high)


@dataclass(frozen=True)
class LabelMode:
    """The form of a teacher's answers. The owner's side decides it; the auditor's side adapts or
    refuses.

    ``decimals``: probabilities are rounded to so many decimals. ``k``: only the k largest
    probabilities are revealed, the others arrive as NaN: unknown, not zero. Written
    ``probabilities:4`` and ``top_k:3``.
    """

    kind: LabelKind = "probabilities"
    decimals: int | None = None
    k: int | None = None

    def __post_init__(self) -> None:
        if self.decimals is not None and (
            self.kind not in ("probabilities", "top_k") or self.decimals < 1
        ):
            raise UserError(
                f"label mode {self.kind}: decimals, at least 1, belong to probabilities"
            )
        if (self.kind == "top_k") != (self.k is not None) or (self.k is not None and self.k < 1):
            raise UserError(
                f"label mode {self.kind}: expected top_k:K with K of at least 1, got k={self.k}"
            )

    @property
    def soft(self) -> bool:
        """True if every class gets a score."""
        return self.kind in ("logits", "probabilities")

    def answer_bytes(self, classes: int) -> int:
        """Bytes of a kept answer: a label is int64, scores are float32."""
        return 8 if self.kind == "label" else 4 * classes

    @classmethod
    def parse(cls, text: str) -> LabelMode:
        """Parse ``logits``, ``probabilities``, ``probabilities:4``, ``top_k:3``, ``top_k:3:4``,
        ``label``.
        """
        kind, *numbers = text.replace("-", "_").split(":")
        fitting = {"top_k": (1, 2), "probabilities": (0, 1)}.get(kind, (0,))
        fits = len(numbers) in fitting and all(number.isdigit() for number in numbers)
        if kind not in LABEL_KINDS or not fits:
            forms = "logits, probabilities[:DECIMALS], top_k:K[:DECIMALS] or label"
            raise UserError(f"expected {forms}, got {text!r}", about="label mode")
        k = int(numbers.pop(0)) if kind == "top_k" else None
        return cls(kind, int(numbers[0]) if numbers else None, k)

    def __str__(self) -> str:
        return ":".join(
            str(part) for part in (self.kind, self.k, self.decimals) if part is not None
        )


@dataclass(frozen=True)
class RequestPolicy:
    """Limits within which the oracle may ask a service.

    ``in_flight``: requests at once. ``attempts``: most paid sends of one request. ``unusable``:
    most of them whose answers cannot be used. ``patience``: seconds that one request may take with
    all attempts and waits. ``images_per_second`` and ``requests_per_second``: by the client's own
    clock; None: no limit.
    """

    in_flight: int = 1
    attempts: int = 5
    unusable: int = 3
    patience: float = 300.0
    images_per_second: float | None = None
    requests_per_second: float | None = None


@runtime_checkable
class Remote(Protocol):
    """A service. ``ask`` replaces the call; every attempt at one request has the same ``key``.

    It may answer ``dfme.answers.reading.PartialAnswers`` where some of the images have no class.
    """

    wire: RequestPolicy

    def ask(self, images: Tensor, key: str, /) -> Any: ...

    def close(self) -> None: ...


@runtime_checkable
class Stateful(Protocol):
    """The state of a teacher whose answers depend on what it was asked before, such as a defended
    one.

    ``replay_answer`` moves the state past images that an interrupted run asked, in the order of
    their answers; ValueError where it would answer otherwise. ``state_dict`` is plain data and
    tensors. ``load_state_dict`` gets what a file holds; ValueError for what cannot be its own.
    ``report`` is for summary.json. A call of the teacher that raises leaves the state as it was.
    """

    def replay_answer(self, images: Tensor, answers: Tensor, /) -> None: ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: Any, /) -> None: ...

    def report(self) -> dict[str, Any]: ...


@dataclass(frozen=True)
class TeacherInfo:
    """Facts of a teacher beside its answers.

    ``device``: where it wants its images. ``max_batch``: most images in one call, None for any
    number. ``inferred``: what nobody stated of it. ``uncut_mode``: its answers before a label mode
    cut them. ``undefended``: the same teacher without defences, for evaluation images; ``preview``
    gives what an honest user would be answered now, and changes no state. ``watch`` has
    ``report()`` for summary.json and ``drain()`` for watch.jsonl. ``network`` is one of ours in
    this process. ``charged``
    is called in place of the teacher for images that a ledger has charged already, and
    ``report_uncharged`` is given what records the others; both of a custom teacher alone.
    """

    device: str = "cpu"
    max_batch: int | None = None
    class_names: tuple[str, ...] | None = None
    inferred: tuple[str, ...] = ()
    uncut_mode: LabelMode | None = None
    remote: Remote | None = None
    defences: tuple[str, ...] = ()
    stateful: Stateful | None = None
    undefended: Teacher | None = None
    preview: Callable[[Tensor], Tensor] | None = None
    watch: Any = None
    network: Module | None = None
    charged: Callable[[Tensor], Any] | None = None
    report_uncharged: Callable[[Callable[[int], object]], None] | None = None

    @property
    def wire(self) -> RequestPolicy:
        """Limits within which it may be asked."""
        return self.remote.wire if self.remote else RequestPolicy()

    def close(self) -> None:
        """Let go of a service's connections."""
        if self.remote:
            self.remote.close()


@runtime_checkable
class Teacher(Protocol):
    """A classifier behind an API. The auditor's side holds one only inside an oracle.

    ``__call__`` takes (B, C, H, W) float32 images within ``spec.bounds`` and answers scores (B, K),
    float, or labels (B,), int64, as ``label_mode`` says. To be charged rightly it raises
    ``dfme.errors.Refused`` or ``Unanswered``. A user's own callable needs none of this:
    ``dfme.teachers.custom`` completes it.
    """

    spec: ImageSpec
    num_classes: int
    label_mode: LabelMode
    info: TeacherInfo

    def __call__(self, images: Tensor, /) -> Tensor: ...
