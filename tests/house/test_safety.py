"""Nothing that is read is ever run: pickles in files and answers stay data."""

import ast
import pickle
import re
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from damage import Harm, repacked, saved, sealed
from small_runs import Metered, clone

import dfme.config.yaml_files
from dfme.config.settings import TeacherConfig
from dfme.data import load_dataset
from dfme.errors import RunError, UserError
from dfme.report.run_files import read_run
from dfme.run.checkpoint import load_checkpoint
from dfme.run.student_file import load_student
from dfme.teachers.local.pytorch import load_torch
from dfme.teachers.open_inference.message import unpack
from dfme.teachers.open_inference.tensors import from_bytes, from_list
from dfme.teachers.options import TorchOptions

ROOT = Path(__file__).resolve().parents[2]
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
    with pytest.raises(RunError, match="expected a whole checkpoint, but") as caught:
        load_checkpoint(path)
    assert "\n" not in str(caught.value)
    assert "weights_only" not in str(caught.value), "no advice to load it in a way that runs code"


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
    size = len(body).to_bytes(4, "little")
    texts = from_bytes(memoryview(size + body), "BYTES", [1])
    assert texts.tolist() == [body]
    assert from_list([body.decode("latin-1")], "BYTES", [1]).shape == (1,)
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


def dangers(source: str, where: str) -> list[str]:
    """Calls of a module that could run what they read."""
    found = [match[0] for match in OTHER_NAMES.finditer(source)]
    for call in (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)):
        name = ast.unparse(call.func)
        short = name.rpartition(".")[2]
        given = {
            word.arg: word.value.value
            for word in call.keywords
            if isinstance(word.value, ast.Constant)
        }
        needed = NEEDS.get(short if short == "from_pretrained" else name, {})
        found += [f"{name}: {key}" for key, value in needed.items() if given.get(key) is not value]
        found += [f"{name}: {key}" for key, value in NEVER.items() if given.get(key) is value]
        if short in (
            "extractall",
            "extract",
            *(("load",) if where != LOADER and name == "yaml.load" else ()),
        ):
            found.append(name)
    return found


def modules() -> dict[str, str]:
    paths = [
        path for room in ("dfme", "teachers", "research") for path in (ROOT / room).rglob("*.py")
    ]
    return {
        path.relative_to(ROOT).as_posix(): path.read_text() for path in [*paths, ROOT / "run.py"]
    }


def test_no_module_can_run_what_it_reads() -> None:
    assert len(found := modules()) > 100
    assert {
        where: what for where, source in found.items() if (what := dangers(source, where))
    } == {}
    assert issubclass(dfme.config.yaml_files._Loader, yaml.SafeLoader)
    assert "yaml.load(text, Loader=_Loader)" in found[LOADER]


def test_the_rules_find_what_they_look_for() -> None:
    sources = [
        "torch.load(path)",
        "import torch as t",
        "from torch import load",
        "np.load(p, allow_pickle=True)",
    ]
    sources += ["yaml.load(text, Loader=yaml.SafeLoader)", "archive.extractall(folder)"]
    sources += [
        "Auto.from_pretrained(name, local_files_only=True)",
        "client.get(url, verify=False)",
    ]
    assert all(dangers(source, "dfme/somewhere.py") for source in sources)


def test_the_linter_looks_for_unsafe_code_everywhere_and_every_exception_is_known() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["ruff"]["lint"]
    assert {"S", "TID251"} <= {*settings["select"]}
    assert len(settings["flake8-tidy-imports"]["banned-api"]) > 20
    assert [rule for rule in settings["ignore"] if rule.startswith(("S", "TID"))] == ["S101"]
    assert settings["per-file-ignores"] == {"tests/**": ["S", "SIM905", "TID251", "E501"]}
    noqa = re.compile(r"noqa:.*\b(S\d{3}|TID251)")
    excepted = {
        (where, code) for where, source in modules().items() for code in noqa.findall(source)
    }
    assert excepted == {
        ("dfme/audits/audit/document.py", "S603"),  # git, with words of ours
        # this interpreter, on this program, with words of ours
        ("dfme/audits/compare/processes.py", "S603"),
        ("dfme/config/yaml_files.py", "S506"),  # the loader is a SafeLoader
        ("dfme/oracle/retry.py", "S311"),  # how long a retry waits is no secret
        ("dfme/report/metrics.py", "S311"),  # which records of a long log are drawn is no secret
        ("dfme/run/student_file.py", "TID251"),  # reads its own bytes again, not a file
        ("teachers/local/exported.py", "TID251"),  # programs that the user says to trust
    }
    assert not [
        where for where, source in modules().items() if re.search(r"ruff: *noqa|# nosec", source)
    ]
