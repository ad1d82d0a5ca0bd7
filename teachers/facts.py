"""Facts of a teacher for a run's record, once it answers, with its files' digests."""

import hashlib
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PurePath
from typing import Any
from urllib.parse import urlsplit

from dfme.config.defences import name_and_options
from dfme.errors import UserError
from dfme.files import sha256_of
from dfme.spec import Teacher
from dfme.teachers import KINDS
from dfme.teachers.options import JsonOptions

MODELS = (
    ".safetensors",
    ".pt",
    ".pth",
    ".ckpt",
    ".pt2",
    ".ts",
    ".onnx",
    ".npz",
    ".npy",
    ".h5",
    ".keras",
    ".pb",
    ".tflite",
    ".pkl",
    ".pickle",
    ".joblib",
    ".bin",
)
"""Files, named by a custom teacher's options, that are digested; others it may write into."""

ADAPTER_FILE = "adapter.yaml"
"""The name, in a run directory, of the adapter as it was read."""


def teacher_facts(teacher: Teacher, kind: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Facts of a teacher for a run's record, as plain data that JSON gives back unchanged.

    ``kind`` and ``options`` are the configuration's; ``files`` are their SHA-256; ``target`` is a
    line for people. ``adapter`` is the digest of what ``resolved_adapter`` gives. Raises UserError
    for a file that cannot be read.
    """
    spec = teacher.spec
    names = teacher.info.class_names
    defences = teacher.info.defences
    facts: dict[str, Any] = {
        "kind": kind,
        "shape": [int(size) for size in spec.shape],
        "bounds": [float(bound) for bound in spec.bounds],
        "levels": None if spec.levels is None else int(spec.levels),
        "num_classes": int(teacher.num_classes),
        "label_mode": str(teacher.label_mode),
    }
    if defences:
        facts["defences"] = [str(text) for text in defences]
    if kind in KINDS and "precision" in options:
        facts["precision"] = options["precision"]
    if kind in KINDS and "url" in options:
        facts |= _service(kind, options, teacher)
    if names:
        facts["class_names"] = [str(name)[:100] for name in names[:1_000]]
    facts["files"] = teacher_files(kind, options)
    if source := _source(kind):
        facts["source"] = source
    watching = teacher.info.watch.names if teacher.info.watch else ()
    parts = (name_and_options(text)[0] for text in (*defences, *watching))
    if sources := {name: source for name in parts if (source := _source(name))}:
        facts["sources"] = sources
    if text := resolved_adapter(kind, options):
        facts["adapter"] = {
            "file": ADAPTER_FILE,
            "sha256": hashlib.sha256(text.encode()).hexdigest(),
        }
    facts["target"] = _target(facts, options)
    return facts


def _is_adapted(kind: str) -> bool:
    """True if an adapter file describes the service."""
    return kind in KINDS and issubclass(KINDS[kind].options, JsonOptions)


def _target(facts: Mapping[str, Any], options: Mapping[str, Any]) -> str:
    """The teacher in one line: a service by URL and model, a file or module by its digest."""
    files: Mapping[str, str] = facts["files"]
    if "url" in facts:
        parts = (f"{name} {facts[name]}" for name in ("model", "version") if facts.get(name))
        return ", ".join([facts["url"], *parts])
    if facts["kind"] in KINDS:
        source = KINDS[facts["kind"]].file
        assert source is not None, "a kind without a URL is a file"
        name, digest = next(iter(files.items()))
        file = f" of its {name}" if source.folder else ""
        return f"{PurePath(options[source.option]).name}, sha256 {digest}{file}"
    where: Mapping[str, str] = facts.get("source") or {}
    return str(facts["kind"]) + (f" in {where['file']}, sha256 {where['sha256']}" if where else "")


def resolved_adapter(kind: str, options: Mapping[str, Any]) -> str:
    """A service's adapter with defaults, class names and URL written out; else empty."""
    if not _is_adapted(kind):
        return ""
    from dfme.teachers.remote.json_api.adapter_file import resolved

    return resolved(options)


def _service(kind: str, options: Mapping[str, Any], teacher: Teacher) -> dict[str, Any]:
    """A service's address without its query, its model, and its answers before any cut."""
    address = options["url"]
    if not address:
        from dfme.teachers.remote.json_api.adapter_file import load_adapter

        address = load_adapter(options["adapter"], options.get("classes")).description.url
    url = urlsplit(address)
    facts = {"url": f"{url.scheme}://{url.netloc}{url.path}"}
    facts |= {name: options[name] for name in ("model", "version") if options.get(name)}
    uncut = teacher.info.uncut_mode
    if uncut and uncut != teacher.label_mode:
        facts["uncut_label_mode"] = str(uncut)
    return facts


def _source(name: str) -> dict[str, str]:
    """File and digest of the module of a user's own class or function; empty for another name."""
    file = getattr(sys.modules.get(name.partition(":")[0]), "__file__", None)
    if ":" not in name or file is None or not os.path.isfile(file):
        return {}
    return {"file": os.path.basename(file), "sha256": _digest(Path(file))}


def teacher_files(kind: str, options: Mapping[str, Any]) -> dict[str, str]:
    """The SHA-256 of every file that decides what a teacher answers, by the option or its own
    name.
    """
    files = _files(kind, options) if kind in KINDS else _models(options)
    return {name: _digest(path) for name, path in files}


def _models(options: Mapping[str, Any]) -> Iterator[tuple[str, Path]]:
    """Files of models that the options of a custom teacher name."""
    for name, value in options.items():
        if isinstance(value, str | PurePath) and Path(value).suffix in MODELS:
            yield from _existing(name, Path(value))


def _files(kind: str, options: Mapping[str, Any]) -> Iterator[tuple[str, Path]]:
    """Files that decide a built-in teacher's answers, by option or, beside others, by their
    name.
    """
    source = KINDS[kind].file
    if source is None:
        return
    path = Path(options[source.option]).expanduser()
    name = source.option
    beside: Iterable[str] = ()
    if source.folder:
        from dfme.nets.model_folders import CONFIG
        from dfme.teachers.local.folders import deciding_files

        beside = deciding_files(path)
        path = path / CONFIG
        name = CONFIG
    elif kind == "onnx":
        from dfme.teachers.local.onnx_graph import external_files

        beside = external_files(path)
    elif _is_adapted(kind):
        from dfme.teachers.remote.json_api.adapter_file import load_adapter

        classes = options.get("classes")
        if isinstance(classes, str):
            yield from _existing("classes", Path(classes))
        named = load_adapter(options["adapter"]).description.answer.classes
        if classes is None and isinstance(named, str):
            beside = [named]
    yield name, path
    for other in sorted({*beside}):
        yield from _existing(other, path.parent / other)


def _existing(name: str, path: Path) -> Iterator[tuple[str, Path]]:
    if os.path.isfile(path):
        yield name, path


def _digest(path: Path) -> str:
    try:
        return sha256_of(path)
    except OSError as error:
        raise UserError(
            f"{path}: cannot read this file of the teacher: {error.strerror}"
        ) from error
