"""Teachers from a transformers folder: equal to the model and its image processor."""

import json
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from damage import refused
from model_folders import edit, near, no_config, no_network, no_weights, pickled_weights, spoil
from safetensors.torch import load_file, save_file
from torch import nn

from dfme.config.settings import TeacherConfig
from dfme.owner_side import kind_problems
from dfme.spec import ImageSpec
from dfme.teachers.build import make_teacher

transformers = pytest.importorskip("transformers")

pytestmark = pytest.mark.integration

PLAIN = {
    "do_resize": False,
    "do_rescale": True,
    "rescale_factor": 1 / 255,
    "do_normalize": True,
    "image_mean": [0.5, 0.4, 0.3],
    "image_std": [0.2, 0.3, 0.4],
}


@pytest.fixture(autouse=True)
def _no_network() -> Iterator[None]:
    with no_network():
        yield


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, nn.Module]]:
    """A tiny ViT and a tiny ResNet, saved as transformers saves them, with a
    preprocessor_config.json.
    """
    torch.manual_seed(0)
    few = {
        "hidden_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 32,
    }
    vit = transformers.ViTConfig(image_size=16, patch_size=8, num_labels=5, **few)
    few = {"num_channels": 1, "embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1]}
    names = {3: "elk", 1: "bee", 0: "cat", 2: "dog"}
    resnet = transformers.ResNetConfig(layer_type="basic", num_labels=4, id2label=names, **few)
    saved: dict[str, tuple[Path, nn.Module]] = {}
    for name, model in {
        "vit": transformers.ViTForImageClassification(vit),
        "resnet": transformers.ResNetForImageClassification(resnet),
    }.items():
        folder = tmp_path_factory.mktemp(name)
        model.eval().save_pretrained(folder)
        processor = {**PLAIN, "size": {"height": 16, "width": 16}}
        if name == "resnet":
            processor |= {"image_mean": [0.5], "image_std": [0.25], "size": {"shortest_edge": 32}}
            processor |= {"do_center_crop": True, "crop_size": {"height": 28, "width": 28}}
        (folder / "preprocessor_config.json").write_text(json.dumps(processor))
        saved[name] = folder, model
    return saved


def load(folder: Path, **common: Any) -> Any:
    common.setdefault("label_mode", "logits")
    return make_teacher(
        TeacherConfig(kind="hf", **common), {"folder": str(folder)}, torch.device("cpu")
    )


@pytest.fixture
def vit(models: dict[str, tuple[Path, nn.Module]], tmp_path: Path) -> Path:
    """A copy of the ViT's folder to spoil."""
    return Path(shutil.copytree(models["vit"][0], tmp_path / "vit"))


@pytest.mark.parametrize(
    ("name", "shape", "classes"), [("vit", (3, 16, 16), 5), ("resnet", (1, 28, 28), 4)]
)
def test_a_folder_answers_as_the_model_behind_its_preprocessor(
    models: dict[str, tuple[Path, nn.Module]],
    name: str,
    shape: tuple[int, int, int],
    classes: int,
    capfd: pytest.CaptureFixture[str],
) -> None:
    folder, model = models[name]
    before = torch.get_rng_state()
    teacher = load(folder)
    assert capfd.readouterr() == ("", "")  # no bars, no advice
    assert torch.equal(torch.get_rng_state(), before)
    assert (teacher.spec, teacher.num_classes) == (ImageSpec(shape), classes)
    if name == "resnet":
        assert teacher.info.class_names == ("cat", "bee", "dog", "elk")
    processor = json.loads((folder / "preprocessor_config.json").read_text())
    mean, std = (torch.tensor(processor[key])[:, None, None] for key in ("image_mean", "image_std"))
    x_BCHW = torch.rand(3, *shape)
    with torch.no_grad():
        expected = model((x_BCHW - mean) / std).logits
        near(load(folder, mean=(0.0,), std=(1.0,))(x_BCHW), model(x_BCHW).logits)
    near(teacher(x_BCHW), expected)
    wide = load(folder, bounds=(0.0, 255.0), label_mode="probabilities")
    near(wide(x_BCHW * 255), expected.softmax(1))


def test_a_size_without_end_takes_no_memory(vit: Path) -> None:
    for changes in (
        {"size": {"height": 900_000, "width": 900_000}},
        {"do_pad": True, "pad_size": {"height": 900_000, "width": 900_000}},
        {"image_processor_type": "PoolFormerImageProcessor", "crop_pct": 1e-9, "size": 16},
    ):
        edit(vit / "preprocessor_config.json", **changes)
        refused("too large to be meant; give --teacher.shape", load, vit)
        refused("too large to be meant", load, vit, mean=(0.5,), std=(0.5,))
        assert load(vit, shape=(3, 16, 16)).spec.shape == (3, 16, 16)


def test_one_output_is_a_logit_where_that_is_said(vit: Path) -> None:
    config = transformers.ViTConfig.from_pretrained(vit, num_labels=1)
    torch.manual_seed(0)
    model = transformers.ViTForImageClassification(config).eval()
    model.save_pretrained(vit)
    x_BCHW = torch.rand(2, 3, 16, 16)
    teacher = load(vit, num_classes=2, mean=(0.0,), std=(1.0,))
    with torch.no_grad():
        z_BK = torch.cat([torch.zeros(2, 1), model(x_BCHW).logits], 1)
    near(teacher(x_BCHW), z_BK)


def test_weights_in_parts(models: dict[str, tuple[Path, nn.Module]], vit: Path) -> None:
    (vit / "model.safetensors").unlink()
    models["vit"][1].save_pretrained(vit, max_shard_size="5KB")
    parts = sorted(vit.glob("model-*.safetensors"))
    assert len(parts) > 1
    x_BCHW = torch.rand(2, 3, 16, 16)
    expected = load(models["vit"][0])(x_BCHW)
    assert torch.equal(load(vit)(x_BCHW), expected)
    moved = vit.parent / "elsewhere.safetensors"
    parts[0].rename(moved)
    parts[0].symlink_to(moved)  # as the cache of the hub has them: the owner's own choice
    assert torch.equal(load(vit)(x_BCHW), expected)
    index = json.loads((vit / "model.safetensors.index.json").read_text())
    first = next(iter(index["weight_map"]))
    outside = (
        "../elsewhere.safetensors",
        str(moved),
        "a/../../elsewhere.safetensors",
        "C:\\x.safetensors",
    )
    for name in outside:
        edit(vit / "model.safetensors.index.json", weight_map={**index["weight_map"], first: name})
        refused("outside the folder", load, vit)
    edit(vit / "model.safetensors.index.json", weight_map={first: "missing.safetensors"})
    refused("'missing.safetensors' is none", load, vit)


def test_weights_whose_metadata_the_library_refuses(
    models: dict[str, tuple[Path, nn.Module]], vit: Path
) -> None:
    path = vit / "model.safetensors"
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length]) | {"__metadata__": {"format": None, "tags": [1]}}
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data[8 + length :])
    x_BCHW = torch.rand(2, 3, 16, 16)
    assert torch.equal(load(vit)(x_BCHW), load(models["vit"][0])(x_BCHW))


