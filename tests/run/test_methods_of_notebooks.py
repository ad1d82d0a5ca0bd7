"""Methods that no file defines (notebooks, functions), and what a method's options may lack."""

import dataclasses
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from begun import only_line, refused_run
from small_runs import Metered, clone, student
from torch import Tensor

import dfme
from dfme.config.yaml_files import load_yaml
from dfme.errors import UserError
from dfme.oracle.ledger_log import audit

CELL = """
from dataclasses import dataclass
import torch
from dfme import Method, MethodEntry

@dataclass(frozen=True)
class Options:
    batch_size: int = 20

class Mine(Method):
    entry = MethodEntry(Options)
    label_modes = ("probabilities",)

    def query_images(self, count):
        return self.oracle.spec.quantise(torch.rand(count, 1, 8, 8, generator=self.rng["mine"]))
"""


@dataclasses.dataclass(frozen=True)
class Alone:
    """The one option that every method has."""

    batch_size: int = 20


class Plain(dfme.Method):
    """Asks noise, batch by batch."""

    entry: ClassVar = dfme.MethodEntry(Alone)
    label_modes: ClassVar = ("probabilities",)

    def query_images(self, count: int) -> Tensor:
        return self.oracle.spec.quantise(torch.rand(count, 1, 8, 8, generator=self.rng["mine"]))


class Outer:
    class Within(Plain):
        """A method within another class."""


def local() -> type[dfme.Method]:
    class Local(Plain):
        """A method that no module has."""

    return Local


def executed(name: str | None) -> Any:
    """The class that a cell of a notebook, or any other executed text, defines."""
    namespace: dict[str, Any] = {} if name is None else {"__name__": name}
    exec(CELL, namespace)
    return namespace["Mine"]


def run(out: Path, method: Any, **more: Any) -> dfme.Result:
    return clone(out, Metered(), 100, method=method, method_options=more.pop("options", {}), **more)


METHODS = {
    "nested": Outer.Within,
    "of a function": local(),
    "of a text": executed(None),
    "of a cell with a name": executed("cell_7"),
    "of a script": executed("__main__"),
}


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of the same method from a module."""
    out = tmp_path_factory.mktemp("plain") / "run"
    run(out, Plain)
    return out


@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
def test_a_method_needs_no_file(method: Any, tmp_path: Path, plain: Path) -> None:
    assert run(tmp_path / "run", method).finished
    assert audit(tmp_path / "run" / "ledger.jsonl").spent == 100
    name = load_yaml(tmp_path / "run" / "config.yaml")["method"]["name"]
    assert name == f"{method.__module__}:{method.__qualname__}"
    assert student(tmp_path / "run") == student(plain)


def test_it_is_resumed_in_python_and_a_command_says_so(
    tmp_path: Path, plain: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    method = local()
    out = tmp_path / "run"
    assert not run(out, method, callback=lambda queries, metrics: queries >= 40).finished
    line = only_line(f"--resume --out {out}", capsys)
    assert "local.<locals>.Local: it was defined in a script, a notebook or a function" in line
    run(out, method, resume=True)
    assert student(out) == student(plain)


def test_a_nested_class_is_found_by_its_name(tmp_path: Path) -> None:
    assert run(tmp_path / "run", f"{__name__}:Outer.Within").finished
    with pytest.raises(UserError, match=r"no 'Outer.Wthin' in it"):
        run(tmp_path / "other", f"{__name__}:Outer.Wthin")


@pytest.mark.integration
def test_a_method_of_standard_input(tmp_path: Path) -> None:
    ask = (
        "print(dfme.extract(ask, shape=(1, 8, 8), num_classes=2, budget=60, method=Mine, "
        "out='run').finished)"
    )
    teacher = "ask = lambda x: [[1 - b, b] for b in x.mean(dim=(1, 2, 3)).tolist()]"
    text = "\n".join([CELL, "import dfme", teacher, ask])
    process = subprocess.run(
        [sys.executable, "-"], cwd=tmp_path, input=text, capture_output=True, text=True, check=False
    )
    assert process.stdout == "True\n", process.stderr


def with_options(**values: Any) -> type[dfme.Method]:
    """A method whose options have these values, of any type."""
    fields = [(name, Any, dataclasses.field(default=value)) for name, value in values.items()]
    options = dataclasses.make_dataclass("Options", fields, frozen=True)
    return type("Other", (Plain,), {"entry": dfme.MethodEntry(options)})


class Free(Plain):
    @property
    def cost(self) -> int:
        return 0


def without_defaults() -> type[dfme.Method]:
    options = dataclasses.make_dataclass("Bare", [("batch_size", int), ("student_steps", int)])
    return type("Other", (Plain,), {"entry": dfme.MethodEntry(options)})


def refused() -> Iterator[tuple[type[dfme.Method], str]]:
    yield (
        with_options(batch_size=0),
        'batch_size": ...}: expected a whole number of at least 1, got 0',
    )
    yield with_options(batch_size="auto"), "at least 1, got 'auto'"
    yield (
        with_options(batch_size=10, student_steps=0),
        'student_steps": ...}: expected a whole number',
    )
    yield with_options(size=10), "expected options with defaults in Options, one called batch_size"
    yield without_defaults(), "got no default of batch_size, student_steps"
    yield Free, "expected a cost of 1 image a step or more, got 0"


@pytest.mark.parametrize(("method", "message"), list(refused()))
def test_options_that_cannot_work_are_one_line(
    method: type[dfme.Method], message: str, tmp_path: Path
) -> None:
    refused_run(tmp_path / "run", re.escape(message), method=method, method_options={}, budget=100)
