"""The house rules that code can break in silence: who may import what, how long things are."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest
from sources import ROOT, SOURCES, files, name, nodes_of, text_of, tree_of

DOORS = {"dfme/run/build.py", "dfme/owner_side.py"}
"""The files of the auditor's side that may import the owner's."""
FACE = {"dfme", "dfme.__main__"}
"""They import what they show only when it is asked for."""
BOTH_SIDES = tuple(
    f"dfme.{room}"
    for room in (
        "spec measured statistics version errors compute files answers nets data config"
    ).split()
)
"""The rooms of dfme/ that the owner's side may import."""
HEAVY = ("torch", "torch._dynamo", "torchvision", "matplotlib", "wandb", "jinja2", "numpy")
INPUT_OUTPUT = set(
    "csv glob http io json logging os pathlib pickle requests safetensors shutil socket sqlite3 "
    "subprocess "
    "sys tempfile urllib wandb yaml".split()
)
OPENING = {"open", "print", "input", "torch.load", "torch.save"}
OWNER = ("owner",)
"""The rooms of teachers/ that an owner runs."""
WRAPPING = "build"
"""The module of what answers that wraps a teacher in defences and a watch."""
MAX_FILES = 11
"""Modules of dfme/ that are in no package."""
FILE_LINES = 400
PACKED = 60


def module_of(path: Path) -> str:
    """The name it is imported by: the folder ``teachers`` is linked into ``dfme``."""
    return (
        f"dfme/{name(path).removeprefix('dfme/')}"[:-3].replace("/", ".").removesuffix(".__init__")
    )


MODULES = {module_of(path): path for path in SOURCES}


@cache
def imported(path: Path, top_level_only: bool = False) -> frozenset[str]:
    """Modules that a file imports: anywhere in it, also for type checkers only."""
    modules = set()
    for node in importing_nodes(tree_of(path)) if top_level_only else nodes_of(path):
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{name(path)}: imports are absolute"
            module = str(node.module)
            modules |= {
                full if (full := f"{module}.{alias.name}") in MODULES else module
                for alias in node.names
            }
    return frozenset(modules)


def importing_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes that run on import: no function bodies, nothing for type checkers only."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            continue
        yield child
        yield from importing_nodes(child)


def belongs(module: str, *packages: str) -> bool:
    return any(f"{module}.".startswith(f"{package}.") for package in packages)


def inside(*folders: str) -> list[Path]:
    return [path for path in SOURCES if name(path).startswith(folders)]


def room(module: str) -> str:
    return ".".join(module.split(".")[:2])


def circle(graph: dict[str, set[str]]) -> list[str]:
    """The nodes of one circle in a graph; none where there is none."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def loaded_by(statement: str) -> set[str]:
    """Of the heavy modules, those that a new interpreter has loaded after the statement."""
    code = (
        f"import sys, json\n{statement}\nprint(json.dumps([m for m in {HEAVY!r} if m in "
        "sys.modules]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout.splitlines()[-1]))


# Who may import what


def test_rooms_are_few_and_stand_on_at_most_ten_floors():
    rooms: dict[str, set[str]] = {room(module): set() for module in MODULES}
    for module, path in MODULES.items():
        rooms[room(module)] |= {room(each) for each in imported(path) & MODULES.keys()}
    outside = {*FACE, "dfme.teachers"}
    rooms = {
        each: others - outside - {each} for each, others in rooms.items() if each not in outside
    }
    packages = [each for each in rooms if (ROOT / each.replace(".", "/")).is_dir()]
    assert len(packages) <= 15, packages
    assert len(rooms) - len(packages) <= MAX_FILES, rooms.keys() - set(packages)
    assert circle(rooms) == [], "rooms that import one another"

    @cache
    def floor(each: str) -> int:
        return 1 + max(map(floor, rooms[each]), default=0)

    assert max(map(floor, rooms)) <= 10, {each: floor(each) for each in rooms}


def test_no_modules_import_one_another():
    assert (
        circle(
            {each: set(imported(path) & MODULES.keys() - FACE) for each, path in MODULES.items()}
        )
        == []
    )


def test_the_auditors_side_reaches_the_owners_through_two_doors():
    importing = set()
    for path in inside("dfme/"):
        if any(belongs(each, "dfme.teachers") for each in imported(path)):
            importing.add(name(path))
        elif name(path) not in DOORS:
            assert not re.search(r"\"dfme\.teachers[.:]", text_of(path)), "named in a text"
    assert importing == DOORS


def test_a_module_that_a_text_names_is_of_the_same_room():
    """A registry may name its own parts; an import of another room is written as one."""
    hidden = []
    for module, path in MODULES.items():
        if module in FACE:
            continue
        for node in nodes_of(path):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                named = node.value.partition(":")[0]
                if named in MODULES and "." in named and room(named) != room(module):
                    hidden.append(f"{name(path)}:{node.lineno}: {named}")
    assert hidden == []


def test_the_owners_side_imports_only_what_both_sides_share():
    foreign = [
        f"{name(path)}: {module}"
        for path in inside("teachers/")
        for module in imported(path)
        if belongs(module, "dfme")
        and module != "dfme"
        and not belongs(module, "dfme.teachers", *BOTH_SIDES)
    ]
    assert foreign == []


def test_nothing_that_is_installed_imports_the_scripts_of_research():
    assert [
        name(path) for path in SOURCES if any(belongs(each, "research") for each in imported(path))
    ] == []


def test_estimators_and_the_preflight_check_know_no_oracle():
    above = ("dfme.oracle", "dfme.methods", "dfme.run")
    violations = [
        f"{name(path)}: {each}" for path in inside("dfme/estimators/") for each in imported(path)
    ]
    assert [each for each in violations if belongs(each.split(": ")[1], *above)] == []


def test_methods_do_no_input_or_output():
    violations = []
    for path in inside("dfme/methods/"):
        calls = {ast.unparse(node.func) for node in nodes_of(path) if isinstance(node, ast.Call)}
        modules = {module.partition(".")[0] for module in imported(path)}
        violations += [
            f"{name(path)}: {each}" for each in (modules & INPUT_OUTPUT) | (calls & OPENING)
        ]
    assert violations == []


@pytest.mark.integration
def test_what_reports_and_tracks_needs_no_torch():
    modules = [module_of(path) for path in inside("dfme/report/")]
    assert len(modules) > 3
    assert "torch" not in loaded_by(f"import {', '.join(modules)}")


@pytest.mark.integration
@pytest.mark.parametrize(
    "words", ["--budgt 1", "--help", "extract --help", "serve --help", "train-teacher --lr x"]
)
def test_the_command_line_loads_nothing_heavy_before_it_must(words):
    assert loaded_by(f"import dfme.cli.main\ndfme.cli.main.main({words.split()})\nprint()") <= (
        {"numpy"} if words == "--help" else set()
    ), "only the list of all commands reads reports"


@pytest.mark.integration
def test_what_a_run_is_made_of_loads_nothing_optional():
    modules = "dfme.run.build, dfme.teachers.owner.training.train, dfme.teachers.local.pytorch"
    assert loaded_by(f"import {modules}") == {"torch", "numpy"}
    for module in ("torchvision", "wandb"):
        assert [
            name(path) for path in SOURCES if any(belongs(m, module) for m in imported(path, True))
        ] == []


@pytest.mark.integration
def test_a_run_loads_no_compiler(tmp_path):
    """Torch's optimisers load one at their first step, which takes longer than to import torch."""
    options = f"shape=(1, 8, 8), num_classes=2, budget=400, out={str(tmp_path / 'run')!r}"
    assert "torch._dynamo" not in loaded_by(
        f"import dfme\ndfme.extract(lambda x: x.flatten(1)[:, :2].softmax(1), {options}, "
        "method='disguide')"
    )
    with_marks = re.compile(r"torch\.optim\.(?!Optimizer|swa_utils|lr_scheduler)\w+")
    assert {name(path) for path in SOURCES if with_marks.search(text_of(path))} == {
        "dfme/compute/modules.py"
    }


