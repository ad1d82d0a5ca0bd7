"""Detectors over honest accounts, per stream, and over accounts in a log of ``serve --record``."""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
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
from dfme.teachers.owner.watch.alarms import ALL, Alarm
from dfme.teachers.owner.watch.detector import (
    BATCH,
    SESSION,
    STREAMS,
    Observation,
    held_out,
    session,
)
from dfme.teachers.owner.watch.record import LogBatch, LoggedImages, digests, fingerprints, read_log
from dfme.teachers.owner.watch.watch import Watch

SESSIONS = 20  # of each stream
THINNED = (1, 2, 4, 8, 16, 32, 64)  # of so many images of an account in a log one
ACCOUNTS = 16  # of a log that are looked at: those with the most images
MAX_COUNTED = (
    100_000  # accounts that are counted; digests that are remembered of one, and then forgotten
)
Tell = Callable[[str], None]


@dataclass
class HonestSession:
    """What a detector says of one honest account, or of as many images of all traffic."""

    largest: float
    alarms: int
    first_alarm: int | None = None


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

    ``sessions``: so many honest accounts of each stream, in place of ``SESSIONS``. A detector of
    all traffic sees them interleaved, and its sessions are as many stretches of as many images.
    Alarms are counted per image, but honest images are no more independent than ``units``, those
    that all are drawn from. UserError for images that do not do and a log that is not the
    teacher's.
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
        count = sessions or SESSIONS
        by_name = _sessions(teacher, stream, images, drawn, seed, tell, count)
        for name in watch.names:
            largest[name][stream] = [reading.largest for reading in by_name[name]]
            rows.append(_honest(stream, name, len(drawn), by_name[name], name in watch.of_all))
        tell(f"watched {count} honest accounts: {stream}")
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


def _sessions(
    teacher: Any,
    stream: str,
    images: ImageSet,
    places_N: Tensor,
    seed: int,
    tell: Tell,
    sessions: int,
) -> dict[str, list[HonestSession]]:
    """What each detector says of the honest accounts of a stream, whose batches come in random
    order.
    """
    watch: Watch = teacher.watch
    watch.load_state_dict({})  # nobody has asked yet
    watch.drain()
    seldom = Seldom(tell)
    rngs = [torch.Generator().manual_seed(seed * SESSIONS + number) for number in range(sessions)]
    accounts = [session(stream, images, places_N, rng) for rng in rngs]
    turns = torch.arange(sessions).repeat_interleave(SESSION // BATCH)
    mixed = turns[torch.randperm(len(turns), generator=torch.Generator().manual_seed(seed))]
    for turn, number in enumerate(mixed.tolist(), 1):
        watch.account = f"{number}"
        x_BCHW = next(accounts[number])
        most = teacher.info.max_batch or len(x_BCHW)
        for part_BCHW in as_asked(x_BCHW, teacher).split(most):
            teacher(part_BCHW)
        if turn * BATCH % SESSION == 0:
            seldom(f"watched {turn * BATCH // SESSION} of {sessions} honest accounts: {stream}")
    readings: dict[str, list[HonestSession]] = {name: [] for name in watch.names}
    for number in range(sessions):
        watch.account = f"{number}"
        for name, reading in watch.report()["detectors"].items():
            readings[name].append(
                HonestSession(reading["largest"], reading["alarms"], reading["first_alarm"])
            )
    watch.account = ""
    return readings | _stretches(watch, sessions)


def _stretches(watch: Watch, sessions: int) -> dict[str, list[HonestSession]]:
    """What each detector of all traffic says of each ``SESSION`` images of it; a statistic that
    stays above its threshold from one to the next is an alarm in both.
    """
    thresholds = {name: watch.report()["detectors"][name]["threshold"] for name in watch.of_all}
    stretches = {
        name: [HonestSession(-math.inf, 0) for _ in range(sessions)] for name in watch.of_all
    }
    for event in watch.take_events():
        if event.account != ALL:
            continue
        if isinstance(event, Alarm):
            stretches[event.detector][(event.image - 1) // SESSION].alarms += 1
            continue
        for name, value in event.largest.items():
            stretch = stretches[name][(event.images - 1) // SESSION]
            stretch.largest = max(stretch.largest, value)
    for name, all_of_it in stretches.items():
        for stretch in all_of_it:
            stretch.alarms = max(stretch.alarms, int(stretch.largest > thresholds[name]))
    return stretches


def _honest(
    stream: str, detector: str, units: int, sessions: Sequence[HonestSession], of_all: bool
) -> HonestStream:
    """The row of a detector, by what it says of each session; ``of_all``: of all traffic."""
    alarms = [reading.alarms for reading in sessions]
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
        first_alarms=[] if of_all else [reading.first_alarm for reading in sessions],
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
        for batch in self._batches():
            tag = batch.account
            if tag not in images and not watch.of_all:
                continue
            seen = self._seen(batch)
            watch.observe_traffic(seen)
            watch.drain()
            if tag not in images:
                continue
            digests = {*batch.digest.tolist()}
            for every in THINNED:
                watch.account = f"{tag} {every}"
                watch.observe_account(seen[-images[tag] % every :: every])
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
                    name: AccountReading(**reading)
                    for name, reading in readings.items()
                    if name not in watch.of_all
                }
            accounts.append(LoggedAccount(tag, count, repeats[tag], thinned))
        readings = watch.report()["detectors"]
        return LogDetection(
            **vars(honest),
            accounts=accounts,
            accounts_in_all=len(self._accounts),
            images_in_all=self._accounts.total(),
            traffic={name: AccountReading(**readings[name]) for name in sorted(watch.of_all)},
        )

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
