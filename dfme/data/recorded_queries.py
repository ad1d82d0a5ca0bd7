"""The queries of a run as they were sent, and what the model answered before any defence.

``queries/`` in a run's directory::

    form.json      what the other files hold (``QueryForm``)
    images.bin     image after image in C order: the numbers of its levels, uint8, where there are
                   at most 256 levels, else its float32, little endian
    scores.f64     the model's K probabilities of each image, float64, little endian
    distances.f64  squared distance of its features to the nearest class; only with detectors that
                   need them

Images stand in the order in which they were answered, without those of an evaluation. A folder may
come from somebody else: whatever does not fit is a RunError, in one line.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

from dfme.errors import DfmeError, RunError
from dfme.files import AppendFile, make_folder, open_file, write_text
from dfme.spec import ImageSpec, Shape

if TYPE_CHECKING:
    from torch import Tensor

SCHEMA = "dfme.queries/1"
FORM = "form.json"
IMAGES = "images.bin"
SCORES = "scores.f64"
DISTANCES = "distances.f64"
MAX_FORM_BYTES = 10_000
MAX_CLASSES = 1_000_000
MAX_IMAGES = 100_000_000
DTYPES = {1: "uint8", 4: "float32", 8: "float64"}
"""Types of the stored numbers by their bytes."""


@dataclass(frozen=True)
class QueryForm:
    """What a record of queries holds. ``distance``: whether it has distances of features.

    RunError for what no run can have.
    """

    shape: Shape
    bounds: tuple[float, float]
    levels: int | None
    classes: int
    distance: bool

    def __post_init__(self) -> None:
        counts = [*self.shape, self.classes, 2 if self.levels is None else self.levels]
        if any(type(count) is not int for count in counts):
            raise RunError("expected whole numbers as shape, levels and classes")
        if any(type(bound) not in (int, float) for bound in self.bounds):
            raise RunError("expected numbers as bounds")
        if type(self.distance) is not bool:
            raise RunError("expected true or false as distance")
        if not 2 <= self.classes <= MAX_CLASSES:
            raise RunError(f"expected 2 to {MAX_CLASSES:,} classes")
        try:
            _ = self.spec
        except DfmeError as error:
            raise RunError(str(error)) from None

    @property
    def spec(self) -> ImageSpec:
        """The images as they were sent."""
        return ImageSpec(self.shape, self.bounds, self.levels)

    @property
    def sizes(self) -> dict[str, int]:
        """Bytes of an image's entry in each file."""
        number = 1 if self.spec.has_codes else 4
        sizes = {IMAGES: number * self.spec.numel, SCORES: 8 * self.classes}
        return sizes | ({DISTANCES: 8} if self.distance else {})

    @property
    def image_bytes(self) -> int:
        """Bytes of an image in all files."""
        return sum(self.sizes.values())

    def text(self) -> str:
        """As form.json has it."""
        return json.dumps({"schema": SCHEMA, **asdict(self)}) + "\n"

    @classmethod
    def read(cls, folder: Path) -> Self:
        """The form of a record. RunError for what is none."""
        path = folder / FORM
        try:
            with open_file(path) as file:
                content = json.loads(file.read(MAX_FORM_BYTES))
            if not isinstance(content, Mapping) or content.get("schema") != SCHEMA:
                raise RunError(f"expected the schema {SCHEMA}")
            channels, height, width = content["shape"]
            low, high = content["bounds"]
            return cls(
                shape=(channels, height, width),
                bounds=(low, high),
                levels=content["levels"],
                classes=content["classes"],
                distance=content["distance"],
            )
        except OSError as error:
            why = error.strerror or "it cannot be read"
        except RunError as error:
            why = str(error)
        except (ValueError, LookupError, TypeError, OverflowError, RecursionError):
            why = "it is none that a run wrote"
        raise RunError(f"{path}: expected the form of recorded queries: {why}")


