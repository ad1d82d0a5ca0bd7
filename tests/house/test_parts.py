"""What every part needs, what the repository may hold, and how many files a plain run takes."""

import configparser
import importlib
import json
import re
import subprocess
import sys
from fnmatch import fnmatch
from functools import cache
from pathlib import Path
from typing import get_args, get_type_hints

import pytest
from sources import ROOT, name

from dfme.config.sections import EstimatorConfig
from dfme.data import DATASETS, FROM_DISK
from dfme.estimators.base import DIRECTIONS, SPACES
from dfme.estimators.differences import FORMS
from dfme.methods import METHODS
from dfme.spec import LABEL_KINDS
from dfme.students.losses import AUTO_LOSS
from dfme.teachers import KINDS


def named(target: str) -> object:
    module, _, attribute = target.partition(":")
    return getattr(importlib.import_module(module), attribute)


@pytest.mark.parametrize("method", METHODS)
def test_a_method_has_all_that_the_definition_of_done_asks(method):
    entry = METHODS[method]
    implementation = named(entry.implementation)
    module = sys.modules[entry.implementation.partition(":")[0]]
    assert Path(str(module.__file__)).stem == method, "one file per method, of its name"
    assert "ifferences from" in str(implementation.__doc__), (
        "it lists the differences from the paper"
    )
    assert set() < set(implementation.label_modes) <= set(LABEL_KINDS)
    assert entry.config.__dataclass_params__.frozen
    recipes = [path.read_text(encoding="utf-8") for path in (ROOT / "configs").glob("*.yaml")]
    assert any(re.search(rf"^  name: {method}\b", recipe, re.M) for recipe in recipes), (
        "a recipe in configs/"
    )
    for page in ("README.md", "configs/README.md"):
        assert f"`{method}`" in (ROOT / page).read_text(encoding="utf-8"), f"a row in {page}"


@pytest.mark.parametrize(
    "target", [*DATASETS.values(), FROM_DISK, *(kind.loader for kind in KINDS.values())]
)
def test_every_loader_that_is_named_is_there(target):
    assert callable(named(target))


def test_every_choice_of_an_estimator_has_its_part():
    options = get_type_hints(EstimatorConfig)
    for option, each in {"direction": DIRECTIONS, "form": FORMS, "space": SPACES}.items():
        assert {*get_args(options[option])} == {*each}
    assert {*AUTO_LOSS} == {*LABEL_KINDS}


# What the repository holds


@cache
def kept_files() -> tuple[Path, ...]:
    """Files that git tracks, or would: not what .gitignore names."""
    words = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip("this is no git checkout")
    return tuple(path for line in done.stdout.splitlines() if (path := ROOT / line).is_file())


@pytest.mark.integration
@pytest.mark.parametrize(
    ("what", "pattern"),
    [
        ("an em-dash", "\u2014"),
        ("a path of somebody's machine", r"(?<![\w.~/-])/(?:home|root|work|tmp|Users|mnt)/\w"),
        (
            "the host of a registry",
            r"pypi[.]org|pythonhosted[.]org|anaconda[.]org|download[.]pytorch[.]org",
        ),
    ],
)
def test_no_kept_text_holds(what, pattern):
    expression = re.compile(pattern)
    places = [
        f"{name(path)}:{number}"
        for path in kept_files()
        if b"\0" not in (content := path.read_bytes()) and not path.name.endswith(".safetensors")
        for number, line in enumerate(content.decode(errors="replace").splitlines(), start=1)
        if expression.search(line)
    ]
    assert places == [], f"{what} in"


@pytest.mark.integration
def test_every_file_that_is_no_code_is_installed_too():
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    assert setup["options"]["packages"] == "find_namespace:", "configs/ has no __init__.py"
    packages = setup["options.packages.find"]["include"].split()
    assert {pattern.partition(".")[0] for pattern in packages} == {"dfme"}, "no name but ours"
    data = {
        name: globs.replace(",", " ").split()
        for name, globs in setup["options.package_data"].items()
    }
    rooms = ("dfme", "teachers", "configs")
    assert [room for room in rooms[1:] if (ROOT / "dfme" / room).resolve() != ROOT / room] == []
    other = [
        path for path in kept_files() if name(path).split("/")[0] in rooms and path.suffix != ".py"
    ]
    assert len(other) > 10
    assert [name(path) for path in other if not is_installed(path, data, packages)] == []


def is_installed(path: Path, data: dict[str, list[str]], packages: list[str]) -> bool:
    """Whether package data names the file, relative to a package that is found."""
    place = Path("dfme", *path.relative_to(ROOT).parts[path.is_relative_to(ROOT / "dfme") :])
    for folder in place.parents:
        package, inside = ".".join(folder.parts), place.relative_to(folder).as_posix()
        globs = [glob for glob in data.get(package, []) if glob.count("/") == inside.count("/")]
        if any(fnmatch(package, each) for each in packages) and any(
            fnmatch(inside, glob) for glob in globs
        ):
            return True
    return False


MAX_LOADED = 113
MAX_ENTERED = 85
"""Of dfme/ and teachers/; they only shrink (both grew once, by one: teachers and students share what
reads weights)."""

PROGRAM = """
import json, sys, threading
from inspect import CO_OPTIMIZED

ran = set()

def trace(frame, event, argument):
    ran.add(frame.f_code)

threading.settrace(trace)
sys.settrace(trace)
from dfme.cli.main import main

code = main(sys.argv[1:])
sys.settrace(None)
loaded = [name for name in sys.modules if name.partition(".")[0] == "dfme"]
# a thread may still run; the body of a module or of a class is no function
entered = [each.co_filename for each in list(ran) if each.co_flags & CO_OPTIMIZED]
print(json.dumps([code, loaded, entered]))
"""


@pytest.mark.integration
def test_a_run_loads_and_enters_few_files(tmp_path: Path) -> None:
    words = f"--budget 1k --student.steps 5 --student.arch cnn_small --out {tmp_path / 'run'}"
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *words.split()],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    code, loaded, names = json.loads(done.stdout.splitlines()[-1])
    files = {Path(name).resolve() for name in names if name.endswith(".py")}
    rooms = (ROOT / "dfme", ROOT / "teachers")
    entered = {path for path in files if any(map(path.is_relative_to, rooms))}
    assert code == 0
    assert 60 < len(entered) <= MAX_ENTERED, sorted(map(str, entered))
    assert len(entered) < len(loaded) <= MAX_LOADED, sorted(loaded)
