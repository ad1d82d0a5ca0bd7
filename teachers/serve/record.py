"""What ``run.py serve --record FOLDER`` writes down of every image that is answered, and the reader of it.

``FOLDER/log-2026-11-23.jsonl``, one file a day (UTC), has a line for each image, in the order of the answers::

    {"at": "2026-11-23T02:50:00.123Z", "account": "16 hex", "number": n, "digest": "16 hex", "fingerprint": "16 hex",
     "top": k, "score": s, "distance": d | null, "image": place | null}

``account``: ``account_tag`` of the key; ``number``: of the image among the account's since the server started, from 1;
``digest``: BLAKE2b of its 8-bit pixels (C, H, W); ``fingerprint``: of the image in grey, averaged to 8x8, one bit for
each place, row by row and the first on the left: whether it is brighter than their mean. Before any defence: ``top``
and ``score``, the top class and its probability; ``distance``, squared, from the nearest class (Mahalanobis), where it
is known. ``image``: the place of its 8-bit pixels in ``images-DAY-ACCOUNT.u8``, which holds C * H * W bytes for each
one; null where it is not kept. ``log.json`` has the images' shape. All is personal data: 0600, deleted after days.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d

from dfme.errors import RunError, UserError
from dfme.files import AppendFile, make_folder, open_file, remove, whole_lines
from dfme.spec import Shape
from dfme.teachers.arrays import Array
from dfme.teachers.watch.detector import Seen

DATED = re.compile(r"(?:log|images)-(\d{4}-\d\d-\d\d)(?:-[0-9a-f]{16}\.u8|\.jsonl)")
FORMS = {"at": re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")}
FORMS |= dict.fromkeys(("account", "digest", "fingerprint"), re.compile("[0-9a-f]{16}"))
NUMBERS = {"number": np.int64, "top": np.int64, "score": np.float64, "distance": np.float64}
SWEEP_SECONDS, LINES_AT_ONCE = 60.0, 1_024  # between two looks for what is too old; read


def account_tag(key: str) -> str:
    """16 hexadecimal digits that stand for an API key and do not tell it."""
    return hmac.digest(b"dfme account", key.encode(), "sha256").hex()[:16]


class Record:
    """Appends to the log of a folder, where a line stays for ``days`` at most. UserError for a folder that does not do.

    ``image_bytes``: of all images that are kept together. ``tell`` hears when they are used up, and when the disk takes
    no more: the record ends then, the service goes on.
    """

    def __init__(self, folder: Path, shape: Shape, days: int, image_bytes: int, tell: Callable[[str], None]) -> None:
        make_folder(folder)
        about = folder / "log.json"
        self._folder, self._days, self._most, self._tell = folder, days, image_bytes, tell
        self._day, self._full, self._ended = "", not image_bytes, threading.Event()
        self._about = self._log = AppendFile(about, about.stat().st_size if about.is_file() else 0, mode=0o600)
        if not self._about.lock():
            raise UserError(f"--record {folder}: another server writes there; give this one a folder of its own")
        if not self._about.size:
            self._about.append(json.dumps({"schema": "dfme.record/1", "shape": shape}).encode())
        if (found := shape_of(folder)) != shape:
            raise UserError(f"--record {folder}: expected a folder for images {shape}, got a log of images {found}")
        self.expire()
        threading.Thread(target=self._sweep, daemon=True).start()

    def __call__(self, account: str, number: int, seen: Seen) -> None:
        """Write down images of an account, the first of them its ``number``-th."""
        if self._ended.is_set():
            return
        try:
            self._write(account, number, seen)
        except (OSError, RunError) as error:
            self._ended.set()
            self._tell(f"WARNING: nothing is recorded from here on: {error}")

    def expire(self) -> None:
        """Delete what is from ``days`` ago or older, whole days at a time, so that nothing stays for longer."""
        last = (datetime.now(UTC) - timedelta(days=self._days)).date().isoformat()
        for path in self._folder.iterdir():
            if (dated := DATED.fullmatch(path.name)) and dated[1] <= last:
                remove(path)
        self._kept = sum(path.stat().st_size for path in self._folder.glob("images-*.u8"))

    def close(self) -> None:
        self._ended.set()
        for file in {self._log, self._about}:
            file.close()

    def _write(self, account: str, number: int, seen: Seen) -> None:
        at = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        if at[:10] != self._day:
            path, self._day = self._folder / f"log-{at[:10]}.jsonl", at[:10]
            self._log = AppendFile(path, sum(map(len, whole_lines(path))) if path.is_file() else 0, mode=0o600)
        pixels_BCHW = seen.images_BCHW.mul(255).round().byte()
        score_B, top_B = (each.tolist() for each in seen.p_BK.max(1))
        distances = [None] * len(seen) if seen.distance_B is None else seen.distance_B.tolist()
        digests = [hashlib.blake2b(each.numpy().tobytes(), digest_size=8).hexdigest() for each in pixels_BCHW]
        numbers, ats, accounts = range(number, number + len(seen)), [at] * len(seen), [account] * len(seen)
        columns = ats, accounts, numbers, digests, fingerprints(pixels_BCHW), top_B, score_B, distances
        names = ("at", "account", "number", "digest", "fingerprint", "top", "score", "distance", "image")
        rows = zip(*columns, self._keep(account, pixels_BCHW.numpy()), strict=True)
        self._log.append("".join(json.dumps(dict(zip(names, row, strict=True))) + "\n" for row in rows).encode())

    def _keep(self, account: str, pixels_BCHW: Array) -> list[int] | list[None]:
        """Where the images are kept, as long as there is room for all of them."""
        if self._kept + pixels_BCHW.nbytes > self._most and not self._full:
            self._full = True
            self._tell(f"the images recorded reach {self._most / 1e6:g} MB: no more are kept, only lines about them")
        if self._full:
            return [None] * len(pixels_BCHW)
        path, each = self._folder / f"images-{self._day}-{account}.u8", pixels_BCHW[0].nbytes
        first = path.stat().st_size // each if path.is_file() else 0
        file = AppendFile(path, first * each, mode=0o600)
        file.append(pixels_BCHW.tobytes())
        file.close()
        self._kept += pixels_BCHW.nbytes
        return [*range(first, first + len(pixels_BCHW))]

    def _sweep(self) -> None:
        while not self._ended.wait(SWEEP_SECONDS):
            self.expire()


def fingerprints(pixels_BCHW: Tensor) -> list[str]:
    """64 bits of each image that a small change leaves nearly as they are."""
    grey_B64 = adaptive_avg_pool2d(pixels_BCHW.double().mean(1, keepdim=True), 8).flatten(1)
    bits_B64 = (grey_B64 > grey_B64.mean(1, keepdim=True)).numpy()
    return [bytes(each).hex() for each in np.packbits(bits_B64, axis=1)]


def shape_of(folder: Path) -> Shape:
    """The shape of a log's images. UserError for a folder without a log."""
    try:
        with open_file(folder / "log.json") as file:
            about = json.loads(file.read(1_000))
        channels, height, width = about["shape"]
        if about["schema"] == "dfme.record/1" and all(_is_count(each) and each for each in about["shape"]):
            return channels, height, width
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        pass
    raise UserError(f"{folder}: expected a folder that run.py serve --record wrote, with its log.json")


