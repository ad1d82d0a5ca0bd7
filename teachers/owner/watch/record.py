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
import re
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d

from dfme.errors import RunError
from dfme.files import AppendFile, disk_error, make_folder, remove, whole_lines
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
        file = f"images-{name}-{'x'.join(map(str, shape))}.u8"
        first = self._append(file, b"".join(raw), len(raw[0]))
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
