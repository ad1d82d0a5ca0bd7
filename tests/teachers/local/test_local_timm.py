"""Teachers from a timm folder: equal to the network it was saved from, by local files alone."""

import json
import pickle
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from damage import Harm, refused
from model_folders import near, no_config, no_network, no_weights, pickled_weights, spoil
from torch import nn

from dfme.config.settings import TeacherConfig
from dfme.spec import ImageSpec
from dfme.teachers.build import make_teacher
from dfme.teachers.local.checks import import_extra

timm = pytest.importorskip("timm", exc_type=(ImportError, RuntimeError))  # it needs torchvision

pytestmark = pytest.mark.integration


@pytest.fixture(autouse=True)
def _no_network() -> Iterator[None]:
    with no_network():
        yield


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
    return make_teacher(
        TeacherConfig(kind="timm", **common), {"folder": str(folder)}, torch.device("cpu")
    )


@pytest.fixture
def vit(models: dict[str, tuple[Path, nn.Module]], tmp_path: Path) -> Path:
    """A copy of the ViT's folder to spoil."""
    return Path(shutil.copytree(models["test_vit"][0], tmp_path / "vit"))


@pytest.mark.parametrize(
    ("name", "shape"), [("test_resnet", (1, 160, 160)), ("test_vit", (3, 32, 32))]
)
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
        near(teacher(x_BCHW), expected)
        near(load(folder, mean=(0.0,), std=(1.0,))(x_BCHW), model(x_BCHW))
    near(
        load(folder, bounds=(-1.0, 1.0), label_mode="probabilities")(x_BCHW * 2 - 1),
        expected.softmax(1),
    )


def test_the_older_layout_without_a_pretrained_cfg(
    models: dict[str, tuple[Path, nn.Module]], tmp_path: Path
) -> None:
    folder, model = models["test_resnet"]
    shutil.copy(folder / "model.safetensors", tmp_path)
    flat = {"architecture": "test_resnet.r160_in1k", "num_classes": 4, "input_size": [1, 64, 64]}
    flat |= {"mean": 0.5, "std": 0.5}
    (tmp_path / "config.json").write_text(json.dumps(flat))
    teacher = load(tmp_path)
    assert teacher.spec.shape == (1, 64, 64)
    x_BCHW = torch.rand(2, 1, 64, 64)
    with torch.no_grad():
        near(teacher(x_BCHW), model((x_BCHW - 0.5) / 0.5))


def test_the_pooling_is_the_one_that_was_trained_with(tmp_path: Path) -> None:
    """timm writes it at the top for people; where model_args lack it, another one would be
    built.
    """
    model = timm.create_model("test_resnet", num_classes=4, global_pool="max").eval()
    timm.models.save_for_hf(model, tmp_path, safe_serialization=True)
    config = json.loads((tmp_path / "config.json").read_text())
    config["pretrained_cfg"] |= {"mean": [0.4] * 3, "std": [0.3] * 3}
    (tmp_path / "config.json").write_text(json.dumps(config))
    x_BCHW = torch.rand(2, 3, 64, 64)
    with torch.no_grad():
        expected = model((x_BCHW - 0.4) / 0.3)
    near(load(tmp_path, shape=(3, 64, 64))(x_BCHW), expected)
    del config["model_args"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    refused("its global_pool is 'max', but what it describes is built with 'avg'", load, tmp_path)
    config["pretrained_cfg"]["global_pool"] = "max"  # which timm itself reads
    (tmp_path / "config.json").write_text(json.dumps(config))
    near(load(tmp_path, shape=(3, 64, 64))(x_BCHW), expected)


def test_what_is_given_must_fit_the_folder(models: dict[str, tuple[Path, nn.Module]]) -> None:
    folder, _ = models["test_vit"]
    refused("--teacher.num-classes: got 7, but the", load, folder, num_classes=7)
    refused("--teacher.shape: got 1, but the channels of", load, folder, shape=(1, 32, 32))
    refused("does not take an image of shape 3,48,48", load, folder, shape=(3, 48, 48))
    resnet, model = models["test_resnet"]
    teacher = load(resnet, shape=(1, 48, 48), mean=(0.0,), std=(1.0,))  # which takes any size
    x_BCHW = torch.rand(2, 1, 48, 48)
    with torch.no_grad():
        near(teacher(x_BCHW), model(x_BCHW))


def harmful(folder: Path) -> str:
    """A pickle beside the folder that leaves a trace when it is read."""
    (folder.parent / "harm.pth").write_bytes(pickle.dumps(Harm(folder.parent / "trace")))
    return str(folder.parent / "harm.pth")


def a_checkpoint(folder: Path) -> None:
    spoil(folder, {"model_args": {"checkpoint_path": harmful(folder)}})


def other_weights(folder: Path) -> None:
    spoil(folder, {"model_args": {"pretrained_cfg_overlay": {"file": harmful(folder)}}})


def weights_in_parts(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "model-00001.safetensors")
    index = {"weight_map": {"head.weight": "model-00001.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"architecture": "hf-hub:evil/model"}, "no such architecture"),
        ({"architecture": "local-dir:../other"}, "no such architecture"),
        ({"architecture": "test_vti"}, "did you mean test_vit"),
        (a_checkpoint, "checkpoint_path"),
        (other_weights, "pretrained_cfg_overlay"),
        ({"model_args": {"nonsense": 1}}, "nonsense"),
        ({"model_args": [1]}, "model_args: expected an object"),
        (
            {
                "architecture": "test_resnet",
                "model_args": {},
                "pretrained_cfg": {"mean": 0.5, "std": 0.5, "input_size": [3, 32, 32]},
            },
            "missing",
        ),
        ({"architecture": "test_resnet", "model_args": {}}, "timm cannot build test_resnet"),
        ({"model_args": {"embed_dim": 960_000}}, "of another shape"),
        ({"model_args": {"depth": 10**6}}, "more than 20,000 tensors"),
        ({"num_classes": 10**9}, "1000000000 is too large"),
        (pickled_weights, "pytorch_model.bin"),
        (weights_in_parts, "model.safetensors.index.json"),
        (no_weights, "found no weights"),
        (no_config, "a model folder with config.json"),
        ('{"model_type": "vit"}', "--teacher hf"),
        ({"pretrained_cfg": {"input_size": [3, 32, 32]}}, "no mean and std"),
        (
            {"pretrained_cfg": {"mean": 0, "std": 1}, "model_args": {"in_chans": 3}},
            "--teacher.shape",
        ),
    ],
)
def test_what_cannot_be_a_teacher_is_one_line(vit: Path, how: Any, words: str) -> None:
    spoil(vit, how)
    refused(words, load, vit)
    assert not (vit.parent / "trace").exists()


def test_without_timm_the_command_is_named(vit: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "timm", None)
    refused("is not installed; pip install timm", load, vit)


def test_a_package_that_is_broken_is_said_to_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "for_another_torch.py").write_text("raise RuntimeError('no such operator')")
    (tmp_path / "lacking.py").write_text("import no_such_package_at_all")
    monkeypatch.syspath_prepend(tmp_path)
    refused("RuntimeError: no such operator", import_extra, "for_another_torch")
    refused("pip install lacking", import_extra, "lacking")
