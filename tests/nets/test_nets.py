"""The architectures: published names and sizes, a second implementation, and guessing them back from weights."""

from __future__ import annotations

import importlib
import math
import subprocess
import sys
from types import ModuleType

import pytest
import torch
from tiers import exhaustive, exhaustive_rows
from torch import Tensor, nn

from dfme.errors import UserError
from dfme.nets import NETS, auto_net, build_net, check_net
from dfme.nets.batch_norm import SteadyBatchNorm2d
from dfme.nets.generators import Generator
from dfme.nets.infer import Guess, infer_net
from dfme.nets.torchvision_nets import registered_names
from dfme.spec import ImageSpec

SHAPES = [(3, 17, 9), *exhaustive((1, 8, 8), (3, 16, 24), (3, 64, 64))]


def _torchvision() -> ModuleType:
    module: ModuleType = pytest.importorskip("torchvision", exc_type=(ImportError, RuntimeError))
    return module


def _meta(name: str, shape: tuple[int, int, int] = (3, 32, 32), num_classes: int = 10) -> nn.Module:
    with torch.device("meta"):
        return build_net(name, shape, num_classes)


@pytest.mark.parametrize(
    ("name", "shape", "count"),
    [
        ("resnet18_8x", (3, 32, 32), 11_173_962),
        ("resnet34_8x", (3, 32, 32), 21_282_122),
        ("resnet50_8x", (3, 32, 32), 23_520_842),
        ("wrn16_1", (3, 32, 32), 175_066),
        ("wrn16_2", (3, 32, 32), 691_674),
        ("wrn40_2", (3, 32, 32), 2_243_546),
        ("wrn28_10", (3, 32, 32), 36_479_194),
        ("lenet5", (1, 32, 32), 61_706),
        ("cnn_small", (1, 8, 8), 21_482),
        ("cnn_medium", (3, 12, 12), 105_002),
    ],
)
def test_parameter_counts_are_the_published_ones(name: str, shape: tuple[int, int, int], count: int) -> None:
    assert sum(parameter.numel() for parameter in _meta(name, shape).parameters()) == count


