"""Teachers from a timm folder: equal to the network it was saved from, by local files alone."""

from __future__ import annotations

import json
import pickle
import shutil
import socket
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from dfme.cli.teacher_side import kind_problems
from dfme.config.settings import TeacherConfig
from dfme.errors import UserError
from dfme.spec import ImageSpec
from dfme.teachers.build import make_teacher
from dfme.teachers.local.checks import import_extra

timm = pytest.importorskip("timm", exc_type=(ImportError, RuntimeError))  # it needs torchvision

pytestmark = pytest.mark.integration

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any attempt to look a host up or to connect fails the test."""

    def refuse(*args: object, **kwargs: object) -> None:
        pytest.fail(f"a network connection was attempted: {args}")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, nn.Module]]:
    """timm's own smallest networks, saved as timm saves them."""
    torch.manual_seed(0)
    made: dict[str, tuple[Path, nn.Module]] = {}
    for name, arguments in {
        "test_resnet": {"in_chans": 1},
        "test_vit": {"img_size": 32, "dynamic_img_size": False},
    }.items():
        model = timm.create_model(name, num_classes=4, **arguments).eval()
        folder = tmp_path_factory.mktemp(name)
        timm.models.save_for_hf(model, folder, safe_serialization=True)
        made[name] = folder, model
    return made


def load(folder: Path, **common: Any) -> Any:
    common.setdefault("label_mode", "logits")
    return make_teacher(TeacherConfig(kind="timm", **common), {"folder": str(folder)}, CPU)


@pytest.fixture
def vit(models: dict[str, tuple[Path, nn.Module]], tmp_path: Path) -> Path:
    """A copy of the ViT's folder to spoil."""
    return Path(shutil.copytree(models["test_vit"][0], tmp_path / "vit"))


