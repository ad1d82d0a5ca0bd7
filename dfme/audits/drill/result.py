"""What drill.json and channel.json hold, the sentence of a drill, and its exit code."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError, with_config

from dfme.audits.drill.channel import MAX_SHOWN, ChannelKind
from dfme.config.messages import printable
from dfme.errors import RunError
from dfme.files import write_text
from dfme.report.run_files import read_object

RESULT = "drill.json"
CHANNEL = "channel.json"
FORM = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, populate_by_name=True)
MIN_SAME = 0.98
"""The share of recorded images to which a service must name the recorded model's class, lest it be
said to be another model; heuristic."""
NEVER_RANG = 4
"""The exit code of a drill in which nobody rang, or too late."""


ShareOrNone = Annotated[float, Field(ge=0, le=1)] | None
MAX_COUNT = 10**12
"""Of images in a file: more is no drill's."""
ImageCount = Annotated[int, Field(ge=0, le=MAX_COUNT)]
CountOrNone = ImageCount | None
MAX_SENTENCE = 2_000
Sentence = Annotated[str, Field(max_length=MAX_SENTENCE)]


@with_config(FORM)
@dataclass(frozen=True, slots=True, kw_only=True)
class DrillResult:
    """The outcome of a drill, whole or so far (``finished``).

    ``images``: those asked when the first alarm was seen, its upper bound; ``agreement``: of the
    copy by then, ``agreement_end``: of the last one, ``constant``: of one constant answer.
    ``refused_at``: images asked when the service refused this client for good. ``alarm``: the line,
    printable. ``recorded``: the directory whose queries were sent again.
    """

    schema: Literal["dfme.drill/1"] = "dfme.drill/1"
    rang: bool
    images: CountOrNone
    agreement: ShareOrNone
    agreement_end: ShareOrNone
    constant: ShareOrNone
    images_in_all: ImageCount
    refused_at: CountOrNone
    attack: Sentence
    teacher: Sentence
    channel: ChannelKind
    alarm: Annotated[str, Field(max_length=MAX_SHOWN)] | None
    recorded: Annotated[Sentence | None, Field(alias="from")]
    finished: bool
    made: Sentence
    text: Sentence


@with_config(FORM)
@dataclass(frozen=True, kw_only=True)
class Listening:
    """How a drill listens. ``path``: of the channel; ``match``: the text of a line that counts;
    ``account``: the tag of the account that counts; ``wait``: seconds for alarms after the last
    image; ``within``: images in which it must ring; ``recorded``: a directory whose queries are
    sent.
    """

    channel: ChannelKind
    path: str
    match: str | None = None
    account: str | None = None
    wait: float = 10.0
    within: int | None = None
    stop_at_alarm: bool = False
    recorded: str | None = None


@with_config(FORM)
@dataclass(frozen=True, kw_only=True)
class ChannelRecord(Listening):
    """The same for a session that goes on with it, with where the channel stood before the attack's
    first image, the alarms that came ``early``, and whether this client ``rang_before`` the drill.
    """

    schema: Literal["dfme.drill.channel/1"] = "dfme.drill.channel/1"
    device: int
    inode: int
    size: int
    early: int = 0
    rang_before: bool = False


@dataclass(frozen=True, kw_only=True)
class Remarks:
    """What the sentence says besides the result: see ``Listener``, ``Drill`` on ``same``, and
    ``CopyCurve`` on ``soon``.
    """

    evaluation: int = 0
    image: int | None = None
    detector: str = ""
    of_all: bool = False
    early: int = 0
    others: tuple[str, ...] = ()
    of_others: int = 0
    unreadable: int = 0
    missing: str = ""
    within: int | None = None
    same: float | None = None
    rang_before: bool = False
    soon: tuple[int, float] | None = None


PartForm = TypeVar("PartForm", DrillResult, ChannelRecord)


def _adapter(form: Any) -> TypeAdapter[Any]:
    return TypeAdapter(form)


def write(folder: Path, part: DrillResult | ChannelRecord) -> None:
    """Write a part into the drill's directory. RunError for the disk's errors."""
    name = RESULT if isinstance(part, DrillResult) else CHANNEL
    content = _adapter(type(part)).dump_python(part, mode="json", by_alias=True)
    write_text(folder / name, json.dumps(content, indent=1, allow_nan=False) + "\n")


