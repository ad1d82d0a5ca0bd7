"""Reads the log that ``run.py serve --record FOLDER`` writes, which a stranger may have changed.

``record.py`` has its form.
"""

import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dfme.data import ImageSet
from dfme.errors import RunError, UserError, say
from dfme.files import open_file, whole_lines
from dfme.spec import Shape
from dfme.teachers.arrays import Array
from dfme.teachers.owner.watch.record import DATED

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
                expected = "{}: expected lines that run.py serve {record} wrote; remove it to go on"
                raise RunError(say(expected, path)) from error


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
    pixels_NCHW = np.frombuffer(b"".join(images), np.uint8).reshape(-1, *shape)
    return ImageSet(str(folder), torch.from_numpy(pixels_NCHW.copy()))


def _batches(path: Path, entries: list[Entry], shape: Shape) -> Iterator[LogBatch]:
    """Some lines of a log, those of each account together."""
    for tag in dict.fromkeys(entry["account"] for entry in entries):
        lines = [entry for entry in entries if entry["account"] == tag]
        places = [line["image"] for line in lines]
        yield LogBatch(
            account=tag,
            at=[line["at"] for line in lines],
            number=np.array([line["number"] for line in lines], np.int64),
            top=np.array([line["top"] for line in lines], np.int64),
            digest=_codes(line["digest"] for line in lines),
            fingerprint=_codes(line["fingerprint"] for line in lines),
            score=np.array([line["score"] for line in lines], np.float64),
            distance=np.array([line["distance"] for line in lines], np.float64),
            images=_images(path.parent, f"images-{path.stem[4:]}-{tag}", shape, places),
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
