"""Folders of timm, and of many families of transformers, against the libraries' own models and processors."""

import json
import pickle
import shutil
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from damage import Harm, refused
from model_folders import near, no_config, no_network, no_weights, pickled_weights, spoil
from torch import nn

from dfme.config.settings import TeacherConfig
from dfme.spec import ImageSpec
from dfme.teachers.build import make_teacher
from dfme.teachers.local.checks import import_extra

pytestmark = pytest.mark.integration

transformers = pytest.importorskip("transformers")


EDGE = 32
SQUARE = {"height": EDGE, "width": EDGE}
CROPPED = {"size": {"shortest_edge": 36}, "crop_size": SQUARE}
PLAIN = {"size": SQUARE}
SHORT = {"size": {"shortest_edge": EDGE}}

FEW = {
    "image_size": EDGE,
    "patch_size": 8,
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
}
TINY = {**FEW, "intermediate_size": 32}
STAGES = {"hidden_sizes": [8, 8, 8, 8], "depths": [1, 1, 1, 1]}
PYRAMID = {
    "hidden_sizes": [8, 8, 16, 16],
    "depths": [1, 1, 1, 1],
    "num_attention_heads": [1, 1, 2, 2],
}
WINDOWS = {
    "image_size": EDGE,
    "embed_dim": 8,
    "depths": [1, 1],
    "num_heads": [1, 2],
    "window_size": 4,
}
MOBILE = {
    "image_size": EDGE,
    "hidden_sizes": [16, 16, 16],
    "neck_hidden_sizes": [8, 8, 8, 8, 8, 8, 16],
    "num_attention_heads": 2,
    "patch_size": 2,
    "expand_ratio": 1.0,
}
TEXT = {
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "vocab_size": 50,
}
LEVIT = {
    "image_size": 64,
    "hidden_sizes": [16, 24, 32],
    "num_attention_heads": [1, 1, 2],
    "depths": [1, 1, 1],
    "key_dim": [8, 8, 8],
}
PERCEIVER = {
    "num_latents": 8,
    "d_latents": 16,
    "num_blocks": 1,
    "num_self_attends_per_block": 1,
    "num_self_attention_heads": 2,
    "num_cross_attention_heads": 1,
}
BIT = {"embedding_size": 8, "hidden_sizes": [32] * 4, "depths": [1] * 4, "num_groups": 1}
EFFICIENT = {"image_size": EDGE, "width_coefficient": 0.25, "depth_coefficient": 0.2}
BIG_CROP = {"size": {"shortest_edge": 64}, "crop_size": {"height": 64, "width": 64}}

SCALED = {**PLAIN, "image_mean": [0.5, 0.4, 0.3], "image_std": [0.2, 0.3, 0.4]}

