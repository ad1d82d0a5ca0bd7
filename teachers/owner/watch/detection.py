"""Detectors over honest accounts, per stream, and over accounts in a log of ``serve --record``."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dfme.compute.modules import Seldom
from dfme.config.defences import NEED_FEATURES
from dfme.data import ImageSet
from dfme.errors import RunError, UserError, flag
from dfme.measured import (
    AccountReading,
    Detection,
    DetectorFacts,
    HonestStream,
    LogDetection,
    LoggedAccount,
)
from dfme.spec import ImageSpec
from dfme.statistics import share_at_most
from dfme.teachers.arrays import Array
from dfme.teachers.owner.features import as_asked
from dfme.teachers.owner.watch.detector import SESSION, STREAMS, Observation, held_out, session
from dfme.teachers.owner.watch.record import LogBatch, LoggedImages, digests, fingerprints, read_log
from dfme.teachers.owner.watch.watch import Watch

SESSIONS = 20  # of each stream
THINNED = (1, 2, 4, 8, 16, 32, 64)  # of so many images of an account in a log one
ACCOUNTS = 16  # of a log that are looked at: those with the most images
MAX_COUNTED = (
    100_000  # accounts that are counted; digests that are remembered of one, and then forgotten
)
Tell = Callable[[str], None]


def detect(
    teacher: Any,
    data: str,
    other: str | None = None,
    seed: int = 0,
    tell: Tell = lambda line: None,
    log: Path | None = None,
    sessions: int | None = None,
) -> Detection:
    """Figures of the watch of ``teacher`` on honest accounts and on a log, which may lack inputs.

    ``sessions``: so many honest accounts of each stream, in place of ``SESSIONS``. Alarms are
    counted per image, but honest images are no more independent than ``units``, those that all are
    drawn from. UserError for images that do not do and a log that is not the teacher's.
    """
    watch: Watch = teacher.watch
    logged = None if log is None else Log(log, teacher.spec, teacher.num_classes)
    left_out = logged.unfed(watch.names) if logged else {}
    if logged:
        watch.recalibrate_for_log(
            logged.as_written, [name for name in watch.names if name not in left_out]
        )
    detectors = tuple(
        DetectorFacts(name, report["statistic"], report["threshold"], report["memory_mb"])
        for name, report in watch.report()["detectors"].items()
    )
    images, calibration_N, places_N = held_out(data, teacher.spec)
    rows = list[HonestStream]()
    largest = {name: dict[str, list[float]]() for name in watch.names}
    missing = ("skewed" if images.labels is None else "", "other data" if other is None else "")
    for stream in (name for name in STREAMS if name not in missing):
        drawn = places_N
        if stream == "other data":
            images = held_out(str(other), teacher.spec)[0]
            drawn = torch.arange(len(images))
        accounts = _accounts(teacher, stream, images, drawn, seed, tell, sessions or SESSIONS)
        for name in watch.names:
            readings = [account[name] for account in accounts]
            largest[name][stream] = [reading["largest"] for reading in readings]
            rows.append(_honest(stream, name, len(drawn), readings))
        tell(f"watched {len(accounts)} honest accounts: {stream}")
    honest = Detection(
        detectors=detectors,
        session=SESSION,
        calibration_images=len(calibration_N),
        measuring_images=len(places_N),
        benign=tuple(rows),
        benign_largest=largest,
        left_out=left_out,
    )
    return logged.seen_by(watch, honest) if logged else honest


def _accounts(
    teacher: Any,
    stream: str,
    images: ImageSet,
    places_N: Tensor,
    seed: int,
    tell: Tell,
    sessions: int,
) -> list[Any]:
    """What the watch says of each honest account of a stream."""
    accounts = list[Any]()
    seldom = Seldom(tell)
    for number in range(sessions):
        teacher.watch.load_state_dict({})  # nobody has asked yet
        rng = torch.Generator().manual_seed(seed * SESSIONS + number)
        for x_BCHW in session(stream, images, places_N, rng):
            most = teacher.info.max_batch or len(x_BCHW)
            for part_BCHW in as_asked(x_BCHW, teacher).split(most):
                teacher(part_BCHW)
        accounts.append(teacher.watch.report()["detectors"])
        seldom(f"watched {number + 1} of {sessions} honest accounts: {stream}")
    teacher.watch.drain()
    return accounts


def _honest(stream: str, detector: str, units: int, readings: Sequence[Any]) -> HonestStream:
    """The row of a detector, by what it says of each session."""
    alarms = [reading["alarms"] for reading in readings]
    count = sum(alarms)
    queries = len(alarms) * SESSION
    return HonestStream(
        stream,
        detector,
        sessions=len(alarms),
        units=units,
        sessions_with_alarm=sum(map(bool, alarms)),
        queries=queries,
        alarms=count,
        per_10000=10_000 * count / queries,
        per_10000_upper=10_000 * share_at_most(count, queries, units),
        first_alarms=[reading["first_alarm"] for reading in readings],
    )


class Log:
    """A log, read once for its content. UserError if of another teacher, RunError for damage."""

    def __init__(self, folder: Path, spec: ImageSpec, classes: int) -> None:
        self._folder = folder
        self._shape = spec.shape
        self._classes = classes
        self._accounts = Counter[str]()
        self._images = self._distances = True
        for batch in self._batches():
            self._accounts[batch.account] += len(batch.top)
            self._images &= batch.images is not None
            self._distances &= not np.isnan(batch.distance).any()
            fits = 0 <= batch.top.min() <= batch.top.max() < classes
            if not fits or len(self._accounts) > MAX_COUNTED:
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
        written = LoggedImages(
            digest=_numbers(digests(image.tobytes() for image in pixels_BCHW.numpy())),
            fingerprint=_numbers(fingerprints(pixels_BCHW)),
            top=top_B.numpy(),
            score=score_B.numpy(),
            distance=None if seen.distance_B is None else seen.distance_B.numpy(),
            images=pixels_BCHW.numpy(),
        )
        return self._seen(written)

    def seen_by(self, watch: Watch, honest: Detection) -> LogDetection:
        """Figures of the largest accounts, on their streams and on thinned ones, beside those of
        honest accounts.
        """
        watch.load_state_dict({})
        images = dict.fromkeys((tag for tag, _ in self._accounts.most_common(ACCOUNTS)), 0)
        repeats = Counter[str]()
        digests_before = {tag: set[int]() for tag in images}
        for batch in (batch for batch in self._batches() if batch.account in images):
            tag = batch.account
            seen = self._seen(batch)
            digests = {*batch.digest.tolist()}
            for every in THINNED:
                watch.account = f"{tag} {every}"
                watch.observe(seen[-images[tag] % every :: every])
            watch.drain()
            images[tag] += len(seen)
            before = digests_before[tag]
            repeats[tag] += len(seen) - len(digests - before)
            digests_before[tag] = digests if len(before) > MAX_COUNTED else before | digests
        accounts = list[LoggedAccount]()
        for tag, count in images.items():
            thinned = dict[int, dict[str, AccountReading]]()
            for every in THINNED:
                watch.account = f"{tag} {every}"
                readings = watch.report()["detectors"]
                thinned[every] = {
                    name: AccountReading(**reading) for name, reading in readings.items()
                }
            accounts.append(LoggedAccount(tag, count, repeats[tag], thinned))
        return LogDetection(**vars(honest), accounts=accounts, accounts_in_all=len(self._accounts))

    def _batches(self) -> Iterator[LogBatch]:
        try:
            yield from read_log(self._folder, self._shape)
        except OSError as error:
            raise RunError(
                f"{self._folder}: expected a log that can be read: {error.strerror}"
            ) from error

    def _seen(self, batch: LoggedImages) -> Observation:
        """Missing scores are equal; missing images are fingerprints, with digests below 8 bits."""
        score_B1, top_B1 = (torch.from_numpy(each)[:, None] for each in (batch.score, batch.top))
        rest_BK = ((1 - score_B1.clamp(max=1)) / (self._classes - 1)).repeat(1, self._classes)
        images_BCHW = 0.999 * _bits(batch.fingerprint) + 0.001 * _bits(batch.digest)
        if self._images:
            images_BCHW = torch.tensor(batch.images) / 255
        distance_B = None
        if self._distances and batch.distance is not None:
            distance_B = torch.from_numpy(batch.distance)
        return Observation(images_BCHW, rest_BK.scatter(1, top_B1, score_B1), distance_B)


def _numbers(codes: Sequence[str]) -> Array:
    return np.array([int(code, 16) for code in codes], np.uint64)


def _bits(codes_B: Array) -> Tensor:
    """Codes of 64 bits as images (B, 1, 8, 8)."""
    bits_BN = np.unpackbits(codes_B.astype(">u8").view(np.uint8).reshape(-1, 8), axis=1)
    return torch.from_numpy(bits_BN).float().view(-1, 1, 8, 8)
