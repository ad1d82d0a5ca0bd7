"""What a command asks for: its recipe, its kind of teacher and its method, and so all its options.

Precedence: a flag, then the YAML file, then the default. A recipe's teacher section belongs to the recipe's
kind, its method section to the recipe's method: a flag that names another kind or method sets it aside.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from dfme.cli.flags import Flag, asks_for_help, last_text, split_flags
from dfme.cli.reading import Given, Reading, given_by_file, given_by_flags
from dfme.cli.signature import own_options
from dfme.config.imports import find_target
from dfme.config.messages import did_you_mean, unknown_choice
from dfme.config.options import Option, build, convert, dataclass_options
from dfme.config.ranges import Problem
from dfme.config.settings import TeacherConfig
from dfme.config.teacher_files import BUILT_IN_FILES
from dfme.config.yaml_files import load_yaml
from dfme.errors import UserError
from dfme.methods import METHODS, SECTIONS
from dfme.run.job import locate, plain

T = TypeVar("T")

Kinds = Mapping[str, type[Any]]
"""Built-in kinds of teacher: the dataclass of each one's options."""

Recipe = tuple[str, dict[str, Any]]
"""The name of a file of options, as messages say it, and its content."""

RecipeFinder = Callable[[Sequence[Flag]], Path | None]


def no_recipe(flags: Sequence[Flag]) -> Path | None:
    """For commands whose defaults are enough."""
    return None


def _no_problems(config: object) -> Iterable[Problem]:
    return ()


@dataclasses.dataclass(frozen=True)
class CommandInputs:
    """What a command reads: the dataclass of its options, a teacher, a method.

    ``recipe`` finds the file to read where no --config is given; ``ignored`` are sections of such files that
    are other commands' business.
    """

    root: type[Any]
    teacher: bool = False
    method: bool = False
    recipe: RecipeFinder = no_recipe
    ignored: frozenset[str] = frozenset()


