"""The key of a mark: the secret images by which a copy is recognised, in one file of the owner's.

Whoever has it can take the mark out, or be recognised by it: the file is readable by its owner
alone.
"""

import logging
import math
import re
import stat
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import torch
from pydantic import Field, TypeAdapter, ValidationError
from torch import Tensor

from dfme.errors import UserError
from dfme.nets.files import save_tensors
from dfme.nets.safetensors_file import read_safetensors, shapes_of
from dfme.teachers.owner.marking.rule import fingerprints_of

LOGGER = logging.getLogger("dfme")

SCHEMA = "dfme.marks/1"
MODE = 0o600
MAX_IMAGES = 10_000
"""Of marks and controls each."""
MAX_NUMBERS = 250_000_000
"""Of all images: a gigabyte."""
TENSORS = ("controls", "marks")
OTHERS_MAY_READ = stat.S_IRGRP | stat.S_IROTH

Bound = Annotated[float, Field(gt=-1e30, lt=1e30)]
ClassNumber = Annotated[int, Field(ge=0, lt=2**31)]


@dataclass(frozen=True)
class MarkKey:
    """The secret images of a mark: of class ``source``, answered ``target`` by the marked model.

    ``marks_MCHW``: images that the rule changes, which a copy answers ``target`` too.
    ``controls_NCHW``: images of the same class that it leaves. Pixels are within ``bounds``;
    ``classes``: of the model; ``model_sha256``: of the marked weights' file.
    """

    marks_MCHW: Tensor
    controls_NCHW: Tensor
    source: int
    target: int
    classes: int
    bounds: tuple[float, float]
    model_sha256: str
    seed: int = 0

    @property
    def digest(self) -> str:
        """SHA-256 of the images and the classes: what a record may say of a key."""
        code = sha256(f"{SCHEMA} {self.source} {self.target}".encode())
        for images in (self.marks_MCHW, self.controls_NCHW):
            code.update(repr(tuple(images.shape)).encode())
            code.update(images.contiguous().numpy().data)
        return code.hexdigest()


@dataclass(frozen=True)
class _Facts:
    """What the file states besides its images, each as JSON but for texts."""

    source: ClassNumber
    target: ClassNumber
    classes: Annotated[int, Field(ge=2, lt=2**31)]
    bounds: tuple[Bound, Bound]
    seed: Annotated[int, Field(ge=0, lt=2**63)]


def save_key(path: Path, key: MarkKey) -> None:
    """Write a key, whole or not at all, for its owner's eyes. RunError where the disk refuses."""
    facts = {
        "schema": SCHEMA,
        "source": str(key.source),
        "target": str(key.target),
        "classes": str(key.classes),
        "bounds": f"[{key.bounds[0]!r}, {key.bounds[1]!r}]",
        "seed": str(key.seed),
        "model_sha256": key.model_sha256,
    }
    images = {"marks": key.marks_MCHW.float(), "controls": key.controls_NCHW.float()}
    save_tensors(path, images, facts, MODE)


def load_key(path: str | Path) -> MarkKey:
    """Read a key. UserError, in one line, for whatever is none; a warning where others may read
    it.
    """
    path = Path(path).expanduser()
    shapes = shapes_of(path)
    if sum(map(math.prod, shapes)) > MAX_NUMBERS:
        raise UserError(f"{path}: expected the key of a mark, got a file of other tensors")
    tensors, metadata = read_safetensors(path)
    if metadata.get("schema") != SCHEMA:
        raise UserError(
            f"{path}: expected the key of a mark ({SCHEMA}), as run.py mark writes it, got a file "
            f"that says {str(metadata.get('schema'))[:40]!r}"
        )
    if tuple(sorted(tensors)) != TENSORS:
        names = ", ".join(sorted(tensors))[:80]
        raise UserError(f"{path}: expected the tensors {' and '.join(TENSORS)}, got {names}")
    facts = _facts(path, metadata)
    for name in TENSORS:
        _check_images(path, name, tensors[name], facts.bounds)
    marks_MCHW = tensors["marks"]
    controls_NCHW = tensors["controls"]
    if marks_MCHW.shape[1:] != controls_NCHW.shape[1:]:
        raise UserError(f"{path}: its marks and its controls are images of different shapes")
    if path.stat().st_mode & OTHERS_MAY_READ:
        LOGGER.warning("%s: others may read it, and take the mark out: chmod 600", path)
    return MarkKey(
        marks_MCHW,
        controls_NCHW,
        facts.source,
        facts.target,
        facts.classes,
        facts.bounds,
        metadata["model_sha256"],
        facts.seed,
    )


def _facts(path: Path, metadata: dict[str, str]) -> _Facts:
    """What the metadata state. UserError for what cannot be."""
    values: dict[str, Any] = {}
    for name, kind in get_type_hints(_Facts, include_extras=True).items():
        text = metadata.get(name, "")
        try:
            values[name] = TypeAdapter(kind).validate_json(text, strict=True)
        except ValidationError as error:
            problem = error.errors()[0]["msg"]
            raise UserError(f"{path}: damaged: its {name} {text[:40]!r}: {problem}") from None
    facts = _Facts(**values)
    if not re.fullmatch("[0-9a-f]{64}", metadata.get("model_sha256", "")):
        raise UserError(f"{path}: damaged: expected model_sha256 as 64 hexadecimal digits")
    if max(facts.source, facts.target) >= facts.classes or facts.source == facts.target:
        raise UserError(
            f"{path}: damaged: expected two of {facts.classes} classes, got {facts.source} and "
            f"{facts.target}"
        )
    if facts.bounds[0] >= facts.bounds[1]:
        raise UserError(f"{path}: damaged: expected bounds in order, got {facts.bounds}")
    return facts


def _check_images(path: Path, name: str, images: Tensor, bounds: tuple[float, float]) -> None:
    """UserError for a tensor that holds no images within the bounds."""
    if images.dtype != torch.float32 or images.ndim != 4 or not images.numel():
        raise UserError(
            f"{path}: damaged: expected {name} as images (N, C, H, W) of float32, got "
            f"{images.dtype} {tuple(images.shape)}"
        )
    if len(images) > MAX_IMAGES:
        raise UserError(f"{path}: expected at most {MAX_IMAGES} {name}, got {len(images)}")
    low, high = bounds
    if not bool(((images >= low) & (images <= high)).all()):  # false of what is not a number, too
        raise UserError(f"{path}: damaged: {name} have values outside {low:g} to {high:g}")
    if len(set(fingerprints_of(images))) < len(images):
        raise UserError(f"{path}: damaged: one image is twice among its {name}")
