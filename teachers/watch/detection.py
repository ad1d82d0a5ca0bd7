"""Detectors over honest accounts, per stream, and over accounts in a log of ``serve --record``."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dfme.compute import Seldom
from dfme.config.detectors import NEED_FEATURES
from dfme.errors import RunError, UserError, flag
from dfme.spec import ImageSpec
from dfme.teachers.defences.defence import taken
from dfme.teachers.serve.record import digests, fingerprints, read_log
from dfme.teachers.watch.detector import Observation
from dfme.teachers.watch.streams import SESSION, STREAMS, held_out, session
from dfme.teachers.watch.watch import Watch

SESSIONS = 20  # of each stream
ROW = ("stream", "detector", "sessions", "units", "sessions_with_alarm", "queries", "alarms")
THINNED = (1, 2, 4, 8, 16, 32, 64)  # of so many images of an account in a log one
ACCOUNTS = 16  # of a log that are looked at: those with the most images
MAX_COUNTED = (
    100_000  # accounts that are counted; digests that are remembered of one, and then forgotten
)
Tell = Callable[[str], None]


def detect(
    teacher: Any,
    data: str,
    other: str | None,
    seed: int,
    tell: Tell,
    log: Path | None,
    sessions: int | None = None,
) -> dict[str, Any]:
    """Figures of the watch of ``teacher`` on honest accounts and on a log, which may lack inputs.

    ``sessions``: so many honest accounts of each stream, in place of ``SESSIONS``.

    ``benign`` has a ``ROW`` per stream and detector, ``benign_largest`` the largest statistic of
    each session. Alarms are counted per image, but honest images are no more independent than
    ``units``, those that all are drawn from. UserError for images that do not do and a log that is
    not the teacher's.
    """
    watch: Watch = teacher.watch
    written = None if log is None else Log(log, teacher.spec, teacher.num_classes)
    left_out = written.unfed(watch.names) if written else {}
    if written:
        watch.recalibrate_for_log(
            written.as_written, [name for name in watch.names if name not in left_out]
        )
    found = {"detectors": [_described(*entry) for entry in watch.report()["detectors"].items()]}
    found |= _benign(teacher, data, other, seed, tell, sessions or SESSIONS)
    return found | {"left_out": left_out} | (written.seen_by(watch) if written else {})


def _described(name: str, report: dict[str, Any]) -> dict[str, Any]:
    return {
        "name": name,
        "statistic": report["statistic"],
        "threshold": report["threshold"],
        "memory_mb": report["memory_mb"],
    }


def _benign(
    teacher: Any, data: str, other: str | None, seed: int, tell: Tell, sessions: int
) -> dict[str, Any]:
    """Facts of honest accounts; a stream that the images do not allow is left out."""
    images, calibration_N, places_N = held_out(data, teacher.spec)
    sizes = {
        "session": SESSION,
        "calibration_images": len(calibration_N),
        "measuring_images": len(places_N),
    }
    rows = list[dict[str, Any]]()
    largest = {name: dict[str, list[float]]() for name in teacher.watch.names}
    cannot = ("skewed" if images.labels is None else "", "other data" if other is None else "")
    for stream in (each for each in STREAMS if each not in cannot):
        if stream == "other data":
            images = held_out(str(other), teacher.spec)[0]
            places_N = torch.arange(len(images))
        accounts = list[dict[str, Any]]()
        seldom = Seldom(tell)
        for number in range(sessions):
            teacher.watch.load_state_dict({})  # nobody has asked yet
            rng = torch.Generator().manual_seed(seed * SESSIONS + number)
            for x_BCHW in session(stream, images, places_N, rng):
                for part_BCHW in taken(x_BCHW, teacher).split(
                    teacher.info.max_batch or len(x_BCHW)
                ):
                    teacher(part_BCHW)
            accounts.append(teacher.watch.report()["detectors"])
            seldom(f"watched {number + 1} of {sessions} honest accounts: {stream}")
        teacher.watch.drain()
        for name in largest:
            alarms = [each[name]["alarms"] for each in accounts]
            largest[name][stream] = [each[name]["largest"] for each in accounts]
            counts = (
                sessions,
                len(places_N),
                sum(map(bool, alarms)),
                sessions * SESSION,
                sum(alarms),
            )
            rows.append(dict(zip(ROW, (stream, name, *counts), strict=True)))
        tell(f"watched {sessions} honest accounts: {stream}")
    return {**sizes, "benign": rows, "benign_largest": largest}


class Log:
    """A log, read once for its content. UserError if of another teacher, RunError for damage."""

    def __init__(self, folder: Path, spec: ImageSpec, classes: int) -> None:
        self._folder = folder
        self._shape = spec.shape
        self._classes = classes
        self._accounts = Counter[str]()
        self._images = self._distances = True
        for batch in self._batches():
            self._accounts[batch["account"]] += len(batch["top"])
            self._images &= batch["images"] is not None
            self._distances &= not np.isnan(batch["distance"]).any()
            known = 0 <= batch["top"].min() <= batch["top"].max() < classes
            if not known or len(self._accounts) > MAX_COUNTED:
                expected = f"{classes} classes and at most {MAX_COUNTED:,} accounts"
                raise UserError(
                    f"{folder}: expected the log of this teacher, of {expected}; got another one"
                )
        if not self._accounts:
            raise UserError(f"{folder}: expected a log with images, got none")

    def unfed(self, names: Sequence[str]) -> dict[str, str]:
        """Which detectors it cannot feed, and why. UserError where that are all."""
        why = (
            {}
            if self._images
            else {"prada": f"the log has not all images ({flag('record_images')})"}
        )
        if not self._distances:
            why |= dict.fromkeys(NEED_FEATURES, "the log has not all distances of features")
        if why.keys() >= {*names}:
            wanted = f"expected a log that can feed {', '.join(names)}"
            raise UserError(f"{self._folder}: {wanted}: {why[names[0]]}")
        return {name: why[name] for name in names if name in why}

    def as_written(self, seen: Observation) -> Observation:
        """Log of other images."""
        pixels_BCHW = seen.images_BCHW.mul(255).round().byte()
        score_B, top_B = seen.p_BK.max(1)
        raw = (each.tobytes() for each in pixels_BCHW.numpy())
        codes = {"fingerprint": fingerprints(pixels_BCHW), "digest": digests(raw)}
        told: dict[str, Any] = {
            name: np.array([int(each, 16) for each in own], np.uint64)
            for name, own in codes.items()
        }
        told["images"] = pixels_BCHW.numpy()
        told["score"] = score_B.numpy()
        told["top"] = top_B.numpy()
        told["distance"] = None if seen.distance_B is None else seen.distance_B.numpy()
        return self._seen(told)

    def seen_by(self, watch: Watch) -> dict[str, Any]:
        """Figures of the largest accounts, on their streams and on thinned ones."""
        watch.load_state_dict({})
        had = dict.fromkeys((tag for tag, _ in self._accounts.most_common(ACCOUNTS)), 0)
        repeats = Counter[str]()
        known = {tag: set[int]() for tag in had}
        for batch in (each for each in self._batches() if each["account"] in had):
            tag = batch["account"]
            seen = self._seen(batch)
            own = {*batch["digest"].tolist()}
            for every in THINNED:
                watch.account = f"{tag} {every}"
                watch.observe(seen[-had[tag] % every :: every])
            watch.drain()
            had[tag] += len(seen)
            repeats[tag] += len(seen) - len(own - known[tag])
            known[tag] = own if len(known[tag]) > MAX_COUNTED else known[tag] | own
        accounts = list[dict[str, Any]]()
        for tag, images in had.items():
            thinned = dict[int, Any]()
            for every in THINNED:
                watch.account = f"{tag} {every}"
                thinned[every] = watch.report()["detectors"]
            accounts.append(
                {
                    "account": tag,
                    "images": images,
                    "repeats": repeats[tag],
                    "thinned": thinned,
                }
            )
        return {"accounts": accounts, "accounts_in_all": len(self._accounts)}

    def _batches(self) -> Iterator[dict[str, Any]]:
        try:
            yield from read_log(self._folder, self._shape)
        except OSError as error:
            raise RunError(
                f"{self._folder}: expected a log that can be read: {error.strerror}"
            ) from error

    def _seen(self, batch: Mapping[str, Any]) -> Observation:
        """Missing scores are equal; missing images are fingerprints, with digests below 8 bits."""
        score_B1, top_B1 = (torch.from_numpy(batch[name])[:, None] for name in ("score", "top"))
        rest_BK = ((1 - score_B1.clamp(max=1)) / (self._classes - 1)).repeat(1, self._classes)
        images_BCHW = 0.999 * _bits(batch["fingerprint"]) + 0.001 * _bits(batch["digest"])
        if self._images:
            images_BCHW = torch.tensor(batch["images"]) / 255
        known = self._distances and batch["distance"] is not None
        distance_B = torch.from_numpy(batch["distance"]) if known else None
        return Observation(images_BCHW, rest_BK.scatter(1, top_B1, score_B1), distance_B)


def _bits(codes_B: Any) -> Tensor:
    """Codes of 64 bits as images (B, 1, 8, 8)."""
    bits_BN = np.unpackbits(codes_B.astype(">u8").view(np.uint8).reshape(-1, 8), axis=1)
    return torch.from_numpy(bits_BN).float().view(-1, 1, 8, 8)
