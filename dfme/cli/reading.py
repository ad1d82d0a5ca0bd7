"""Values from a file and flags: each checked by its option, and everything that is wrong with them named."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from dfme.cli.flags import Flag
from dfme.config.messages import Problem, nearest
from dfme.config.values import Option, flatten, validate
from dfme.errors import UserError

MAX_SHOWN = 8
"""Problems named in one message; a file of other options than the command's has one per line."""

REMOVED: dict[str, Any] = {
    "student.distil_share": 0.0,
    "student.replay_order": "uniform",
    "student.replay_precision": "float32",
    "queries.generators": 1,
    "queries.ceiling": 1.0,
    "estimator.control": "auto",
}
"""Options of 0.4.0 that are gone, and the values at which a file may still have them: they changed nothing."""


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
    pairs = flatten(content, known)
    return [Given(key, value, f"{file}: {key}", False) for key, value in pairs if REMOVED.get(key, pairs) != value]


class Reading:
    """Checked values by dotted key, and what is wrong. What is given later beats what was given before."""

    def __init__(
        self, options: Mapping[str, Option], given: Iterable[Given], owners: Mapping[str, str] | None = None
    ) -> None:
        """``owners`` names what the options of a section belong to: ``{"method": "method static"}``."""
        self.options, self._owners = options, owners or {}
        self._given = {each.key: each for each in given}
        self._problems: list[str] = []
        self._faulty: set[str] = set()
        values: dict[str, Any] = {}
        for key, each in self._given.items():
            option = options.get(key)
            if each.is_flag and each.value is None and option and not option.is_switch:
                self.report([Problem(key, f"expected a value: {option.help or option.name}")])
            else:
                values[key] = "true" if each.is_flag and each.value is None else each.value
        self.values, problems = validate(options, values, self._unknown)
        self.report(problems)

    def value(self, key: str) -> Any:
        """The value given for the key, or its default; None if it must be given and was not."""
        option = self.options[key]
        return self.values.get(key, None if option.required else option.default)

    def report(self, problems: Iterable[Problem]) -> None:
        """Add problems; one about a value that is already known to be wrong is left out."""
        for problem in problems:
            if problem.key not in self._faulty:
                self._faulty.add(problem.key)
                given = self._given.get(problem.key)
                self._problems.append(f"{given.label if given else spelled_flag(problem.key)}: {problem.text}")

    def finish(self) -> None:
        """Raise one UserError that names everything wrong, if anything is; of a great many, the first."""
        if self._problems:
            shown, more = self._problems[:MAX_SHOWN], len(self._problems) - MAX_SHOWN
            raise UserError("; ".join(shown) + (f"; and {more} more like these" if more > 0 else ""))

    def _unknown(self, key: str) -> str:
        is_flag = self._given[key].is_flag
        spelled = spelled_flag if is_flag else str
        group = [known for known in self.options if known.startswith(key + ".")]
        if group:
            return f"a group of options; expected one of its own such as {', '.join(map(spelled, group[:3]))}"
        if key in REMOVED:
            return "this option was removed; leave it out"
        owner = self._owners.get(key.partition(".")[0])
        close = nearest(key, self.options)
        hint = f"did you mean {spelled(close)}?" if close else "--help-all lists all"
        return f"unknown {'flag' if is_flag else 'key'}{f' of {owner}' if owner else ''}; {hint}"


def spelled_flag(key: str) -> str:
    """An option as one types it."""
    return "--" + key.replace("_", "-")
