"""The description of an API, read from its YAML file and checked before anything is sent. No torch
here.
"""

import dataclasses
import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from dfme.config.settings import TeacherConfig
from dfme.config.values import from_mapping
from dfme.config.yaml_files import dump_yaml, load_yaml
from dfme.data.class_names import read_names
from dfme.errors import OptionError, UserError, flag, say
from dfme.spec import ImageSpec, LabelMode
from dfme.teachers.options import require_free
from dfme.teachers.remote.json_api.description import (
    Description,
    JsonPath,
    RequestForm,
    environment_names,
    problem_of,
    texts,
)
from dfme.teachers.remote.json_bodies import ClassNames
from dfme.teachers.remote.secrets import HIDDEN, PLACEHOLDER, check_service

PACKAGE = Path(__file__).resolve().parents[3]
"""Folder above configs/ and teachers/, in the project and where it is installed."""

NO_CLASS_STATUSES = (204, 400, 404, 406, 409, 410, 412, 415, 416, 418, 421, 422)
"""HTTP statuses by which a service may say that it finds no class in an image."""

_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_CONTENT_TYPE = re.compile(r"[\w.+-]+/[\w.+-]+(; ?[\w.+-]+=[\w.+-]+)*", re.ASCII)
_SECRET = re.compile("auth|key|token|secret|passw|cookie|sign", re.IGNORECASE)
"""In the name of a header, a field or a parameter that carries a secret."""
_FIELD = re.compile(r'[^"\\\x00-\x1f\x7f-\U0010ffff]+')


def problems(description: Description) -> Iterator[str]:
    """Everything that is wrong with a description by itself."""
    yield from _request_problems(description)
    yield from _answer_problems(description)
    image = description.image
    if image.scale is not None and (image.eight_bit or image.scale[0] == image.scale[1]):
        yield (
            "image.scale: expected two different numbers, and dtype: float32 in raw, "
            "raw_base64 or list"
        )
    if image.flat and image.encoding != "list":
        yield f"image.flat: expected with encoding: list, got {image.encoding}"
    for name in description.headers:
        if not _TOKEN.fullmatch(name):
            yield f"headers: expected a name of letters, digits and hyphens, got {name!r}"
        try:
            require_free(name)
        except UserError as error:
            yield f"headers: {error}"
    try:
        secrets_of(description, description.url)
        teacher = description.teacher
        ImageSpec(teacher.shape or (1, 1, 1), teacher.bounds or (0.0, 1.0), teacher.levels)
        mode = LabelMode.parse(teacher.label_mode or "label")
        values = description.answer.values
        if description.answer.scale is not None and mode.kind == "logits":
            yield "answer.scale: expected none for label_mode: logits, which have no scale"
        if (
            values is not None
            and mode.kind != "label"
            and (mode.kind == "logits") != (values == "logits")
        ):
            yield (
                f"answer.values: expected none or what teacher.label_mode says, {mode}, "
                f"got {values}"
            )
    except UserError as error:
        yield str(error)


def _request_problems(description: Description) -> Iterator[str]:
    request = description.request
    encoding = description.image.encoding
    ways = {"json": request.json, "bytes": request.bytes, "multipart": request.multipart}
    chosen = [name for name, value in ways.items() if value is not None]
    if len(chosen) != 1:
        yield (
            "request: expected one of json, bytes and multipart, got "
            f"{' and '.join(chosen) or 'none'}"
        )
    elif chosen == ["json"]:
        if encoding in ("png", "raw"):
            yield (
                f"image.encoding: expected {encoding}_base64 or another that JSON can "
                f"say, got {encoding}"
            )
        elif problem := problem_of(request.json, description.batch, encoding != "list"):
            yield f"request.json: {problem}"
    elif encoding not in ("png", "raw"):
        yield f"image.encoding: expected png or raw for request.{chosen[0]}, got {encoding}"
    if request.bytes is not None and not _CONTENT_TYPE.fullmatch(request.bytes):
        yield f"request.bytes: expected a content type such as image/png, got {request.bytes!r}"
    if request.bytes is not None and description.batch > 1:
        yield f"request.bytes: expected batch: 1, got {description.batch}"
    yield from _form_problems(request)


