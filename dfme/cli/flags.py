"""The words after the command: flags, the file of options that they name or mean, and where what is
resumed began.
"""

import contextlib
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from dfme.config.layers import BARE, Author, Layer
from dfme.config.values import flatten
from dfme.config.yaml_files import is_record, load_yaml
from dfme.data import whole_name
from dfme.errors import UserError
from dfme.run.directory import images_from_run_start, is_run, run_start
from dfme.run.job import DEFAULT_RECIPE, comes_with_dfme, locate
from dfme.run.recipes import OF_ITS_TEACHER, merged, tidy

ALIASES = {
    "teacher": "teacher.kind",
    "method": "method.name",
    "price_per_1000": "teacher.price_per_1000",
    "from": "from_",
}
"""A flag by a short name, and the option it stands for: of a group without a leaf, its first."""


def tell(line: str) -> None:
    """Say it beside the output."""
    print(line, file=sys.stderr, flush=True)


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
    rest = [word for word in words if word not in HELP]
    while rest:
        word = rest.pop(0)
        if not word.startswith("--") or len(word) == 2:
            raise UserError(f"expected a flag such as --budget 300k, got {word!r}")
        name, equals, text = word[2:].partition("=")
        value: str | None = text
        if not equals:
            value = rest.pop(0) if rest and _VALUE.match(rest[0]) else None
        flags.append(Flag(name, value))
    return flags


def last_text(flags: Sequence[Flag], key: str) -> str | None:
    """The text of the last flag that sets this key, or None."""
    return next((flag.text for flag in reversed(flags) if flag.key == key), None)


def typed(flags: Iterable[Flag]) -> Layer:
    """The layer of the flags but --config; of several for one option the last."""
    content = {}
    names = {}
    for flag in flags:
        if flag.key != "config":
            content[flag.key] = BARE if flag.text is None else flag.text
            names[flag.key] = f"--{flag.name}"
    return Layer(Author.FLAG, content, names=names)


FileFinder = Callable[[Sequence[Flag]], Path | None]
"""Finds the file of options that a command reads where no --config is given."""


def default_recipe(flags: Sequence[Flag]) -> Path | None:
    """Without --config: a resumed run's own; the digits', unless a teacher is named; else none."""
    if asks_to_resume(flags):
        return resumed(flags, "config.yaml", "a run directory")
    return None if names_teacher(flags) else DEFAULT_RECIPE


def names_teacher(flags: Sequence[Flag]) -> bool:
    return any(flag.key in ("teacher.kind", "teacher.checkpoint") for flag in flags)


def asks_to_resume(flags: Sequence[Flag]) -> bool:
    """True if --resume is given and not as false; as auto, whether --out holds a run."""
    texts = {flag.text for flag in flags if flag.key == "resume"}
    return bool(texts & {None, "true", "True", "yes"}) or (
        "auto" in texts and is_run(last_text(flags, "out") or "")
    )


def resumed(flags: Sequence[Flag], file: str, directory: str) -> Path:
    """The file of options in the directory that is resumed, which messages call ``directory``."""
    out = last_text(flags, "out")
    if not out:
        raise UserError(f"--resume: expected --out as well: {directory} to go on with")
    if not os.path.isfile(Path(out) / file):
        raise UserError(f"--out: expected {directory} to resume, but {out!r} has no {file}")
    return Path(out) / file


def read_file(flags: Sequence[Flag], find: FileFinder) -> Layer:
    """The file of options that --config names, else the one that is found, else an empty layer."""
    named = [flag.text for flag in flags if flag.key == "config"]
    if len(named) > 1:
        raise UserError(f"--config: expected one file, got {len(named)}")
    if named and not named[0]:
        raise UserError("--config: expected a YAML file of options")
    if named and named[0]:
        return _named_file(named[0], flags, find)
    path = find(flags)
    if path is None:
        return Layer(Author.FILE, {})
    shown = str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)
    if comes_with_dfme(path) is not None:
        return Layer(Author.SHIPPED, tidy(load_yaml(path)), shown)
    return Layer(Author.RECORD, tidy(images_from_run_start(path, load_yaml(path, own=True))), shown)


def _named_file(name: str, flags: Sequence[Flag], find: FileFinder) -> Layer:
    """The file of --config; where neither it nor a flag names a teacher, that of our own file."""
    path = locate(name)
    content = tidy(load_yaml(path))
    if not (names_teacher(flags) or asks_to_resume(flags) or "teacher" in content):
        usual = find(flags)
        if usual and comes_with_dfme(usual):
            ours = load_yaml(usual)
            of_teacher = {key: ours[key] for key in OF_ITS_TEACHER if key in ours}
            content = merged(of_teacher, content, name)
    if comes_with_dfme(Path(path)) is not None:
        return Layer(Author.SHIPPED, content, name)
    return Layer(Author.RECORD if is_record(path) else Author.FILE, content, name)


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
        "from_",
        "alarm_file",
        "webhook_log",
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
