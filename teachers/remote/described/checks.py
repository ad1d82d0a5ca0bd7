"""What is wrong with the description of an API, before anything is sent: all of it, in words. No torch here."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from dfme.errors import UserError
from dfme.spec import ImageSpec, LabelMode
from teachers.remote.described.description import Description
from teachers.remote.described.paths import JsonPath
from teachers.remote.described.template import environment_names, problem_of, texts

_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_CONTENT_TYPE = re.compile(r"[\w.+-]+/[\w.+-]+(; ?[\w.+-]+=[\w.+-]+)*", re.ASCII)
_FIELD = re.compile(r'[^"\\\x00-\x1f\x7f-\U0010ffff]+')


def problems(description: Description, template: object) -> Iterator[str]:
    """Everything that is wrong with a description by itself."""
    yield from _request_problems(description, template)
    yield from _answer_problems(description)
    image = description.image
    if description.batch < 1:
        yield f"batch: expected at least 1, got {description.batch}"
    if image.scale is not None and (image.eight_bit or image.scale[0] == image.scale[1]):
        yield "image.scale: expected two different numbers, and dtype: float32 in raw, raw_base64 or list"
    if image.flat and image.encoding != "list":
        yield f"image.flat: expected with encoding: list, got {image.encoding}"
    for name in description.headers:
        if not _TOKEN.fullmatch(name):
            yield f"headers: expected a name of letters, digits and hyphens, got {name!r}"
    try:
        environment_names(description.url, *described_texts(description, template))
        told = description.teacher
        ImageSpec(told.shape or (1, 1, 1), told.bounds or (0.0, 1.0), told.levels)
        mode = LabelMode.parse(told.label_mode or "label")
        values = description.answer.values
        if values is not None and mode.kind != "label" and (mode.kind == "logits") != (values == "logits"):
            yield f"answer.values: expected none or what teacher.label_mode says, {mode}, got {values}"
    except UserError as error:
        yield str(error)


def _request_problems(description: Description, template: object) -> Iterator[str]:
    request, encoding = description.request, description.image.encoding
    ways = {"json": template, "bytes": request.bytes, "multipart": request.multipart}
    given = [name for name, value in ways.items() if value is not None]
    if len(given) != 1:
        yield f"request: expected one of json, bytes and multipart, got {' and '.join(given) or 'none'}"
    elif given == ["json"]:
        if encoding in ("png", "raw"):
            yield f"image.encoding: expected {encoding}_base64 or another that JSON can say, got {encoding}"
        elif problem := problem_of(template, description.batch, encoding != "list"):
            yield f"request.json: {problem}"
    elif encoding not in ("png", "raw"):
        yield f"image.encoding: expected png or raw for request.{given[0]}, got {encoding}"
    if request.bytes is not None and not _CONTENT_TYPE.fullmatch(request.bytes):
        yield f"request.bytes: expected a content type such as image/png, got {request.bytes!r}"
    if request.bytes is not None and description.batch > 1:
        yield f"request.bytes: expected batch: 1, got {description.batch}"
    for key, name in (("multipart", request.multipart), ("filename", request.filename), *_named(request.fields)):
        if name is not None and not _FIELD.fullmatch(name):
            yield f"request.{key}: expected printable ASCII without quotes and backslashes, got {name!r}"
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
            yield f"answer.path: with batch: {description.batch}, expected [*] where the images' answers are listed"
        if key in ("label", "score") and path.each:
            yield f"answer.{key}: expected a path without [*], got {path.text!r}"
    if answer.form == "name" and answer.classes is None:
        yield "answer.classes: expected the names of the classes, for form: name"
    if answer.form in ("name", "number") and answer.values is not None:
        yield f"answer.values: expected none for form: {answer.form}, which tells no scores"


def _named(fields: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    for name in fields:
        yield "fields", name


def described_texts(description: Description, template: object) -> Iterator[str]:
    """Every text, but the URL, that may want an environment variable."""
    yield from description.headers.values()
    yield from description.request.fields.values()
    yield from texts(template)
