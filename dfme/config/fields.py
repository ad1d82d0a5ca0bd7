"""Options: types with their ranges, the mark of important ones, and what is gone. No torch."""

from collections.abc import Callable
from decimal import Decimal, InvalidOperation
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field

from dfme.errors import Text, UserError, say
from dfme.spec import LabelMode

T = TypeVar("T")

CONFIG = ConfigDict(
    extra="forbid",
    allow_inf_nan=False,
    coerce_numbers_to_str=True,
    arbitrary_types_allowed=True,
    defer_build=True,  # most models of a process are only read for their options
)
"""Of every model. The text below a field is its help."""

BASIC = "basic"
Basic = Annotated[T, BASIC]
"""An option that ``--help`` shows; ``--help-all`` shows the others too."""


class Expected(NamedTuple):
    """Words for what was expected, where the type and its range do not say it well."""

    words: str


_UNITS = {"": 1, "k": 10**3, "m": 10**6}


def accepted_by(check: Callable[[Any], object], whole: bool = False) -> AfterValidator:
    """The value as it came, if ``check`` raises no UserError at it.

    ``whole``: the message keeps what it is about, since the option's name does not say that.
    """

    def validate(value: Any) -> Any:
        try:
            check(value)
        except UserError as error:
            raise ValueError(error.message if whole else error.text) from None
        return value

    return AfterValidator(validate)


def parse_count(value: int | str) -> int:
    """A number of images: 300000, 300_000, 300k, 2M, 1e6, 1.5M. ValueError for anything else."""
    text = str(value).strip().replace("_", "")
    unit = text[-1:].lower() if text[-1:].lower() in _UNITS else ""
    try:
        count = Decimal(text[: len(text) - len(unit)]) * _UNITS[unit]
        if count.is_finite() and abs(count) < 2**63 and count == count.to_integral_value():
            return int(count)
    except InvalidOperation:
        pass
    raise ValueError(f"expected a number of images such as 300000, 300k or 2M, got {value!r}")


Count = Annotated[int, Field(ge=1)]
Natural = Annotated[int, Field(ge=0)]
Images = Annotated[int, BeforeValidator(parse_count), Field(ge=1)]
Seed = Annotated[int, Field(ge=0, lt=2**63), Expected("a whole number from 0 to below 2^63")]
Classes = Annotated[int, Field(ge=2), Expected("at least 2 (a binary model with one output has 2)")]
Positive = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]
Price = Annotated[float, Field(ge=0, le=1e9)]
OwnTeacher = Literal["api", "local"]
Rate = Annotated[float, Field(ge=0.001)]
Share = Annotated[float, Field(ge=0, le=1)]
ShareBelowOne = Annotated[float, Field(ge=0, lt=1)]
ShareAboveZero = Annotated[float, Field(gt=0, le=1)]
Device = Annotated[
    str, Field(pattern=r"^(auto|cpu|cuda(:\d+)?)$"), Expected("auto, cpu, cuda or cuda:N")
]
LabelModeText = Annotated[str, accepted_by(LabelMode.parse)]


GONE: dict[str, Text] = {
    "estimator.prior": "leave it out: there is no kind prior_guided any more (docs/gradients.md)",
    "graphs": "leave it out: there are no CUDA graphs any more (docs/gpu.md has their figures)",
    "student.final_share": say(
        "no longer an option: {student.rounds:1} takes all {student.steps} once the budget is spent"
    ),
}
"""Options that no longer exist, by dotted key, and what to write instead."""


def no_auto(instead: str) -> BeforeValidator:
    """The value as it came; ``auto``, which it could be once, is refused with what to write."""

    def validate(value: Any) -> Any:
        if value == "auto":
            raise ValueError(
                f"expected {instead}, no longer auto: blocks `when` of a recipe say what holds for "
                "larger images or labels (configs/README.md)"
            )
        return value

    return BeforeValidator(validate)