class CommandLine:
    """One command's words, with the options that hold for them.

    Raises:
        UserError: for words that are no flags, a recipe that cannot be read, an unknown kind or method.
    """

    def __init__(self, argv: Sequence[str], layout: CommandInputs, kinds: Kinds, recipe: Recipe | None = None) -> None:
        """``recipe``: what stands in the place of a file's, whatever the words name."""
        self.wants_help = asks_for_help(argv)
        words = [word for word in argv if word not in ("-h", "--help")]
        flags = split_flags(words)
        self._flags = [flag for flag in flags if flag.key != "config"]
        self._file, content = recipe or read_recipe(flags, layout.recipe)
        self._content = {name: value for name, value in content.items() if name not in layout.ignored}
        self._layout, self._kinds = layout, kinds
        self.kind = self._choose("teacher", "kind", "torch") if layout.teacher else ""
        self.method = self._choose("method", "name", "dfme") if layout.method else ""
        self._own = self._own_options() if layout.teacher else []
        self.options = self._all_options()

    def read(self) -> Reading:
        """Every value given, converted; problems are in the reading, not yet raised."""
        known = {option.key for option in self.options}
        given: list[Given] = [
            *given_by_file(self._content, known, self._file),
            *given_by_flags(self._flags),
        ]
        chosen = {"teacher": self.kind, "method": self.method}
        owners = {section: f"{section} {name}" for section, name in chosen.items() if name}
        if self.method:
            owners |= dict.fromkeys(SECTIONS, owners["method"])
        return Reading(self.options, given, owners)

    def settings(self, root: type[T], find_problems: Callable[[T], Iterable[Problem]] = _no_problems) -> T:
        """The command's own dataclass, for commands without a teacher; UserError names everything wrong."""
        reading = self.read()
        config = build(root, reading.values)
        reading.report(find_problems(config))
        reading.finish()
        return config

    def teacher(self, reading: Reading) -> tuple[TeacherConfig, dict[str, Any]]:
        """The teacher's common keys and its kind's options; a parameter named like a common key is both."""
        common = {option.key: option for option in dataclass_options(TeacherConfig, "teacher.")}
        values = {key: reading.value(key) for key in common if key in reading.values}
        own: dict[str, Any] = {}
        for option in self._own:
            value = reading.value(option.key)
            if option.key in reading.values or (not option.required and _is_plain(value)):
                own[option.name] = value
            if option.key in common and value is not None:
                values[option.key] = _as_common(common[option.key], value)
        place = BUILT_IN_FILES.get(self.kind)
        if place is not None and isinstance(own.get(place.option), str):
            own[place.option] = locate(own[place.option])
        return build(TeacherConfig, {**values, "teacher.kind": self.kind}, "teacher."), own

    def _choose(self, section: str, name: str, default: str) -> str:
        """The kind or method that is asked for; a recipe's section about another one is set aside."""
        if isinstance(self._content.get(section), str):  # `method: static` is short for its name
            self._content[section] = {name: self._content[section]}
        written = self._content.get(section) or {}
        by_recipe = str(written.get(name, default)) if isinstance(written, Mapping) else default
        by_flag = last_text(self._flags, f"{section}.{name}")
        if by_flag is not None and by_flag != by_recipe:
            self._content.pop(section, None)
            if section == "method":
                self._set_aside(by_flag)
        return by_flag or by_recipe

    def _set_aside(self, method: str) -> None:
        """Forget the recipe's sections that were chosen for its own method: how gradients are estimated, above all."""
        heeded = METHODS[method].sections if method in METHODS else ()
        for section in SECTIONS:
            if section == "estimator" or section not in heeded:
                self._content.pop(section, None)

    def _own_options(self) -> list[Option]:
        if self.kind in self._kinds:
            return dataclass_options(self._kinds[self.kind], "teacher.")
        if ":" in self.kind:
            common = {option.key: option for option in dataclass_options(TeacherConfig, "teacher.")}
            return own_options(find_target(self.kind), common)
        hint = did_you_mean(self.kind, self._kinds)
        if os.path.isfile(self.kind):
            hint = "; for a file of weights say --teacher.checkpoint"
        choices = ", ".join(self._kinds)
        raise UserError(f"--teacher: expected {choices}, module:Class or module:function, got {self.kind!r}{hint}")

    def _all_options(self) -> list[Option]:
        options = dataclass_options(self._layout.root)
        if self._layout.teacher:
            own = {option.key for option in self._own}
            common = [each for each in dataclass_options(TeacherConfig, "teacher.") if each.key not in own]
            options += [*common, *self._own]
        if self._layout.method:
            if self.method not in METHODS:
                raise UserError(f"--method.name: {unknown_choice('method', self.method, METHODS)}")
            options.append(Option("method.name", str, "dfme", f"extraction method: {', '.join(METHODS)}"))
            options += dataclass_options(METHODS[self.method].config, "method.")
            for section in METHODS[self.method].sections:
                options += dataclass_options(METHODS[self.method].section(section), f"{section}.")
        return options


def read_recipe(flags: Sequence[Flag], find: RecipeFinder) -> Recipe:
    """The file of options that --config names, else the one that is found, else nothing."""
    named = [flag.text for flag in flags if flag.key == "config"]
    if len(named) > 1:
        raise UserError(f"--config: expected one file, got {len(named)}")
    if named:
        if not named[0]:
            raise UserError("--config: expected a YAML file of options")
        return named[0], load_yaml(locate(named[0]))
    found = find(flags)
    if found is None:
        return "", {}
    here = Path.cwd()
    return str(found.relative_to(here) if found.is_relative_to(here) else found), load_yaml(found)


def _is_plain(value: Any) -> bool:
    try:
        plain(value, "")
    except UserError:
        return False
    return True


def _as_common(option: Option, value: Any) -> Any:
    """A parameter's value as the common key of its name has it; None where it has another meaning there."""
    try:
        return convert(option, value)
    except ValueError:
        return None
