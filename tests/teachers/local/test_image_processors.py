"""Folders of many families against transformers' own model on its own processor's pixels."""

import json
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from model_folders import no_network
from torch import nn

from dfme.config.settings import TeacherConfig
from dfme.teachers.build import make_teacher

transformers = pytest.importorskip("transformers")

pytestmark = pytest.mark.integration

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
def _quiet() -> Iterator[None]:
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