def edit(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


@pytest.mark.parametrize(("name", "shape"), [("test_resnet", (1, 160, 160)), ("test_vit", (3, 32, 32))])
def test_a_folder_answers_as_the_network(
    models: dict[str, tuple[Path, nn.Module]], name: str, shape: tuple[int, int, int]
) -> None:
    folder, model = models[name]
    config = json.loads((folder / "config.json").read_text())
    config["pretrained_cfg"] |= {"mean": [0.4] * shape[0], "std": [0.3] * shape[0]}
    (folder / "config.json").write_text(json.dumps(config))
    before = torch.get_rng_state()
    teacher = load(folder)
    assert torch.equal(torch.get_rng_state(), before)
    assert (teacher.spec, teacher.num_classes) == (ImageSpec(shape), 4)
    x_BCHW = torch.rand(2, *shape)
    with torch.no_grad():
        expected = model((x_BCHW - 0.4) / 0.3)
        torch.testing.assert_close(teacher(x_BCHW), expected, rtol=1e-5, atol=1e-5)
        own_scale = load(folder, mean=(0.0,), std=(1.0,))
        torch.testing.assert_close(own_scale(x_BCHW), model(x_BCHW), rtol=1e-5, atol=1e-5)
    wide = load(folder, bounds=(-1.0, 1.0), label_mode="probabilities")
    torch.testing.assert_close(wide(x_BCHW * 2 - 1), expected.softmax(1), rtol=1e-5, atol=1e-5)


def test_the_older_layout_without_a_pretrained_cfg(models: dict[str, tuple[Path, nn.Module]], tmp_path: Path) -> None:
    folder, model = models["test_resnet"]
    shutil.copy(folder / "model.safetensors", tmp_path)
    flat = {
        "architecture": "test_resnet.r160_in1k",
        "num_classes": 4,
        "input_size": [1, 64, 64],
        "mean": 0.5,
        "std": 0.5,
    }
    (tmp_path / "config.json").write_text(json.dumps(flat))
    teacher = load(tmp_path)
    assert teacher.spec.shape == (1, 64, 64)
    x_BCHW = torch.rand(2, 1, 64, 64)
    with torch.no_grad():
        torch.testing.assert_close(teacher(x_BCHW), model((x_BCHW - 0.5) / 0.5), rtol=1e-5, atol=1e-5)


def test_what_is_given_must_fit_the_folder(models: dict[str, tuple[Path, nn.Module]]) -> None:
    folder, _ = models["test_vit"]
    with pytest.raises(UserError, match=r"--teacher\.num-classes: got 7, but the num_classes of config\.json are 4"):
        load(folder, num_classes=7)
    with pytest.raises(UserError, match=r"--teacher\.shape: got 1, but the channels of config\.json are 3"):
        load(folder, shape=(1, 32, 32))
    with pytest.raises(UserError, match="does not take an image of shape 3,48,48: "):
        load(folder, shape=(3, 48, 48))
    resnet, model = models["test_resnet"]
    teacher = load(resnet, shape=(1, 48, 48), mean=(0.0,), std=(1.0,))  # which takes any size
    x_BCHW = torch.rand(2, 1, 48, 48)
    with torch.no_grad():
        torch.testing.assert_close(teacher(x_BCHW), model(x_BCHW), rtol=1e-5, atol=1e-5)


class Harm:
    """Leaves a file behind when it is unpickled."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> Any:
        return (Path.touch, (self.trace,))


def harmful(folder: Path) -> str:
    """A pickle beside the folder that leaves a trace when it is read."""
    (folder.parent / "harm.pth").write_bytes(pickle.dumps(Harm(folder.parent / "trace")))
    return str(folder.parent / "harm.pth")


def pickle_weights(folder: Path) -> None:
    harmful(folder)
    (folder.parent / "harm.pth").rename(folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()


def rename_weights(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "model-00001.safetensors")
    index = {"weight_map": {"head.weight": "model-00001.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


SPOILT: dict[str, tuple[Any, str]] = {
    "a name to fetch": (
        lambda f: edit(f, architecture="hf-hub:evil/model"),
        "an architecture that timm knows, got 'hf-",
    ),
    "a folder's name": (lambda f: edit(f, architecture="local-dir:../other"), "an architecture that timm knows"),
    "a typo": (lambda f: edit(f, architecture="test_vti"), "got 'test_vti'; did you mean test_vit"),
    "a checkpoint": (
        lambda f: edit(f, model_args={"checkpoint_path": harmful(f)}),
        "may not say where weights come from, but has checkpoint_path",
    ),
    "other weights": (
        lambda f: edit(f, model_args={"pretrained_cfg_overlay": {"file": harmful(f)}}),
        "may not say where weights come from, but has pretrained_cfg_overlay",
    ),
    "no argument": (lambda f: edit(f, model_args={"nonsense": 1}), "timm cannot build test_vit: .*nonsense"),
    "no arguments": (lambda f: edit(f, model_args=[1]), "expected model_args as an object, got list"),
    "another network": (
        lambda f: edit(f, architecture="test_resnet", model_args={}),
        "do not fit the network: .* missing",
    ),
    "wide": (lambda f: edit(f, model_args={"embed_dim": 960_000}), "do not fit the network: .* of another shape"),
    "deep": (lambda f: edit(f, model_args={"depth": 10**6}), "more than 20,000 tensors"),
    "many classes": (lambda f: edit(f, num_classes=10**9), r"config\.json: .*1000000000 is too large"),
    "pickle": (pickle_weights, r"found pickled weights \(pytorch_model\.bin\)"),
    "parts": (rename_weights, r"in one file, found model\.safetensors\.index\.json"),
    "no weights": (lambda f: (f / "model.safetensors").unlink(), r"expected model\.safetensors, found no weights"),
    "no config": (lambda f: (f / "config.json").unlink(), r"expected a model folder with config\.json"),
    "no architecture": (lambda f: (f / "config.json").write_text('{"model_type": "vit"}'), "say --teacher hf"),
    "no scale": (
        lambda f: edit(f, pretrained_cfg={"input_size": [3, 32, 32]}),
        "has no mean and std, so how to normal",
    ),
    "no size": (
        lambda f: edit(f, pretrained_cfg={"mean": 0, "std": 1}, model_args={"in_chans": 3}),
        r"--teacher\.shape: the image size cannot be told from config\.json; give it",
    ),
}


@pytest.mark.parametrize("case", SPOILT)
def test_what_cannot_be_a_teacher_is_one_line(vit: Path, case: str) -> None:
    spoil, message = SPOILT[case]
    spoil(vit)
    with pytest.raises(UserError, match=message) as error:
        load(vit)
    assert "\n" not in str(error.value)
    assert not (vit.parent / "trace").exists()


def test_without_timm_the_command_is_named(vit: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(UserError, match=r"timm, .* is not installed; pip install timm"):
        load(vit)


def test_a_package_that_is_broken_is_said_to_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "for_another_torch.py").write_text("raise RuntimeError('operator torchvision::nms does not exist')")
    (tmp_path / "lacking.py").write_text("import no_such_package_at_all")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(
        UserError, match=r"cannot be imported \(RuntimeError: operator torchvision::nms does not exist\)"
    ):
        import_extra("for_another_torch")
    with pytest.raises(UserError, match=r"lacks no_such_package_at_all; pip install lacking"):
        import_extra("lacking")


def test_a_missing_folder_is_seen_without_torch(tmp_path: Path) -> None:
    (problem,) = kind_problems("timm", {"folder": str(tmp_path / "none")})
    assert problem.key == "teacher.folder"
    assert problem.text.endswith("does not exist; save one with timm.models.save_for_hf")
