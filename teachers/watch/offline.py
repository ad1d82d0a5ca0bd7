"""What detectors say of a log that ``serve --record`` wrote: which accounts ring, since when, in how thin a stream."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dfme.config.watch_texts import NEED_FEATURES
from dfme.errors import RunError, UserError
from dfme.spec import Teacher
from dfme.teachers.serve.record import digests, fingerprints, read_log, shape_of
from dfme.teachers.watch.detector import Seen
from dfme.teachers.watch.watch import Watch

THINNED = (1, 2, 4, 8, 16, 32, 64)  # of so many images of an account one
ACCOUNTS = 16  # that are looked at: those with the most images
MOST = 100_000  # accounts that are counted; digests that are remembered of one, and then forgotten


class Log:
    """A log, read once to see what it holds. UserError for a folder that is none, RunError for a damaged one."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._shape, self._classes = folder, shape_of(folder), 0
        self._accounts, self._images, self._distances = Counter[str](), True, True
        for batch in self._batches():
            self._accounts[batch["account"]] += len(batch["top"])
            self._images &= batch["images"] is not None
            self._distances &= not np.isnan(batch["distance"]).any()
            self._classes = max(self._classes, int(batch["top"].max()) + 1)
            if len(self._accounts) > MOST:
                raise UserError(f"{folder}: expected a log of at most {MOST:,} accounts")
        if not self._accounts:
            raise UserError(f"{folder}: expected a log with images, got none")

    def unfed(self, names: Iterable[str]) -> dict[str, str]:
        """Which detectors it cannot feed, and why."""
        features, images = "the log has not the distances of all images", "the log has not all images (--record-images)"
        found = {name: features for name in names if name in NEED_FEATURES and not self._distances}
        return found | {name: images for name in names if name == "prada" and not self._images}

    def fit(self, teacher: Teacher) -> None:
        """UserError where the log cannot be of this teacher."""
        shape, classes = teacher.spec.shape, teacher.num_classes
        if tuple(shape) != self._shape or classes < self._classes:
            expected = f"expected the log of this teacher, of images {shape} and {classes} classes"
            raise UserError(f"{self._folder}: {expected}, got images {self._shape} and {self._classes} classes")
        self._classes = classes

    def as_written(self, seen: Seen) -> Seen:
        """What the log would hold of other images."""
        pixels_BCHW, (score_B, top_B) = seen.images_BCHW.mul(255).round().byte(), seen.p_BK.max(1)
        codes = {"fingerprint": fingerprints(pixels_BCHW), "digest": digests(pixels_BCHW)}
        told = {name: np.array([int(each, 16) for each in own], np.uint64) for name, own in codes.items()}
        told |= {"images": pixels_BCHW.numpy(), "score": score_B.numpy(), "top": top_B.numpy()}
        return self._seen(told | {"distance": None if seen.distance_B is None else seen.distance_B.numpy()})

    def seen_by(self, watch: Watch) -> dict[str, Any]:
        """What the watch says of accounts: of those with the most images, on their streams and on thinned ones."""
        watch.load_state_dict({})
        had = dict.fromkeys((tag for tag, _ in self._accounts.most_common(ACCOUNTS)), 0)
        repeats, known = Counter[str](), {tag: set[int]() for tag in had}
        for batch in (each for each in self._batches() if each["account"] in had):
            tag, seen, own = batch["account"], self._seen(batch), {*batch["digest"].tolist()}
            for every in THINNED:
                watch.account = f"{tag} {every}"
                watch.hear(seen[-had[tag] % every :: every])
            watch.drain()
            had[tag] += len(seen)
            repeats[tag] += len(seen) - len(own - known[tag])
            known[tag] = own if len(known[tag]) > MOST else known[tag] | own
        accounts = [{"account": tag, "images": had[tag], "repeats": repeats[tag], "thinned": {}} for tag in had]
        for each, every in ((each, every) for each in accounts for every in THINNED):
            watch.account = f"{each['account']} {every}"
            each["thinned"][every] = watch.report()["detectors"]
        return {"accounts": accounts, "accounts_in_all": len(self._accounts)}

    def _batches(self) -> Iterator[dict[str, Any]]:
        try:
            yield from read_log(self._folder)
        except OSError as error:
            raise RunError(f"{self._folder}: expected a log that can be read: {error.strerror or error}") from error

    def _seen(self, batch: Mapping[str, Any]) -> Seen:
        """Scores that are not on record are equal. Images that are not are fingerprints, with digests below 8 bits."""
        score_B1, top_B1 = (torch.from_numpy(batch[name])[:, None] for name in ("score", "top"))
        rest_BK = ((1 - score_B1.clamp(max=1)) / (self._classes - 1)).repeat(1, self._classes)
        images_BCHW = 0.999 * _bits(batch["fingerprint"]) + 0.001 * _bits(batch["digest"])
        if self._images:
            images_BCHW = torch.tensor(batch["images"]) / 255
        distance_B = torch.from_numpy(batch["distance"]) if self._distances and batch["distance"] is not None else None
        return Seen(images_BCHW, rest_BK.scatter(1, top_B1, score_B1), distance_B)


def _bits(codes_B: Any) -> Tensor:
    """Codes of 64 bits as images (B, 1, 8, 8)."""
    bits_BN = np.unpackbits(codes_B.astype(">u8").view(np.uint8).reshape(-1, 8), axis=1)
    return torch.from_numpy(bits_BN).float().view(-1, 1, 8, 8)
