"""Detectors over what ``serve --record`` wrote: which accounts ring, since when, and in how thin a stream."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dfme.config.watch_texts import NEED_FEATURES
from dfme.errors import UserError
from dfme.spec import ImageSpec
from dfme.teachers.serve.record import fingerprint, read_log, shape_of
from dfme.teachers.watch.detection import Tally
from dfme.teachers.watch.detector import Detector, Seen

THINNED = (2, 4, 8, 16, 32, 64)  # of so many images of an account the first
ACCOUNTS = 16  # with the most images, which are looked at
MOST_ACCOUNTS, MOST_DIGESTS = 100_000, 100_000  # that are counted; of an account, after which its memory begins anew
BY_FINGERPRINT = ("duplicates", "pairs")  # which need no more than how near two images are


class Log:
    """A log, read once to see what it holds. UserError for one of another teacher than that with these images."""

    def __init__(self, folder: Path, spec: ImageSpec, classes: int) -> None:
        self._folder, self._classes = folder, classes
        if (shape := shape_of(folder)) != spec.shape:
            raise UserError(f"{folder}: expected the log of images {spec.shape}, as the teacher takes them, got {shape}")
        self.accounts, self.images, self.distances = Counter[str](), True, True
        for batch in read_log(folder):
            self.accounts[batch["account"]] += len(batch["top"])
            self.images &= batch["images"] is not None
            self.distances &= not np.isnan(batch["distance"]).any()
            if batch["top"].max() >= classes or len(self.accounts) > MOST_ACCOUNTS:
                expected = f"expected classes below {classes} and at most {MOST_ACCOUNTS:,} accounts"
                raise UserError(f"{folder}: {expected}; is it the log of another teacher?")
        if not self.accounts:
            raise UserError(f"{folder}: expected the log of some images, got none")

    def unfed(self, names: Iterable[str]) -> dict[str, str]:
        """Which detectors it cannot feed, and why."""
        features, images = "it holds no distances of features", "it does not hold all images (serve --record-images)"
        found = {name: features for name in names if name in NEED_FEATURES and not self.distances}
        return found | {name: images for name in names if name == "prada" and not self.images}

    def as_written(self, seen: Seen) -> Seen:
        """What the log would hold of other images: 8-bit ones or their fingerprints, and the top score alone."""
        pixels_BCHW = seen.images_BCHW.mul(255).round().byte().numpy()
        score_B, top_B = seen.p_BK.max(1)
        codes_B = np.array([int(fingerprint(each), 16) for each in pixels_BCHW], np.uint64)
        distance_B = np.full(len(score_B), np.nan) if seen.distance_B is None else seen.distance_B.numpy()
        written = {"images": pixels_BCHW, "fingerprint": codes_B, "distance": distance_B}
        return self._seen(written | {"score": score_B.numpy(), "top": top_B.numpy()})

    def accounts_seen(self, make: Mapping[str, Callable[[], Detector]]) -> list[dict[str, Any]]:
        """What the detectors say of each account, as it was and thinned, those with the most images first."""
        found = {tag: _Account(make) for tag, _ in self.accounts.most_common(ACCOUNTS)}
        for batch in read_log(self._folder):
            if batch["account"] in found:
                found[batch["account"]].see(self._seen(batch), batch["digest"].tolist())
        return [{"account": tag, **each.report()} for tag, each in found.items()]

    def _seen(self, batch: Mapping[str, Any]) -> Seen:
        """Probabilities that are not on record are equal."""
        score_B1, top_B1 = (torch.from_numpy(batch[name])[:, None] for name in ("score", "top"))
        score_B1 = score_B1.clamp(max=1)
        rest_BK = ((1 - score_B1) / (self._classes - 1)).expand(-1, self._classes)
        bits_BN = np.unpackbits(batch["fingerprint"].astype(">u8").view(np.uint8).reshape(-1, 8), axis=1)
        images_BCHW = torch.tensor(batch["images"]).float() / 255 if self.images else _bits(bits_BN)
        distance_B = torch.from_numpy(batch["distance"]) if self.distances else None
        return Seen(images_BCHW, rest_BK.scatter(1, top_B1, score_B1), distance_B)


def _bits(bits_BN: Any) -> Tensor:
    return torch.from_numpy(bits_BN).float().view(-1, 1, 8, 8)


class _Account:
    """The detectors of one account, on its stream and on those that are thinned."""

    def __init__(self, make: Mapping[str, Callable[[], Detector]]) -> None:
        self._images, self._repeats, self._digests = 0, 0, set[int]()
        self._tallies = {name: {every: Tally(new()) for every in (1, *THINNED)} for name, new in make.items()}

    def see(self, seen: Seen, digests: list[int]) -> None:
        for tallies in self._tallies.values():
            for every, tally in tallies.items():
                tally.see(seen[-self._images % every :: every])
        self._images += len(digests)
        for digest in digests:
            self._repeats += digest in self._digests
            if len(self._digests) == MOST_DIGESTS:
                self._digests.clear()
            self._digests.add(digest)

    def report(self) -> dict[str, Any]:
        told = {}
        for name, tallies in self._tallies.items():
            own = tallies[1]
            told[name] = {"first_alarm": own.first_alarm, "alarms": own.alarms, "largest": own.largest}
            told[name]["thinned"] = {f"{every}": tallies[every].first_alarm for every in THINNED}
        return {"images": self._images, "repeats": self._repeats, "detectors": told}