class QueryRecord:
    """Writes the queries of a run into ``folder``: new ones, or more behind those that are there.

    RunError where the disk refuses, and for a folder that holds queries of another form.
    """

    def __init__(self, folder: Path, form: QueryForm) -> None:
        self._folder = folder
        self._form = form
        self._files = dict[str, AppendFile]()
        make_folder(folder)
        if os.path.lexists(folder / FORM):
            if QueryForm.read(folder) != form:
                expected = "expected queries of this teacher, got those of another form"
                raise RunError(f"{folder}: {expected}; remove it, or choose another directory")
        else:
            write_text(folder / FORM, form.text())
        try:
            for name in form.sizes:
                self._files[name] = AppendFile(folder / name, self._bytes_of(name))
        except RunError:
            self.close()
            raise

    def append(self, images_BCHW: Tensor, p_BK: Tensor, distance_B: Tensor | None) -> None:
        """The next images as they were sent, their probabilities, and distances if the form has
        any.
        """
        spec = self._form.spec
        images_BCHW = images_BCHW.detach().cpu().float()
        stored = {
            IMAGES: spec.encode(images_BCHW) if spec.has_codes else images_BCHW,
            SCORES: p_BK.detach().cpu().double(),
        }
        if self._form.distance:
            assert distance_B is not None
            stored[DISTANCES] = distance_B.detach().cpu().double()
        for name, numbers in stored.items():
            if numbers.numel():
                self._files[name].append(numbers.contiguous().numpy().data.cast("B"))

    def cut(self, count: int) -> None:
        """Keep the first ``count`` images. RunError where there are fewer."""
        for name, size in self._form.sizes.items():
            path = self._folder / name
            if self._bytes_of(name) < count * size:
                expected = f"expected {count:,} recorded queries, as the checkpoint has"
                raise RunError(f"{path}: {expected}, got fewer; restore it, or start a new run")
            self._files[name].close()
            self._files[name] = AppendFile(path, count * size)

    def sync(self) -> None:
        """Wait until all is on the disk."""
        for file in self._files.values():
            file.sync()

    def close(self) -> None:
        """Close the files; closing twice is no error."""
        for file in self._files.values():
            file.close()

    def _bytes_of(self, name: str) -> int:
        path = self._folder / name
        return path.stat().st_size if path.is_file() else 0


class RecordedQueries:
    """The queries in ``folder``, of ``len`` images. RunError, in one line, for damage."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.form = QueryForm.read(folder)
        counts = {name: self._count(name, size) for name, size in self.form.sizes.items()}
        if len({*counts.values()}) > 1:
            had = ", ".join(f"{count:,} in {name}" for name, count in counts.items())
            expected = "expected as many images in all files of recorded queries"
            raise RunError(f"{folder}: {expected}, got {had}; resume their run, or restore them")
        self._images = counts[IMAGES]

    def __len__(self) -> int:
        return self._images

    def images(self, start: int, stop: int, step: int = 1) -> Tensor:
        """Images (B, C, H, W), float32, bit for bit what was sent: every ``step``-th of a range."""
        spec = self.form.spec
        stored_BD = self._read(IMAGES, slice(start, stop, step), 1 if spec.has_codes else 4)
        stored_BCHW = stored_BD.view(-1, *spec.shape)
        if spec.has_codes:
            most = (spec.levels or 1) - 1  # compared as a byte, which 256 is not
            self._require(IMAGES, bool((stored_BCHW <= most).all()))
            return spec.decode(stored_BCHW)
        low, high = spec.bounds
        self._require(IMAGES, bool(((stored_BCHW >= low) & (stored_BCHW <= high)).all()))
        return stored_BCHW

    def scores(self, start: int, stop: int, step: int = 1) -> Tensor:
        """Probabilities (B, K), float64, of the same images."""
        p_BK = self._read(SCORES, slice(start, stop, step), 8)
        self._require(SCORES, bool(((p_BK >= 0) & (p_BK <= 1 + 1e-6)).all()))
        return p_BK

    def distances(self, start: int, stop: int, step: int = 1) -> Tensor | None:
        """Squared distances (B,), float64, of the same images; None where there are none."""
        if not self.form.distance:
            return None
        distance_B = self._read(DISTANCES, slice(start, stop, step), 8)[:, 0]
        self._require(DISTANCES, bool((distance_B.isfinite() & (distance_B >= 0)).all()))
        return distance_B

    def _count(self, name: str, size: int) -> int:
        path = self._folder / name
        try:
            with open_file(path) as file:
                total = os.fstat(file.fileno()).st_size
        except OSError as error:
            expected = "expected a file of recorded queries"
            raise RunError(f"{path}: {expected}: {error.strerror}") from None
        if total % size or total // size > MAX_IMAGES:
            expected = f"expected entries of {size:,} bytes, got {total:,} bytes"
            raise RunError(f"{path}: {expected}; resume its run, or restore it")
        return total // size

    def _read(self, name: str, part: slice, number: int) -> Tensor:
        """The entries (B, numbers) of these images in a file."""
        size = self.form.sizes[name]
        places = range(*part.indices(len(self)))
        raw = bytearray(len(places) * size)
        rest = memoryview(raw)
        runs = [(places.start, len(places))] if places.step == 1 else [(at, 1) for at in places]
        with suppress(OSError), open_file(self._folder / name) as file:
            for first, count in runs:
                file.seek(first * size)
                rest = rest[file.readinto(rest[: count * size]) :]
        self._require(name, not rest)
        import torch

        dtype = getattr(torch, DTYPES[number])
        numbers = torch.frombuffer(raw, dtype=dtype) if raw else torch.empty(0, dtype=dtype)
        return numbers.view(-1, size // number)

    def _require(self, name: str, fine: bool) -> None:
        if not fine:
            path = self._folder / name
            raise RunError(f"{path}: expected recorded queries, got other numbers; restore it")
