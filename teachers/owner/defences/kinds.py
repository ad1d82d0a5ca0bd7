"""The defences that answer by a map, by what they have stored, by chance, or not at all."""

import math
import time
from typing import ClassVar

import torch
from torch import Tensor

from dfme.answers import maps
from dfme.errors import Refused
from dfme.teachers.owner.defences.defence import Defence

SECONDS = (0.1, 2_948.0)  # of work for one image, at least and at most


class MapDefence(Defence):
    """The map of this name, and where q is a network's, with that."""

    def answer(self, p_BK: Tensor, images_BCHW: Tensor) -> Tensor:
        options = self.options
        if self.net is None and (change := maps.map_of(options, torch.Generator())):
            return change(p_BK)
        assert self.net is not None
        if self.name == "mad":
            return maps.mad(p_BK, self.net(images_BCHW), options.epsilon, options.vertices)
        return maps.grad2(p_BK, self.net(images_BCHW), options.epsilon, options.margin_kept)


class CentroidDefence(Defence):
    """ModelGuard-S: the first stored answer of equal top class within epsilon; else p, stored."""

    STATE: ClassVar = {"over_budget": 0, "centroids": (0,)}

    def answer(self, p_BK: Tensor, images_BCHW: Tensor) -> Tensor:
        stored_NK = self.state["centroids"]
        tops = p_BK.argmax(1).tolist()
        answers = list[Tensor]()
        new = list[Tensor]()
        tops_N = stored_NK.argmax(1) if len(stored_NK) else torch.empty(0)
        of_class = {top: stored_NK[tops_N == top] for top in {*tops}}
        for p_K, top in zip(p_BK, tops, strict=True):
            apart_N = torch.cdist(p_K[None], of_class[top], p=1.0)[0]
            near_N = (apart_N <= self.options.epsilon).nonzero()
            if len(near_N) or len(of_class[top]) >= self.options.limit:
                answers.append(of_class[top][near_N[0, 0] if len(near_N) else apart_N.argmin()])
                self.state["over_budget"] += not len(near_N)
            else:
                of_class[top] = torch.cat([of_class[top], p_K[None]])
                new.append(p_K[None])
                answers.append(p_K)
        self.state["centroids"] = torch.cat([stored_NK, *new])
        return torch.stack(answers)


class NoiseDefence(Defence):
    """Noise whose row is drawn by the key from the number of the image answered, or from the image
    itself.
    """

    STATE: ClassVar = {"answered": 0}

    def answer(self, p_BK: Tensor, images_BCHW: Tensor) -> Tensor:
        first = self.state["answered"]
        options = self.options
        self.state["answered"] += len(p_BK)
        fresh = (self.draw(b"number %d" % number) for number in range(first, first + len(p_BK)))
        draws = fresh if options.fresh else self.draws(images_BCHW)
        rows = [torch.randn(self.classes, generator=draw, dtype=torch.float64) for draw in draws]
        return maps.noise(p_BK, torch.stack(rows), options.sigma, options.keep_top)


class WatermarkDefence(Defence):
    """DAWN: on images that the key draws, swap the top score with another."""

    STATE: ClassVar = {"marked": 0}

    def answer(self, p_BK: Tensor, images_BCHW: Tensor) -> Tensor:
        y_BK = p_BK.clone()
        for row, draw in enumerate(self.draws(images_BCHW)):
            if float(torch.rand((), generator=draw)) < self.options.rate:
                top = int(p_BK[row].argmax())
                other = (
                    top + int(torch.randint(1, self.classes, (), generator=draw))
                ) % self.classes
                y_BK[row, [top, other]] = p_BK[row, [other, top]]
                self.state["marked"] += 1
        return y_BK


class QuotaDefence(Defence):
    """Refuse a request that would exceed ``images`` in all, or in the last ``window`` seconds."""

    STATE: ClassVar = {"images": 0, "refused": 0, "window": (2,)}  # when, how many

    def admit(self, images: int) -> None:
        most = self.options.images
        window = self.options.window
        had = self.state["images"]
        now = time.time()
        had_N2 = self.state["window"]
        had_N2 = self.state["window"] = had_N2[had_N2[:, 0] > now - window]
        if window:
            had = int(had_N2[:, 1].sum())
        if had + images <= most:
            return
        self.state["refused"] += images
        text = f"the quota of {most:,} images is used up ({had:,} answered, {images:,} asked for)"
        if not window or images > most:
            raise Refused(text, "quota", retry=False)
        # of those that must be out of the window by then
        last = int((had_N2[:, 1].cumsum(0) < had + images - most).sum())
        seconds = float(had_N2[last, 0]) + window - now
        raise Refused(f"{text} within {window:g} s", "quota", retry_after=seconds)

    def answer(self, p_BK: Tensor, images_BCHW: Tensor) -> Tensor:
        self.state["images"] += len(p_BK)
        if self.options.window:
            now_12 = torch.tensor([[time.time(), len(p_BK)]], dtype=torch.float64)
            self.state["window"] = torch.cat([self.state["window"], now_12])
        return p_BK


class WorkDefence(Defence):
    """Seconds of work per image: base ^ (nats of earlier answers, less ``usual`` for each)."""

    STATE: ClassVar = {"images": 0, "nats": 0.0, "seconds_of_work": 0.0}

    def answer(self, p_BK: Tensor, images_BCHW: Tensor) -> Tensor:
        for p_K in p_BK:
            extra = self.state["nats"] - self.options.usual * self.state["images"]
            power = extra * math.log(self.options.base)
            self.state["seconds_of_work"] += max(
                math.exp(min(power, math.log(SECONDS[1]))), SECONDS[0]
            )
            self.state["nats"] += float(torch.special.entr(p_K).sum())
            self.state["images"] += 1
        return p_BK