FAMILIES: dict[str, tuple[dict[str, Any], str, dict[str, Any]]] = {
    "ViT": (TINY, "ViT", PLAIN),
    "DeiT": (TINY, "DeiT", {"size": {"height": 36, "width": 36}, "crop_size": SQUARE}),
    "Beit": (TINY, "Beit", PLAIN),
    "Data2VecVision": (TINY, "Beit", PLAIN),
    "Dinov2": (FEW, "Bit", CROPPED),
    "ConvNext": (STAGES, "ConvNext", SHORT),
    "Swin": ({**WINDOWS, "patch_size": 4}, "ViT", PLAIN),
    "Swinv2": ({**WINDOWS, "patch_size": 4}, "ViT", PLAIN),
    "ResNet": ({"embedding_size": 8, "hidden_sizes": [8, 8], "depths": [1, 1]}, "ConvNext", SHORT),
    "RegNet": ({"embedding_size": 8, **STAGES, "groups_width": 8}, "ConvNext", SHORT),
    "MobileNetV1": ({"image_size": EDGE, "depth_multiplier": 0.25}, "MobileNetV1", CROPPED),
    "MobileNetV2": ({"image_size": EDGE, "depth_multiplier": 0.25}, "MobileNetV2", CROPPED),
    "MobileViT": (MOBILE, "MobileViT", CROPPED),
    "MobileViTV2": ({"image_size": 64, "width_multiplier": 0.25}, "MobileViT", BIG_CROP),
    "EfficientNet": ({**EFFICIENT, "hidden_dim": 320}, "EfficientNet", PLAIN),
    "CLIP": ({"text_config": TEXT, "vision_config": TINY}, "CLIP", {**SHORT, "crop_size": SQUARE}),
    "Siglip": ({"text_config": TEXT, "vision_config": TINY}, "Siglip", PLAIN),
    "PoolFormer": (STAGES, "PoolFormer", {**SHORT, "crop_size": SQUARE}),
    "Levit": (LEVIT, "Levit", BIG_CROP),
    "Bit": (BIT, "Bit", CROPPED),
    "Pvt": ({"image_size": EDGE, **PYRAMID}, "Pvt", PLAIN),
    "Segformer": (PYRAMID, "Segformer", PLAIN),
    "Perceiver": (PERCEIVER, "Perceiver", {}),
    "ViT, not normalised": (TINY, "ViT", {**SCALED, "do_normalize": False}),
    "ViT, not rescaled": (
        TINY,
        "ViT",
        {**SCALED, "do_rescale": False, "image_std": [60.0, 70.0, 80.0]},
    ),
    "ViT, one number": (TINY, "ViT", {**SCALED, "image_mean": 0.5, "image_std": 0.5}),
    "ViT, to -1 and 1": (
        TINY,
        "EfficientNet",
        {**SCALED, "rescale_factor": 1 / 127.5, "rescale_offset": True, "include_top": False},
    ),
    "ViT, divided twice": (TINY, "EfficientNet", {**SCALED, "include_top": True}),
}
"""Model settings, the processor's name, and its settings, beside the class's defaults."""

HEADS = {"Perceiver": "ConvProcessing"}


@pytest.fixture(autouse=True)
def _no_network() -> Iterator[None]:
    with no_network(), warnings.catch_warnings(action="ignore"):
        yield


def saved(family: str, folder: Path) -> nn.Module:
    """A small model with weights large enough to answer differently to different images."""
    settings, _, _ = FAMILIES[family]
    kind = family.partition(",")[0]
    name = f"{kind}ForImageClassification{HEADS.get(kind, '')}"
    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(**settings, num_labels=4, architectures=[name])
    model: nn.Module = getattr(transformers, name)(config)
    for layer in model.modules():
        if isinstance(layer, nn.Linear | nn.Conv2d):
            nn.init.xavier_normal_(layer.weight)
        if isinstance(layer, nn.BatchNorm2d):
            layer.momentum = None
    if any(isinstance(layer, nn.BatchNorm2d) for layer in model.modules()):
        with torch.no_grad():
            # else they make next to nothing of it
            model.train()(pixel_values=torch.randn(8, 3, 64, 64))
    model.eval().save_pretrained(folder)  # type: ignore[operator]
    return model


