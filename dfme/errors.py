"""The errors a person may meet. Each message is one line: what was expected, what came, what to
do.

A message names options apart from how they are spelled (``Ref``). Whoever speaks to the user spells
them: as flags of the command line, as keywords of ``dfme.extract``, or as the keys of a YAML file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from string import Formatter
from typing import Any


@dataclass(frozen=True)
class Ref:
    """An option that a message names: its dotted key, and the value it has or should have."""

    key: str
    value: object = None

    @property
    def value_text(self) -> str:
        """The value as one writes it on the command line and in a file."""
        if self.value is None:
            return ""
        if isinstance(self.value, bool):
            return str(self.value).lower()
        return f"{self.value:g}" if isinstance(self.value, float) else str(self.value)

    def __str__(self) -> str:
        return as_flag(self)


Speech = Callable[[Ref], str]


@dataclass(frozen=True)
class Message:
    """Text in which options are named. As a ``str`` it names them by their flags."""

    pieces: tuple[str | Ref, ...] = ()

    def __add__(self, other: Text) -> Message:
        return Message((*self.pieces, *pieces_of(other)))

    def __radd__(self, other: str) -> Message:
        return Message((other, *self.pieces))

    def __str__(self) -> str:
        return self.spelled(as_flag)

    def spelled(self, speech: Speech) -> str:
        """The text with every option as ``speech`` spells it."""
        return "".join(piece if isinstance(piece, str) else speech(piece) for piece in self.pieces)


Text = str | Message


@dataclass(frozen=True)
class Problem:
    """What is wrong with the option of this dotted key.

    ``expected`` is a sentence (``expected at least 1``); ``got`` the value that came instead, and
    ``near`` the name that was probably meant.
    """

    key: str
    expected: Text
    got: str | None = None
    near: Text | Ref | None = None

    @property
    def text(self) -> Message:
        """The sentence, without the option that it is about."""
        came = "" if self.got is None else f", got {self.got}"
        meant = "" if self.near is None else say("; did you mean {}?", self.near)
        return say("{}{}{}", self.expected, came, meant)


def say(template: str, *values: object) -> Message:
    """The template with the values at its ``{}``; ``{student.lr}`` or ``{student.lr:0.1}`` names an
    option.

    A value that is a message or a reference itself stays one. ValueError for another template.
    """
    pieces: list[str | Ref] = []
    waiting = list(values)
    for text, key, detail, conversion in Formatter().parse(template):
        pieces.append(text)
        if key:
            pieces.append(Ref(key, detail or None))
        elif key is not None:
            value = waiting.pop(0)
            if isinstance(value, Message | Ref):
                pieces += pieces_of(value)
            else:
                pieces.append(format(repr(value) if conversion == "r" else value, detail or ""))
    assert not waiting, f"{template}: more values than places"
    return Message(tuple(filter(None, pieces)))


def pieces_of(text: Text | Ref) -> tuple[str | Ref, ...]:
    """The pieces that a text consists of."""
    return text.pieces if isinstance(text, Message) else (text,)


def joined(texts: Iterable[Text | Ref], between: str) -> Message:
    """One message of several."""
    pieces: list[str | Ref] = []
    for text in texts:
        pieces += (between, *pieces_of(text))
    return Message(tuple(pieces[1:]))


def flag(key: str, value: object = None) -> str:
    """An option as one types it, for text that only the command line shows."""
    return as_flag(Ref(key, value))


def as_flag(option: Ref) -> str:
    """The option as one types it; a word of Python's own has a _ at its end as a key."""
    return f"--{option.key.rstrip('_').replace('_', '-')} {option.value_text}".rstrip()


def as_yaml_key(option: Ref) -> str:
    """The option as it stands in a file."""
    return f"{option.key.rstrip('_')} {option.value_text}".rstrip()


class DfmeError(Exception):
    """Base of every error the command line prints as one line instead of a traceback."""

    exit_code = 1

    @property
    def message(self) -> Message:
        """What is wrong; the options in it are spelled by whoever shows it."""
        text = self.args[0] if self.args else ""
        return text if isinstance(text, Message) else Message((str(self),))


