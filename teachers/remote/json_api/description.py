"""The description of an HTTP API with JSON answers, as a YAML file has it.

The file's keys (examples in configs/adapters; ``${NAME}`` in texts, a URL's host excepted, is the environment variable
NAME, if ``--teacher.allow-env`` or ``--teacher.api-key-env`` has it)::

    url: https://host/path          # where images are posted; --teacher.url goes first
    headers: {Name: value}          # besides those of the body, of --teacher.api-key-env and of HTTP itself
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

from dataclasses import field
from typing import Literal

from pydantic.dataclasses import dataclass

from dfme.config.fields import CONFIG, Count


@dataclass(frozen=True, config=CONFIG)
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


@dataclass(frozen=True, config=CONFIG)
class RequestForm:
    """Where an image goes; ``json`` is any document, taken as it is."""

    json: object = None
    bytes: str | None = None
    multipart: str | None = None
    filename: str = "image.png"
    fields: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, config=CONFIG)
class AnswerForm:
    """Where the scores are in an answer, and what they are."""

    path: str = ""
    form: Literal["scores", "mapping", "pairs", "name", "number"] = "scores"
    label: str = "label"
    score: str = "score"
    classes: tuple[str, ...] | str | None = None
    values: Literal["probabilities", "logits"] | None = None
    error: str = "error"


@dataclass(frozen=True, config=CONFIG)
class TeacherSection:
    """What a service does not say of itself."""

    shape: tuple[int, int, int] | None = None
    num_classes: int | None = None
    bounds: tuple[float, float] | None = None
    levels: int | None = None
    label_mode: str | None = None


@dataclass(frozen=True, config=CONFIG)
class Description:
    """A whole file."""

    url: str = ""
    headers: dict[str, str] = field(default_factory=dict)
    batch: Count = 1
    image: ImageForm = field(default_factory=ImageForm)
    request: RequestForm = field(default_factory=RequestForm)
    answer: AnswerForm = field(default_factory=AnswerForm)
    teacher: TeacherSection = field(default_factory=TeacherSection)
