"""Layers of options, such as a recipe, a file and flags: what they come to, and who says each.

Of several layers that set an option the last one wins. No torch.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from typing import Any, TypeVar

from dfme.config.messages import MAX_LETTERS, members, nearest, shortened
from dfme.config.values import GONE, Option, build, flatten
from dfme.errors import (
    Message,
    Problem,
    Ref,
    UserError,
    as_flag,
    as_yaml_key,
    flag,
    joined,
    say,
)

T = TypeVar("T")

ROOM = MAX_LETTERS - 40  # letters of the problems of one message, beside its first and last words
BARE = True
"""The value of a flag without one: true, where the option is a switch."""


class Author(Enum):
    """Whose words the values of a layer are."""

    DEFAULT = auto()  # the command's own, in place of a field's default
    RECIPE = auto()  # the recipe below what the user says
    SHIPPED = auto()  # a file that comes with dfme
    RECORD = auto()  # a file that a run, a comparison or an audit wrote for itself
    FILE = auto()  # the user's own file
    ENVIRONMENT = auto()  # variables
    KEYWORD = auto()  # arguments of a Python function
    FLAG = auto()  # the command line


UNASKED = (Author.DEFAULT, Author.RECIPE, Author.ENVIRONMENT)
"""Authors who may set options that a command does not have."""


@dataclass(frozen=True)
class Layer:
    """Options by section or by dotted key; ``file`` and ``names`` say how messages name them."""

    author: Author
    content: Mapping[str, Any]
    file: str = ""
    names: Mapping[str, str] = field(default_factory=dict)

    def name_of(self, key: str) -> str:
        """An option of this layer, as its author wrote it."""
        return f"{self.file}: {key}" if self.file else self.names.get(key, flag(key))

    def without(self, *sections: str) -> "Layer":
        """The layer less these sections or top-level options."""
        content = {
            key: value
            for key, value in self.content.items()
            if not any(within(key, section) for section in sections)
        }
        return replace(self, content=content)

    def value(self, key: str) -> Any:
        """The value of an option; None if the layer does not set it."""
        return dict(flatten(self.content, (key,))).get(key)


def within(key: str, section: str) -> bool:
    """True if a dotted key is this section or one of its options."""
    return key == section or key.startswith(f"{section}.")


def value_of(layers: Sequence[Layer], key: str) -> Any:
    """The value of an option in the last layer that sets it, or None."""
    values = [value for layer in layers if (value := layer.value(key)) is not None]
    return values[-1] if values else None


def choose(
    layers: Sequence[Layer],
    key: str,
    default: str,
    chosen_with: Callable[[str], Iterable[str]] = lambda choice: (),
) -> tuple[str, list[Layer]]:
    """The method or kind of teacher that the layers choose by ``key``, and the layers fit for it.

    The section of another choice in a lower layer is set aside, and with it those sections that
    ``chosen_with`` names. A section in short form, ``method: static``, is written out.
    """
    section, _, name = key.partition(".")
    choice = default
    fit: list[Layer] = []
    for layer in layers:
        short = layer.content.get(section)
        if isinstance(short, str):
            layer = replace(layer, content={**layer.content, section: {name: short}})
        named = layer.value(key)
        if named not in (None, BARE, choice):
            choice = str(named)
            set_aside = (section, *(chosen_with(choice) if fit else ()))
            fit = [
                below if below.author is Author.DEFAULT else below.without(*set_aside)
                for below in fit
            ]
        fit.append(layer)
    return choice, fit


class Settings:
    """What layers say of options, the last one that sets an option winning: ``values`` as they were
    written, and ``origins``, the layer of each.

    Problems are collected, and named as the author of the value wrote the option. ``kinds``: what
    the options of a section depend on, such as `` of method static``.
    """

    def __init__(
        self,
        layers: Sequence[Layer],
        options: Iterable[Option],
        kinds: Mapping[str, str] | None = None,
    ) -> None:
        self.options = {option.key: option for option in options}
        self.values: dict[str, Any] = {}
        self.origins: dict[str, Layer] = {}
        self._kinds = kinds or {}
        self._problems: dict[str, Problem] = {}
        for layer in layers:
            for key, value in flatten(layer.content, self.options):
                if key in self.options or layer.author not in UNASKED:
                    self.values[key] = value
                    self.origins[key] = layer
        for key in [*self.values]:
            if key in self.options:
                self._require_value(self.options[key])
        self.report(self._unknown(key) for key in self.values if key not in self.options)

    def build(self, model: type[T], prefix: str = "") -> T:
        """The checked model of a section's values; what is wrong with them is reported."""
        built, problems = build(model, self.values, prefix)
        self.report(problems)
        return built

    def author(self, key: str) -> Author:
        """Who sets this option; DEFAULT if nobody does."""
        return self.origins[key].author if key in self.origins else Author.DEFAULT

    def gives(self, key: str) -> bool:
        """True if a flag, a keyword or any file sets this option, and not just what lies below."""
        return self.author(key) not in UNASKED

    def says(self, key: str) -> bool:
        """True if the user asks for this option, so that one without effect is a mistake.

        A file may hold what flags of the same section make idle, and how to track if tracking is
        off.
        """
        section = key.partition(".")[0]
        author = self.author(key)
        if author is Author.FILE:
            changed = any(
                within(other, section) and layer.author is Author.FLAG
                for other, layer in self.origins.items()
            )
            return section != "wandb" and not changed
        return author is Author.FLAG or (author is Author.KEYWORD and section != "wandb")

    def report(self, problems: Iterable[Problem]) -> None:
        """Add problems; one about a value that is already known to be wrong is left out."""
        for problem in problems:
            self._problems.setdefault(problem.key, problem)

    def finish(self, problems: Iterable[Problem] = ()) -> None:
        """Raise one UserError that names everything wrong, if anything is; of many, the first."""
        by_key = dict(self._problems)
        for problem in problems:
            by_key.setdefault(problem.key, problem)
        if not by_key:
            return
        message, *others = map(self._named, by_key.values())
        for number, other in enumerate(others):
            if len(str(message)) + len(str(other)) + 2 > ROOM:
                message += f"; and {len(others) - number} more like these"
                break
            message = joined((message, other), "; ")
        raise UserError(message, problems=by_key.values())

    def _named(self, problem: Problem) -> Message:
        """The problem, with options as the author of the value writes them.

        Those of keywords are spelled by whoever shows the message.
        """
        layer = self.origins.get(problem.key)
        if layer is None or layer.author is Author.KEYWORD:
            return say("{}: {}", Ref(problem.key), problem.text)
        text = problem.text.spelled(as_yaml_key if layer.file else as_flag)
        return Message((shortened(f"{layer.name_of(problem.key)}: {text}", ROOM),))

    def _require_value(self, option: Option) -> None:
        """Report a flag without a value, unless it is a switch."""
        key = option.key
        if self.author(key) is Author.FLAG and self.values[key] is BARE:
            if bool in members(option.type):
                return
            del self.values[key]
            self.report([Problem(key, f"expected a value: {option.help or option.name}")])

    def _unknown(self, key: str) -> Problem:
        if key in GONE:
            return Problem(key, GONE[key])
        group = [Ref(option) for option in self.options if option.startswith(f"{key}.")]
        if group:
            text = "a group of options; expected one of its own such as "
            return Problem(key, text + joined(group[:3], ", "))
        what = {Author.FLAG: "flag", Author.KEYWORD: "option"}.get(self.origins[key].author, "key")
        unknown = f"unknown {what}{self._kinds.get(key.partition('.')[0], '')}"
        close = nearest(key, self.options)
        if close is None:
            return Problem(key, f"{unknown}; {flag('help_all')} lists all")
        return Problem(key, unknown, near=Ref(close))