class UserError(DfmeError):
    """Something in the command, the configuration or the files given cannot work; nothing was
    queried.

    ``problems``: the options that are wrong, where it is options (given where a text spells them
    already). ``about``: what ``text`` is said of, and the message begins with.
    """

    exit_code = 2

    def __init__(
        self, *parts: Text | Problem, about: Text | Ref = "", problems: Iterable[Problem] = ()
    ) -> None:
        self.problems = (*problems, *(part for part in parts if isinstance(part, Problem)))
        sentences = [
            say("{}: {}", Ref(part.key), part.text) if isinstance(part, Problem) else part
            for part in parts
        ]
        self.about = about
        self.text = joined(sentences, "; ")
        super().__init__(say("{}: {}", about, self.text) if about else self.text)


class OptionError(UserError):
    """One option is wrong: see ``Problem``."""

    def __init__(
        self, key: str, expected: Text, got: str | None = None, near: Text | Ref | None = None
    ) -> None:
        super().__init__(Problem(key, expected, got, near))

    def __reduce__(self) -> tuple[Any, ...]:
        problem = self.problems[0]
        parts = (problem.key, problem.expected, problem.got, problem.near)
        return OptionError, parts, self.__dict__


class ShapeUnknown(UserError):  # noqa: N818 (what is not known, not a fault)
    """A teacher's file does not say which images it takes."""


class RunError(UserError):
    """A file of a run is damaged, missing or does not fit the others; nothing more was queried."""


class ServiceError(DfmeError):
    """A request came to nothing.

    ``reason``: a few words for the ledger, such as ``429`` or ``connection refused``; never a
    secret.
    """

    exit_code = 3

    def __init__(self, message: Text, reason: str = "unusable answer") -> None:
        super().__init__(message)
        self.reason = reason


class TeacherError(ServiceError):
    """The teacher failed for good or answered what its specification rules out; everything paid is
    kept.
    """


class Unserved(TeacherError):  # noqa: N818 (an outcome, not a fault of the program)
    """The service answers, but hardly ever with one of the classes: to resume would end alike."""


class BudgetExhausted(DfmeError):  # noqa: N818 (the name of the contract)
    """A batch would have exceeded the query budget; it was refused before it was sent."""

    exit_code = 3


class SeamError(ValueError, DfmeError):
    """An upstream gradient does not fit the generator output it was handed to."""


class Refused(ServiceError):  # noqa: N818 (an outcome, not a fault of the program)
    """The service says, or it is plain, that it did not serve a request: nothing is owed for it.

    ``retry``: whether asking again can help. ``retry_after``: seconds that the service asks to
    wait. ``body``: the start of what the service said, which may repeat secrets and is never shown.
    A teacher of one's own may raise it too.
    """

    body: bytes = b""

    def __init__(
        self, message: Text, reason: str, retry: bool = True, retry_after: float | None = None
    ) -> None:
        super().__init__(message, reason)
        self.retry = retry
        self.retry_after = retry_after


class BatchTooLarge(Refused):
    """A request was refused for its number of images; ``limit`` is the most the service takes, if
    it says.
    """

    def __init__(self, message: Text, limit: int | None = None) -> None:
        super().__init__(message, "batch too large", retry=False)
        self.limit = limit


class Unanswered(ServiceError):  # noqa: N818 (an outcome, too)
    """A request that may have been served has no answer: it stays paid for, and asking again costs
    again.

    A teacher of one's own may raise it too.
    """


class Unusable(Unanswered):
    """An impossible answer: garbage, another shape, NaN, too long. Asked again a few times."""


class Misfit(Unusable):
    """A whole answer came in another form than is read: the same question would get the same again.

    It is not asked again before the service has once answered as is read; ``for_good``: nor
    afterwards.
    """

    def __init__(self, message: Text, reason: str, for_good: bool = False) -> None:
        super().__init__(message, reason)
        self.for_good = for_good


class Misread(Misfit):
    """A whole answer shows that those before it were read wrongly: nothing can go on with them."""