def read_log(folder: Path) -> Iterator[dict[str, Any]]:
    """A log in batches of lines, each of one account (its tag), whose lines come in order.

    ``account``; ``at``, texts; ``number``, ``top``, int64; ``digest``, ``fingerprint``, uint64; ``score``, ``distance``
    (NaN where it is not known), float64; ``images`` (N, C, H, W), uint8, or None where one of them is not kept. A last
    line that a kill tore is left out. UserError for a folder without a log, RunError for a line that is none of ours.
    """
    shape = shape_of(folder)
    for path in sorted(folder.glob("log-*.jsonl")):
        lines = (_entry(line, f"{path}, line {number}") for number, line in enumerate(whole_lines(path), start=1))
        while some := [entry for _, entry in zip(range(LINES_AT_ONCE), lines, strict=False)]:
            for tag in dict.fromkeys(entry["account"] for entry in some):
                own = [entry for entry in some if entry["account"] == tag]
                columns = {name: [entry[name] for entry in own] for name in own[0]}
                batch: dict[str, Any] = {"account": tag, "at": columns["at"]}
                batch |= {name: np.array(columns[name], kind) for name, kind in NUMBERS.items()}
                for name in ("digest", "fingerprint"):
                    batch[name] = np.array([int(code, 16) for code in columns[name]], np.uint64)
                kept = folder / f"images-{path.stem[4:]}-{tag}.u8"
                yield batch | {"images": _images(kept, columns["image"], shape)}


def _images(path: Path, places: list[int | None], shape: Shape) -> Array | None:
    each = shape[0] * shape[1] * shape[2]
    known = [place for place in places if place is not None]
    if len(known) < len(places) or not path.is_file() or path.stat().st_size < (max(known) + 1) * each:
        return None
    with open_file(path) as file:
        raw = [(file.seek(place * each), file.read(each))[1] for place in known]
    return np.frombuffer(b"".join(raw), np.uint8).reshape(-1, *shape)


def _entry(line: bytes, where: str) -> dict[str, Any]:
    """One line, held to its form."""
    try:
        entry = json.loads(line)
        fine = all(form.fullmatch(entry[name]) for name, form in FORMS.items())
        fine &= all(_is_count(entry[name]) for name in ("number", "top"))
        fine &= entry["image"] is None or _is_count(entry["image"])
        fine &= type(entry["score"]) is float and 0 <= entry["score"] <= 1.001
        fine &= entry["distance"] is None or (type(entry["distance"]) is float and 0 <= entry["distance"] < 1e300)
        if fine:
            return dict(entry)
    except (ValueError, LookupError, TypeError, RecursionError):
        pass
    raise RunError(f"{where}: expected a line that run.py serve --record wrote; remove it to go on")


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value < 2**40
