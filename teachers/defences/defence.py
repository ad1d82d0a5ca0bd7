"""Defences: answers made of answers, and what is remembered. One account: behind ``serve``, that of the API key."""

from __future__ import annotations

import hmac
import math
import time
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from dfme.answers import maps
from dfme.compute import held_to, plain_tensor
from dfme.errors import Refused
from dfme.nets import build_net
from dfme.spec import ImageSpec, Teacher
from dfme.teachers.defences import key_of

SURROGATE_SEED = 20_190_610
"""Of the untrained surrogate of MAD and GRAD^2: no secret, and nothing that they keep depends on it."""

MOST_LOGGED = 16_384
"""Images in a watermark's log; those beyond are only counted."""

SECONDS = (0.1, 2_948.0)  # of work for one image, at least and at most


class Defence:
    """One defence with its options, in front of ``teacher``: float64 on the CPU, no input or output.

    Its state: numbers, ``COUNTS`` at first, and float64 tensors of any number of rows, ``ROWS`` with their columns (0:
    one per class). What its key draws is the same for ever and for no other defence; no repr tells the key.
    """

    COUNTS: ClassVar[dict[str, float]] = {}
    ROWS: ClassVar[dict[str, int]] = {}

    def __init__(self, options: Any, teacher: Teacher) -> None:
        self.options, self.name, self.classes = options, options.name, teacher.num_classes
        self.counts: dict[str, Any] = dict(self.COUNTS)
        self.rows = {name: torch.empty(0, columns or self.classes).double() for name, columns in self.ROWS.items()}
        self._eight_bits = replace(teacher.spec, levels=256)
        self._key = hmac.digest(key_of(options), self.name.encode(), "sha256") if options.facts(2).key else b""

    def admit(self, images: int) -> None:
        """Raise Refused where so many images are not to be answered; none of them is counted yet."""

    def answer(self, p_BK: Tensor, images_BCHW: Tensor) -> Tensor:
        """What is answered in place of the probabilities ``p_BK``, which stay as they are."""
        raise NotImplementedError

    def draw(self, what: bytes) -> bytes:
        return hmac.digest(self._key, what, "sha256")

    def draws(self, images_BCHW: Tensor) -> list[bytes]:
        """One per image, as its 8 bits are."""
        return [self.draw(each.tobytes()) for each in self._eight_bits.encode(images_BCHW.cpu()).contiguous().numpy()]

    def state_dict(self) -> dict[str, Any]:
        return {**self.counts, **{name: each.clone() for name, each in self.rows.items()}}

    def load_state_dict(self, state: Any) -> None:
        """Take up what ``state_dict`` gave. ValueError for anything that it cannot have given."""
        own = self.state_dict()
        for name, like in self.rows.items() if isinstance(state, dict) else ():
            found = plain_tensor(state.get(name), f"{self.name}.{name}")
            own[name] = like.new_empty(len(found) if found.ndim else 0, like.shape[1])
        held = held_to(own, state, self.name)
        self.counts = {name: held[name] for name in self.counts}
        self.rows = {name: held[name].cpu().clone() for name in self.rows}

    def report(self) -> dict[str, Any]:
        """What it counted, and how many rows it stored, for its owner."""
        return {**self.counts, **{name: len(each) for name, each in self.rows.items()}}


class MapDefence(Defence):
    """The map of this name; options of no strength leave answers as they are, bit by bit."""

    def __init__(self, options: Any, teacher: Teacher) -> None:
        super().__init__(options, teacher)
        self._idle, self._map = options.facts(self.classes).l1 == 0, maps.map_of(options, torch.Generator())
        net = getattr(options, "q", "uniform") == "net"
        self._surrogate = UntrainedNet(teacher.spec, self.classes, SURROGATE_SEED) if net else None

    def answer(self, p_BK: Tensor, images_BCHW: Tensor) -> Tensor:
        if self._idle:
            return p_BK
        if self._surrogate is None:
            assert self._map is not None
            return self._map(p_BK)
        q_BK, options = self._surrogate(images_BCHW), self.options
        if self.name == "mad":
            return maps.mad(p_BK, q_BK, options.epsilon, options.vertices)
        return maps.grad2(p_BK, q_BK, options.epsilon, options.margin_kept)


class CentroidDefence(Defence):
    """ModelGuard-S: the first stored answer of the same top class within epsilon, else p, which is then stored.

    Where a class has its ``limit``, the nearest is answered, however far, and counted. Source: Yoruko-Tang/ModelGuard
    (0eb60fc), ``ordered``.
    """

    COUNTS: ClassVar = {"over_budget": 0}
    ROWS: ClassVar = {"centroids": 0}

    def answer(self, p_BK: Tensor, images_BCHW: Tensor) -> Tensor:
        y_BK, top_B = p_BK.clone(), p_BK.argmax(1)
        for label in top_B.unique().tolist():
            y_BK[top_B == label] = self._of_class(label, p_BK[top_B == label])
        return y_BK

    def _of_class(self, label: int, p_bK: Tensor) -> Tensor:
        """The answers to images of one top class, in their order."""
        stored_NK, y_bK, rest_b = self.rows["centroids"], p_bK.clone(), torch.arange(len(p_bK))
        stored_NK = stored_NK[stored_NK.argmax(1) == label]
        if len(stored_NK):
            within_bN = torch.cdist(p_bK, stored_NK, p=1.0) <= self.options.epsilon
            y_bK, rest_b = stored_NK[within_bN.byte().argmax(1)], (~within_bN.any(1)).nonzero().flatten()
        old = len(stored_NK)
        while len(rest_b) and len(stored_NK) < self.options.limit:  # the first is stored, and serves those near it
            stored_NK = torch.cat([stored_NK, p_bK[rest_b[:1]]])
            near_b = torch.cdist(p_bK[rest_b], stored_NK[-1:], p=1.0)[:, 0] <= self.options.epsilon
            y_bK[rest_b[near_b]], rest_b = stored_NK[-1], rest_b[~near_b]
        self.rows["centroids"] = torch.cat([self.rows["centroids"], stored_NK[old:]])
        if len(rest_b):
            y_bK[rest_b] = stored_NK[torch.cdist(p_bK[rest_b], stored_NK, p=1.0).argmin(1)]
            self.counts["over_budget"] += len(rest_b)
        return y_bK

    def load_state_dict(self, state: Any) -> None:
        super().load_state_dict(state)
        stored_NK, limit = self.rows["centroids"], self.options.limit
        if (stored_NK < 0).any() or ((stored_NK.sum(1) - 1).abs() > 1e-6).any() or len(stored_NK) > limit * self.classes:
            raise ValueError(f"{self.name}: expected probabilities, at most {limit} of each top class")


