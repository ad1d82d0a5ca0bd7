"""The log that ``run.py serve --record FOLDER`` writes of every image it looks at, and its reader.

``FOLDER/log-2026-11-23.jsonl``, one file a day (UTC), has a line for each image, as they came::

    {"at": "2026-11-23T02:50:00.123Z", "account": "16 hex", "number": n, "digest": "16 hex",
     "fingerprint": "16 hex", "top": k, "score": s, "distance": d | null, "image": place | null}

``account``: ``account_tag`` of the key; ``number``: of the image among the account's, from 1, since
the server started; ``digest``: BLAKE2b of its 8-bit pixels; ``fingerprint``: of the image in grey,
averaged to 8x8, a bit for each place that is brighter than their mean. Before any defence: the
``top`` class, its probability (``score``), and the squared ``distance`` from the nearest class
(Mahalanobis), if known. ``image``: the place of its pixels in ``images-DAY-ACCOUNT-CxHxW.u8``, C *
H * W bytes for each; null where it is not kept. All of it is personal data: only its owner may read
it (0600), and after some days it is deleted.
"""

import hashlib
import hmac
import json
import math
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d

from dfme.data import ImageSet
from dfme.errors import RunError, UserError, say
from dfme.files import AppendFile, disk_error, make_folder, open_file, remove, whole_lines
from dfme.spec import Shape
from dfme.teachers.arrays import Array
from dfme.teachers.owner.watch.alarms import timestamp
from dfme.teachers.owner.watch.detector import Observation

DATED = re.compile(r"(?:log|images)-(\d{4}-\d\d-\d\d)(?:\.jsonl|-[0-9a-f]{16}-\d+x\d+x\d+\.u8)")
Column = Sequence[float | str | None]
SWEEP_SECONDS = 60.0  # between two looks for what is too old


def account_tag(key: str) -> str:
    """16 hexadecimal digits that stand for an API key and do not tell it."""
    return hmac.digest(b"dfme account", key.encode(), "sha256").hex()[:16]


class Recording:
    """Append to the log in a folder of its own; nothing stays there beyond ``days``.

    ``image_bytes``: of all images that are kept there. ``tell`` hears when they are used up, and
    when the disk takes no more: the record ends then, the service and the deletion go on.
    """

    def __init__(
        self, folder: Path, days: int, image_bytes: int, tell: Callable[[str], None]
    ) -> None:
        make_folder(folder)
        self._folder = folder
        self._days = days
        self._most = image_bytes
        self._tell = tell
        self._full = not image_bytes
        self._broken = False
        try:
            self.expire()
            today = folder / f"log-{datetime.now(UTC).date()}.jsonl"
            if today.is_file():  # without a torn last line
                AppendFile(today, sum(map(len, whole_lines(today)))).close()
        except OSError as error:
            raise disk_error("read", folder, error) from error
        threading.Thread(target=self._sweep, daemon=True).start()

    def __call__(self, account: str, number: int, seen: Observation) -> None:
        """Write down images of an account, the first of them its ``number``-th."""
        if self._broken:
            return
        try:
            self._write(account, number, seen)
        except (OSError, RunError) as error:
            self._broken = True
            self._tell(f"WARNING: nothing is recorded from here on: {error}")

    def expire(self) -> None:
        """Delete what is from ``days`` ago or older, whole days at a time."""
        last = (datetime.now(UTC) - timedelta(days=self._days)).date().isoformat()
        for path in self._folder.iterdir():
            if (dated := DATED.fullmatch(path.name)) and dated[1] <= last:
                remove(path)
        self._kept = sum(path.stat().st_size for path in self._folder.glob("images-*.u8"))

    def _write(self, account: str, number: int, seen: Observation) -> None:
        at = timestamp(datetime.now(UTC))
        pixels_BCHW = seen.images_BCHW.mul(255).round().byte()
        raw = [image.tobytes() for image in pixels_BCHW.numpy()]
        score_B, top_B = (column.tolist() for column in seen.p_BK.max(1))
        columns = {
            "number": range(number, number + len(seen)),
            "fingerprint": fingerprints(pixels_BCHW),
            "image": self._keep_images(f"{at[:10]}-{account}", pixels_BCHW.shape[1:], raw),
            "digest": digests(raw),
            "top": top_B,
            "score": score_B,
            "distance": _numbers(seen.distance_B, len(seen)),
        }
        rows = (dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True))
        lines = (json.dumps({"at": at, "account": account, **row}) + "\n" for row in rows)
        self._append(f"log-{at[:10]}.jsonl", "".join(lines).encode())

    def _keep_images(self, name: str, shape: Sequence[int], raw: list[bytes]) -> Column:
        """The place of each image in the file that keeps them; None where none is kept any more."""
        size = sum(map(len, raw))
        if not self._full and self._kept + size > self._most:
            self._full = True
            most = f"{self._most / 1e6:g} MB"
            self._tell(f"the images recorded reach {most}: no more are kept, only lines about them")
        if self._full:
            return [None] * len(raw)
        first = self._append(
            f"images-{name}-{'x'.join(map(str, shape))}.u8", b"".join(raw), len(raw[0])
        )
        self._kept += size
        return range(first, first + len(raw))

    def _append(self, name: str, data: bytes, size: int = 1) -> int:
        """Append pieces of ``size`` bytes; the number of pieces that there were before."""
        path = self._folder / name
        pieces = path.stat().st_size // size if path.is_file() else 0
        with closing(AppendFile(path, pieces * size, mode=0o600)) as file:
            file.append(data)
        return pieces

    def _sweep(self) -> None:
        while True:
            time.sleep(SWEEP_SECONDS)
            try:
                self.expire()
            except (OSError, RunError) as error:
                self._tell(
                    f"WARNING: what was recorded {self._days} days ago is not deleted: {error}"
                )


