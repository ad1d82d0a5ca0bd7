"""Facts of a teacher for a run's record, once it answers, with its files' digests."""

import dataclasses
import hashlib
import json
import mmap
import os
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePath
from typing import Any
from urllib.parse import urlsplit

from dfme.config.defences import name_and_options
from dfme.config.yaml_files import dump_yaml
from dfme.errors import UserError
from dfme.files import open_file
from dfme.spec import Teacher
from dfme.teachers import KINDS
from dfme.teachers.local.checks import CONFIG, INDEX, WEIGHTS, read_config
from dfme.teachers.local.processor import FILE, NESTED_FILE
from dfme.teachers.remote.json_api.adapter_file import load_adapter
from dfme.teachers.remote.options import JsonOptions
from dfme.teachers.remote.secrets import HIDDEN, PLACEHOLDER

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
"""Files named by options of somebody's own teacher that are looked at; into others it may write."""

ADAPTER_FILE = "adapter.yaml"
"""The name, in a run directory, of the adapter as it was read."""

_SECRET = re.compile("auth|key|token|secret|passw|cookie|sign", re.IGNORECASE)
"""In the name of a header, a field or a parameter that carries a secret."""

_EXTERNAL = re.compile(rb"\n\x08location\x12(.)", re.DOTALL)
"""In an ONNX model, what stands before the name of a file of weights; the last byte is the name's
length.
"""


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
        **({"defences": [str(text) for text in defences]} if defences else {}),
        **({"precision": options["precision"]} if kind in KINDS and "precision" in options else {}),
        **(_service(kind, options, teacher) if kind in KINDS and "url" in options else {}),
        **({"class_names": [str(name)[:100] for name in names[:1_000]]} if names else {}),
        "files": teacher_files(kind, options),
        **_source(kind),
    }
    watching = teacher.info.watch.names if teacher.info.watch else ()
    own = [name for text in (*defences, *watching) if ":" in (name := name_and_options(text)[0])]
    if sources := {name: found["source"] for name in own if (found := _source(name))}:
        facts["sources"] = sources
    if text := resolved_adapter(kind, options):
        facts["adapter"] = {
            "file": ADAPTER_FILE,
            "sha256": hashlib.sha256(text.encode()).hexdigest(),
        }
    return facts | {"target": _target(facts, options)}


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
        of = f" of its {name}" if source.folder else ""
        return f"{PurePath(options[source.option]).name}, sha256 {digest}{of}"
    where: Mapping[str, str] = facts.get("source") or {}
    return str(facts["kind"]) + (f" in {where['file']}, sha256 {where['sha256']}" if where else "")


def resolved_adapter(kind: str, options: Mapping[str, Any]) -> str:
    """A service's adapter with defaults, class names and URL written out; else empty.

    ``${NAME}`` stays as it is; what stands in the place of a secret without being one of these is
    not shown.
    """
    if not _is_adapted(kind):
        return ""
    api = load_adapter(options["adapter"], options.get("classes"))
    plain = json.loads(json.dumps(dataclasses.asdict(api.description), default=str))
    shown: dict[str, Any] = _without_secrets(plain)
    url = urlsplit(options["url"] or api.description.url)
    pairs = (part.partition("=") for part in url.query.split("&"))
    query = "&".join(name + mark + _hidden(name, value) for name, mark, value in pairs)
    shown["url"] = url._replace(query=query, fragment="").geturl()
    if api.classes is not None:
        shown["answer"]["classes"] = list(api.classes.names)
    return dump_yaml(shown)


def _without_secrets(value: Any, name: str = "") -> Any:
    if isinstance(value, dict):
        return {key: _without_secrets(each, key) for key, each in value.items()}
    if isinstance(value, list):
        return [_without_secrets(each, name) for each in value]
    return _hidden(name, value) if isinstance(value, str) else value


def _hidden(name: str, value: str) -> str:
    return HIDDEN if _SECRET.search(name) and value and not PLACEHOLDER.search(value) else value


def _service(kind: str, options: Mapping[str, Any], teacher: Teacher) -> dict[str, Any]:
    """A service's address without its query, its model, and its answers before any cut."""
    address = (
        options["url"] or load_adapter(options["adapter"], options.get("classes")).description.url
    )
    url = urlsplit(address)
    model = {name: options[name] for name in ("model", "version") if options.get(name)}
    uncut = teacher.info.uncut_mode
    form = {"uncut_label_mode": str(uncut)} if uncut and uncut != teacher.label_mode else {}
    return {"url": f"{url.scheme}://{url.netloc}{url.path}", **model, **form}


def _source(kind: str) -> dict[str, Any]:
    """File and digest of the module of a user's own class or function."""
    file = getattr(sys.modules.get(kind.partition(":")[0]), "__file__", None)
    if ":" not in kind or file is None or not os.path.isfile(file):
        return {}
    return {"source": {"file": os.path.basename(file), "sha256": _digest(Path(file))}}


def teacher_files(kind: str, options: Mapping[str, Any]) -> dict[str, str]:
    """The SHA-256 of every file that decides what a teacher answers, by the option or its own
    name.
    """
    return {name: _digest(path) for name, path in _files(kind, options)}


def _files(kind: str, options: Mapping[str, Any]) -> Iterator[tuple[str, Path]]:
    """Files that decide a teacher's answers, by option or, beside others, by their name."""
    if kind not in KINDS:
        paths = (
            (name, Path(value))
            for name, value in options.items()
            if isinstance(value, str | PurePath)
        )
        yield from (
            (name, path) for name, path in paths if path.suffix in MODELS and os.path.isfile(path)
        )
        return
    if (source := KINDS[kind].file) is None:
        return
    path = Path(options[source.option]).expanduser()
    beside = set[str]()
    if source.folder:
        parts = {} if (path / WEIGHTS).is_file() else read_config(path, INDEX)["weight_map"]
        path = path / CONFIG
        beside = {FILE, NESTED_FILE, WEIGHTS, INDEX, *parts.values()}
    elif kind == "onnx":
        with (
            open_file(path) as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content,
        ):
            names = [
                content[each.end() : each.end() + each[1][0]]
                for each in _EXTERNAL.finditer(content)
            ]
        beside = {name.decode(errors="replace") for name in names}
    elif _is_adapted(kind):
        classes = options.get("classes")
        if isinstance(classes, str) and os.path.isfile(classes):
            yield "classes", Path(classes)
        elif classes is None and isinstance(
            named := load_adapter(options["adapter"]).description.answer.classes, str
        ):
            beside = {named}
    yield CONFIG if source.folder else source.option, path
    yield from (
        (name, path.parent / name) for name in sorted(beside) if os.path.isfile(path.parent / name)
    )


def _digest(path: Path) -> str:
    try:
        with open_file(path) as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise UserError(
            f"{path}: cannot read this file of the teacher: {error.strerror}"
        ) from error
