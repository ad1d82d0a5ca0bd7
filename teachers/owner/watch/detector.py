"""What detectors have in common: what they see, what they say, and what honest users look like."""

from __future__ import annotations

import hashlib
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d

from dfme.compute.modules import copied
from dfme.data import ImageSet, load_dataset
from dfme.errors import OptionError
from dfme.spec import ImageSpec
from dfme.teachers.owner.utility import corrupted

MIN_BENIGN = 20  # held-out images to calibrate on
MAX_TOGETHER = 256  # images looked at together
MAX_PAST = 8_192  # held against so many
SIDE = 16  # pixels: sums of 16 x 16 products of 8 bits are exact in float32
DIGEST = 8  # bytes


@dataclass(frozen=True, eq=False)
class Observation:
    """Images of one account, in the order in which they came, as the owner's side sees them; all on
    the CPU.

    ``images_BCHW``: float32 within 0 and 1, without the spec's bounds. ``p_BK``: before any
    defence, float64. ``distance_B``: squared, of features to the nearest class (Mahalanobis),
    float64, of a network.
    """

    images_BCHW: Tensor
    p_BK: Tensor
    distance_B: Tensor | None = None

    @classmethod
    def of_sent(
        cls, spec: ImageSpec, images_BCHW: Tensor, p_BK: Tensor, distance_B: Tensor | None
    ) -> Observation:
        """The same of images as they were sent, within the spec's bounds."""
        low, high = spec.bounds
        x_BCHW = ((images_BCHW.cpu().float() - low) / (high - low)).clamp(0, 1)
        return cls(x_BCHW, p_BK, distance_B)

    def __len__(self) -> int:
        return len(self.p_BK)

    def __getitem__(self, part: slice) -> Observation:
        distance_B = None if self.distance_B is None else self.distance_B[part]
        return Observation(self.images_BCHW[part], self.p_BK[part], distance_B)

    @cached_property
    def rows_BR(self) -> Tensor:
        return rows_of(self.images_BCHW)

    @cached_property
    def log_distances(self) -> list[float]:
        assert self.distance_B is not None, "a detector of features, and a teacher without features"
        # a vector's last bits vary by place
        return [math.log(max(distance, 1e-300)) for distance in self.distance_B.tolist()]


@dataclass(frozen=True, eq=False)
class Reading:
    """Statistic after each image, float64, larger is more suspicious; and new alarms."""

    statistic_B: Tensor
    alarm_B: Tensor

    def __getitem__(self, part: slice) -> Reading:
        return Reading(self.statistic_B[part], self.alarm_B[part])


class Benign:
    """Honest images, never of the training set: ``plain`` as they are, in random order, and
    ``corrupted``.

    Made once for all detectors of all accounts. UserError where images are too few, or all the
    same.
    """

    def __init__(self, plain: Observation, corrupted: Observation, classes: int) -> None:
        self.plain = plain
        self.corrupted = corrupted
        self.classes = classes
        if (fewer := min(len(plain), len(corrupted))) < MIN_BENIGN:
            expected = f"expected at least {MIN_BENIGN} images to calibrate on"
            raise OptionError("teacher.benign", f"{expected}, got {fewer}")

    @cached_property
    def nearest(self) -> float:
        """Distance within which .1 % of 2,048 images come to one of the 1,024 before, without
        repeats.
        """
        some_NR = self.plain.rows_BR[:2_048]
        near_N = nearest_before(some_NR, some_NR[:0], 1_024)[0][1:]
        if not (near_N > 0).any():
            raise OptionError(
                "teacher.benign", "expected images that differ, got the same one many times"
            )
        return float(near_N[near_N > 0].quantile(0.001))

    @cached_property
    def cell_N(self) -> Tensor:
        """Cells of the scores, of images plain and corrupted together."""
        return cells_of(torch.cat([self.plain.p_BK, self.corrupted.p_BK]))

    @cached_property
    def log_distance(self) -> tuple[float, float]:
        """Mean and standard deviation of log distances, of images plain and corrupted together."""
        logs_N = torch.tensor(
            self.plain.log_distances + self.corrupted.log_distances, dtype=torch.float64
        )
        return float(logs_N.mean()), max(float(logs_N.std(correction=0)), 1e-9)


