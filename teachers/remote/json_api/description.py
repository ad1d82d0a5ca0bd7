"""An adapter's parts: paths into JSON, templates, and the description that holds them.

``predictions[*].scores`` and ``result.0["odd name"]`` are paths; ``[*]`` is every item of a list,
one for each image. Nothing is evaluated.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import field
from typing import Any, Literal, cast

from pydantic.dataclasses import dataclass

from dfme.config.values import CONFIG, Count
from dfme.errors import Unusable, UserError
from dfme.teachers.remote.json_bodies import excerpt

_STEP = re.compile(
    r"\.?(?P<name>[^\W\d][\w-]*)|\.?(?P<number>\d{1,6})(?!\w)"
    r'|\[(?P<index>\d{1,6}|\*)\]|\["(?P<quoted>[^"]*)"\]'
)
_MAX_STEPS = 32
_EACH = object()


@dataclasses.dataclass(frozen=True)
class JsonPath:
    """A path, read; an empty text is the document itself.

    A step is a name in an object, a number in a list (or the same digits as a name), or ``_EACH``
    item.
    """

    text: str
    steps: tuple[object, ...]
    key: str = ""

    @classmethod
    def read(cls, text: str, key: str = "") -> JsonPath:
        """``key``: the adapter's, for messages. ValueError, expected and got, for a bad path."""
        steps: list[object] = []
        position = 0
        while position < len(text) and len(steps) <= _MAX_STEPS:
            match = _STEP.match(text, position)
            if match is None or (text[position] == "." and position == 0):
                raise ValueError(
                    "expected names with dots and numbers, such as predictions[*].scores or "
                    '["odd name"].0, '
                    f"got {text!r}, which cannot be read from {text[position : position + 20]!r}"
                )
            number = match["number"] or match["index"]
            word = match["name"] if match["quoted"] is None else match["quoted"]
            if number is not None:
                word = _EACH if number == "*" else int(number)
            steps.append(word)
            position = match.end()
        if len(steps) > _MAX_STEPS:
            raise ValueError(f"expected at most {_MAX_STEPS} steps, got {text[:80]!r}")
        if steps.count(_EACH) > 1:
            raise ValueError(f"expected [*] once, for the images, got {text!r}")
        return cls(text, tuple(steps), key)

    @property
    def each(self) -> bool:
        """True if the path leads to one value for each image."""
        return _EACH in self.steps

    def values(self, document: object) -> list[object]:
        """Values at the path: one, or with ``[*]`` one for each item. Unusable if there are none.

        Below the document itself, what is null or empty on the way has no value: None.
        """
        nodes = [document]
        for depth, step in enumerate(self.steps):
            if step is not _EACH:
                nodes = [self._take(value, step, depth) for value in nodes]
            elif isinstance(nodes[0], list):
                nodes = nodes[0]
            else:
                raise self._nothing("no list at [*]", nodes[0])
        return nodes

    def first(self, document: object) -> object | None:
        """The value there, or the first of several; None if nothing stands there."""
        try:
            return next(iter(self.values(document)), None)
        except Unusable:
            return None

    def put(self, document: Any, value: Any) -> Any:
        """The document with ``value`` at the path; with ``[*]`` a list of new ones, one an item of
        it.
        """
        if not self.steps:
            return value
        step, below = self.steps[0], JsonPath("", self.steps[1:])
        if step is _EACH:
            return [below.put(None, item) for item in value]
        if isinstance(step, int) and not isinstance(document, dict):
            items = [*(document or [])]
            items += [None] * (step + 1 - len(items))
            items[step] = below.put(items[step], value)
            return items
        entries = document or {}
        return {**entries, str(step): below.put(entries.get(str(step)), value)}

    def _take(self, value: object, step: object, depth: int) -> object:
        if depth and (value is None or value == [] or value == {}):
            return None
        if isinstance(value, list) and isinstance(step, int) and step < len(value):
            return cast(object, value[step])
        if isinstance(value, dict) and str(step) in value:
            return cast(object, value[str(step)])
        raise self._nothing(f"nothing at {str(step)!r}", value)

    def _nothing(self, what: str, value: object) -> Unusable:
        return Unusable(f"{self.key}: {self.text!r} found {what} in {excerpt(value)}", "no answer")


