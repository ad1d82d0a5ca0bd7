"""The vocabulary both sides of the API share: what an image is, what an answer is, what a teacher is.

Shape legend used throughout the project: B images in a batch, C channels, H height, W width, K classes,
Z latent size, M directions. A tensor's name ends in its axes where it has several: x_BCHW, scores_BK.

This module imports no torch at run time, so that ``--help`` and configuration errors stay fast.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol, runtime_checkable

from dfme.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor

Shape = tuple[int, int, int]
"""Channels, height and width of an image."""

AT_ONCE = 25_000_000
"""Numbers in a batch of images larger than 64x64, at most: 100 MB, and what a network makes of them some GB."""

LabelKind = Literal["logits", "probabilities", "top_k", "label"]
LABEL_KINDS: tuple[LabelKind, ...] = ("logits", "probabilities", "top_k", "label")


@dataclass(frozen=True)
class ImageSpec:
    """The images a teacher takes: (C, H, W), the range of a pixel, and how many values the wire can carry.

    ``levels=256`` says that pixels travel as 8-bit integers: only ``low + i * (high - low) / 255`` exist.
    ``levels=None`` says that pixels travel as floats.
    """

    shape: Shape
    bounds: tuple[float, float] = (0.0, 1.0)
    levels: int | None = None

    def __post_init__(self) -> None:
        if len(self.shape) != 3 or any(size < 1 for size in self.shape):
            raise UserError(f"image shape: expected three positive sizes C,H,W, got {tuple(self.shape)}")
        low, high = self.bounds
        if not (math.isfinite(low) and math.isfinite(high) and low < high):
            raise UserError(f"image bounds: expected two finite numbers low < high, got {low}, {high}")
        if self.levels is not None and self.levels < 2:
            raise UserError(f"image levels: expected at least 2 (256 for 8-bit images), got {self.levels}")

    @property
    def numel(self) -> int:
        """Pixels times channels: the D of the estimators' formulae."""
        return math.prod(self.shape)

    def at_once(self, most: int) -> int:
        """How many images to work on together: ``most``; of images larger than 64x64 as many as take no more memory."""
        pixels = math.prod(self.shape[1:])
        return most if pixels <= 64 * 64 else max(1, min(most * 64 * 64 // pixels, AT_ONCE // self.numel))

    def quantise(self, x_BCHW: Tensor) -> Tensor:
        """The image as the wire carries it: clamped to the bounds and rounded to the lattice, if there is one."""
        low, high = self.bounds
        x_BCHW = x_BCHW.clamp(low, high)
        if self.levels is None:
            return x_BCHW
        return ((x_BCHW - low) / self.step).round_().mul_(self.step).add_(low).clamp_(low, high)

    @property
    def step(self) -> float:
        """From one level to the next; only where there are levels."""
        assert self.levels is not None
        return (self.bounds[1] - self.bounds[0]) / (self.levels - 1)

    def encode(self, x_BCHW: Tensor) -> Tensor:
        """The numbers of the nearest levels, uint8, from 0 at the lower bound; only for up to 256 levels."""
        assert self.levels is not None and self.levels <= 256  # noqa: PT018 (one condition)
        return ((x_BCHW - self.bounds[0]) / self.step).round_().clamp_(0, self.levels - 1).byte()

    def decode(self, codes_BCHW: Tensor) -> Tensor:
        """The images whose levels have these numbers, float32: bit for bit what ``quantise`` returns."""
        low, high = self.bounds
        return codes_BCHW.float().mul_(self.step).add_(low).clamp_(low, high)


@dataclass(frozen=True)
class LabelMode:
    """The form of a teacher's answers. The owner's side decides it; the auditor's side adapts or refuses.

    ``decimals``: probabilities are rounded to so many decimals. ``k``: only the k largest probabilities are
    revealed, the others arrive as NaN: unknown, not zero. Written ``probabilities:4`` and ``top_k:3``.
    """

    kind: LabelKind = "probabilities"
    decimals: int | None = None
    k: int | None = None

    def __post_init__(self) -> None:
        if self.decimals is not None and (self.kind not in ("probabilities", "top_k") or self.decimals < 1):
            raise UserError(f"label mode {self.kind}: decimals must be at least 1 and belong to probabilities")
        if (self.kind == "top_k") != (self.k is not None) or (self.k is not None and self.k < 1):
            raise UserError(f"label mode {self.kind}: expected top_k:K with K of at least 1, got k={self.k}")

    @property
    def soft(self) -> bool:
        """Whether every class gets a score."""
        return self.kind in ("logits", "probabilities")

    def answer_bytes(self, classes: int) -> int:
        """What a kept answer takes: a label int64, scores float32."""
        return 8 if self.kind == "label" else 4 * classes

    @classmethod
    def parse(cls, text: str) -> LabelMode:
        """Read ``logits``, ``probabilities``, ``probabilities:4``, ``top_k:3``, ``top_k:3:4`` or ``label``."""
        kind, *numbers = text.replace("-", "_").split(":")
        if kind not in LABEL_KINDS or not all(number.isdigit() for number in numbers):
            raise UserError(
                f"label mode: expected logits, probabilities[:DECIMALS], top_k:K[:DECIMALS] or label, got {text!r}"
            )
        values = [int(number) for number in numbers]
        if kind == "top_k" and len(values) in (1, 2):
            return cls(kind="top_k", k=values[0], decimals=values[1] if values[1:] else None)
        if kind == "probabilities" and len(values) <= 1:
            return cls(kind="probabilities", decimals=values[0] if values else None)
        if values or kind == "top_k":
            raise UserError(f"label mode: expected top_k:K[:DECIMALS] or {kind} without numbers, got {text!r}")
        return cls(kind=kind)

    def __str__(self) -> str:
        return ":".join(str(part) for part in (self.kind, self.k, self.decimals) if part is not None)


@runtime_checkable
class Teacher(Protocol):
    """A classifier behind an API. The auditor's side holds one only inside an oracle.

    ``__call__`` takes (B, C, H, W) float32 images within ``spec.bounds`` and answers scores (B, K), float, or
    labels (B,), int64, as ``label_mode`` says. Mean/std normalisation is the teacher's own business.
    Optional attributes are honoured: ``max_batch`` (the most images in one call; None: any number),
    ``device`` (where it wants its images; absent: the CPU), ``class_names`` (in the order of its classes), ``wire``
    (how a service wants to be asked: ``RequestPolicy``), and ``ask(images, key)`` in place of the call, with a key that
    is the same for every attempt at one request. To be charged rightly it raises ``dfme.errors.Refused`` or
    ``Unanswered``.

    A teacher with defences has ``witness``, by which it is known, and may have the others:

    - ``witness(images, answers)``: go on as if these images had been asked now and so answered, as they were before the
      run was resumed. Called for every request on record, in the order of the answers. ValueError, in words, where it
      would answer otherwise.
    - ``state_dict()`` and ``load_state_dict(state)``: all that its next answers depend on but the images, as plain data
      and tensors; loaded before anything is asked. It comes from a file: ValueError for what cannot be its own. A call
      that raises must leave the state as it was.
    - ``truth``: the same teacher undefended, with the same label mode. Evaluation images are asked of it, so scoring
      neither meets the defence nor moves its state; no student learns from it.
    - ``served(images)``: what an honest user would be answered now; the state stays as it is.
    - ``defences``: what is switched on, as texts, and ``report()``: what it stored or counted, both for summary.json.
    - ``watch``: what looks at those who ask, whose ``report()`` is for summary.json and ``drain()`` for watch.jsonl.
    """

    spec: ImageSpec
    num_classes: int
    label_mode: LabelMode

    def __call__(self, images: Tensor, /) -> Tensor: ...


@dataclass(frozen=True)
class RequestPolicy:
    """What the oracle keeps to when it asks a service; a remote teacher carries one as its ``wire``.

    ``in_flight``: requests at once. ``attempts``: most sends of one request that may have been served, each
    of them paid for. ``unusable``: most sends of one request whose answers cannot be used. ``patience``: seconds
    that one request may take with all its attempts and waits. ``images_per_second`` and ``requests_per_second``:
    most of either, by the client's own clock; None: no limit.
    """

    in_flight: int = 1
    attempts: int = 5
    unusable: int = 3
    patience: float = 300.0
    images_per_second: float | None = None
    requests_per_second: float | None = None
