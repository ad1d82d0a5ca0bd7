"""Nothing that is read is ever run: pickles in files and answers stay data."""

import ast
import pickle
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from damage import Harm, refused, repacked, saved, sealed
from small_runs import Metered, clone
from sources import ROOT, files, name, nodes_of, text_of

import dfme.config.yaml_files
from dfme.config.settings import TeacherConfig
from dfme.data import load_dataset
from dfme.errors import RunError, UserError
from dfme.report.run_files import read_run
from dfme.run.checkpoint import load_checkpoint
from dfme.run.student_file import load_student
from dfme.teachers.local.pytorch import load_torch
from dfme.teachers.open_inference.message import from_bytes, from_list, unpack
from dfme.teachers.options import TorchOptions

LOADER = "dfme/config/yaml_files.py"


@pytest.fixture
def trap(tmp_path: Path) -> Iterator[Path]:
    """A file that must not come into being; at the end the trap itself is shown to work."""
    target = tmp_path / "EXECUTED"
    yield target
    assert not target.exists()
    pickle.loads(pickle.dumps(Harm(target)))
    assert target.exists()


FORMS: dict[str, Callable[[object], bytes]] = {
    "zip": lambda value: saved(value, True),
    "legacy": lambda value: saved(value, False),
    "smuggled": lambda value: repacked(
        saved({"step": 1}, True), lambda harmless: pickle.dumps(value, 2)
    ),
    "bare": pickle.dumps,
    "bare, protocol 2": lambda value: pickle.dumps(value, 2),
}


