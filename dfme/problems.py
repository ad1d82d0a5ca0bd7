"""What is wrong with the options of a user, apart from how an option is spelled.

Whoever speaks to the user spells the options: as flags of the command line, as keywords of
``dfme.extract``, or as the keys of a YAML file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from string import Formatter


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
    coming = iter(values)
    for text, key, detail, conversion in Formatter().parse(template):
        pieces.append(text)
        if key:
            pieces.append(Ref(key, detail or None))
        elif key is not None:
            value = next(coming, None)
            if isinstance(value, Message | Ref):
                pieces += pieces_of(value)
            else:
                pieces.append(format(repr(value) if conversion == "r" else value, detail or ""))
    assert next(coming, coming) is coming, f"{template}: more values than places"
    return Message(tuple(filter(None, pieces)))


def pieces_of(text: Text | Ref) -> tuple[str | Ref, ...]:
    """The pieces that a text consists of."""
    return text.pieces if isinstance(text, Message) else (text,)


def joined(texts: Iterable[Text], between: str) -> Message:
    """One message of several."""
    pieces: list[str | Ref] = []
    for text in texts:
        pieces += (between, *pieces_of(text))
    return Message(tuple(pieces[1:]))


def flag(key: str, value: object = None) -> str:
    """An option as one types it, for text that only the command line shows."""
    return as_flag(Ref(key, value))


def as_flag(option: Ref) -> str:
    """The option as one types it."""
    return f"--{option.key.replace('_', '-')} {option.value_text}".rstrip()


def as_yaml_key(option: Ref) -> str:
    """The option as it stands in a file."""
    return f"{option.key} {option.value_text}".rstrip()
