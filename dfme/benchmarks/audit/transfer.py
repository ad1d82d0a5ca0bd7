"""Adversarial images made on a copy, and what they do to its teacher: L-inf, untargeted, cross-entropy of the label."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import product
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from dfme.randomness import derived_seed
from dfme.report.facts import wilson_interval
from dfme.run.scores import batches, evaluation_batch
from dfme.spec import ImageSpec

ATTACKS = {"fgsm": (1, 1.0, 0, 0.0), "pgd20": (20, 2.5 / 20, 1, 0.0), "mifgsm": (10, 1 / 10, 0, 1.0)}
"""Steps, size of one in eps, share of eps that the start is random in, momentum: FGSM (Goodfellow et al. 2015, arXiv
1412.6572), PGD (Madry et al. 2018, arXiv 1706.06083) and MI-FGSM (Dong et al. 2018, arXiv 1710.06081)."""

EPS = {12: (0.05, 0.1, 0.2), 31: (0.1, 0.2, 0.3), 64: (4 / 255, 8 / 255, 16 / 255)}
"""By the longest side of the image at most, as shares of a pixel's range; the middle one is the headline."""

Logits = Callable[[Tensor], Tensor]


class Surrogate(NamedTuple):
    """What images are made on. ``kind``: clone, stranger or ceiling; ``logits``: with gradients; None: random signs."""

    name: str
    kind: str
    logits: Logits | None
    agreement: float | None = None


def eps_of(spec: ImageSpec) -> tuple[float, ...]:
    """The three sizes of perturbation for such images."""
    return next((eps for side, eps in EPS.items() if max(spec.shape[1:]) <= side), (2 / 255, 4 / 255, 8 / 255))


def adversarial(
    name: str, source: Surrogate, x_BCHW: Tensor, labels_B: Tensor, eps: float, spec: ImageSpec, rng: torch.Generator
) -> Tensor:
    """Images within ``eps`` of ``x_BCHW`` and within the bounds, as the wire carries them; ``rng`` is on the CPU.

    On a wire with levels the ball ends at its last level, so that rounding leaves it nowhere.
    """
    (steps, size, random, momentum), (low, high), x_BCHW = ATTACKS[name], spec.bounds, spec.quantise(x_BCHW)
    radius = eps * (high - low)
    if spec.levels is not None:
        radius = math.floor(radius / spec.step + 1e-6) * spec.step
    least_BCHW, most_BCHW = (x_BCHW - radius).clamp(min=low), (x_BCHW + radius).clamp(max=high)
    drawn_BCHW = (2 * torch.rand(x_BCHW.shape, generator=rng) - 1).to(x_BCHW)
    if source.logits is None:
        return spec.quantise(torch.where(drawn_BCHW > 0, most_BCHW, least_BCHW))
    y_BCHW, along_BCHW = (x_BCHW + random * radius * drawn_BCHW).clamp(least_BCHW, most_BCHW), torch.zeros_like(x_BCHW)
    for _ in range(steps):
        y_BCHW = y_BCHW.detach().requires_grad_()
        # In float64, since a sure class leaves no gradient in float32.
        loss = cross_entropy(source.logits(y_BCHW).double(), labels_B, reduction="sum")
        (gradient_BCHW,) = torch.autograd.grad(loss, y_BCHW)
        mean_B111 = gradient_BCHW.abs().mean((1, 2, 3), keepdim=True).clamp_min(torch.finfo(torch.float32).tiny)
        along_BCHW = momentum * along_BCHW + gradient_BCHW / mean_B111
        y_BCHW = (y_BCHW.detach() + size * radius * along_BCHW.sign()).clamp(least_BCHW, most_BCHW)
    return spec.quantise(y_BCHW)


def measure(
    sources: Sequence[Surrogate], x_NCHW: Tensor, labels_N: Tensor, spec: ImageSpec, seed: int, ask: Callable[..., Tensor]
) -> list[dict[str, Any]]:
    """A row for each source, eps and attack: the share of images that are no longer answered with their label.

    ``ask(source, eps, images)`` gives the teacher's classes; random signs are the same for all attacks, and asked once.
    """
    rows = list[dict[str, Any]]()
    for source, eps, name in product(sources, eps_of(spec), ATTACKS):
        told = {"source": source.name, "kind": source.kind, "agreement": source.agreement, "attack": name, "eps": eps}
        if source.logits is None and name != next(iter(ATTACKS)):
            rows.append({**rows[-1], **told})
            continue
        rng, fooled = torch.Generator().manual_seed(derived_seed(seed, f"{source.name} {name} {eps:g}")), 0
        for x_BCHW, labels_B in zip(batches(x_NCHW), labels_N.split(evaluation_batch(spec.shape)), strict=True):
            y_BCHW = adversarial(name, source, x_BCHW, labels_B, eps, spec, rng)
            fooled += int((ask(source, eps, y_BCHW) != labels_B).sum())
        share, images = fooled / len(labels_N), len(labels_N)
        rows.append({**told, "success": share, "interval": list(wilson_interval(share, images)), "images": images})
    return rows


def gains(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Of each clone, attack and eps: its success less that of the best stranger, who is named."""
    best = dict[tuple[str, float], dict[str, Any]]()
    for row in sorted(rows, key=lambda row: float(row["success"])):
        if row["kind"] == "stranger":
            best[row["attack"], row["eps"]] = row
    pairs = [(row, best[row["attack"], row["eps"]]) for row in rows if row["kind"] == "clone"]
    return [
        {name: row[name] for name in ("source", "attack", "eps")}
        | {"gain": row["success"] - rival["success"], "over": rival["source"]}
        for row, rival in pairs
    ]