# Pickles in files


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
@pytest.mark.parametrize("form", FORMS)
def test_no_pickle_of_a_checkpoint_runs(
    tmp_path: Path, trap: Path, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even where the environment tells PyTorch to load whatever it finds."""
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")
    path = tmp_path / "checkpoint.pt"
    path.write_bytes(sealed(FORMS[form]({"method": {"x": torch.ones(3)}, "extra": Harm(trap)})))
    error = refused("expected a whole checkpoint, but", load_checkpoint, path, error=RunError)
    assert "weights_only" not in str(error), "no advice to load it in a way that runs code"


def test_a_run_is_not_taken_up_from_an_evil_checkpoint(
    cut_short: tuple[Path, int], trap: Path
) -> None:
    out, _ = cut_short
    (out / "checkpoint.pt").write_bytes(sealed(saved(Harm(trap), True)))
    teacher = Metered()
    with pytest.raises(RunError, match=r"Python objects beside tensors, .* never loaded"):
        clone(out, teacher, resume=True)
    assert teacher.calls == 0


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", ["student.safetensors", "teacher.pt", "teacher.safetensors"])
def test_no_pickle_of_weights_runs(tmp_path: Path, trap: Path, form: str, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(FORMS[form]({"state_dict": {"x": torch.ones(3)}, "extra": Harm(trap)}))
    given = TorchOptions(str(path)), TeacherConfig(), torch.device("cpu")
    with pytest.raises(UserError, match=re.escape(str(path))):
        load_student(path) if name.startswith("student") else load_torch(*given)


@pytest.mark.parametrize("evil", ["images", "labels", "answers", "all"])
def test_no_pickle_of_arrays_runs(tmp_path: Path, trap: Path, evil: str) -> None:
    arrays = {"images": np.zeros((2, 1, 8, 8), np.uint8), "labels": np.zeros(2, int)}
    arrays["answers"] = np.zeros((2, 3))
    arrays |= {name: np.array([Harm(trap)] * 2) for name in arrays if evil in (name, "all")}
    (tmp_path / "samples").mkdir()
    (tmp_path / "config.yaml").write_text("seed: 0\n")
    sheet, data = tmp_path / "samples" / "queries-000000001.npz", tmp_path / "data.npz"
    for path in (sheet, data):
        np.savez(path, **arrays)
    for words in ("holds Python objects, which are not loaded", "zip"):
        with pytest.raises(UserError, match=words):
            load_dataset(str(data), "test")
        with pytest.raises(RunError, match=words):
            read_run(tmp_path)
        for path in (sheet, data):
            path.write_bytes(pickle.dumps(Harm(trap)))


# Pickles in answers


def test_no_pickle_of_an_answer_runs(trap: Path) -> None:
    body = pickle.dumps(Harm(trap))
    for length in (None, len(body), 1):
        with pytest.raises(ValueError, match=r"\w"):
            unpack(body, length, "outputs", 1_000)
    assert from_bytes(memoryview(body), "BYTES", [1]).tolist() == [None]
    assert from_list([body.decode("latin-1")], "BYTES", [1]).tolist() == [None]
    for datatype in ("OBJECT", "O", "object"):
        with pytest.raises(ValueError, match=datatype):
            from_bytes(memoryview(body), datatype, [1])


# What no module may do; the linter's rules S and TID251 (pyproject.toml) refuse the rest

NEEDS: dict[str, dict[str, object]] = {
    "torch.load": {"weights_only": True},
    "np.load": {"allow_pickle": False},
    "np.lib.format.read_array": {"allow_pickle": False},
    "from_pretrained": {"trust_remote_code": False, "local_files_only": True},
}
NEVER = {"shell": True, "verify": False, "allow_pickle": True, "weights_only": False}
NEVER["trust_remote_code"] = True
OTHER_NAMES = re.compile(
    r"import (torch|numpy) as (?!np\b)|from (torch|numpy)[\w.]* import .*(load|read)"
)


SHORT = {"extractall", "extract", *(function.rpartition(".")[2] for function in NEEDS)}


def dangers(nodes: Iterable[ast.AST], where: str) -> list[str]:
    """Calls of a module that could run what they read."""
    dangerous = list[str]()
    for call in (node for node in nodes if isinstance(node, ast.Call)):
        short = getattr(call.func, "attr", getattr(call.func, "id", ""))
        values = {
            word.arg: word.value.value
            for word in call.keywords
            if isinstance(word.value, ast.Constant)
        }
        dangerous += [f"{short}: {key}" for key, bad in NEVER.items() if values.get(key) is bad]
        if short not in SHORT:
            continue
        function = ast.unparse(call.func)
        needed = NEEDS.get(short if short == "from_pretrained" else function, {})
        dangerous += [
            f"{function}: {key}" for key, value in needed.items() if values.get(key) is not value
        ]
        if short.startswith("extract") or (function == "yaml.load" and where != LOADER):
            dangerous.append(function)
    return dangerous


def modules() -> dict[str, Path]:
    return {name(path): path for path in [*files("dfme", "teachers", "research"), ROOT / "run.py"]}


def test_no_module_can_run_what_it_reads() -> None:
    paths = modules()
    assert len(paths) > 100
    for where, path in paths.items():
        assert dangers(nodes_of(path), where) == [], where
        assert not OTHER_NAMES.search(text_of(path)), where
    assert issubclass(dfme.config.yaml_files._Loader, yaml.SafeLoader)
    assert "yaml.load(text, Loader=_Loader)" in text_of(paths[LOADER])


@pytest.mark.parametrize(
    "source",
    [
        "torch.load(path)",
        "np.load(p, allow_pickle=True)",
        "yaml.load(text, Loader=yaml.SafeLoader)",
        "archive.extractall(folder)",
        "Auto.from_pretrained(name, local_files_only=True)",
        "client.get(url, verify=False)",
    ],
)
def test_the_rules_find_what_they_look_for(source: str) -> None:
    assert dangers(ast.walk(ast.parse(source)), "dfme/somewhere.py")
    for other in ("import torch as t", "from torch import load"):
        assert OTHER_NAMES.search(other)


def test_the_linter_looks_for_unsafe_code_everywhere_and_every_exception_is_known() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["ruff"]["lint"]
    assert {"S", "TID251"} <= {*settings["select"]}
    assert len(settings["flake8-tidy-imports"]["banned-api"]) > 20
    assert [rule for rule in settings["ignore"] if rule.startswith(("S", "TID"))] == ["S101"]
    assert settings["per-file-ignores"] == {"tests/**": ["S", "SIM905", "TID251", "E501"]}
    noqa = re.compile(r"noqa:.*\b(S\d{3}|TID251)")
    excepted = {
        (where, code) for where, path in modules().items() for code in noqa.findall(text_of(path))
    }
    assert excepted == {
        ("dfme/audits/audit/document.py", "S603"),  # git, with words of ours
        # this interpreter, on this program, with words of ours
        ("dfme/audits/compare/engines/pool.py", "S603"),
        ("dfme/config/yaml_files.py", "S506"),  # the loader is a SafeLoader
        ("dfme/oracle/retry.py", "S311"),  # how long a retry waits is no secret
        ("dfme/report/metrics.py", "S311"),  # which records of a long log are drawn is no secret
        ("dfme/run/student_file.py", "TID251"),  # reads its own bytes again, not a file
        ("teachers/local/exported.py", "TID251"),  # programs that the user says to trust
    }
    assert not [
        where
        for where, path in modules().items()
        if re.search(r"ruff: *noqa|# nosec", text_of(path))
    ]
