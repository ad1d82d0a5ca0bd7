"""The house rules that code can break in silence: who may import what, how long things are, what every part needs."""

from __future__ import annotations

import ast
import configparser
import importlib
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from fnmatch import fnmatch
from functools import cache
from pathlib import Path
from typing import get_args, get_type_hints

import pytest
import torch

from dfme.cli.main import VERBS, find
from dfme.config.settings import EstimatorConfig
from dfme.config.values import options_of
from dfme.data import DATASETS, FROM_DISK
from dfme.estimators import DIRECTIONS, FORMS, FiniteDifference
from dfme.estimators.build import MAKERS
from dfme.estimators.spaces import SPACES
from dfme.methods import METHODS
from dfme.nets import NETS, build_net
from dfme.spec import LABEL_KINDS, LabelMode
from dfme.students.losses import AUTO_LOSS, make_distance
from teachers import KINDS

ROOT = Path(__file__).resolve().parents[2]
SOURCES = sorted(path for room in ("dfme", "teachers") for path in (ROOT / room).rglob("*.py"))
MAY_IMPORT_TEACHERS = {"dfme/run/build.py", "dfme/cli/teacher_side.py"}
HEAVY = ("torch", "torchvision", "matplotlib", "wandb", "jinja2")
INPUT_OUTPUT = {
    "csv", "glob", "http", "io", "json", "logging", "os", "pathlib", "pickle", "requests", "safetensors", "shutil",
    "socket", "sqlite3", "subprocess", "sys", "tempfile", "urllib", "wandb", "yaml",
}  # fmt: skip
OPENING = {"open", "print", "input", "torch.load", "torch.save"}
FILE_LINES = 300
FUNCTION_LINES = 60
BUILT_FOR = (3, 32, 32)


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def imported(path: Path, top_level_only: bool = False) -> Iterator[str]:
    """Modules that a file imports, anywhere in it or only where it is imported itself."""
    nodes = importing_nodes(tree(path)) if top_level_only else ast.walk(tree(path))
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield relative_to_package(path, node)


def importing_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes that run on import: no function bodies, nothing for type checkers only."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            continue
        yield child
        yield from importing_nodes(child)


def relative_to_package(path: Path, node: ast.ImportFrom) -> str:
    if not node.level:
        return node.module or ""
    package = list(path.relative_to(ROOT).parent.parts)
    return ".".join(package[: len(package) - node.level + 1] + ([node.module] if node.module else []))


def belongs(module: str, package: str) -> bool:
    return module == package or module.startswith(package + ".")


def loaded_by(statement: str) -> set[str]:
    """Of the heavy modules, those that a new interpreter has loaded after the statement."""
    code = f"import sys, json\n{statement}\nprint(json.dumps([m for m in {HEAVY!r} if m in sys.modules]))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout.splitlines()[-1]))


# Who may import what


def test_only_build_and_cli_know_the_owners_side():
    auditors = [path for path in SOURCES if name(path).startswith("dfme/")]
    knowing = {name(path) for path in auditors if any(belongs(module, "teachers") for module in imported(path))}
    assert knowing == MAY_IMPORT_TEACHERS


def test_no_other_module_reaches_the_owners_side_by_a_name_in_text():
    pattern = re.compile(r"^teachers[.:]")
    found = [
        f"{name(path)}:{node.lineno}"
        for path in SOURCES
        if name(path).startswith("dfme/") and name(path) not in MAY_IMPORT_TEACHERS
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and pattern.match(node.value)
    ]
    assert found == []


@pytest.mark.parametrize("path", [path for path in SOURCES if name(path).startswith("dfme/methods/")], ids=name)
def test_methods_do_no_input_or_output(path):
    assert {module.partition(".")[0] for module in imported(path)} & INPUT_OUTPUT == set()
    calls = {ast.unparse(node.func) for node in ast.walk(tree(path)) if isinstance(node, ast.Call)}
    assert calls & OPENING == set()


@pytest.mark.parametrize("room", ["report"])
def test_what_reports_and_tracks_needs_no_torch(room):
    modules = [name(path)[:-3].replace("/", ".") for path in SOURCES if name(path).startswith(f"dfme/{room}/")]
    assert len(modules) > 3
    assert "torch" not in loaded_by(f"import {', '.join(modules)}")


def test_the_command_line_loads_nothing_heavy_before_it_must():
    assert (
        loaded_by(
            "import dfme.cli.extract\ntry: dfme.cli.extract.parse_extract(['--budgt', '1'])\nexcept Exception: pass"
        )
        == set()
    )


def test_what_a_run_is_made_of_loads_nothing_optional():
    assert loaded_by(
        "import dfme.run.build, dfme.benchmarks.speed, teachers.training.train, teachers.local.pytorch"
    ) == {"torch"}


@pytest.mark.parametrize("module", ["torchvision", "wandb"])
def test_optional_modules_are_imported_when_used(module):
    assert [name(path) for path in SOURCES if any(belongs(m, module) for m in imported(path, True))] == []


# How long things are