IMAGE = "${image}"
IMAGES = "${images}"
_PLACE = re.compile(r"\$\{images?\}")
_NAME = re.compile(r"\$\{([^}]*)\}")
_ENVIRONMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def problem_of(template: object, batch: int, as_text: bool) -> str | None:
    """Problems of a template for up to ``batch`` images; ``as_text``: within longer texts."""
    if not isinstance(template, dict | list):
        return f"expected an object or a list with {IMAGE} in it, got {type(template).__name__}"
    try:
        json.dumps(template, allow_nan=False)
    except (TypeError, ValueError) as error:
        return f"expected what JSON can say: {error}"
    places = [text for text in texts(template) if IMAGE in text or IMAGES in text]
    if len(places) != 1 or places[0].count(IMAGE) + places[0].count(IMAGES) != 1:
        return f"expected {IMAGE} or {IMAGES} once, got {len(places) or 'none'}"
    if places[0] not in (IMAGE, IMAGES) and (IMAGES in places[0] or not as_text):
        place = IMAGES if IMAGES in places[0] else IMAGE
        return f"expected {place} alone, as the whole of a text, got {places[0][:60]!r}"
    if batch > 1 and needs_one(template):
        return (
            f"with batch: {batch}, expected {IMAGES}, or {IMAGE} within a list of one "
            "item, which is repeated"
        )
    return None


def texts(node: object) -> Iterator[str]:
    """Every text in a document that is a value."""
    if isinstance(node, str):
        yield node
    elif isinstance(node, dict | list):
        for child in node.values() if isinstance(node, dict) else node:
            yield from texts(child)


def environment_names(*values: str) -> list[str]:
    """The environment variables that texts want, each once. UserError for a name that none can
    have.
    """
    names = dict.fromkeys(
        name for text in values for name in _NAME.findall(text) if name not in ("image", "images")
    )
    odd = next((name for name in names if not _ENVIRONMENT.fullmatch(name)), None)
    if odd is not None:
        raise UserError(
            f"expected ${{NAME}} with the name of an environment variable, got ${{{odd[:40]}}}"
        )
    return list(names)


def with_environment(node: Any, fill: Callable[[str], str]) -> Any:
    """The document with ``fill`` applied to every text but the places of images, which are left."""
    if isinstance(node, dict):
        return {key: with_environment(value, fill) for key, value in node.items()}
    if isinstance(node, list):
        return [with_environment(item, fill) for item in node]
    if not isinstance(node, str):
        return node
    parts = re.split(f"({_PLACE.pattern})", node)
    return "".join(part if part in (IMAGE, IMAGES) else fill(part) for part in parts)


def fill_images(node: Any, images: Sequence[Any]) -> Any:
    """The document for these encoded images."""
    if isinstance(node, dict):
        return {key: fill_images(value, images) for key, value in node.items()}
    if isinstance(node, list):
        if len(node) == 1 and needs_one(node[0]):
            return [fill_images(node[0], [image]) for image in images]
        return [fill_images(item, images) for item in node]
    if node == IMAGES:
        return list(images)
    if node == IMAGE:
        return images[0]
    return node.replace(IMAGE, images[0]) if isinstance(node, str) and IMAGE in node else node


def needs_one(node: object) -> bool:
    """True if ``${image}`` stands in a document outside every list that would be repeated for
    it.
    """
    if isinstance(node, str):
        return IMAGE in node
    if isinstance(node, dict):
        return any(map(needs_one, node.values()))
    return isinstance(node, list) and len(node) != 1 and any(map(needs_one, node))


def find_images(node: Any, document: Any) -> list[Any]:
    """The encoded images in a document that ``fill_images`` made of a template. Any error if it did
    not.
    """
    if isinstance(node, list) and len(node) == 1 and needs_one(node[0]):
        return [image for item in document for image in find_images(node[0], item)]
    if isinstance(node, dict | list):
        below = dict(enumerate(node)) if isinstance(node, list) else node
        (key,) = (key for key in below if any(map(_PLACE.search, texts([below[key]]))))
        return find_images(below[key], document[key])
    if node in (IMAGE, IMAGES):
        return [document] if node == IMAGE else list(document)
    start, end = node.split(IMAGE)
    if not document.startswith(start) or not document.endswith(end):
        raise ValueError(f"expected {node!r}")
    return [document.removeprefix(start).removesuffix(end)]


# The description of an HTTP API with JSON answers, as a YAML file has it (docs/adapters.md)


