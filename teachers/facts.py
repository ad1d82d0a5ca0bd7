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
from dfme.teachers import KINDS
from dfme.teachers.local.huggingface import PROCESSOR
from dfme.teachers.local.model_folder import CONFIG, INDEX, WEIGHTS, read_config
from dfme.teachers.remote.class_names import read_class_names
from dfme.teachers.remote.json_api.adapter_file import load_adapter

MODELS = (
    *(".safetensors", ".pt", ".pth", ".ckpt", ".pt2", ".ts", ".onnx", ".npz", ".npy", ".h5", ".keras", ".pb"),
    *(".tflite", ".pkl", ".pickle", ".joblib", ".bin"),
)
"""Of the files that the options of somebody's own teacher name, those that are looked at: into others it may write."""

_EXTERNAL = re.compile(rb"\n\x08location\x12(.)", re.DOTALL)
"""In an ONNX model, what stands before the name of a file of weights beside it: the last byte is the name's length."""


def teacher_facts(teacher: Teacher, kind: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """What must not change between two stretches of a run, as plain data that JSON gives back unchanged.

    ``kind`` and ``options`` are the configuration's; ``files`` are their SHA-256. Raises UserError for one that cannot
    be read.
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
        "files": {name: _digest(path) for name, path in _files(kind, options)},
    }


def _service(kind: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Where a service is, without a query, which may be a secret; its model, and the beginning of its class names."""
    api = load_adapter(options["adapter"]) if kind == "json" else None
    url = urlsplit(options["url"] or (api.description.url if api else ""))
    classes = read_class_names(options["classes"], "--teacher.classes") if kind == "hf-api" else api and api.classes
    return {
        "url": f"{url.scheme}://{url.netloc}{url.path}",
        **({"model": options["model"]} if "model" in options else {}),
        **({"class_names": json.dumps(classes.names)[:1_000]} if classes else {}),
    }


def _files(kind: str, options: Mapping[str, Any]) -> Iterator[tuple[str, Path]]:
    """The files that decide what a teacher answers, by the option that names them or, beside others, their own name."""
    if kind not in KINDS or (source := KINDS[kind].file) is None:
        texts = {name: Path(value) for name, value in options.items() if isinstance(value, str | PurePath)}
        wanted = {name for name, path in texts.items() if path.suffix in MODELS} if kind not in KINDS else {"classes"}
        yield from ((name, path) for name, path in texts.items() if name in wanted and os.path.isfile(path))
        return
    path, beside = Path(options[source.option]).expanduser(), set[str]()
    if source.folder:
        parts = {} if (path / WEIGHTS).is_file() else read_config(path, INDEX)["weight_map"]
        path, beside = path / CONFIG, {PROCESSOR, WEIGHTS, INDEX, *parts.values()}
    elif kind == "onnx":
        with open_file(path) as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            names = [content[each.end() : each.end() + each[1][0]] for each in _EXTERNAL.finditer(content)]
        beside = {name.decode(errors="replace") for name in names}
    elif kind == "json" and isinstance(classes := load_adapter(path).description.answer.classes, str):
        beside = {classes}
    yield CONFIG if source.folder else source.option, path
    yield from ((name, path.parent / name) for name in sorted(beside) if os.path.isfile(path.parent / name))


def _digest(path: Path) -> str:
    try:
        with open_file(path) as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise UserError(f"{path}: expected a file of the teacher, but cannot read it: {error.strerror}") from error
