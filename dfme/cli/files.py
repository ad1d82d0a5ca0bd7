"""The file of options that a command reads: the one that --config names, a run's own, or the digits'."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from dfme.cli.flags import Flag, last_text
from dfme.config.yaml_files import load_yaml
from dfme.errors import UserError
from dfme.run.directory import is_run
from dfme.run.job import DEFAULT_RECIPE, comes_with_dfme, locate
from dfme.run.recipes import OF_ITS_TEACHER, merged, tidy

Recipe = tuple[str, dict[str, Any]]
"""The name of a file of options, as messages say it, and its content."""

RecipeFinder = Callable[[Sequence[Flag]], Path | None]


def default_recipe(flags: Sequence[Flag]) -> Path | None:
    """Without --config: a resumed run's own; the digits', unless a teacher is named; else none."""
    if asks_to_resume(flags):
        return resumed(flags, "config.yaml", "the run directory", "a run directory")
    return None if names_teacher(flags) else DEFAULT_RECIPE


def names_teacher(flags: Sequence[Flag]) -> bool:
    """Whether a flag names the teacher."""
    return any(flag.key in ("teacher.kind", "teacher.checkpoint") for flag in flags)


def asks_to_resume(flags: Sequence[Flag]) -> bool:
    """Whether --resume is given and not as false; as auto, whether --out holds a run."""
    given = [flag.text for flag in flags if flag.key == "resume"]
    return any(text in (None, "true", "True", "yes") for text in given) or (
        "auto" in given and is_run(last_text(flags, "out") or "")
    )


def resumed(flags: Sequence[Flag], file: str, directory: str, expected: str) -> Path:
    """The file of options in the directory that is gone on with, which messages call so."""
    out = last_text(flags, "out")
    if not out:
        raise UserError(f"--resume: expected --out as well: {directory} to go on with")
    if not os.path.isfile(Path(out) / file):
        raise UserError(f"--out: expected {expected} to resume, but {out!r} has no {file}")
    return Path(out) / file


def read_recipe(flags: Sequence[Flag], find: RecipeFinder) -> Recipe:
    """The file of options that --config names, else the one that is found, else nothing.

    Where neither a flag nor the named file has a teacher, it has that of our file that would be found.
    """
    named = [flag.text for flag in flags if flag.key == "config"]
    if len(named) > 1:
        raise UserError(f"--config: expected one file, got {len(named)}")
    if named:
        if not named[0]:
            raise UserError("--config: expected a YAML file of options")
        content = load_yaml(locate(named[0]))
        has_teacher = names_teacher(flags) or any(key.partition(".")[0] == "teacher" for key in content)
        usual = None if has_teacher or asks_to_resume(flags) else find(flags)
        if usual and comes_with_dfme(usual):
            of_teacher = {key: value for key, value in load_yaml(usual).items() if key in OF_ITS_TEACHER}
            content = merged(of_teacher, tidy(content))
        return named[0], content
    found = find(flags)
    if found is None:
        return "", {}
    shown = found.relative_to(Path.cwd()) if found.is_relative_to(Path.cwd()) else found
    return str(shown), load_yaml(found, own=True)