class Detector(ABC):
    """Detector of one account's stream; results do not depend on the stream's batches.

    ``of_all_traffic``: it sees the images of all accounts as one stream, and its alarm, which names
    nobody, refuses and cuts nobody.

    An alarm is raised as the statistic rises above ``threshold``, and again only once it was not.
    ``state``: numbers, and tensors; ``rows``: of those that grow, how many rows they have at most.
    ``statistic``: in words, for a report.
    """

    statistic = "of the owner's own"
    threshold: float
    of_all_traffic = False

    def __init__(self, benign: Benign) -> None:
        self.benign = benign
        self.state: dict[str, Any] = {"last": torch.zeros(1).double()}
        self.rows: dict[str, int] = {}

    @property
    def memory_mb(self) -> float:
        """Upper limit of the state's size, MB."""
        tensors = (
            (self.rows.get(k, len(v)), v) for k, v in self.state.items() if isinstance(v, Tensor)
        )
        size = sum(most * v.shape[1:].numel() * v.element_size() for most, v in tensors)
        return math.ceil(size / 100) / 1e4

    def see(self, seen: Observation) -> Reading:
        """The readings after each of the next images."""
        if len(seen) > MAX_TOGETHER:
            starts = range(0, len(seen), MAX_TOGETHER)
            readings = [self.see(seen[start : start + MAX_TOGETHER]) for start in starts]
            statistic_B = torch.cat([reading.statistic_B for reading in readings])
            return Reading(statistic_B, torch.cat([reading.alarm_B for reading in readings]))
        statistic_B = torch.as_tensor(self.measure(seen, float(self.state["last"]))).double()
        if statistic_B.shape != (len(seen),) or not bool(statistic_B.isfinite().all()):
            raise ValueError(
                f"expected {len(seen)} finite numbers, one per image, got {statistic_B!s:.60}"
            )
        statistic_B1 = torch.cat([self.state["last"], statistic_B])
        self.state["last"] = statistic_B1[-1:]
        return Reading(statistic_B1[1:], self._new_alarms(statistic_B1))

    @abstractmethod
    def measure(self, seen: Observation, last: float) -> Tensor:
        """The statistic after each image (B,), float64; B may be 0. ``last``: what it was before
        them.
        """

    def _new_alarms(self, statistic_B1: Tensor) -> Tensor:
        above_B1 = statistic_B1 > self.threshold
        return above_B1[1:] & ~above_B1[:-1]

    def _keep(self, name: str, new_BR: Tensor) -> None:
        self.state[name] = torch.cat([self.state[name], new_BR])[-self.rows[name] :]

    def _share(self, name: str, new_B: Tensor, fewest: int) -> Tensor:
        """Share of true among the last ones, or among ``fewest`` if fewer, after each new one."""
        had = len(self.state[name])
        total_N1 = torch.cat([torch.zeros(1, dtype=torch.bool), self.state[name], new_B]).cumsum(0)
        self._keep(name, new_B)
        end_B = torch.arange(had + 1, len(total_N1))
        start_B = (end_B - self.rows[name]).clamp_(min=0)
        return (total_N1[end_B] - total_N1[start_B]).double() / (end_B - start_B).clamp_(min=fewest)

    def state_dict(self) -> dict[str, Any]:
        return copied(self.state)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up what ``state_dict`` gave."""
        self.state = copied(state)


def rows_of(images_BCHW: Tensor) -> Tensor:
    """Images, float32 within 0 and 1, as stored (B, R), int8: their look, then a digest.

    An image of at most 256 numbers is its own 8 bits, less 128; a larger one the mean of its
    channels, averaged to at most 16 x 16. The digest is of the very image: of two that differ below
    8 bits, neither is the other repeated.
    """
    levels_BCHW = (images_BCHW * 255).round_().clamp_(0, 255)
    shape = images_BCHW.shape
    if shape[1:].numel() > SIDE * SIDE:
        grey_B1HW = adaptive_avg_pool2d(
            levels_BCHW.sum(1, True), (min(shape[2], SIDE), min(shape[3], SIDE))
        )
        levels_BCHW = (grey_B1HW / shape[1]).round_()
    raw = images_BCHW.contiguous().numpy()
    digests = b"".join(hashlib.blake2b(image, digest_size=DIGEST).digest() for image in raw)
    digest_BD = torch.tensor(list(digests), dtype=torch.uint8).view(torch.int8).view(-1, DIGEST)
    return torch.cat([(levels_BCHW.flatten(1) - 128).to(torch.int8), digest_BD], 1)


def cells_of(p_BK: Tensor) -> Tensor:
    """A number for the cell of each row, .2 wide on 4 axes drawn at random; sums are in one
    order.
    """
    axes_4K = torch.randn(
        4, p_BK.shape[1], generator=torch.Generator().manual_seed(0), dtype=torch.float64
    )
    place_B4 = torch.cat([(part[:, None] * axes_4K).cumsum(2)[..., -1] for part in p_BK.split(256)])
    return ((place_B4 / 0.2).floor().long() + 512) @ 1_024 ** torch.arange(4)


def nearest_before(rows_BR: Tensor, past_NR: Tensor, window: int) -> tuple[Tensor, Tensor]:
    """Distance of each image to the nearest of the ``window`` before it, and if it repeats one.

    The past is before all of them, oldest first. Distances are L2 of pixels within 0 and 1,
    float64; infinite for none.
    """
    all_MR = torch.cat([past_NR, rows_BR])
    past = len(past_NR)
    batch = len(rows_BR)
    nearest_B = torch.full((batch,), math.inf)
    repeats_B = torch.zeros(batch, dtype=torch.bool)
    for start in range(0, len(all_MR), MAX_PAST):
        apart_BN = squared(rows_BR, all_MR[start : start + MAX_PAST])
        if (
            start + MAX_PAST > past or past + batch - 1 - start > window
        ):  # some are not before, or too long
            place_N = torch.arange(start, start + apart_BN.shape[1])
            age_BN = torch.arange(past, past + batch)[:, None] - place_N
            apart_BN.masked_fill_((age_BN < 1) | (age_BN > window), math.inf)
        nearest_B = nearest_B.minimum(apart_BN.amin(1))
    if len(equal_Z := (nearest_B == 0).nonzero()[:, 0]):
        last = dict[int, int]()  # of each image the place where it came last
        digests = digests_of(all_MR)
        wanted = {*equal_Z.tolist()}
        for place, digest in enumerate(digests):
            if place - past in wanted:
                repeats_B[place - past] = place - last.get(digest, -window - 1) <= window
            last[digest] = place
    return nearest_B.double().sqrt() / 255, repeats_B


def digests_of(rows_NR: Tensor) -> list[int]:
    """The digest of each row, as a number: rows of the same image have the same."""
    numbers: list[int] = rows_NR[:, -DIGEST:].contiguous().view(torch.int64)[:, 0].tolist()
    return numbers


def squared(rows_BR: Tensor, others_NR: Tensor) -> Tensor:
    """Squared distances (B, N) in levels, float32: whole numbers, exact on every machine."""
    x_BD = rows_BR[:, :-DIGEST].float()
    y_ND = others_NR[:, :-DIGEST].float()
    return torch.addmm((y_ND * y_ND).sum(1), x_BD, y_ND.T, alpha=-2).add_(
        (x_BD * x_BD).sum(1)[:, None]
    )


# Honest accounts from held-out images that calibrated no detector: five streams in sessions.
# Their unit is the session, as one account sends it. Nothing here, and nothing else in dfme,
# splits, rotates or disguises what a client sends.

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