@pytest.mark.parametrize("path", SOURCES, ids=name)
def test_no_file_and_no_function_is_too_long(path):
    assert len(path.read_text(encoding="utf-8").splitlines()) <= FILE_LINES
    functions = [node for node in ast.walk(tree(path)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    assert {each.name: lines(each) for each in functions if lines(each) > FUNCTION_LINES} == {}


def lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """From the ``def`` to the end, less the docstring."""
    whole = (function.end_lineno or function.lineno) - function.lineno + 1
    first = function.body[0]
    if ast.get_docstring(function) is None:
        return whole
    return whole - ((first.end_lineno or first.lineno) - first.lineno + 1)


# What every part needs


def named(target: str) -> object:
    module, _, attribute = target.partition(":")
    return getattr(importlib.import_module(module), attribute)


@pytest.mark.parametrize("method", METHODS)
def test_a_method_has_all_that_the_definition_of_done_asks(method):
    entry = METHODS[method]
    implementation = named(entry.implementation)
    module = sys.modules[entry.implementation.partition(":")[0]]
    assert Path(str(module.__file__)).stem == method, "one file per method, of its name"
    assert "ifferences from" in str(implementation.__doc__), "the docstring lists the differences from the paper"
    assert implementation.label_modes
    assert set(implementation.label_modes) <= set(LABEL_KINDS)
    assert entry.config.__dataclass_params__.frozen
    assert [option.key for option in options_of(entry.config) if not option.help] == []
    recipes = [path.read_text(encoding="utf-8") for path in (ROOT / "configs").glob("*.yaml")]
    assert any(re.search(rf"^  name: {method}\b", recipe, re.M) for recipe in recipes), "a recipe in configs/"
    for page in ("README.md", "configs/README.md"):
        assert f"`{method}`" in (ROOT / page).read_text(encoding="utf-8"), f"a row in {page}"


@pytest.mark.parametrize("arch", NETS)
def test_every_net_can_be_built(arch):
    with torch.device("meta"):  # shapes only
        net = build_net(arch, BUILT_FOR, 7).eval()
        assert net(torch.empty(2, *BUILT_FOR)).shape == (2, 7)


@pytest.mark.parametrize("target", [*DATASETS.values(), FROM_DISK, *(kind.loader for kind in KINDS.values())])
def test_every_loader_that_is_named_is_there(target):
    assert callable(named(target))


def test_every_estimator_and_loss_can_be_built():
    options = get_type_hints(EstimatorConfig)
    assert (set(get_args(options["direction"])), set(get_args(options["form"]))) == (set(DIRECTIONS), set(FORMS))
    assert (set(get_args(options["kind"])), set(get_args(options["space"]))) == ({*MAKERS, "auto"}, set(SPACES))
    for direction in DIRECTIONS:
        for form in FORMS:
            assert FiniteDifference(direction=direction, form=form).cost(1) >= 2
    for kind in LABEL_KINDS:
        loss = make_distance("auto", LabelMode(kind, k=1 if kind == "top_k" else None))
        assert callable(loss)
    assert set(AUTO_LOSS) == set(LABEL_KINDS)


def test_every_command_has_its_line_of_help():
    assert all(find(name).SUMMARY for name in VERBS)


# What the repository holds


@cache
def kept_files() -> tuple[Path, ...]:
    """Files that git tracks, or would: not what .gitignore names."""
    words = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip("this is no git checkout")
    return tuple(path for line in done.stdout.splitlines() if (path := ROOT / line).is_file())


@pytest.mark.parametrize(
    ("what", "pattern"),
    [
        ("an em-dash", "\u2014"),
        ("a path of somebody's machine", r"(?<![\w.~/-])/(?:home|root|work|tmp|Users|mnt)/\w"),
        ("the host of a package registry", r"pypi[.]org|pythonhosted[.]org|anaconda[.]org|download[.]pytorch[.]org"),
    ],
)
def test_no_kept_text_holds(what, pattern):
    expression = re.compile(pattern)
    found = [
        f"{name(path)}:{number}"
        for path in kept_files()
        if b"\0" not in (content := path.read_bytes()) and not path.name.endswith(".safetensors")
        for number, line in enumerate(content.decode(errors="replace").splitlines(), start=1)
        if expression.search(line)
    ]
    assert found == [], f"{what} in"


def test_every_file_that_is_no_code_is_installed_too():
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    assert setup["options"]["packages"] == "find_namespace:", "configs/ has no __init__.py"
    packages = setup["options.packages.find"]["include"].split()
    data = {package: globs.replace(",", " ").split() for package, globs in setup["options.package_data"].items()}
    rooms = ("dfme", "teachers", "configs")
    other = [path for path in kept_files() if name(path).split("/")[0] in rooms and path.suffix != ".py"]
    assert len(other) > 10
    assert [name(path) for path in other if not is_installed(path, data, packages)] == []


def is_installed(path: Path, data: dict[str, list[str]], packages: list[str]) -> bool:
    """Whether package data names the file, relative to a package that is found."""
    for folder in path.relative_to(ROOT).parents:
        package, inside = ".".join(folder.parts), path.relative_to(ROOT / folder).as_posix()
        globs = [glob for glob in data.get(package, []) if glob.count("/") == inside.count("/")]
        if any(fnmatch(package, each) for each in packages) and any(fnmatch(inside, glob) for glob in globs):
            return True
    return False