@dataclass(frozen=True, config=CONFIG)
class ImageForm:
    """Encoding of an image."""

    encoding: Literal["png", "png_base64", "data_url", "raw", "raw_base64", "list"] = "png_base64"
    """png, png_base64 or data_url (a PNG in base64); raw or raw_base64 (the numbers' bytes, little
    endian); list (nested lists of numbers)"""
    dtype: Literal["uint8", "float32"] = "uint8"
    """of raw, raw_base64 and list: uint8 (0 to 255) or float32; pictures are uint8"""
    layout: Literal["nhwc", "nchw"] = "nhwc"
    """of raw, raw_base64 and list: order of the axes"""
    scale: tuple[float, float] | None = None
    """of float32: what the lowest and the highest pixel become; none: they stay as they are"""
    flat: bool = False
    """of list: one list of numbers in place of nested ones"""

    @property
    def picture(self) -> bool:
        """True if it is a PNG."""
        return self.encoding in ("png", "png_base64", "data_url")

    @property
    def eight_bit(self) -> bool:
        """True if pixels travel as bytes."""
        return self.picture or self.dtype == "uint8"


@dataclass(frozen=True, config=CONFIG)
class RequestForm:
    """Where an image goes; ``json`` is any document, taken as it is."""

    json: Any = None
    """any document with ${image} in it, or ${images} for the list of all; a list of one item with
    ${image} in it is repeated for each image"""
    bytes: str | None = None
    """in place of json: the encoded image (png or raw) is the body, of this content type, such as
    image/png"""
    multipart: str | None = None
    """in place of json: the encoded image (png or raw) is the file of this field of a form"""
    filename: str = "image.png"
    """of multipart: the file's name"""
    fields: dict[str, str] = field(default_factory=dict)
    """of multipart: further fields"""


@dataclass(frozen=True, config=CONFIG)
class AnswerForm:
    """Where the scores are in an answer, and what they are."""

    path: str = ""
    """where the scores are: names and numbers with dots, [*] for one item an image, ["odd name"];
    empty: the whole answer"""
    form: Literal["scores", "mapping", "pairs", "lists", "name", "number"] = "scores"
    """scores (a list of numbers, null: not revealed; one number of a binary model: that of the
    second class), mapping (names to numbers), pairs (objects with a label and a score), lists (a
    list of labels and one of scores), name (of a class) or number (of a class, from 0)"""
    label: str = "label"
    """of pairs: the path of the label in an object; of lists: of the list of labels"""
    score: str = "score"
    """of pairs: the path of the score in an object; of lists: of the list of scores"""
    no_answer: tuple[str | int, ...] = ()
    """what the service says where it knows no class, such as "not sure" or -1; such images are
    charged, counted and left out, as are those with an empty list, an empty text or null"""
    no_answer_status: tuple[int, ...] = ()
    """HTTP statuses that say the same, such as 404 or 422; 204 always does"""
    optional: bool = False
    """whether path may lead nowhere, which then says the same"""
    classes: tuple[str, ...] | str | None = None
    """the classes' names in the order of the student's, or a text file beside this one with one a
    line; none: their numbers"""
    values: Literal["probabilities", "logits"] | None = None
    """what the scores are; none: as the label mode says"""
    scale: float | None = None
    """what the scores are divided by, such as 100 of percentages; none: they stay as they are"""
    error: str = "error"
    """path of a text that stands in answers that are none, and is shown"""


@dataclass(frozen=True, config=CONFIG)
class TeacherSection:
    """Facts that a service does not say of itself."""

    shape: tuple[int, int, int] | None = None
    """an image's C, H, W; --teacher.shape goes first, as do the flags of the names below"""
    num_classes: int | None = None
    """how many classes; none: as many as answer.classes names"""
    bounds: tuple[float, float] | None = None
    """lowest and highest pixel; none: 0 and 1"""
    levels: int | None = None
    """levels of a pixel; 256 where pixels are sent as bytes"""
    label_mode: str | None = None
    """what an answer reveals, such as top_k:3; none: probabilities"""


@dataclass(frozen=True, config=CONFIG)
class Description:
    """A whole file."""

    url: str = ""
    """where images are posted; --teacher.url goes first"""
    headers: dict[str, str] = field(default_factory=dict)
    """besides those of the body, of --teacher.api-key-env and of HTTP itself"""
    batch: Count = 1
    """most images in one request"""
    image: ImageForm = field(default_factory=ImageForm)
    request: RequestForm = field(default_factory=RequestForm)
    answer: AnswerForm = field(default_factory=AnswerForm)
    teacher: TeacherSection = field(default_factory=TeacherSection)
