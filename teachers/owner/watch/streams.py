"""Honest accounts from held-out images that calibrated no detector: five streams in sessions.

Their unit is the session, as one account sends it. Nothing here, and nothing else in dfme, splits,
rotates or disguises what a client sends.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from dfme.data import ImageSet, load_dataset
from dfme.spec import ImageSpec
from dfme.teachers.owner.utility import corrupted

STREAMS = ("random order", "corrupted", "skewed", "repeats", "other data")
SESSION = 600  # images of one account
BATCH = 100  # images made at once
HELD_OUT = 8_000  # images of both halves, at most
MIXED = 0.3  # of the Dirichlet distribution of a customer's classes
AGAIN = 0.1  # share of images sent again
UNIT = ImageSpec((1, 1, 1))


def halves(count: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Indices of held-out images that calibrate detectors, and of those that measure them."""
    order_N = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
    return order_N[0::2], order_N[1::2]


def held_out(name: str, spec: ImageSpec) -> tuple[ImageSet, Tensor, Tensor]:
    """Held-out images of this shape, within 0 and 1, and their ``halves``."""
    data = load_dataset(name, "test", shape=spec.shape, lazy=True).subset(spec.at_once(HELD_OUT))
    return data, *halves(len(data))


def session(
    stream: str, data: ImageSet, places_N: Tensor, rng: torch.Generator
) -> Iterator[Tensor]:
    """One account's ``SESSION`` images within 0 and 1, in batches, drawn with replacement.

    Of a skewed one, which needs labels, the mix of classes is drawn first, from a Dirichlet
    distribution. Of repeats, a tenth of the images is the one before again, every other time moved
    by a pixel.
    """
    weight_N = torch.ones(len(places_N))
    again_N = torch.rand(SESSION, generator=rng) < AGAIN * (stream == "repeats")
    again_N[0] = False
    if stream == "skewed":
        label_N = data.required_labels[places_N]
        mix_K = torch._standard_gamma(
            torch.full((int(label_N.max()) + 1,), MIXED).double(), generator=rng
        )
        weight_N = (mix_K / label_N.bincount().clamp_min(1))[label_N]
    index_N = places_N[torch.multinomial(weight_N, SESSION, replacement=True, generator=rng)]
    index_N = index_N[torch.where(again_N, 0, torch.arange(SESSION)).cummax(0).values]
    moved_N = again_N & (torch.rand(SESSION, generator=rng) < 0.5)
    for part, moved in zip(index_N.split(BATCH), moved_N.split(BATCH), strict=True):
        x_BCHW = data.batch(part)
        if stream == "corrupted":
            x_BCHW = corrupted(x_BCHW, UNIT, rng).clamp_(0, 1)
        if moved.any():  # of every four images the first is moved
            x_BCHW[moved] = corrupted(x_BCHW[moved].repeat_interleave(4, 0), UNIT, rng)[0::4]
        yield x_BCHW