def test_half_precision_weights_run_in_fp32(
    models: dict[str, tuple[Path, nn.Module]], vit: Path
) -> None:
    model = transformers.ViTForImageClassification.from_pretrained(
        vit, local_files_only=True
    ).half()
    model.save_pretrained(vit)
    x_BCHW = torch.rand(2, 3, 16, 16)
    answer_BK = load(vit)(x_BCHW)
    assert answer_BK.dtype == torch.float32
    torch.testing.assert_close(answer_BK, load(models["vit"][0])(x_BCHW), rtol=1e-2, atol=1e-2)


def test_what_is_given_must_fit_the_folder(vit: Path) -> None:
    refused("--teacher.num-classes: got 7, but the", load, vit, num_classes=7)
    refused("--teacher.shape: got 1, but the", load, vit, shape=(1, 16, 16))
    refused("does not take an image of shape 3,24,24", load, vit, shape=(3, 24, 24))
    (vit / "preprocessor_config.json").unlink()
    refused("give --teacher.mean and --teacher.std", load, vit)
    assert load(vit, mean=(0.5,), std=(0.5,)).spec.shape == (3, 16, 16)


def cut_weights(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:1000])


def no_head(folder: Path) -> None:
    state = load_file(folder / "model.safetensors")
    del state["classifier.bias"]
    save_file(state, folder / "model.safetensors", {"format": "pt"})