def _form_problems(request: RequestForm) -> Iterator[str]:
    fields = [("fields", name) for name in request.fields]
    for key, name in (("multipart", request.multipart), ("filename", request.filename), *fields):
        if name is not None and not _FIELD.fullmatch(name):
            yield (
                f"request.{key}: expected printable ASCII without quotes and "
                f"backslashes, got {name!r}"
            )
    if request.fields and request.multipart is None:
        yield "request.fields: expected with multipart"


def _answer_problems(description: Description) -> Iterator[str]:
    answer = description.answer
    for key in ("path", "label", "score", "error"):
        try:
            path = JsonPath.read(getattr(answer, key))
        except ValueError as error:
            yield f"answer.{key}: {error}"
            continue
        if key == "path" and description.batch > 1 and not path.each:
            yield (
                f"answer.path: with batch: {description.batch}, expected [*] where the "
                "images are listed"
            )
        if key in ("label", "score") and path.each and answer.form != "lists":
            yield f"answer.{key}: expected a path without [*], got {path.text!r}"
    if answer.form == "name" and answer.classes is None:
        yield "answer.classes: expected the names of the classes, for form: name"
    yield from _no_answer_problems(description)
    for key in ("values", "scale"):
        if answer.form in ("name", "number") and getattr(answer, key) is not None:
            yield f"answer.{key}: expected none for form: {answer.form}, which tells no scores"
    if answer.scale is not None and not 0 < answer.scale < math.inf:
        yield f"answer.scale: expected a positive number such as 100, got {answer.scale:g}"


def _no_answer_problems(description: Description) -> Iterator[str]:
    answer = description.answer
    for name in answer.no_answer:
        if isinstance(answer.classes, tuple) and str(name) in answer.classes:
            yield f"answer.no_answer: expected what is none of answer.classes, got {name!r}"
    for status in answer.no_answer_status:
        if status not in NO_CLASS_STATUSES:
            choices = ", ".join(map(str, NO_CLASS_STATUSES))
            yield f"answer.no_answer_status: expected some of {choices}, got {status}"
    if answer.no_answer_status and description.batch > 1:
        yield f"answer.no_answer_status: expected batch: 1, got {description.batch}"


def secrets_of(description: Description, url: str) -> list[str]:
    """Names of the environment variables that a description and the URL in use ask for."""
    values = [*description.headers.values(), *description.request.fields.values()]
    return environment_names(url, *values, *texts(description.request.json))


@dataclass(frozen=True)
class JsonApi:
    """A description, and the class names that may stand in a file beside it."""

    description: Description
    classes: ClassNames | None


def load_adapter(path: str | Path, classes: tuple[str, ...] | str | None = None) -> JsonApi:
    """Description in a YAML file, which may be one that ships with dfme; ``classes`` replace the
    file's.

    UserError naming the file and everything that is wrong with it.
    """
    shipped = PACKAGE / path
    file = shipped if shipped.exists() and not Path(path).exists() else path
    description = from_mapping(Description, load_yaml(file), prefix=f"{path}: ")
    if classes is not None:
        description = replace(description, answer=replace(description.answer, classes=classes))
    if faults := list(problems(description)):
        raise UserError("; ".join(f"{path}: {problem}" for problem in faults))
    names = description.answer.classes
    option = f"{path}: answer.classes" if classes is None else flag("teacher.classes")
    folder = Path(path).parent if classes is None else None
    return JsonApi(
        description, ClassNames(read_names(names, option, folder), option) if names else None
    )


