"""The log that ``run.py serve --record FOLDER`` writes of every image it looks at, and the reader
of it.

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
import os
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d

from dfme.data import ImageSet
from dfme.errors import RunError, UserError, flag, say
from dfme.files import AppendFile, disk_error, make_folder, open_file, remove, whole_lines
from dfme.spec import Shape
from dfme.teachers.arrays import Array
from dfme.teachers.watch.detector import Observation

DATED = re.compile(r"(?:log|images)-(\d{4}-\d\d-\d\d)(?:\.jsonl|-[0-9a-f]{16}-\d+x\d+x\d+\.u8)")
NAMES = ("at", "number", "digest", "fingerprint", "top", "score", "distance", "image")
NUMBERS = {
    "number": np.int64,
    "top": np.int64,
    "score": np.float64,
    "distance": np.float64,
}
SWEEP_SECONDS = 60.0  # between two looks for what is too old
LINES_AT_ONCE = 1_024  # read


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
            if (today := folder / f"log-{datetime.now(UTC).date()}.jsonl").is_file():
                AppendFile(
                    today, sum(map(len, whole_lines(today)))
                ).close()  # without a torn last line
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
        at = _now()
        pixels_BCHW = seen.images_BCHW.mul(255).round().byte()
        raw = [each.tobytes() for each in pixels_BCHW.numpy()]
        places: list[int] | list[None] = [None] * len(seen)
        if not self._full and self._kept + pixels_BCHW.nbytes > self._most:
            self._full = True
            most = f"{self._most / 1e6:g} MB"
            self._tell(f"the images recorded reach {most}: no more are kept, only lines about them")
        if not self._full:
            shape = "x".join(map(str, pixels_BCHW.shape[1:]))
            first = self._append(
                f"images-{at[:10]}-{account}-{shape}.u8", b"".join(raw), len(raw[0])
            )
            self._kept = self._kept + pixels_BCHW.nbytes
            places = [*range(first, first + len(seen))]
        score_B, top_B = (each.tolist() for each in seen.p_BK.max(1))
        distance_B = [None] * len(seen) if seen.distance_B is None else seen.distance_B.tolist()
        numbers = range(number, number + len(seen))
        columns = (
            numbers,
            fingerprints(pixels_BCHW),
            places,
            digests(raw),
            top_B,
            score_B,
            distance_B,
        )
        names = ("number", "fingerprint", "image", "digest", "top", "score", "distance")
        rows = (dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True))
        lines = (json.dumps({"at": at, "account": account, **row}) + "\n" for row in rows)
        self._append(f"log-{at[:10]}.jsonl", "".join(lines).encode())

    def _append(self, name: str, data: bytes, each: int = 1) -> int:
        """Append so many bytes; the number of pieces that there were before."""
        path = self._folder / name
        pieces = path.stat().st_size // each if path.is_file() else 0
        with closing(AppendFile(path, pieces * each, mode=0o600)) as file:
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


class AlarmFile:
    """Appends each alarm to a file, as JSON with its time; ``tell`` hears of one that the disk
    refuses.

    A last line that a crash tore is left as evidence, and ended: the next alarm has a line of its
    own.
    """

    def __init__(self, path: Path, tell: Callable[[str], None]) -> None:
        make_folder(path.parent)
        size = path.stat().st_size if path.is_file() else 0
        self._file = AppendFile(path, size, mode=0o600)
        if size and _last_byte(path) != b"\n":
            self._file.append(b"\n")
        self._tell = tell

    def __call__(self, alarm: dict[str, Any]) -> None:
        try:
            self._file.append((json.dumps({"at": _now(), **alarm}) + "\n").encode())
        except RunError as error:
            self._tell(f"WARNING: an alarm is not in {flag('alarm_file')}: {error}")


def _last_byte(path: Path) -> bytes:
    """The last byte of a file that has one."""
    try:
        with open_file(path) as file:
            file.seek(-1, os.SEEK_END)
            return file.read(1)
    except OSError as error:
        raise disk_error("read", path, error) from error


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def digests(raw: Iterable[bytes]) -> list[str]:
    """Digest of each image by the bytes of its 8-bit pixels."""
    return [hashlib.blake2b(each, digest_size=8).hexdigest() for each in raw]


def fingerprints(pixels_BCHW: Tensor) -> list[str]:
    """64 bits of each image that a small change leaves nearly as they are."""
    grey_B64 = adaptive_avg_pool2d(pixels_BCHW.double().mean(1, keepdim=True), 8).flatten(1)
    bits_B64 = (grey_B64 > grey_B64.mean(1, keepdim=True)).numpy()
    return [bytes(each).hex() for each in np.packbits(bits_B64, axis=1)]


def read_log(folder: Path, shape: Shape) -> Iterator[dict[str, Any]]:
    """A log of images (C, H, W) in batches of lines, each of one account (its tag), in their order.

    ``account``; ``at``, texts; ``number``, ``top``, int64; ``digest``, ``fingerprint``, uint64;
    ``score``, ``distance`` (NaN where it is not known), float64; ``images`` (N, C, H, W), uint8, or
    None where one of them is not kept. A last line that a kill tore is left out. UserError for a
    folder without a log, RunError for a line that is none of ours, and for images of another shape,
    which are not read.
    """
    if not (
        logs := sorted(path for path in folder.glob("log-*.jsonl") if DATED.fullmatch(path.name))
    ):
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
                said = (
                    f"{path}: expected lines that run.py serve {flag('record')} wrote; remove it "
                    "to go on"
                )
                raise RunError(said) from error


def recorded_images(folder: Path, account: str | None, shape: Shape) -> ImageSet:
    """Images that a log kept, each once. ``account``: the tag of the one whose images count; None:
    of all.

    UserError where none is kept.
    """
    found = dict[bytes, None]()
    for batch in read_log(folder, shape):
        if batch["images"] is not None and account in (None, batch["account"]):
            found |= dict.fromkeys(x.tobytes() for x in batch["images"])
    if not found:
        raise UserError(
            say("{}: expected images ({record_images:true}), found none of the account", folder)
        )
    pixels_NCHW = np.frombuffer(b"".join(found), np.uint8).reshape(-1, *shape)
    return ImageSet(str(folder), torch.from_numpy(pixels_NCHW.copy()))


def _batches(path: Path, entries: list[dict[str, Any]], shape: Shape) -> Iterator[dict[str, Any]]:
    """Some lines of a log, those of each account together."""
    for tag in dict.fromkeys(entry["account"] for entry in entries):
        columns = {
            name: [each[name] for each in entries if each["account"] == tag] for name in NAMES
        }
        batch = {name: np.array(columns[name], kind) for name, kind in NUMBERS.items()}
        for name in ("digest", "fingerprint"):
            batch[name] = np.array([int(code, 16) for code in columns[name]], np.uint64)
        images = _images(path.parent, f"images-{path.stem[4:]}-{tag}", shape, columns["image"])
        yield {
            "account": tag,
            "at": columns["at"],
            **batch,
            "images": images,
        }


def _images(folder: Path, name: str, shape: Shape, places: list[int | None]) -> Array | None:
    """The images at these places; None where one is not kept. RunError for a file of another
    shape.
    """
    sizes = "x".join(map(str, shape))
    numel = math.prod(shape)
    path = folder / f"{name}-{sizes}.u8"
    known = [place for place in places if place is not None]
    if others := [other for other in folder.glob(f"{name}-*.u8") if other != path]:
        wanted = f"expected the log of this teacher, of images of {sizes}"
        raise RunError(
            f"{others[0]}: {wanted}; give the teacher that was recorded, or remove the file"
        )
    if len(known) < len(places) or not path.is_file():
        return None
    with open_file(path) as file:
        raw = b"".join(file.read(numel) for place in known if file.seek(place * numel) >= 0)
    return (
        np.frombuffer(raw, np.uint8).reshape(-1, *shape) if len(raw) == len(known) * numel else None
    )
