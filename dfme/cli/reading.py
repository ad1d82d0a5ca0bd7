"""Values from flags and files: each converted by its option, and everything that is wrong with them named."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from dfme.cli.flags import Flag
from dfme.config.messages import nearest
from dfme.config.options import Option, convert, flatten, is_switch
from dfme.config.ranges import Problem
from dfme.errors import UserError

MOST_SHOWN = 8
"""Problems named in one message; a file of other options than the command's has one per line."""


MOVED = {f"method.{name}": f"estimator.{name}" for name in ("directions", "step", "form", "direction", "space")}
"""Options of 0.1.0 under their names of today."""


class Given(NamedTuple):
    """One value as it was given. ``label`` says where: ``--student.lr``, or ``recipe.yaml: student.lr``."""

    key: str
    value: Any
    label: str
    is_flag: bool


def given_by_flags(flags: Sequence[Flag]) -> list[Given]:
    """The flags' values; None for a flag alone."""
    return [Given(flag.key, flag.text, f"--{flag.name}", True) for flag in flags]


def given_by_file(content: Mapping[str, Any], known: Iterable[str], file: str) -> list[Given]:
    """The values of a file's keys."""
    return [Given(key, value, f"{file}: {key}", False) for key, value in flatten(content, known)]


class Reading:
    """Converted values by dotted key, and what is wrong. What is given later beats what was given before."""

    def __init__(
        self, options: Iterable[Option], given: Iterable[Given], owners: Mapping[str, str] | None = None
    ) -> None:
        """``owners`` names what the options of a section belong to: ``{"method": "method static"}``."""
        self.options = {option.key: option for option in options}
        self._owners = owners or {}
        self.values: dict[str, Any] = {}
        self._labels: dict[str, str] = {}
        self._problems: list[str] = []
        self._faulty: set[str] = set()
        given = list(given)
        for each in given:
            if each.key not in self.options:
                self._unknown(each)
        for key, each in {each.key: each for each in given if each.key in self.options}.items():
            self._labels[key] = each.label
            self._read(self.options[key], each)
        for key, option in self.options.items():
            if option.required and key not in self._labels:
                self.report([Problem(key, f"missing; expected {option.help or 'a value'}")])

    def value(self, key: str) -> Any:
        """The value given for the key, or its default; None if it must be given and was not."""
        option = self.options[key]
        return self.values.get(key, None if option.required else option.default)

    def report(self, problems: Iterable[Problem]) -> None:
        """Add problems; one about a value that is already known to be wrong is left out."""
        for problem in problems:
            if problem.key not in self._faulty:
                self._faulty.add(problem.key)
                self._problems.append(f"{self._label(problem.key)}: {problem.text}")

    def finish(self) -> None:
        """Raise one UserError that names everything wrong, if anything is; of a great many, the first."""
        if self._problems:
            shown, more = self._problems[:MOST_SHOWN], len(self._problems) - MOST_SHOWN
            raise UserError("; ".join(shown) + (f"; and {more} more like these" if more > 0 else ""))

    def _read(self, option: Option, given: Given) -> None:
        value = given.value
        if given.is_flag and value is None:
            if not is_switch(option):
                self.report([Problem(option.key, f"expected a value: {option.help or option.name}")])
                return
            value = "true"
        try:
            self.values[option.key] = convert(option, value)
        except ValueError as error:
            self.report([Problem(option.key, str(error))])

    def _unknown(self, given: Given) -> None:
        group = [key for key in self.options if key.startswith(given.key + ".")]
        if group:
            shown = ", ".join(_spelled(key, given.is_flag) for key in group[:3])
            self._problems.append(f"{given.label}: a group of options; expected one of its own such as {shown}")
            return
        if given.key in MOVED:
            new = _spelled(MOVED[given.key], given.is_flag)
            self._problems.append(f"{given.label}: has moved; say {new}")
            return
        owner = self._owners.get(given.key.partition(".")[0])
        what = ("flag" if given.is_flag else "key") + (f" of {owner}" if owner else "")
        close = nearest(given.key, self.options)
        hint = f"; did you mean {_spelled(close, given.is_flag)}?" if close else "; --help lists all"
        self._problems.append(f"{given.label}: unknown {what}{hint}")

    def _label(self, key: str) -> str:
        return self._labels.get(key) or _spelled(key, flag=True)


def _spelled(key: str, flag: bool) -> str:
    return "--" + key.replace("_", "-") if flag else key
