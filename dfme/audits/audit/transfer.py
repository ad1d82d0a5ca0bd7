"""Adversarial images made on a copy and asked of its teacher: L-inf, untargeted, cross-entropy."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product
from typing import NamedTuple

import torch
from torch import Tensor

from dfme.answers.reading import NO_ANSWER
from dfme.audits.audit.parts import Interval, SourceKind, TransferGain, TransferRow
from dfme.compute.device import derived_seed
from dfme.run.scores import batches, evaluation_batch
from dfme.spec import ImageSpec
from dfme.statistics import wilson_interval


class Attack(NamedTuple):
    """``step``: its size in eps. ``start``: the share of eps that the start is random in."""

    steps: int
    step: float
    start: float
    momentum: float


ATTACKS = {
    "fgsm": Attack(1, step=1.0, start=0.0, momentum=0.0),
    "pgd20": Attack(20, step=2.5 / 20, start=1.0, momentum=0.0),
    "mifgsm": Attack(10, step=1 / 10, start=0.0, momentum=1.0),
}
"""Those of arXiv 1412.6572 (Goodfellow et al. 2015), 1706.06083 (Madry et al. 2018) and 1710.06081
(Dong et al. 2018)."""

EPS = {12: (0.05, 0.1, 0.2), 31: (0.1, 0.2, 0.3), 64: (4 / 255, 8 / 255, 16 / 255)}
"""By the longest side of the image at most, as shares of a pixel's range; the middle one is the
headline.
"""

Logits = Callable[[Tensor], Tensor]
Asking = Callable[..., Tensor]


class Surrogate(NamedTuple):
    """A source of adversarial images. ``kind``: clone, stranger or ceiling; ``logits`` None: random
    signs.
    """

    name: str
    kind: SourceKind
    logits: Logits | None
    agreement: float | None = None


def eps_of(spec: ImageSpec, brief: bool = False) -> tuple[float, ...]:
    """The three sizes of perturbation for such images, or the middle one."""
    fits = (eps for side, eps in EPS.items() if max(spec.shape[1:]) <= side)
    (least, middle, most) = next(fits, (2 / 255, 4 / 255, 8 / 255))
    return (middle,) if brief else (least, middle, most)


def adversarial(
    name: str,
    source: Surrogate,
    x_BCHW: Tensor,
    labels_B: Tensor,
    eps: float,
    spec: ImageSpec,
    rng: torch.Generator,
) -> Tensor:
    """Images within ``eps`` and the bounds, on wire levels: the ball ends at its last level. CPU
    ``rng``.
    """
    attack = ATTACKS[name]
    (low, high) = spec.bounds
    x_BCHW = spec.quantise(x_BCHW)
    radius = eps * (high - low)
    if spec.levels is not None:
        radius = math.floor(radius / spec.step + 1e-6) * spec.step
    least_BCHW = (x_BCHW - radius).clamp(min=low)
    most_BCHW = (x_BCHW + radius).clamp(max=high)
    drawn_BCHW = (2 * torch.rand(x_BCHW.shape, generator=rng) - 1).to(x_BCHW)
    if source.logits is None:
        return spec.quantise(torch.where(drawn_BCHW > 0, most_BCHW, least_BCHW))
    y_BCHW = (x_BCHW + attack.start * radius * drawn_BCHW).clamp(least_BCHW, most_BCHW)
    along_BCHW = torch.zeros_like(x_BCHW)
    for _ in range(attack.steps):
        y_BCHW = y_BCHW.detach().requires_grad_()
        # Cross-entropy is softplus of this margin, whose gradient has the same direction and never
        # vanishes.
        z_BK = source.logits(y_BCHW)
        others_B = z_BK.scatter(1, labels_B[:, None], -math.inf).logsumexp(1)
        margin_B = others_B - z_BK.gather(1, labels_B[:, None])[:, 0]
        (gradient_BCHW,) = torch.autograd.grad(margin_B.sum(), y_BCHW)
        mean_B111 = gradient_BCHW.abs().mean((1, 2, 3), keepdim=True)
        tiny = torch.finfo(torch.float32).tiny
        along_BCHW = attack.momentum * along_BCHW + gradient_BCHW / mean_B111.clamp_min(tiny)
        moved_BCHW = attack.step * radius * along_BCHW.sign()
        y_BCHW = (y_BCHW.detach() + moved_BCHW).clamp(least_BCHW, most_BCHW)
    return spec.quantise(y_BCHW)


def measure(
    sources: Sequence[Surrogate],
    x_NCHW: Tensor,
    labels_N: Tensor,
    spec: ImageSpec,
    sizes: Sequence[float],
    seed: int,
    ask: Asking,
) -> list[TransferRow]:
    """Rows per source, eps of ``sizes`` and attack: the share of images that lose their label.

    Signs are asked once. Images to which a service names no class (``NO_ANSWER``) count for
    nothing.
    """
    rows = list[TransferRow]()
    for source, eps, name in product(sources, sizes, ATTACKS):
        if source.logits is None and name != next(iter(ATTACKS)):
            rows.append(replace(rows[-1], attack=name))
            continue
        rng = torch.Generator().manual_seed(derived_seed(seed, f"{source.name} {name} {eps:g}"))
        fooled = 0
        answered = 0
        labels = labels_N.split(evaluation_batch(spec.shape))
        for x_BCHW, labels_B in zip(batches(x_NCHW), labels, strict=True):
            y_BCHW = adversarial(name, source, x_BCHW, labels_B, eps, spec, rng)
            class_B = ask(source, eps, y_BCHW)
            answered_B = class_B != NO_ANSWER
            fooled += int((answered_B & (class_B != labels_B)).sum())
            answered += int(answered_B.sum())
        success = fooled / max(answered, 1)
        rows.append(
            TransferRow(
                source=source.name,
                kind=source.kind,
                agreement=source.agreement,
                attack=name,
                eps=eps,
                success=success,
                images=answered,
                interval=Interval(*wilson_interval(success, max(answered, 1))),
            )
        )
    return rows


def gains(rows: Sequence[TransferRow]) -> list[TransferGain]:
    """Success of each clone, attack and eps, less that of the best stranger, who is named."""
    compared = []
    for row in rows:
        if row.kind != "clone":
            continue
        strangers = [
            rival
            for rival in rows
            if rival.kind == "stranger" and (rival.attack, rival.eps) == (row.attack, row.eps)
        ]
        best = max(strangers, key=lambda rival: rival.success)
        compared.append(
            TransferGain(row.source, row.attack, row.eps, row.success - best.success, best.source)
        )
    return compared