def read(folder: Path, form: type[PartForm]) -> PartForm | None:
    """A part of a drill's directory; None where there is none. RunError for another content."""
    path = folder / (RESULT if form is DrillResult else CHANNEL)
    content = read_object(path)
    if not content:
        return None
    try:
        part: PartForm = _adapter(form).validate_json(json.dumps(content))
    except ValidationError as error:
        fault = first_fault(error)
        raise RunError(f"{path}: expected what a drill wrote, got {fault:.200}") from None
    return part


def first_fault(error: ValidationError) -> str:
    """The first thing in a file that does not fit its form, with its place, printable."""
    fault = error.errors(include_url=False)[0]
    place = ".".join(map(str, fault["loc"])) or "the whole"
    return printable(f"{place}: {fault['msg']}")


def exit_code(result: DrillResult, within: int | None) -> int:
    """0 for an alarm in time, else ``NEVER_RANG``."""
    in_time = result.images is not None and (within is None or result.images <= within)
    return 0 if result.rang and in_time else NEVER_RANG


def sentence(result: DrillResult, remarks: Remarks) -> str:
    """The outcome in words."""
    text = _rang(result, remarks) if result.rang else _silent(result)
    if result.rang and remarks.within is not None and (result.images or 0) > remarks.within:
        text += f"; too late: after more than the {remarks.within:,} images of --within"
    if result.rang and remarks.detector:
        text += f"; the alarm is of {remarks.detector}{_place(remarks)}"
    if result.refused_at is not None:
        text += f"; the service refused us after {result.refused_at:,} images"
    if remarks.same is not None and remarks.same < MIN_SAME:
        text += (
            f"; to {1 - remarks.same:.1%} of the images the service named another class than the "
            "recorded model, so the recorded agreement says little of it"
        )
    if remarks.early:
        text += (
            f"; {_alarms(remarks.early)} came before the attack's first image, and did not count"
        )
    if remarks.of_others:
        names = ", ".join(remarks.others)
        text += (
            f"; {_alarms(remarks.of_others)} of another account ({names:.200}) did not count: if "
            "that is this client, give --account"
        )
    if remarks.unreadable:
        lines = "line" if remarks.unreadable == 1 else "lines"
        text += f"; {remarks.unreadable:,} {lines} of the channel could not be read as an alarm"
    if remarks.rang_before and not result.rang:
        text += (
            "; it had rung before this drill, and a detector that stays above its threshold does "
            "not ring again: take a new key, or start the service anew"
        )
    if remarks.missing:
        text += f"; {remarks.missing}"
    return text


def _place(remarks: Remarks) -> str:
    """Which image of its account an alarm names, or of all accounts together."""
    if remarks.of_all:
        place = "" if remarks.image is None else f", at their image {remarks.image:,}"
        return f" over the traffic of all accounts{place}: others may have caused it"
    if remarks.image is None:
        return ""
    before = (
        f", after this drill's {remarks.evaluation:,} for evaluation" if remarks.evaluation else ""
    )
    return f" at image {remarks.image:,} of its account{before}"


def _rang(result: DrillResult, remarks: Remarks) -> str:
    text = f"rang after {result.images:,} images"
    if result.agreement is not None:
        copy = "recorded copy" if result.recorded else "copy"
        text += f", when the {copy} agreed on {result.agreement:.1%}"
        if remarks.soon:
            text += ", and on {1:.1%} once it had learned from {0:,}".format(*remarks.soon)
        others = _constant(result)
        if result.agreement_end is not None:
            others.append(f"in the end {result.agreement_end:.1%}")
        text += f" ({'; '.join(others)})" if others else ""
    return text


def _silent(result: DrillResult) -> str:
    text = f"never rang in {result.images_in_all:,} images"
    if result.agreement_end is not None:
        verb = "the recorded copy agreed on" if result.recorded else "the copy agrees on"
        others = _constant(result)
        text += f"; {verb} {result.agreement_end:.1%}"
        text += f" ({others[0]})" if others else ""
    return text


def _constant(result: DrillResult) -> list[str]:
    return [] if result.constant is None else [f"one constant answer: {result.constant:.1%}"]


def _alarms(count: int) -> str:
    return "1 alarm" if count == 1 else f"{count:,} alarms"
