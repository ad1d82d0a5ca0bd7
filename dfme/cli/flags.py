"""The words after the command, split into flags, and the file of options that they name or mean."""

import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from dfme.config.yaml_files import load_yaml
from dfme.errors import UserError
from dfme.run.directory import images_from_run_start, is_run
from dfme.run.job import DEFAULT_RECIPE, comes_with_dfme, locate
from dfme.run.recipes import OF_ITS_TEACHER, merged, tidy

ALIASES = {
    "teacher": "teacher.kind",
    "method": "method.name",
    "price_per_1000": "teacher.price_per_1000",
}
"""A flag by a short name, and the option it stands for: of a group without a leaf, its first."""

HELP = ("-h", "--help", "--help-all")

_VALUE = re.compile(r"(?!-)|-$|-[.\d]")
"""What a word begins with that can be a flag's value; ``--flag=--value`` can have any."""


class Flag(NamedTuple):
    """One flag as typed: ``--budget 2M`` is ("budget", "2M"), ``--resume`` alone is ("resume",
    None).
    """

    name: str
    text: str | None

    @property
    def key(self) -> str:
        """The option it sets: dashes and underscores are the same."""
        key = self.name.replace("-", "_")
        return ALIASES.get(key, key)


def split_flags(words: Sequence[str]) -> list[Flag]:
    """Flags in the order of the words, without those for help; UserError for any other word."""
    flags: list[Flag] = []
    left = [word for word in words if word not in HELP]
    while left:
        word = left.pop(0)
        if not word.startswith("--") or len(word) == 2:
            raise UserError(f"expected a flag such as --budget 300k, got {word!r}")
        name, equals, text = word[2:].partition("=")
        value: str | None = text
        if not equals:
            value = left.pop(0) if left and _VALUE.match(left[0]) else None
        flags.append(Flag(name, value))
    return flags


def last_text(flags: Sequence[Flag], key: str) -> str | None:
    """The text of the last flag that sets this key, or None."""
    return next((flag.text for flag in reversed(flags) if flag.key == key), None)


Recipe = tuple[
    str, dict[str, Any]
]  # the name of a file of options, as messages say it, and its content

RecipeFinder = Callable[[Sequence[Flag]], Path | None]


def default_recipe(flags: Sequence[Flag]) -> Path | None:
    """Without --config: a resumed run's own; the digits', unless a teacher is named; else none."""
    if asks_to_resume(flags):
        return resumed(flags, "config.yaml", "a run directory")
    return None if names_teacher(flags) else DEFAULT_RECIPE


def names_teacher(flags: Sequence[Flag]) -> bool:
    return any(flag.key in ("teacher.kind", "teacher.checkpoint") for flag in flags)


def asks_to_resume(flags: Sequence[Flag]) -> bool:
    """True if --resume is given and not as false; as auto, whether --out holds a run."""
    given = {flag.text for flag in flags if flag.key == "resume"}
    return bool(given & {None, "true", "True", "yes"}) or (
        "auto" in given and is_run(last_text(flags, "out") or "")
    )


def resumed(flags: Sequence[Flag], file: str, directory: str) -> Path:
    """The file of options in the directory that is gone on with, which messages call so."""
    out = last_text(flags, "out")
    if not out:
        raise UserError(f"--resume: expected --out as well: {directory} to go on with")
    if not os.path.isfile(Path(out) / file):
        raise UserError(f"--out: expected {directory} to resume, but {out!r} has no {file}")
    return Path(out) / file


def read_recipe(flags: Sequence[Flag], find: RecipeFinder) -> Recipe:
    """The file of options that --config names, else the one that is found, else nothing.

    Where neither a flag nor the named file has a teacher, it has that of our file that would be
    found.
    """
    named = [flag.text for flag in flags if flag.key == "config"]
    if len(named) > 1:
        raise UserError(f"--config: expected one file, got {len(named)}")
    if named:
        if not named[0]:
            raise UserError("--config: expected a YAML file of options")
        content = load_yaml(locate(named[0]))
        has_teacher = names_teacher(flags) or any(
            key.partition(".")[0] == "teacher" for key in content
        )
        usual = None if has_teacher or asks_to_resume(flags) else find(flags)
        if usual and comes_with_dfme(usual):
            of_teacher = {
                key: value for key, value in load_yaml(usual).items() if key in OF_ITS_TEACHER
            }
            content = merged(of_teacher, tidy(content))
        return named[0], content
    found = find(flags)
    if found is None:
        return "", {}
    shown = found.relative_to(Path.cwd()) if found.is_relative_to(Path.cwd()) else found
    own = comes_with_dfme(found) is None
    content = load_yaml(found, own=own)
    return str(shown), images_from_run_start(found, content) if own else content
