"""A run, comparison, audit or verification that is resumed from another directory than it was
started in.
"""

import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from dfme.cli.flags import Flag, asks_to_resume, last_text, split_flags
from dfme.config.values import flatten
from dfme.config.yaml_files import load_yaml
from dfme.data import whole_name
from dfme.errors import UserError
from dfme.run.directory import run_start

RECORDS = ("config.yaml", "comparison.yaml", "audit.yaml")

PLACES = frozenset(
    {
        "dataset",
        "pool",
        "proxy",
        "partial_data",
        "root",
        "classes",
        "benign",
        "data",
        "other",
        "checkpoint",
        "model",
        "program",
        "folder",
        "adapter",
        "weights",
        "path",
        "ca_file",
        "references",
        "twin",
        "log",
        "pair",
        "shared_answers",
    }
)
"""Last parts of keys that name files or folders."""

SUSPECT = "teacher.checkpoint"
"""The option that a word before all flags sets, where a command that resumes takes one."""

MODULES = frozenset({"kind", "name", "arch", "generator", "defences", "watch"})
"""Last parts of keys whose values may begin with the name of a module."""


@contextlib.contextmanager
def where_it_began(words: Sequence[str]) -> Iterator[list[str]]:
    """The words of a command, in the directory where what they resume was started.

    Relative paths on record begin there. It is entered only if one of them leads somewhere from
    there, and none of them from here alone. Paths among the words begin here: they come back
    absolute.
    """
    start = _start_of(words)
    if start is None:
        yield list(words)
        return
    leading, rest = _leading(words)
    # a suspect's file, or the directory of a run
    placed = [os.path.abspath(word) if os.path.exists(word) else word for word in leading]
    for flag in map(_absolute, split_flags(rest)):
        placed.append(f"--{flag.name}" if flag.text is None else f"--{flag.name}={flag.text}")
    with contextlib.chdir(start):
        yield placed


def _leading(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """The words before the first flag, and the others; the command says which it takes."""
    count = next((at for at, word in enumerate(words) if word.startswith("-")), len(words))
    return list(words[:count]), list(words[count:])


def _start_of(words: Sequence[str]) -> Path | None:
    """The directory to resume in, if it is another one than this."""
    if not any(word.startswith("--resume") for word in words):
        return None
    leading, rest = _leading(words)
    flags = split_flags(rest)
    out = last_text(flags, "out")
    if not out or not asks_to_resume(flags):
        return None
    record = next((Path(out) / name for name in RECORDS if os.path.isfile(Path(out) / name)), None)
    start = None if record is None else run_start(record)
    if record is None or start is None or not start.is_dir() or start == Path.cwd():
        return None
    try:
        content = load_yaml(record)
    except UserError:
        return None  # the command itself says what is wrong with it
    typed = {flag.key for flag in flags}
    if leading:
        typed.add(SUSPECT)
    paths = [
        path
        for key, value in flatten(content, ())
        if not any(key == other or key.endswith(f".{other}") for other in typed)
        for path in _relative_paths(key.rpartition(".")[2], value)
    ]
    there = [os.path.exists(start / path) for path in paths]
    only_here = [os.path.exists(path) and not at for path, at in zip(paths, there, strict=True)]
    return start if any(there) and not any(only_here) else None


def _relative_paths(name: str, value: object) -> Iterator[str]:
    """Paths that the value of a key may name, relative to where the run was started."""
    for text in value if isinstance(value, list) else [value]:
        if not isinstance(text, str) or not text or os.path.isabs(text) or "\0" in text:
            continue
        if name in PLACES:
            yield whole_name(text)
        module, colon, _ = text.partition(":")
        if name in MODULES and colon:
            yield f"{module.replace('.', '/')}.py"


def _absolute(flag: Flag) -> Flag:
    """The flag, with a path that begins at its root."""
    name = flag.key.rpartition(".")[2]
    if flag.text is None or not (name in PLACES or flag.key in ("out", "config")):
        return flag
    if flag.key in ("out", "config"):
        return flag._replace(text=os.path.abspath(flag.text))
    parts = [
        os.path.abspath(part) if os.path.exists(whole_name(part)) else part
        for part in flag.text.split(",")
    ]
    return flag._replace(text=",".join(parts))
