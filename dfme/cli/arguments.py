"""What a command is asked for: its recipe, its kind of teacher and its method, and so all its options.

Precedence: a flag, then the YAML file, then the default. A recipe's teacher section belongs to the recipe's
kind, its method section to the recipe's method: a flag that names another kind or method sets it aside.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from dfme.cli.flags import Flag, is_on, last_text, split_flags
from dfme.cli.reading import Given, Reading, given_by_file, given_by_flags
from dfme.cli.signature import own_options
from dfme.cli.teacher_side import KINDS, kind_problems
from dfme.config.imports import find_target
from dfme.config.messages import Problem, did_you_mean, unknown_choice
from dfme.config.settings import ExtractConfig, Job, TeacherConfig
from dfme.config.values import Option, build, options_of, validate
from dfme.config.yaml_files import load_yaml
from dfme.errors import UserError
from dfme.methods import METHODS, SECTIONS
from dfme.run.checks import teacher_problems
from dfme.run.job import DEFAULT_RECIPE, locate, plain

T = TypeVar("T")

Recipe = tuple[str, dict[str, Any]]
"""The name of a file of options, as messages say it, and its content."""

RecipeFinder = Callable[[Sequence[Flag]], Path | None]

RECIPE_ONLY = frozenset({field.name for field in dataclasses.fields(ExtractConfig)} | {"method", *SECTIONS})
"""Sections of an extraction's recipe besides its teacher: what other commands with a teacher may skip."""


def default_recipe(flags: Sequence[Flag]) -> Path | None:
    """Without --config: a resumed run's own; the digits', unless a teacher is named; else none."""
    if is_on(flags, "resume"):
        return resumed(flags, "config.yaml", "the run directory", "a run directory")
    names_teacher = any(flag.key in ("teacher.kind", "teacher.checkpoint") for flag in flags)
    return None if names_teacher else DEFAULT_RECIPE


def resumed(flags: Sequence[Flag], file: str, directory: str, expected: str) -> Path:
    """The file of options in the directory that is gone on with, which messages call so."""
    out = last_text(flags, "out")
    if not out:
        raise UserError(f"--resume: expected --out as well: {directory} to go on with")
    if not os.path.isfile(Path(out) / file):
        raise UserError(f"--out: expected {expected} to resume, but {out!r} has no {file}")
    return Path(out) / file


@dataclasses.dataclass(frozen=True)
class CommandInputs:
    """What a command reads: the model of its options, a teacher, a method.

    ``recipe`` finds the file to read where no --config is given; ``ignored`` are sections of such files that
    are other commands' business.
    """

    root: type[Any]
    teacher: bool = False
    method: bool = False
    recipe: RecipeFinder = lambda flags: None
    ignored: frozenset[str] = frozenset()


class Arguments:
    """One command's words, with the options that hold for them.

    Raises:
        UserError: for words that are no flags, a recipe that cannot be read, an unknown kind or method.
    """

    def __init__(self, words: Sequence[str], layout: CommandInputs, recipe: Recipe | None = None) -> None:
        """``recipe``: what stands in the place of a file's, whatever the words name."""
        flags = split_flags(words)
        self._flags = [flag for flag in flags if flag.key != "config"]
        self._file, content = recipe or read_recipe(flags, layout.recipe)
        self._content = {name: value for name, value in content.items() if name not in layout.ignored}
        self._layout = layout
        self.kind = self._choose("teacher", "kind", "torch") if layout.teacher else ""
        self.method = self._choose("method", "name", "dfme") if layout.method else ""
        self._own = self._own_options() if layout.teacher else []
        self.options = {option.key: option for option in self._all_options()}

    def read(self) -> Reading:
        """Every value given, checked by itself; problems are in the reading, not yet raised."""
        given: list[Given] = [
            *given_by_file(self._content, self.options, self._file),
            *given_by_flags(self._flags),
        ]
        chosen = {"teacher": self.kind, "method": self.method}
        owners = {section: f"{section} {name}" for section, name in chosen.items() if name}
        if self.method:
            owners |= dict.fromkeys(SECTIONS, owners["method"])
        return Reading(self.options, given, owners)

    def settings(self, root: type[T], find_problems: Callable[[T], Iterable[Problem]]) -> T:
        """The command's own model, for commands without a teacher; UserError names everything wrong."""
        reading = self.read()
        required = {key: "" for key, option in self.options.items() if option.required}
        config = build(root, required | reading.values)
        reading.report(find_problems(config))
        reading.finish()
        return config

    def teacher(self, reading: Reading) -> tuple[TeacherConfig, dict[str, Any]]:
        """The teacher's common keys and its kind's options; a parameter named like a common key is both."""
        common = _common()
        values = {key: reading.value(key) for key in common if key in reading.values}
        own: dict[str, Any] = {}
        for option in self._own:
            value = reading.value(option.key)
            if option.key in reading.values or (not option.required and _is_plain(value)):
                own[option.name] = value
            if option.key in common and value is not None:
                # As the common key of its name has it; None where it has another meaning there.
                values[option.key] = validate({option.key: common[option.key]}, {option.key: value})[0].get(option.key)
        file = KINDS[self.kind].file if self.kind in KINDS else None
        if file is not None and isinstance(own.get(file.option), str):
            own[file.option] = locate(own[file.option])
        teacher = build(TeacherConfig, {**values, "teacher.kind": self.kind}, "teacher.")
        reading.report(teacher_problems(teacher))
        reading.report(kind_problems(self.kind, own))
        return teacher, own

    def job(self, reading: Reading, config: ExtractConfig) -> Job:
        """The job of these settings with the teacher and the method that are asked for."""
        teacher, options = self.teacher(reading)
        entry = METHODS[self.method]
        method = build(entry.config, reading.values, "method.")
        sections = {name: build(entry.section(name), reading.values, f"{name}.") for name in SECTIONS}
        return Job(config, teacher, options, self.method, method, **sections)

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
        if self.kind in KINDS:
            return options_of(KINDS[self.kind].options, "teacher.")
        if ":" in self.kind:
            return own_options(find_target(self.kind), _common())
        hint = did_you_mean(self.kind, KINDS)
        if os.path.isfile(self.kind):
            hint = "; for a file of weights say --teacher.checkpoint"
        choices = ", ".join(KINDS)
        raise UserError(f"--teacher: expected {choices}, module:Class or module:function, got {self.kind!r}{hint}")

    def _all_options(self) -> list[Option]:
        options = options_of(self._layout.root)
        if self._layout.teacher:
            own = {option.key for option in self._own}
            options += [*(option for key, option in _common().items() if key not in own), *self._own]
        if self._layout.method:
            if self.method not in METHODS:
                raise UserError(f"--method.name: {unknown_choice('method', self.method, METHODS)}")
            options.append(Option("method.name", str, "dfme", f"extraction method: {', '.join(METHODS)}"))
            options += options_of(METHODS[self.method].config, "method.")
            for section in METHODS[self.method].sections:
                options += options_of(METHODS[self.method].section(section), f"{section}.")
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


def _common() -> dict[str, Option]:
    """The keys that all kinds of teacher have, the built-in kinds named."""
    options = {option.key: option for option in options_of(TeacherConfig, "teacher.")}
    kind = options["teacher.kind"]
    return options | {kind.key: dataclasses.replace(kind, help=f"{', '.join(KINDS)}, or {kind.help}")}


def _is_plain(value: Any) -> bool:
    try:
        plain(value, "")
    except UserError:
        return False
    return True