class NoiseDefence(Defence):
    """Noise whose row is drawn by the key from the number of the image answered, or from the image itself."""

    COUNTS: ClassVar = {"answered": 0}

    def answer(self, p_BK: Tensor, images_BCHW: Tensor) -> Tensor:
        if not self.options.sigma:
            return p_BK
        numbers = range(self.counts["answered"], self.counts["answered"] + len(p_BK))
        self.counts["answered"] += len(p_BK)
        fresh = self.options.fresh
        digests = [self.draw(b"number %d" % number) for number in numbers] if fresh else self.draws(images_BCHW)
        rows = [torch.randn(self.classes, generator=generator(each), dtype=torch.float64) for each in digests]
        return maps.noise(p_BK, torch.stack(rows), self.options.sigma, self.options.keep_top)


class WatermarkDefence(Defence):
    """DAWN's idea: an image whose keyed digest lies below ``rate`` has its top score exchanged with another class's.

    The log holds these digests, by which the owner of the key knows such an image again.
    """

    COUNTS: ClassVar = {"marked": 0}
    ROWS: ClassVar = {"log": 32}

    def answer(self, p_BK: Tensor, images_BCHW: Tensor) -> Tensor:
        y_BK, marks = p_BK.clone(), list[list[int]]()
        for row, digest in enumerate(self.draws(images_BCHW)):
            if int.from_bytes(digest[:8], "big") < self.options.rate * 2**64:
                top = int(p_BK[row].argmax())
                other = (top + 1 + int.from_bytes(digest[8:16], "big") % (self.classes - 1)) % self.classes
                y_BK[row, [top, other]] = p_BK[row, [other, top]]
                marks.append([*digest])
        self.counts["marked"] += len(marks)
        self.rows["log"] = torch.cat([self.rows["log"], torch.tensor(marks).double().view(-1, 32)])[:MOST_LOGGED]
        return y_BK


class QuotaDefence(Defence):
    """Refuses a request as a whole that would exceed ``images``, for good or within the last ``window`` seconds."""

    COUNTS: ClassVar = {"images": 0, "refused": 0}
    ROWS: ClassVar = {"window": 2}  # when, how many

    def admit(self, images: int) -> None:
        most, window, had, now = self.options.images, self.options.window, self.counts["images"], time.time()
        if window:
            had_N2 = self.rows["window"] = self.rows["window"][self.rows["window"][:, 0] > now - window]
            had = int(had_N2[:, 1].sum())
        if had + images <= most:
            return
        self.counts["refused"] += images
        text = f"the quota of {most:,} images is used up ({had:,} answered, {images:,} asked for)"
        if not window or images > most:
            raise Refused(text, "quota", retry=False)
        free = int((had_N2[:, 1].cumsum(0) < had + images - most).sum())
        wait = float(had_N2[free, 0]) + window - now
        raise Refused(f"{text} within {window:g} s", "quota", retry_after=wait)

    def answer(self, p_BK: Tensor, images_BCHW: Tensor) -> Tensor:
        self.counts["images"] += len(p_BK)
        if self.options.window:
            now_12 = torch.tensor([[time.time(), len(p_BK)]], dtype=torch.float64)
            self.rows["window"] = torch.cat([self.rows["window"], now_12])
        return p_BK


class WorkDefence(Defence):
    """The seconds of work that each image would cost: base ^ excess, within ``SECONDS``; no client is asked.

    The excess is what the answers before told, entropy in nats, less ``usual`` for each. Constants: the code of
    "Increasing the Cost of Model Extraction with Calibrated Proof of Work"; entropy in place of its cost is ours.
    """

    COUNTS: ClassVar = {"images": 0, "nats": 0.0, "seconds_of_work": 0.0}

    def answer(self, p_BK: Tensor, images_BCHW: Tensor) -> Tensor:
        least, most = SECONDS
        for p_K in p_BK:
            excess = self.counts["nats"] - self.options.usual * self.counts["images"]
            price = math.exp(min(excess * math.log(self.options.base), math.log(most)))
            self.counts["seconds_of_work"] += min(max(price, least), most)
            self.counts["nats"] += float(torch.special.entr(p_K).sum())
            self.counts["images"] += 1
        return p_BK


class UntrainedNet:
    """The probabilities of a small network drawn by a seed. Images are asked one by one: batches change no bit."""

    def __init__(self, spec: ImageSpec, classes: int, seed: int) -> None:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self._net = build_net("cnn_small", spec.shape, classes).eval()

    def __call__(self, images_BCHW: Tensor) -> Tensor:
        with torch.no_grad():
            return torch.cat([self._net(x_1CHW) for x_1CHW in images_BCHW.cpu().split(1)]).double().softmax(1)


def generator(digest: bytes) -> torch.Generator:
    """A generator of random numbers that a digest seeds."""
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)