@pytest.mark.parametrize("name", NETS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_net_takes_every_size(name: str, shape: tuple[int, int, int]) -> None:
    net = _meta(name, shape, 7)
    assert net.training
    assert net(torch.zeros(2, *shape, device="meta")).shape == (2, 7)


@pytest.mark.parametrize("name", ["cnn_small", "cnn_medium", "lenet5", "resnet18_8x", "wrn16_1"])
def test_one_image_can_be_trained_on(name: str) -> None:
    net = build_net(name, (1, 8, 8), 3)
    scores = net(torch.rand(1, 1, 8, 8))
    scores.sum().backward()
    assert scores.isfinite().all()
    assert all(parameter.grad is not None for parameter in net.parameters())


def test_steady_batch_norm_is_batch_norm_but_for_a_single_value() -> None:
    ours, theirs = SteadyBatchNorm2d(4), nn.BatchNorm2d(4)
    x = torch.randn(5, 4, 3, 2)
    torch.testing.assert_close(ours(x), theirs(x), rtol=0, atol=0)
    torch.testing.assert_close(ours.running_var, theirs.running_var, rtol=0, atol=0)
    single = torch.randn(1, 4, 1, 1)
    torch.testing.assert_close(ours.train()(single), theirs.eval()(single), rtol=0, atol=0)


def _published_names(counts: tuple[int, ...], convolutions: int, wide_first: bool) -> set[str]:
    norm = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
    names = {"conv1.weight", "linear.weight", "linear.bias"} | {f"bn1.{part}" for part in norm}
    for stage, count in enumerate(counts, start=1):
        for block in range(count):
            prefix = f"layer{stage}.{block}"
            for index in range(1, convolutions + 1):
                names |= {f"{prefix}.conv{index}.weight"} | {f"{prefix}.bn{index}.{part}" for part in norm}
            if block == 0 and (stage > 1 or wide_first):
                names |= {f"{prefix}.shortcut.0.weight"} | {f"{prefix}.shortcut.1.{part}" for part in norm}
    return names


def test_resnet_8x_names_are_the_published_ones() -> None:
    assert set(_meta("resnet18_8x").state_dict()) == _published_names((2, 2, 2, 2), 2, False)
    assert set(_meta("resnet34_8x").state_dict()) == _published_names((3, 4, 6, 3), 2, False)
    assert set(_meta("resnet50_8x").state_dict()) == _published_names((3, 4, 6, 3), 3, True)


def test_wide_resnet_names_are_the_usual_ones() -> None:
    names = {name.rpartition(".")[0] for name in _meta("wrn16_2").state_dict()}
    blocks = {f"block{stage}.layer.{index}" for stage in (1, 2, 3) for index in (0, 1)}
    layers = {f"{block}.{layer}" for block in blocks for layer in ("bn1", "conv1", "bn2", "conv2")}
    shortcuts = {f"block{stage}.layer.0.convShortcut" for stage in (1, 2, 3)}
    assert names == layers | shortcuts | {"conv1", "bn1", "fc"}
    # With factor 1 the first stage does not change the width and so has no convolution in its shortcut.
    assert "block1.layer.0.convShortcut.weight" not in _meta("wrn16_1").state_dict()


@pytest.mark.parametrize(
    ("ours", "theirs"), [("resnet18_8x", "resnet18"), *exhaustive_rows([("resnet50_8x", "resnet50")])]
)
def test_resnet_8x_is_torchvisions_resnet_with_a_small_stem(ours: str, theirs: str) -> None:
    net = build_net(ours, (3, 32, 32), 10).eval()
    twin = _torchvision().models.get_model(theirs, weights=None, num_classes=10).eval()
    twin.conv1, twin.maxpool = nn.Conv2d(3, 64, 3, padding=1, bias=False), nn.Identity()
    state = {
        name.replace("shortcut", "downsample").replace("linear", "fc"): value
        for name, value in net.state_dict().items()
    }
    twin.load_state_dict(state)
    twin.avgpool = nn.AvgPool2d(4)  # as published for 32x32
    x = torch.rand(2, 3, 32, 32)
    with torch.no_grad():
        torch.testing.assert_close(net(x), twin(x), rtol=1e-4, atol=1e-5)


def test_resnet_8x_starts_from_kaiming_fan_out() -> None:
    torch.manual_seed(0)
    weight = build_net("resnet18_8x", (3, 32, 32), 10).get_parameter("layer3.0.conv1.weight")  # 128 -> 256
    assert weight.std().item() == pytest.approx(math.sqrt(2 / (256 * 9)), rel=0.01)


def test_wide_resnet_block_by_hand() -> None:
    block = build_net("wrn16_2", (3, 32, 32), 10).eval().get_submodule("block2.layer.0")
    x = torch.randn(2, 32, 8, 8)
    scale = 1 / math.sqrt(1 + 1e-5)  # a fresh batch normalisation in eval mode
    active = (x * scale).relu()
    conv = nn.functional.conv2d
    inner = (conv(active, block.get_parameter("conv1.weight"), stride=2, padding=1) * scale).relu()
    outer = conv(inner, block.get_parameter("conv2.weight"), padding=1)
    expected = outer + conv(active, block.get_parameter("convShortcut.weight"), stride=2)
    torch.testing.assert_close(block(x), expected, rtol=1e-4, atol=1e-5)


def test_lenet_frames_small_images_and_averages_over_large_ones() -> None:
    net = build_net("lenet5", (1, 28, 28), 10).eval()
    small = torch.rand(2, 1, 28, 28)
    with torch.no_grad():
        torch.testing.assert_close(net(small), net(nn.functional.pad(small, (2, 2, 2, 2))))
        uniform = torch.full((1, 1, 32, 32), 0.3)  # every place of a plain image looks the same
        torch.testing.assert_close(net(uniform), net(torch.full((1, 1, 48, 40), 0.3)), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("shape", "name"),
    [
        *(((1, 8, 8), "cnn_small"), ((3, 12, 12), "cnn_medium"), ((3, 16, 8), "cnn_medium")),
        *(((3, 32, 16), "resnet18_8x"), ((3, 64, 64), "resnet18_8x"), ((3, 224, 224), "resnet18")),
    ],
)
def test_auto_net_goes_by_the_longer_side(shape: tuple[int, int, int], name: str) -> None:
    assert auto_net(shape) == name


def test_same_seed_same_weights() -> None:
    torch.manual_seed(3)
    first = build_net("cnn_small", (1, 8, 8), 10).state_dict()
    torch.manual_seed(3)
    second = build_net("cnn_small", (1, 8, 8), 10).state_dict()
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize(("typed", "nearest"), [("resnet18_8y", "resnet18_8x"), ("cnn_smal", "cnn_small")])
def test_a_wrong_name_gets_the_nearest(typed: str, nearest: str) -> None:
    with pytest.raises(UserError, match=f"{typed}.*did you mean {nearest}"):
        check_net(typed)
    with pytest.raises(UserError, match=r"num_classes.*at least 2, got 1"):
        build_net("cnn_small", (1, 8, 8), 1)


@pytest.mark.integration
def test_names_are_checked_without_torch() -> None:
    code = (
        "import sys; from dfme.nets import check_net, auto_net; from dfme.errors import UserError\n"
        "auto_net((3, 32, 32)); check_net('resnet34_8x')\n"
        "try: check_net('resnet34_8z')\n"
        "except UserError: print({'torch', 'torchvision', 'numpy'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def _shuffled(state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: state[name] for name in sorted(state, reverse=True)}


@pytest.mark.parametrize("name", NETS)
@pytest.mark.parametrize(("channels", "num_classes"), [(3, 7), *exhaustive_rows([(1, 10)])])
def test_our_nets_are_guessed_from_their_weights(name: str, channels: int, num_classes: int) -> None:
    state = _meta(name, (channels, 16, 16), num_classes).state_dict()
    guess = Guess(name, channels, num_classes)
    assert infer_net(_shuffled(state)) == guess
    old = {key: value for key, value in state.items() if not key.endswith("num_batches_tracked")}
    assert infer_net(old) == guess


def test_nearly_ours_is_not_ours() -> None:
    state = _meta("resnet18_8x").state_dict()
    assert infer_net({**state, "extra.weight": torch.zeros(1)}) is None
    assert infer_net({**state, "layer1.0.conv1.weight": torch.zeros(32, 64, 3, 3)}) is None
    assert infer_net({**state, "conv1.weight": torch.tensor(0.0)}) is None
    assert infer_net({}) is None


def test_torchvision_resnets_are_guessed_from_their_weights() -> None:
    models = _torchvision().models
    names = [name for name in models.list_models(module=models) if "resne" in name]
    assert len(names) == 10
    for name in names:
        with torch.device("meta"):
            state = models.get_model(name, weights=None, num_classes=12).state_dict()
        assert infer_net(_shuffled(state)) == Guess(name, 3, 12)
    with torch.device("meta"):
        small_stem = {**state, "conv1.weight": torch.zeros(64, 3, 3, 3)}
    assert infer_net(small_stem) is None


def test_torchvision_names_are_those_it_registers() -> None:
    models = _torchvision().models
    assert list(registered_names("torchvision")) == models.list_models(module=models)
    check_net("efficientnet_b0")
    with pytest.raises(UserError, match="did you mean efficientnet_b"):
        check_net("efficientnet_b9")


def test_a_torchvision_net_is_the_same_as_its_own() -> None:
    get_model = _torchvision().models.get_model
    torch.manual_seed(5)
    ours = build_net("squeezenet1_1", (3, 32, 32), 4).state_dict()
    torch.manual_seed(5)
    theirs = get_model("squeezenet1_1", weights=None, num_classes=4).state_dict()
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


@pytest.mark.parametrize("name", ["mobilenet_v3_small", *exhaustive("resnet18", "vit_b_16", "googlenet")])
def test_torchvision_nets_take_grey_images(name: str) -> None:
    _torchvision()
    net = build_net(name, (1, 32, 32), 5)
    assert net.training
    assert net.eval()(torch.rand(2, 1, 32, 32)).shape == (2, 5)


@pytest.mark.parametrize(
    ("name", "shape"),
    [("alexnet", (3, 8, 8)), *exhaustive_rows([("vit_b_16", (3, 28, 28)), ("vit_b_16", (3, 48, 32))])],
)
def test_a_size_that_does_not_fit_is_named(name: str, shape: tuple[int, int, int]) -> None:
    _torchvision()
    with pytest.raises(UserError, match=f"arch {name}: does not take images of {'x'.join(map(str, shape))}: "):
        build_net(name, shape, 10)


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (RuntimeError("operator torchvision::nms does not exist"), "torchvision::nms does not exist"),
        (ModuleNotFoundError("No module named 'torchvision'"), "No module named 'torchvision'"),
    ],
)
def test_a_broken_torchvision_is_explained(monkeypatch: pytest.MonkeyPatch, error: Exception, says: str) -> None:
    def fail(name: str) -> ModuleType:
        raise error

    monkeypatch.setattr("dfme.nets.registered_names", lambda package: ("resnet18",))
    monkeypatch.setattr(importlib, "import_module", fail)
    with pytest.raises(UserError, match=f"cannot be imported .*{says}.*install the build that matches") as raised:
        build_net("resnet18", (3, 32, 32), 10)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("shape", [(1, 4, 4), (3, 2, 2), (1, 1, 1)])
def test_a_batch_of_one_small_image_is_normalised_too(shape):
    """0.5.0 ended ``--method.batch-size 1`` in a traceback where an image ends in 1x1 features."""
    generator = Generator(8, ImageSpec(shape))
    nets = [build_net(name, shape, 3) for name in ("cnn_small", "wrn16_1")]
    x_BCHW = generator.squash(generator(torch.randn(1, 8)))
    scores = [net(x_BCHW) for net in nets]
    sum(each.sum() for each in scores).backward()
    assert all(each.shape == (1, 3) and each.isfinite().all() for each in scores)
    whole = torch.nn.BatchNorm2d(4)  # of more values than one a channel nothing has changed
    x_BCHW = torch.randn(1, 4, 1, 2)
    assert torch.equal(SteadyBatchNorm2d(4)(x_BCHW), whole(x_BCHW))