def processed(**changes: Any) -> Callable[[Path], None]:
    return lambda folder: edit(folder / "preprocessor_config.json", **changes)


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"auto_map": {"AutoConfig": "evil.Config"}}, "auto_map"),
        ({"attn_implementation": "kernels-community/flash-attn"}, "attn_implementation"),
        ({"model_type": "timm_wrapper", "architecture": "hf_hub:someone/model"}, "model_type"),
        ({"a": [{"b": {"quantization_config": {}}}]}, "quantization_config"),
        ({"num_labels": 10**9}, "1000000000 is too large"),
        ({"num_hidden_layers": 10**6}, "more than 1,000 tensors"),
        (pickled_weights, "pytorch_model.bin"),
        (no_weights, "found no weights"),
        (cut_weights, "perhaps cut short"),
        (no_head, "classifier.bias"),
        ({"model_type": "nonsense"}, "nonsense"),
        ({"model_type": "vit_mae"}, "cannot load it"),
        ('{"architecture": "resnet18"}', "--teacher timm"),
        ("{", "expected the JSON of a model"),
        ("[]", "a JSON object, got list"),
        (no_config, "a model folder with config.json"),
        (
            lambda folder: (folder / "adapter_config.json").write_text("{}"),
            "an adapter to another model",
        ),
        ({"transformers_weights": "../x.safetensors"}, "cannot load"),
        (processed(image_std=[0, 1, 1]), "expected positive rescale_factor and image_std"),
        (processed(rescale_factor=float("nan")), "expected positive rescale_factor and image_std"),
        (
            processed(rescale_factor=-1 / 255),
            "an image processor that scales pixels and orders channels",
        ),
        (processed(image_mean="half"), "its image processor fails"),
        (processed(image_mean=[0.5, 0.5]), "its image processor fails"),
        (
            processed(image_processor_type="Trainer"),
            "transformers has no image processor 'Trainer'",
        ),
        (processed(feature_extractor_type="os.system"), "transformers has no image processor"),
        ({"image_processor_type": "Trainer"}, "transformers has no image processor 'Trainer'"),
        (processed(auto_map={"AutoImageProcessor": "evil--module.Class"}), "code of others"),
        (processed(image_processor_type="Siglip2ImageProcessor"), "channels; give --teacher.mean"),
        (processed(preprocess="text"), "its image processor fails"),
        ({"problem_type": "multi_label_classification"}, "got one of several labels"),
        ({"problem_type": "regression"}, "got a regression"),
        (
            {"id2label": {"0": "age"}},
            "a regression to transformers; if it is the logit of class 1, say",
        ),
        # as many gigabytes as one likes, by a few letters
        ({"hidden_size": 20_000, "intermediate_size": 40_000}, "describes a network of 3,2"),
        ({"intermediate_size": 1_000_000}, "describes a network of"),
        ({"image_size": 100_000}, "describes a network of"),
        ({"num_labels": 900_000}, "has 900,000 labels, but no tensor of the weights is so long"),
        (processed(size={"height": 60_000, "width": 60_000}), "too large to be meant"),
    ],
)
def test_what_cannot_be_a_teacher_is_one_line(
    vit: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    how: Any,
    words: str,
) -> None:
    monkeypatch.setattr("dfme.nets.files.MAX_TENSORS", 1_000)  # of 20,000
    spoil(vit, how)
    refused(words, load, vit)
    assert not (vit.parent / "trace").exists()
    assert capfd.readouterr() == ("", "")


def test_the_library_is_as_loud_as_it_was(vit: Path) -> None:
    log = transformers.utils.logging
    before = log.get_verbosity(), log.is_progress_bar_enabled()
    load(vit)
    assert (log.get_verbosity(), log.is_progress_bar_enabled()) == before


def test_without_transformers_the_command_is_named(
    vit: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    refused("is not installed; pip install transformers", load, vit)


@pytest.mark.parametrize("kind", ["hf", "timm"])
def test_a_missing_folder_is_seen_without_torch(tmp_path: Path, kind: str) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "file").write_text("")
    for name, text in {
        "modl": "mean model?",
        "other": "save one with",
        "file": "is a file",
    }.items():
        (problem,) = kind_problems(kind, {"folder": str(tmp_path / name)})
        assert problem.key == "teacher.folder"
        assert text in str(problem.text)
