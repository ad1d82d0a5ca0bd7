"""The description of an HTTP API with JSON answers, as a YAML file has it (docs/adapters.md). No
torch.
"""

from dataclasses import field
from typing import Any, Literal

from pydantic.dataclasses import dataclass

from dfme.config.values import CONFIG, Count


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