def digests(images: Iterable[bytes]) -> list[str]:
    """Digest of each image by the bytes of its 8-bit pixels."""
    return [hashlib.blake2b(image, digest_size=8).hexdigest() for image in images]


def fingerprints(pixels_BCHW: Tensor) -> list[str]:
    """64 bits of each image that a small change leaves nearly as they are."""
    grey_B64 = adaptive_avg_pool2d(pixels_BCHW.double().mean(1, keepdim=True), 8).flatten(1)
    bits_B64 = (grey_B64 > grey_B64.mean(1, keepdim=True)).numpy()
    return [bytes(row).hex() for row in np.packbits(bits_B64, axis=1)]


def _numbers(distance_B: Tensor | None, images: int) -> Column:
    """Distances, None where they are not known."""
    return [None] * images if distance_B is None else distance_B.tolist()


# The reader of a log, which a stranger may have changed

LINES_AT_ONCE = 1_024  # read

Entry = dict[str, Any]


@dataclass(frozen=True, eq=False)
class LoggedImages:
    """What a log says of some images, as columns.

    ``digest`` and ``fingerprint`` are uint64; ``top`` int64; ``score`` float64; ``distance``
    float64, NaN where it is not known, or None; ``images`` (N, C, H, W) uint8, None where one of
    them is not kept.
    """

    digest: Array
    fingerprint: Array
    top: Array
    score: Array
    distance: Array | None
    images: Array | None


@dataclass(frozen=True, eq=False)
class LogBatch(LoggedImages):
    """Lines of one account (its tag), in their order; ``number`` is int64."""

    distance: Array
    account: str
    at: list[str]
    number: Array


def read_log(folder: Path, shape: Shape) -> Iterator[LogBatch]:
    """A log of images (C, H, W). A last line that a kill tore is left out.

    UserError for a folder without a log, RunError for a line that is none of ours, and for images
    of another shape, which are not read.
    """
    logs = sorted(path for path in folder.glob("log-*.jsonl") if DATED.fullmatch(path.name))
    if not logs:
        raise UserError(
            say(
                "{}: expected a folder that run.py serve {record} wrote, with a log-DAY.jsonl",
                folder,
            )
        )
    for path in logs:
        lines = whole_lines(path)
        while some := [line for _, line in zip(range(LINES_AT_ONCE), lines, strict=False)]:
            try:
                yield from _batches(path, [json.loads(line) for line in some], shape)
            except (ValueError, LookupError, TypeError, OverflowError, RecursionError) as error:
                raise RunError(
                    say(
                        "{}: expected lines that run.py serve {record} wrote; remove it to go on",
                        path,
                    )
                ) from error


def recorded_images(folder: Path, account: str | None, shape: Shape) -> ImageSet:
    """Images that a log kept, each once. ``account``: the tag of the one whose images count; None:
    of all.

    UserError where none is kept.
    """
    images = dict[bytes, None]()
    for batch in read_log(folder, shape):
        if batch.images is not None and account in (None, batch.account):
            images |= dict.fromkeys(x.tobytes() for x in batch.images)
    if not images:
        raise UserError(
            say("{}: expected images ({record_images:true}), found none of the account", folder)
        )
    return ImageSet(
        str(folder),
        torch.from_numpy(np.frombuffer(b"".join(images), np.uint8).reshape(-1, *shape).copy()),
    )


def _batches(path: Path, entries: list[Entry], shape: Shape) -> Iterator[LogBatch]:
    """Some lines of a log, those of each account together."""
    for tag in dict.fromkeys(entry["account"] for entry in entries):
        lines = [entry for entry in entries if entry["account"] == tag]
        yield LogBatch(
            account=tag,
            at=[line["at"] for line in lines],
            number=np.array([line["number"] for line in lines], np.int64),
            top=np.array([line["top"] for line in lines], np.int64),
            digest=_codes(line["digest"] for line in lines),
            fingerprint=_codes(line["fingerprint"] for line in lines),
            score=np.array([line["score"] for line in lines], np.float64),
            distance=np.array([line["distance"] for line in lines], np.float64),
            images=_images(
                path.parent,
                f"images-{path.stem[4:]}-{tag}",
                shape,
                [line["image"] for line in lines],
            ),
        )


def _codes(texts: Iterable[str]) -> Array:
    return np.array([int(text, 16) for text in texts], np.uint64)


def _images(folder: Path, name: str, shape: Shape, places: list[int | None]) -> Array | None:
    """The images at these places; None where one is not kept. RunError for a file of another
    shape.
    """
    sizes = "x".join(map(str, shape))
    numel = math.prod(shape)
    path = folder / f"{name}-{sizes}.u8"
    if others := [other for other in folder.glob(f"{name}-*.u8") if other != path]:
        expected = f"expected the log of this teacher, of images of {sizes}"
        raise RunError(
            f"{others[0]}: {expected}; give the teacher that was recorded, or remove the file"
        )
    kept = [place for place in places if place is not None]
    if len(kept) < len(places) or not path.is_file():
        return None
    raw = bytearray()
    with open_file(path) as file:
        for place in kept:
            file.seek(place * numel)
            raw += file.read(numel)
    if len(raw) != len(kept) * numel:
        return None
    return np.frombuffer(raw, np.uint8).reshape(-1, *shape)
