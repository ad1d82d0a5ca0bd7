"""What a teacher is, for a run's record: as it is known once it answers, with the digests of the files that make it."""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePath
from typing import Any
from urllib.parse import urlsplit

from dfme.errors import UserError
from dfme.files import open_file
from dfme.spec import Teacher
from teachers import KINDS
from teachers.local.model_folder import CONFIG, INDEX, PROCESSOR, WEIGHTS, read_config
from teachers.remote.class_names import read_class_names
from teachers.remote.json_api.adapter_file import load_adapter

MAX_NAMES = 1_000
"""Letters of class names that are kept as they are; of longer lists it is the digest."""

MODELS = (
    *(".safetensors", ".pt", ".pth", ".ckpt", ".pt2", ".ts", ".onnx", ".npz", ".npy", ".h5", ".keras", ".pb"),
    *(".tflite", ".pkl", ".pickle", ".joblib", ".bin"),
)
"""Of the files that the options of somebody's own teacher name, those that are looked at: into others it may write."""

_EXTERNAL = re.compile(rb"\n\x08location\x12(.)", re.DOTALL)
"""In an ONNX model, what stands before the name of a file of weights beside it: the last byte is the name's length."""


def teacher_facts(teacher: Teacher, kind: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """What must not change between two stretches of a run, as plain data that JSON gives back unchanged.

    ``kind`` and ``options`` are the configuration's. Raises UserError for a file that cannot be read.
    """
    spec = teacher.spec
    return {
        "kind": kind,
        "shape": [int(size) for size in spec.shape],
        "bounds": [float(bound) for bound in spec.bounds],
        "levels": None if spec.levels is None else int(spec.levels),
        "num_classes": int(teacher.num_classes),
        "label_mode": str(teacher.label_mode),
        **(_service(kind, options) if kind in KINDS and "url" in options else {}),
        **{f"sha256 of {name}": _digest(path) for name, path in _files(kind, options)},
    }


def _service(kind: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Where a service is, without a query, which may be a secret; its model, and its classes where they have names."""
    api = load_adapter(options["adapter"]) if kind == "json" else None
    url = urlsplit(options["url"] or (api.description.url if api else ""))
    facts = {"url": f"{url.scheme}://{url.netloc}{url.path}", **{k: options[k] for k in ("model",) if k in options}}
    classes = read_class_names(options["classes"], "--teacher.classes") if kind == "hf-api" else api and api.classes
    if classes:
        names = json.dumps(classes.names)
        facts["class_names"] = names if len(names) <= MAX_NAMES else hashlib.sha256(names.encode()).hexdigest()
    return facts


def _files(kind: str, options: Mapping[str, Any]) -> Iterator[tuple[str, Path]]:
    """The files that decide what a teacher answers, by the option that names them or, beside others, their own name."""
    source = KINDS[kind].file if kind in KINDS else None
    if source is None:
        paths = ((name, Path(value)) for name, value in options.items() if isinstance(value, str | PurePath))
        files = ((name, path) for name, path in paths if os.path.isfile(path))
        yield from (each for each in files if each[0] == "classes" or (kind not in KINDS and each[1].suffix in MODELS))
        return
    path = Path(options[source.option]).expanduser()
    if not source.folder:
        yield source.option, path
    folder = path if source.folder else path.parent
    yield from ((name, folder / name) for name in sorted(_beside(kind, path)) if os.path.isfile(folder / name))


def _beside(kind: str, path: Path) -> set[str]:
    """The names of further files: those of a folder, and those that a model or an adapter names beside itself."""
    if path.is_dir():
        parts = {} if (path / WEIGHTS).is_file() else read_config(path, INDEX)["weight_map"]
        return {CONFIG, PROCESSOR, WEIGHTS, INDEX, *parts.values()}
    if kind == "onnx":
        with open_file(path) as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            found = [content[each.end() : each.end() + each[1][0]] for each in _EXTERNAL.finditer(content)]
            return {name.decode(errors="replace") for name in found}
    names = load_adapter(path).description.answer.classes if kind == "json" else None
    return {names} if isinstance(names, str) else set()


def _digest(path: Path) -> str:
    try:
        with open_file(path) as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise UserError(f"{path}: expected a file of the teacher, but cannot read it: {error.strerror}") from error
