"""How much stands on a line of code, and the forms that code is not written in."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from sources import SOURCES, name, nodes_of, text_of, tree_of

MAX_COLUMNS = 100
MAX_NODES = 7.0
"""Nodes of the syntax tree a line of code, over all files."""
MAX_NODES_OF_FILE = 10.0
MAX_NODES_OF_FORMULAS = 12.0
PROGRAMS = ("drawing", "textures", "silhouettes", "things")
FORMULAS = (*(f"dfme/queries/{name}.py" for name in PROGRAMS), "dfme/data/", "dfme/estimators/")
MIN_LINES = 30
"""Lines of code from which on a file is looked at by itself."""


# Density


@dataclass(frozen=True)
class Density:
    """Nodes of a syntax tree, and the lines of code that they stand on."""

    nodes: int
    lines: int

    def __add__(self, other: Density) -> Density:
        return Density(self.nodes + other.nodes, self.lines + other.lines)

    @property
    def per_line(self) -> float:
        return self.nodes / max(self.lines, 1)


def documentation(tree: ast.Module) -> set[int]:
    """The lines of texts that stand by themselves: docstrings, and what is said below a name."""
    numbers: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and is_text(node.value):
            numbers.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return numbers


def density(text: str, tree: ast.Module) -> Density:
    """Whether a name is read or written is no node, and neither blank lines, comments nor
    docstrings are lines of code.
    """
    silent = documentation(tree)
    lines = 0
    for number, line in enumerate(text.splitlines(), start=1):
        code = line.strip()
        if code and not code.startswith("#") and number not in silent:
            lines += 1
    return Density(sum(not isinstance(node, ast.expr_context) for node in ast.walk(tree)), lines)


def limit(path: Path) -> float:
    return MAX_NODES_OF_FORMULAS if name(path).startswith(FORMULAS) else MAX_NODES_OF_FILE


# Refused forms


def is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def is_true_or_false(node: ast.AST) -> bool:
    """Whether a value is a bool, as far as its form tells."""
    if isinstance(node, ast.Call):
        function = ast.unparse(node.func).rpartition(".")[2]
        return function in ("bool", "any", "all", "startswith") or function.startswith("is")
    negated = isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not)
    return negated or isinstance(node, ast.Compare | ast.BoolOp)


def unpacks_a_dict(node: ast.AST) -> bool:
    """``{**{"a": x}}``: its keys stand in the outer one."""
    if not isinstance(node, ast.Dict):
        return False
    inner = [value for key, value in zip(node.keys, node.values, strict=True) if key is None]
    return any(
        isinstance(value, ast.Dict | ast.DictComp)
        or (isinstance(value, ast.Call) and getattr(value.func, "attr", "") == "fromkeys")
        for value in inner
    )


def unpacks_a_list(node: ast.AST) -> bool:
    """``[*("a", "b")]``: its elements stand in the outer one."""
    return isinstance(node, ast.List | ast.Tuple | ast.Set) and any(
        isinstance(element, ast.Starred) and isinstance(element.value, ast.List | ast.Tuple)
        for element in node.elts
    )


def multiplies_by_a_bool(node: ast.AST) -> bool:
    """``[x] * (n > 1)`` and ``" in bf16" * fast``: an ``if`` says so.

    Of a name only a sentence times it is taken for a bool: a list or a letter may be repeated.
    """
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Mult):
        return False
    for repeated, times in ((node.left, node.right), (node.right, node.left)):
        sentence = isinstance(repeated, ast.JoinedStr)
        if isinstance(repeated, ast.Constant) and isinstance(repeated.value, str):
            sentence = len(repeated.value) > 1
        repeatable = sentence or is_text(repeated) or isinstance(repeated, ast.List)
        if repeatable and is_true_or_false(times):
            return True
        if sentence and isinstance(times, ast.Name | ast.Attribute):
            return True
    return False


def nests_conditions(node: ast.AST) -> bool:
    """``a if b else c if d else e``: if and elif, or a function."""
    return isinstance(node, ast.IfExp) and any(
        isinstance(part, ast.IfExp) for part in ast.walk(node) if part is not node
    )


def names_a_lambda(node: ast.AST) -> bool:
    """``f = lambda x: x``: a def. What is declared with a type, as an option is, may have one as
    its default; ruff finds those within functions.
    """
    return isinstance(node, ast.Assign) and isinstance(node.value, ast.Lambda)


def loops_twice(node: ast.AST) -> bool:
    """``[f(x) for xs in all for x in xs]``: a loop, or a generator function."""
    if isinstance(node, ast.DictComp):
        return len(node.generators) > 1
    if not isinstance(node, ast.ListComp | ast.SetComp | ast.GeneratorExp):
        return False
    return len(node.generators) > 1 and not isinstance(node.elt, ast.Name)


def merges_a_literal(node: ast.AST) -> bool:
    """``d |= {"a": x}``: one literal, or ``d["a"] = x``."""
    merges = isinstance(node, ast.AugAssign) and isinstance(node.op, ast.BitOr)
    return merges and isinstance(node.value, ast.Dict)


FORMS: dict[str, Callable[[ast.AST], bool]] = {
    "a dict unpacked into a dict": unpacks_a_dict,
    "a list unpacked into a list": unpacks_a_list,
    "a list or a text times a bool": multiplies_by_a_bool,
    "a conditional expression within another": nests_conditions,
    "a lambda with a name": names_a_lambda,
    "a comprehension with two loops": loops_twice,
    "a literal merged into a dict": merges_a_literal,
}


def refused(nodes: Iterable[ast.AST]) -> Iterator[tuple[int, str]]:
    """The line and the form of everything that is refused."""
    for node in nodes:
        for form, is_one in FORMS.items():
            if is_one(node):
                yield getattr(node, "lineno", 0), form


# The tree


def test_a_line_of_code_holds_seven_nodes_on_average_and_ten_in_any_file() -> None:
    whole = Density(0, 0)
    dense: dict[str, float] = {}
    for path in SOURCES:
        own = density(text_of(path), tree_of(path))
        whole += own
        if own.lines > MIN_LINES and own.per_line > limit(path):
            dense[name(path)] = round(own.per_line, 1)
    assert dense == {}
    assert whole.lines > 10_000
    assert whole.per_line <= MAX_NODES


def test_a_line_has_at_most_a_hundred_columns() -> None:
    wide: list[str] = []
    for path in SOURCES:
        for number, line in enumerate(text_of(path).splitlines(), start=1):
            if len(line) > MAX_COLUMNS:
                wide.append(f"{name(path)}:{number}")
    assert wide == []


def test_no_refused_form_is_there() -> None:
    present: list[str] = []
    for path in SOURCES:
        present += [
            f"{name(path)}:{line}: {form}" for line, form in sorted(refused(nodes_of(path)))
        ]
    assert present == [], "write these otherwise"


# The checks


@pytest.mark.parametrize(
    ("form", "code"),
    [
        ("a dict unpacked into a dict", '{**{"a": 1}, "b": 2}'),
        ("a dict unpacked into a dict", '{"b": 2, **{name: 1 for name in names}}'),
        ("a dict unpacked into a dict", '{**dict.fromkeys(names, 0), "b": 2}'),
        ("a list unpacked into a list", '[*("a", "b"), "c"]'),
        ("a list unpacked into a list", '("a", *["b", "c"])'),
        ("a list unpacked into a list", '{*("a", "b")}'),
        ("a list or a text times a bool", "[rest] * (rest > 0)"),
        ("a list or a text times a bool", "(not whole) * [rest]"),
        ("a list or a text times a bool", '"; shorter" * (long or slow)'),
        ("a list or a text times a bool", 'f"{several} of " * bool(nets)'),
        ("a list or a text times a bool", '" " * letter.isspace()'),
        ("a list or a text times a bool", '"images, " * config.record_images'),
        ("a conditional expression within another", "a if b else c if d else e"),
        ("a conditional expression within another", "(a if b else c) if d else e"),
        ("a conditional expression within another", "f(a if b else c) if d else e"),
        ("a lambda with a name", "double = lambda x: 2 * x"),
        ("a lambda with a name", "server.answer = lambda x: x"),
        ("a comprehension with two loops", "[f(x) for xs in rows for x in xs]"),
        ("a comprehension with two loops", "sum(x.size for xs in rows for x in xs)"),
        ("a comprehension with two loops", "{x: 1 for xs in rows for x in xs}"),
        ("a literal merged into a dict", 'facts |= {"a": 1}'),
    ],
)
def test_what_is_refused(form: str, code: str) -> None:
    assert [each for _, each in refused(ast.walk(ast.parse(code)))] == [form]


@pytest.mark.parametrize(
    "code",
    [
        '{"a": 1, **facts}',
        '{"a": 1, **({} if price is None else {"cost": price})}',
        "dict.fromkeys(names, 0)",
        '["a", *names, *map(str, numbers)]',
        "f(*(1, 2))",
        "[0] * count",
        "[0] * (count - 1)",
        '" " * width',
        '"-" * (width - 3)',
        "2 * (a > b)",
        "a if b else c",
        "[a if b else c, d if e else f]",
        "sorted(rows, key=lambda row: row.size)",
        "tell: Callable[[str], None] = lambda line: None",
        "self.heard: Callable[[], None] = lambda: None",
        "[x for xs in rows for x in xs]",
        "{x for xs in rows for x in xs if x}",
        "[[f(x) for x in xs] for xs in rows]",
        'facts["a"] = 1',
        "facts |= others",
        "names |= {first, last}",
        "flags |= 4",
    ],
)
def test_what_is_accepted(code: str) -> None:
    assert [*refused(ast.walk(ast.parse(code)))] == []


@pytest.mark.parametrize(
    ("text", "nodes", "lines"),
    [
        ("x = 1\n", 4, 1),  # the module, the assignment, its name and its number
        ("# a comment\n\nx = 1  # another\n", 4, 1),
        ('"""A page.\n\nOf three lines.\n"""\nx = 1\n"""Said below."""\n', 8, 1),
        ("x = [\n    1,\n    2,\n]\n", 6, 4),
        ('x = """\nno docstring\n"""\n', 4, 3),
    ],
)
def test_what_counts_as_a_node_and_as_a_line(text: str, nodes: int, lines: int) -> None:
    assert density(text, ast.parse(text)) == Density(nodes, lines)


def test_every_form_has_a_snippet_that_is_refused() -> None:
    marks = test_what_is_refused.pytestmark  # type: ignore[attr-defined]
    assert Counter(form for form, _ in marks[0].args[1]).keys() == FORMS.keys()
