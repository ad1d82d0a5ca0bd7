"""The description of an HTTP API with JSON answers: a YAML file, read safely and checked before anything is sent.

The file's keys (examples in configs/adapters; ``${NAME}`` in texts is the environment variable NAME)::

    url: https://host/path          # where images are posted; --teacher.url goes first
    headers: {Name: value}          # besides those of the body and of --teacher.api-key-env
    batch: 1                        # most images in one request
    image:
      encoding: png_base64          # png, data_url (PNG), png_base64; raw, raw_base64 (the numbers' bytes, little
                                    # endian); list (nested lists of numbers)
      dtype: uint8                  # of raw, raw_base64 and list: uint8 (0 to 255) or float32; pictures are uint8
      layout: nhwc                  # of raw, raw_base64 and list: nhwc or nchw
      scale: [0, 255]               # of float32: what the lowest and the highest pixel become; default: as they are
      flat: false                   # of list: one list of numbers instead of nested ones
    request:                        # one of these three
      json: {inputs: "${image}"}    # any document; ${images} is the list of all, a list of one item with ${image} in
                                    # it is repeated for each
      bytes: image/png              # the encoded image (png or raw) is the body, of this content type
      multipart: file               # the encoded image (png or raw) is a file of this field
      filename: image.png           # of multipart
      fields: {name: value}         # of multipart: further fields
    answer:
      path: predictions[*].scores   # names, numbers, ["odd names"]; [*]: one item for each image; default: all of it
      form: scores                  # scores: a list of numbers, null: not revealed; mapping: names to numbers;
                                    # pairs: a list of objects with a label and a score; name: of a class;
                                    # number: of a class, from 0
      label: label                  # of pairs: the path of the label in an object
      score: score                  # of pairs: the path of the score in an object
      classes: [cat, dog]           # names in the order of the classes, or a text file beside this one with one a
                                    # line; default: their numbers
      values: probabilities         # or logits; default: as --teacher.label-mode says
      error: error.message          # path of an error text in answers that are none
    teacher:                        # facts that no answer tells; the flags of the same names go first
      shape: [3, 32, 32]
      num_classes: 10
      bounds: [0, 1]
      levels: 256                   # the default and the only choice where pixels are sent as uint8
      label_mode: probabilities

No torch here.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import yaml

from dfme.errors import UserError
from dfme.options import from_mapping
from dfme.recipes import load_yaml
from teachers.remote.class_names import ClassNames, read_class_names
from teachers.remote.described.checks import described_texts, problems
from teachers.remote.described.template import environment_names

MOST_BYTES = 1_000_000
MOST_DEPTH = 32


@dataclass(frozen=True)
class ImageForm:
    """How an image is encoded; the keys are explained above."""

    encoding: Literal["png", "png_base64", "data_url", "raw", "raw_base64", "list"] = "png_base64"
    dtype: Literal["uint8", "float32"] = "uint8"
    layout: Literal["nhwc", "nchw"] = "nhwc"
    scale: tuple[float, float] | None = None
    flat: bool = False

    @property
    def picture(self) -> bool:
        """Whether it is a PNG."""
        return self.encoding in ("png", "png_base64", "data_url")

    @property
    def eight_bit(self) -> bool:
        """Whether pixels travel as bytes."""
        return self.picture or self.dtype == "uint8"


@dataclass(frozen=True)
class RequestForm:
    """Where an image goes; ``json`` is read apart from the other keys, as it is."""

    bytes: str | None = None
    multipart: str | None = None
    filename: str = "image.png"
    fields: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class AnswerForm:
    """Where the scores are in an answer, and what they are."""

    path: str = ""
    form: Literal["scores", "mapping", "pairs", "name", "number"] = "scores"
    label: str = "label"
    score: str = "score"
    classes: tuple[str, ...] | str | None = None
    values: Literal["probabilities", "logits"] | None = None
    error: str = "error"


@dataclass(frozen=True)
class TeacherFacts:
    """What no answer tells."""

    shape: tuple[int, int, int] | None = None
    num_classes: int | None = None
    bounds: tuple[float, float] | None = None
    levels: int | None = None
    label_mode: str | None = None


@dataclass(frozen=True)
class Description:
    """A whole file. ``template`` is its ``request.json``, None where there is none."""

    url: str = ""
    headers: dict[str, str] = field(default_factory=dict)
    batch: int = 1
    image: ImageForm = field(default_factory=ImageForm)
    request: RequestForm = field(default_factory=RequestForm)
    answer: AnswerForm = field(default_factory=AnswerForm)
    teacher: TeacherFacts = field(default_factory=TeacherFacts)


@dataclass(frozen=True)
class JsonApi:
    """A description together with what was read apart from it or beside it."""

    description: Description
    template: dict[str, Any] | list[Any] | None
    classes: ClassNames | None

    @property
    def secrets(self) -> list[str]:
        """Names of the environment variables that it needs, those of its URL not among them."""
        return environment_names(*described_texts(self.description, self.template))


def load_adapter(path: str | Path) -> JsonApi:
    """The description in a YAML file. UserError naming the file and everything that is wrong with it."""
    _require_plain_yaml(Path(path))
    mapping, template = _without_template(load_yaml(path))
    description = from_mapping(Description, mapping, prefix=f"{path}: ")
    found = list(problems(description, template))
    if found:
        raise UserError("; ".join(f"{path}: {problem}" for problem in found))
    answer, folder = description.answer, Path(path).parent
    classes = read_class_names(answer.classes, f"{path}: answer.classes", folder) if answer.classes else None
    return JsonApi(description, template, classes)


def _without_template(mapping: dict[str, Any]) -> tuple[dict[str, Any], Any]:
    """The mapping without ``request.json``, and that: data in any form, which no reader of options may interpret."""
    request = mapping.get("request")
    if not isinstance(request, dict):
        return mapping, None
    others = {key: value for key, value in request.items() if key != "json"}
    rest = {key: value for key, value in mapping.items() if key != "request"}
    return (rest | {"request": others} if others else rest), request.get("json")


def _require_plain_yaml(path: Path) -> None:
    """UserError for a file that is too large, too deep, or refers to itself; other faults are found by its reader."""
    try:
        with path.open("rb") as file:
            content = file.read(MOST_BYTES + 1)
    except OSError:
        return
    if len(content) > MOST_BYTES:
        raise UserError(f"{path}: expected at most {MOST_BYTES} bytes")
    depth = 0
    try:
        for event in yaml.parse(content, Loader=yaml.SafeLoader):
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > MOST_DEPTH:
                raise UserError(f"{path}: expected at most {MOST_DEPTH} levels")
            if isinstance(event, yaml.AliasEvent):
                raise UserError(f"{path}: expected no aliases (*{event.anchor})")
    except (yaml.YAMLError, ValueError):
        return
