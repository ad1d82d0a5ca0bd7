"""The files of dfme/ and teachers/, each read and parsed once in a session."""

import ast
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LINKED = ROOT / "dfme" / "teachers"
"""The folder ``teachers`` once more."""


def files(*rooms: str) -> list[Path]:
    """The Python files of these folders."""
    return [
        path
        for room in rooms
        for path in sorted((ROOT / room).rglob("*.py"))
        if not path.is_relative_to(LINKED)
    ]


SOURCES = files("dfme", "teachers")


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@cache
def text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8")


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(text_of(path))


@cache
def nodes_of(path: Path) -> tuple[ast.AST, ...]:
    """All nodes of the file's syntax tree."""
    return tuple(ast.walk(tree_of(path)))
