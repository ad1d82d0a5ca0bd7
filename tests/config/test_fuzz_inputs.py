"""Random and damaged students, weights and recipes: every error is one of ours, soon."""

import json
import re
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from command_line import parse_extract
from damage import JSON, LAUGHS, fuzz, mutated, only_ours, repacked, saved, with_header
from hypothesis import given
from hypothesis import strategies as st
from model_folders import save_weights
from torch import nn

from dfme.config.settings import TeacherConfig
from dfme.config.yaml_files import MAX_BYTES, load_yaml
from dfme.errors import UserError
from dfme.nets import build_net
from dfme.run.student_file import load_student, save_student
from dfme.spec import ImageSpec
from dfme.teachers.local.pytorch import load_torch
from dfme.teachers.local.weights import Card
from dfme.teachers.options import TorchOptions

# Students and weights of teachers


def changed_header(draw: st.DrawFn, names: list[str]) -> Callable[[dict[str, Any]], object]:
    def change(header: dict[str, Any]) -> None:
        for name in draw(st.lists(st.sampled_from(names), max_size=3)):
            value = draw(JSON)
            header["__metadata__"][name] = value if isinstance(value, str) else json.dumps(value)
        tensor = draw(st.sampled_from([*header][:4]))
        if draw(st.booleans()) and tensor != "__metadata__":
            part = draw(st.sampled_from(["shape", "dtype", "data_offsets"]))
            header[tensor][part] = draw(st.lists(st.integers(0, 2**63), max_size=4) | JSON)

    return change


@pytest.fixture(scope="module")
def lenet() -> nn.Module:
    """One for all cases: the bytes of a legacy file say where its tensors lie in memory."""
    return build_net("lenet5", (1, 8, 8), 3)


@pytest.fixture(scope="module")
def student_bytes(lenet: nn.Module, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("student") / "student.safetensors"
    save_student(path, lenet, "lenet5", ImageSpec((1, 8, 8)), 3)
    return path.read_bytes()


@given(data=st.data())
@fuzz
def test_a_student_of_any_bytes(tmp_path: Path, student_bytes: bytes, data: st.DataObject) -> None:
    path = tmp_path / "student.safetensors"
    if data.draw(st.booleans()):
        change = changed_header(data.draw, ["shape", "bounds", "levels", "num_classes", "arch"])
        path.write_bytes(with_header(student_bytes, change))
    else:
        path.write_bytes(
            data.draw(st.binary(max_size=100) | st.just(mutated(data.draw, student_bytes)))
        )
    assert isinstance(only_ours(lambda: load_student(path)), UserError | None)


@given(data=st.data())
@fuzz
@pytest.mark.filterwarnings("ignore")
def test_weights_of_any_bytes(tmp_path: Path, lenet: nn.Module, data: st.DataObject) -> None:
    path, net = tmp_path / "teacher.bin", lenet
    kind = data.draw(st.sampled_from(["metadata", "safetensors", "archive", "pickle", "legacy"]))
    if kind in ("metadata", "safetensors"):
        save_weights(path, net, Card("lenet5", (1, 8, 8), 3, (0.5,), (0.5,), (0.0, 1.0)))
        change = changed_header(data.draw, sorted(vars(Card())))
        content = path.read_bytes()
        path.write_bytes(
            with_header(content, change) if kind == "metadata" else mutated(data.draw, content)
        )
    elif kind == "pickle":
        path.write_bytes(
            repacked(saved(net.state_dict(), True), lambda old: mutated(data.draw, old))
        )
    else:
        path.write_bytes(mutated(data.draw, saved(net.state_dict(), kind == "archive")))
    options = TorchOptions(str(path))
    assert isinstance(
        only_ours(lambda: load_torch(options, TeacherConfig(), torch.device("cpu"))),
        UserError | None,
    )


# Recipes

VALUES = JSON.filter(lambda value: "\\ud800" not in json.dumps(value))
SECTIONS = "budget seed student evaluation teacher method estimator schedule wandb device".split()
LEAVES = ["kind", "name", "lr", "milestones", "dataset", "shape", "tags", "mode", "step", "arch"]


@given(
    st.one_of(
        st.text(max_size=80).map(str.encode),
        st.binary(max_size=80),
        st.text(alphabet="{}[]:,-?&*!|>#'\"ab1 \n<", max_size=60).map(str.encode),
    )
)
@fuzz
def test_a_recipe_of_any_text(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.yaml").write_bytes(content)
    assert isinstance(only_ours(lambda: load_yaml(tmp_path / "x.yaml")), UserError | None)


def test_values_of_any_length_make_a_message_that_can_be_read(tmp_path: Path) -> None:
    recipe = {name: {"step": 10**2500} for name in ("budget", "seed", "device")}
    (tmp_path / "x.yaml").write_text(yaml.safe_dump(recipe))
    error = only_ours(lambda: parse_extract(["--config", str(tmp_path / "x.yaml")]))
    assert isinstance(error, UserError)
    assert " ... " in str(error)


@given(
    st.dictionaries(
        st.sampled_from(SECTIONS), VALUES | st.dictionaries(st.sampled_from(LEAVES), VALUES)
    )
)
@fuzz
def test_a_recipe_of_any_values(tmp_path: Path, recipe: dict[str, Any]) -> None:
    (tmp_path / "x.yaml").write_text(yaml.safe_dump(recipe).replace("&", "").replace("*", ""))
    assert isinstance(
        only_ours(lambda: parse_extract(["--config", str(tmp_path / "x.yaml")])), UserError | None
    )


MERGES = "a0: &a0 {x: 1}\n" + "".join(
    f"a{n}: &a{n} {{<<: [{f'*a{n - 1}, ' * 9}]}}\n" for n in range(1, 12)
)
STRANGE_RECIPES = {
    "laughs": (LAUGHS, "line 2: expected no alias such as"),
    "merges": (MERGES, "line 2: expected no alias such as"),
    "itself": ("a: &a [*a]", "expected no alias such as"),
    "deep": ("a: " + "[" * 50_000, "nested too deeply"),
    "keys twice": ("student:\n  lr: 1\n  lr: 2\n", "line 3: key 'lr' stands there twice"),
    "many keys": ("".join(f"k{n}: 1\n" for n in range(40_000)), "more than 200,000 bytes"),
    "object": ("a: !!python/object/apply:os.mkdir [x]", "could not determine a constructor"),
    "date": ("a: !!timestamp 2020-99-99", "does not fit its tag"),
    "long number": ("a: " + "9" * 5_000, "does not fit its tag"),
    "flags": ("a: !!bool maybe", "does not fit its tag"),
}


@pytest.mark.parametrize("kind", STRANGE_RECIPES)
def test_a_strange_recipe_is_refused(tmp_path: Path, kind: str) -> None:
    text, message = STRANGE_RECIPES[kind]
    (tmp_path / "x.yaml").write_text(text)
    with pytest.raises(UserError, match=re.escape(message)):
        load_yaml(tmp_path / "x.yaml")


def test_a_recipe_of_a_hundred_megabytes_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "x.yaml").open("wb") as file:
        file.truncate(100_000_000)
    tracemalloc.start()
    try:
        with pytest.raises(UserError, match=f"got more than {MAX_BYTES:,} bytes"):
            load_yaml(tmp_path / "x.yaml")
        assert tracemalloc.get_traced_memory()[1] < 10_000_000
    finally:
        tracemalloc.stop()