def write(folder: Path, form: str, processor: Any, settings: dict[str, Any]) -> None:
    """The processor's file as transformers writes it today, as it once did, and inside another."""
    path = folder / "preprocessor_config.json"
    nested = folder / "processor_config.json"
    for file in (path, nested):
        file.unlink(missing_ok=True)
    processor.save_pretrained(folder)
    if form == "old":
        name = type(processor).__name__.replace("ImageProcessor", "FeatureExtractor")
        path.write_text(json.dumps({**settings, "feature_extractor_type": name}))
    elif form == "nested":
        nested.write_text(json.dumps({"image_processor": json.loads(path.read_text())}))
        path.unlink()


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_answers_as_behind_its_own_processor(family: str, tmp_path: Path) -> None:
    model = saved(family, tmp_path)
    _, name, settings = FAMILIES[family]
    processor = getattr(transformers, f"{name}ImageProcessor")(**settings)
    whole = processor([np.zeros((50, 50, 3), np.uint8)], return_tensors="pt")["pixel_values"]
    off = {step: False for step in ("do_resize", "do_center_crop") if hasattr(processor, step)}
    rng = np.random.default_rng(0)
    for form in ("new", "old", "nested"):
        write(tmp_path, form, processor, settings)
        teacher = make_teacher(
            TeacherConfig(kind="hf", label_mode="logits"),
            {"folder": str(tmp_path)},
            torch.device("cpu"),
        )
        assert teacher.spec.shape == tuple(whole.shape[1:])
        height, width = teacher.spec.shape[1:]
        bytes_BHWC = rng.integers(0, 256, (3, height, width, 3), dtype=np.uint8)
        pixels = processor(list(bytes_BHWC), return_tensors="pt", **off)["pixel_values"]
        with torch.no_grad():
            expected = model(pixel_values=pixels).logits
        assert (expected[0] - expected[1]).abs().max() > 0
        x_BCHW = torch.from_numpy(bytes_BHWC).permute(0, 3, 1, 2) / 255
        assert float((teacher(x_BCHW) - expected).abs().max()) <= 1e-4 * float(
            (expected - expected.mean(0)).abs().max()
        )


timm = pytest.importorskip("timm", exc_type=(ImportError, RuntimeError))  # it needs torchvision


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, nn.Module]]:
    """timm's own smallest networks, saved as timm saves them."""
    torch.manual_seed(0)
    saved_models: dict[str, tuple[Path, nn.Module]] = {}
    for name, arguments in {
        "test_resnet": {"in_chans": 1},
        "test_vit": {"img_size": 32, "dynamic_img_size": False},
    }.items():
        model = timm.create_model(name, num_classes=4, **arguments).eval()
        folder = tmp_path_factory.mktemp(name)
        timm.models.save_for_hf(model, folder, safe_serialization=True)
        saved_models[name] = folder, model
    return saved_models


def load(folder: Path, **common: Any) -> Any:
    common.setdefault("label_mode", "logits")
    return make_teacher(
        TeacherConfig(kind="timm", **common), {"folder": str(folder)}, torch.device("cpu")
    )


@pytest.fixture
def spoilt_vit(models: dict[str, tuple[Path, nn.Module]], tmp_path: Path) -> Path:
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


def arguments(name: str, value: Callable[[Path], Any]) -> Callable[[Path], None]:
    return lambda folder: spoil(folder, {"model_args": {name: value(folder)}})


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
        (arguments("checkpoint_path", harmful), "checkpoint_path"),
        (
            arguments("pretrained_cfg_overlay", lambda folder: {"file": harmful(folder)}),
            "pretrained_cfg_overlay",
        ),
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
        ({"model_args": {"depth": 10**6}}, "more than 1,000 tensors"),
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
def test_what_cannot_be_a_teacher_is_one_line(
    spoilt_vit: Path, monkeypatch: pytest.MonkeyPatch, how: Any, words: str
) -> None:
    monkeypatch.setattr("dfme.nets.files.MAX_TENSORS", 1_000)  # of 20,000
    spoil(spoilt_vit, how)
    refused(words, load, spoilt_vit)
    assert not (spoilt_vit.parent / "trace").exists()


def test_without_timm_the_command_is_named(
    spoilt_vit: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "timm", None)
    refused("is not installed; pip install timm", load, spoilt_vit)


def test_a_package_that_is_broken_is_said_to_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "for_another_torch.py").write_text("raise RuntimeError('no such operator')")
    (tmp_path / "lacking.py").write_text("import no_such_package_at_all")
    monkeypatch.syspath_prepend(tmp_path)
    refused("RuntimeError: no such operator", import_extra, "for_another_torch")
    refused("pip install lacking", import_extra, "lacking")
