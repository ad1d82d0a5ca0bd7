"""What things are called: a name stands for one thing, and limits begin with MAX_ or MIN_."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TREES = {
    path.relative_to(ROOT).as_posix(): ast.parse(path.read_text(encoding="utf-8"))
    for room in ("dfme", "teachers")
    for path in sorted((ROOT / room).rglob("*.py"))
}


def assigned(tree: ast.Module) -> dict[str, ast.expr]:
    """The names that a module gives values to, once each."""
    named = [node for node in tree.body if isinstance(node, ast.Assign) and len(node.targets) == 1]
    return {target.id: node.value for node in named if isinstance(target := node.targets[0], ast.Name)}


def test_a_type_has_one_meaning_wherever_it_is_named():
    meanings: dict[str, set[str]] = defaultdict(set)
    for place, tree in TREES.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                meanings[node.name].add(place)
        for name, value in assigned(tree).items():
            if name[0].isupper() and not name.isupper():
                meanings[name].add(ast.unparse(value))
    assert {name: found for name, found in meanings.items() if len(found) > 1} == {}


def test_a_limit_says_so():
    words = ("MOST", "LEAST", "FEWEST", "AT_MOST", "AT_LEAST")
    found = [f"{place}: {name}" for place, tree in TREES.items() for name in assigned(tree)]
    assert [each for each in found if each.partition(": ")[2].startswith(words)] == []