def check_json(config: TeacherConfig, options: Mapping[str, Any]) -> str:
    """Like ``check_service``, for the URL of flags or adapter; and faults of that file."""
    if config.mean is not None or config.std is not None:
        raise UserError(
            say(
                "{teacher.mean} and {teacher.std}: {} sends pixels as they are; leave normalising "
                "to the service, or say with {teacher.bounds} which pixels it takes",
                config.kind,
            )
        )
    description = load_adapter(options["adapter"], options.get("classes")).description
    url = options.get("url") or description.url
    if not url:
        raise OptionError(
            "teacher.url", f"neither the flag nor {options['adapter']} says where the service is"
        )
    return check_service(config, {**options, "url": url}, secrets_of(description, url))


@dataclass(frozen=True)
class ModelSpec:
    """Images and answers of the service, by flags, file and class names together."""

    spec: ImageSpec
    classes: ClassNames
    mode: LabelMode


def model_spec(api: JsonApi, config: TeacherConfig) -> ModelSpec:
    """Teacher by flags, then by file. UserError for missing or contradictory values."""
    described = api.description.teacher
    answer = api.description.answer
    shape = config.shape or described.shape
    if shape is None:
        raise OptionError(
            "teacher.shape", "neither flag nor adapter says the shape of an image; give it as C,H,W"
        )
    if api.description.image.picture and not 1 <= shape[0] <= 4:
        raise OptionError(
            "teacher.shape", f"expected 1 to 4 channels, as pictures have, got {shape[0]}"
        )
    levels = described.levels if config.levels is None else config.levels
    if api.description.image.eight_bit:
        if levels not in (None, 256):
            raise OptionError(
                "teacher.levels", f"got {levels}, but the adapter sends pixels as bytes: 256"
            )
        levels = 256
    spec = ImageSpec(shape, config.bounds or described.bounds or (0.0, 1.0), levels)
    text = config.label_mode or described.label_mode
    wanted = LabelMode.parse(text) if text else None
    logits = answer.values == "logits" or (answer.values is None and wanted == LabelMode("logits"))
    mode = LabelMode("logits" if logits else "probabilities")
    if answer.form in ("name", "number"):
        mode = LabelMode("label")
    elif wanted is not None and (wanted.kind == "label" or not (logits or wanted.kind == "logits")):
        mode = wanted
    return ModelSpec(spec, _classes(api, config), mode)


def _classes(api: JsonApi, config: TeacherConfig) -> ClassNames:
    number = config.num_classes or api.description.teacher.num_classes
    if api.classes is not None:
        if number not in (None, len(api.classes)):
            raise OptionError(
                "teacher.num_classes",
                f"got {number}, but the adapter names {len(api.classes)} classes",
            )
        return api.classes
    if number is None or number < 2:
        raise OptionError(
            "teacher.num_classes",
            say(
                "expected two or more, by flag or adapter; give their number, or names with "
                "{teacher.classes}"
            ),
        )
    return ClassNames(tuple(map(str, range(number))))


def resolved(options: Mapping[str, Any]) -> str:
    """The adapter that options name, as YAML with defaults, class names and URL written out.

    ``${NAME}`` stays as it is; a secret that is written out is hidden.
    """
    api = load_adapter(options["adapter"], options.get("classes"))
    document: dict[str, Any] = _without_secrets(
        json.loads(json.dumps(dataclasses.asdict(api.description), default=str))
    )
    url = urlsplit(options["url"] or api.description.url)
    pairs = (part.partition("=") for part in url.query.split("&"))
    query = "&".join(name + mark + _hidden(name, value) for name, mark, value in pairs)
    document["url"] = url._replace(query=query, fragment="").geturl()
    if api.classes is not None:
        document["answer"]["classes"] = list(api.classes.names)
    return dump_yaml(document)


def _without_secrets(value: Any, name: str = "") -> Any:
    if isinstance(value, dict):
        return {key: _without_secrets(item, key) for key, item in value.items()}
    if isinstance(value, list):
        return [_without_secrets(item, name) for item in value]
    return _hidden(name, value) if isinstance(value, str) else value


def _hidden(name: str, value: str) -> str:
    return HIDDEN if _SECRET.search(name) and value and not PLACEHOLDER.search(value) else value