# The rooms of teachers/


def room_of(module: str) -> str:
    """The package of teachers/ or of teachers/owner/ that a module is in; a module of no package is
    its own room.
    """
    parts = module.split(".")[2:4]
    return ".".join(parts if parts[0] == "owner" else parts[:1])


def teachers_rooms() -> dict[str, set[str]]:
    """What each room imports of the others. Paths in the folder ``teachers`` and its link in dfme/
    are one module.
    """
    modules = [each for each in MODULES if each.startswith("dfme.teachers.")]
    graph: dict[str, set[str]] = {room_of(each): set() for each in modules}
    for each in modules:
        others = imported(MODULES[each]) & set(modules)
        graph[room_of(each)] |= {room_of(other) for other in others} - {room_of(each)}
    return graph


def test_no_rooms_of_teachers_import_one_another():
    graph = teachers_rooms()
    assert circle(graph) == []
    assert "remote" in graph["open_inference"], "the link hides no import"


def test_what_answers_does_not_import_what_an_owner_runs():
    importing = {
        room
        for room, others in teachers_rooms().items()
        if not room.startswith(OWNER) and any(other.startswith(OWNER) for other in others)
    }
    assert importing == {WRAPPING}


# How long things are, and what they are called


def test_no_file_is_too_long():
    """Ruff holds functions to 40 statements and a complexity of 10."""
    lines = {
        name(path): text_of(path).count("\n")
        for path in files("dfme", "teachers", "tests", "research")
    }
    assert {path: count for path, count in lines.items() if count > FILE_LINES} == {}


def test_unrelated_values_are_not_packed_into_one_assignment():
    packed = [
        f"{name(path)}:{node.lineno}"
        for path in SOURCES
        for node in nodes_of(path)
        if isinstance(node, ast.Assign) and type(node.targets[0]) is type(node.value) is ast.Tuple
    ]
    assert len(packed) <= PACKED, packed


def assigned(tree: ast.Module) -> dict[str, ast.expr]:
    """The names that a module gives values to, once each."""
    named = [node for node in tree.body if isinstance(node, ast.Assign) and len(node.targets) == 1]
    return {
        target.id: node.value for node in named if isinstance(target := node.targets[0], ast.Name)
    }


def test_a_type_has_one_meaning_wherever_it_is_named():
    meanings = defaultdict(set)
    for path in SOURCES:
        for node in nodes_of(path):
            if isinstance(node, ast.ClassDef):
                meanings[node.name].add(f"{name(path)}:{node.lineno}")
        for each, value in assigned(tree_of(path)).items():
            if each[0].isupper() and not each.isupper():
                meanings[each].add(ast.unparse(value))
    assert {each: places for each, places in meanings.items() if len(places) > 1} == {}


def test_a_limit_says_so():
    """Limits begin with MAX_ or MIN_."""
    words = ("MOST", "LEAST", "FEWEST", "AT_MOST", "AT_LEAST")
    assert [
        each for path in SOURCES for each in assigned(tree_of(path)) if each.startswith(words)
    ] == []
