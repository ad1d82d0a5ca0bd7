"""Recipes: YAML files of options, read safely and written so that any reader takes them the same
way.

Safely: no tag makes an object, no long file is read, no alias (which may stand for more than memory
holds).
"""

import hashlib
import re
from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Any

import yaml

from dfme.errors import Ref, UserError, say

MAX_BYTES = (
    200_000  # of the longest file; ours have a few thousand, and reading takes seconds per million
)

RELEASE = "0.16"
"""The release whose runs and comparisons are resumed; it changes when one of their files changes
its form.
"""

SEAL = f"# dfme {RELEASE}, sha256 of the lines above: "
"""Begins the last line, a comment, of a file of options that a run or a comparison wrote for
itself.
"""

ANY_SEAL = re.compile(r"^# (?:dfme (\S+), )?sha256 of the lines above: ", re.MULTILINE)
"""The same line of any release; before 0.13 it did not name the release."""


class _Loader(yaml.SafeLoader):
    """Safe YAML with the scalars of its version 1.2: ``off`` and ``no`` are text, ``1e-3`` is a
    number.
    """

    # PyYAML's own hook
    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            alias: Any = self.get_event()  # type: ignore[no-untyped-call]
            raise yaml.MarkedYAMLError(
                problem=f"expected no alias such as *{alias.anchor}; write the value out",
                problem_mark=alias.start_mark,
            )
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[str] = set()
        for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
            if key.value in seen:
                raise yaml.MarkedYAMLError(
                    problem=f"key {key.value!r} stands there twice", problem_mark=key.start_mark
                )
            seen.add(key.value)
        return super().construct_mapping(node, deep)


class _Dumper(yaml.SafeDumper):
    """Quotes whatever a reader of YAML 1.1 or 1.2 would take for something else than text."""


_SCALARS: dict[str, tuple[str, str]] = {
    "null": (r"~|null|Null|NULL|", "~nN\0"),
    "bool": (r"true|True|TRUE|false|False|FALSE", "tTfF"),
    "int": (r"[-+]?(0|[1-9][0-9_]*)", "-+0123456789"),
    "float": (
        r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
        "-+.0123456789",
    ),
    "merge": (r"<<", "<"),
}
for _name, (_pattern, _first) in _SCALARS.items():
    for _reader in (_Loader, _Dumper):
        _starts = ["" if letter == "\0" else letter for letter in _first]
        _reader.add_implicit_resolver(
            f"tag:yaml.org,2002:{_name}", re.compile(rf"({_pattern})\Z"), _starts
        )


def dump_yaml(paper: Mapping[str, Any]) -> str:
    """A document as YAML text, keys in their order."""
    return yaml.dump(dict(paper), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=110)


def parse_yaml(text: str) -> Any:
    """The value of a text in our YAML."""
    return yaml.load(text, Loader=_Loader)  # noqa: S506 (a subclass of SafeLoader)


def sealed(text: str) -> str:
    """The text of a file with the last line that shows whether it was changed since."""
    return f"{text}{SEAL}{hashlib.sha256(text.encode()).hexdigest()}\n"


def load_yaml(path: str | Path, own: bool = False) -> dict[str, Any]:
    """The mapping in a YAML file; an empty file is an empty mapping.

    ``own``: the file is the record of a run or a comparison: it must be as this release wrote it.
    UserError if it cannot be read, is no YAML, holds no mapping, was changed, or is of another
    release.
    """
    expected = f"{path}: expected a YAML file of options"
    try:
        with Path(path).open("rb") as file:
            content = file.read(MAX_BYTES + 1)
        if len(content) > MAX_BYTES:
            raise UserError(f"{expected}, got more than {MAX_BYTES:,} bytes")
        text = content.decode()
        if own:
            _require_as_written(text, path)
        loaded = parse_yaml(text)
    except FileNotFoundError:
        raise UserError(f"{path}: no such file; expected a YAML file of options") from None
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise UserError(f"{expected}, but cannot read it: {reason}") from error
    except yaml.YAMLError as error:
        raise UserError(f"{path}: expected YAML: {_place(error)}") from error
    except RecursionError:
        raise UserError(f"{expected}, got one nested too deeply") from None
    except (ValueError, LookupError, AttributeError) as error:  # which PyYAML lets pass
        raise UserError(
            f"{expected}, but a value does not fit its tag: {str(error)[:200]}"
        ) from error
    if loaded is None:
        return {}
    if not isinstance(loaded, dict):
        raise UserError(
            f"{path}: expected options such as 'budget: 300k', got a {type(loaded).__name__}"
        )
    return {str(name): value for name, value in loaded.items()}


def _place(error: yaml.YAMLError) -> str:
    """Line and kind of an error of the YAML parser."""
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        return f"line {error.problem_mark.line + 1}: {error.problem or error.context}"
    return " ".join(str(error).split())


def is_record(path: str | Path) -> bool:
    """True if a file ends in the last line that a run or comparison wrote, edited or not."""
    return ANY_SEAL.search(Path(path).read_text(encoding="utf-8", errors="replace")) is not None


def _require_as_written(text: str, path: str | Path) -> None:
    """Raise UserError unless the text ends in the line of ``sealed``."""
    if text == sealed(text.rpartition(SEAL)[0]):
        return
    seal = ANY_SEAL.search(text)
    why = (
        "the file as the run wrote it, but it was changed since; restore it and give changes as "
        "flags"
    )
    if seal and seal[1] != RELEASE:
        release = seal[1] or "before 0.13"
        why = f"a file of dfme {RELEASE}, got one of dfme {release}; go on with that release"
    raise UserError(
        say("expected {}, or start a new run with {}", why, Ref("config", path)), about=str(path)
    )
