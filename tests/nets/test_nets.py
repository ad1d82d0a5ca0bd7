"""The architectures: published names and sizes, a second implementation."""

import importlib
import math
import re
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
import torch
from refusals import refusal
from tables import exhaustive, exhaustive_rows
from torch import Tensor, nn

import dfme.nets
from dfme.config.settings import ExtractConfig, Job, StudentConfig, TeacherConfig
from dfme.nets import NETS, auto_net, build_net, check_net, find_net
from dfme.nets.architectures import SteadyBatchNorm2d
from dfme.nets.files import Guess, infer_net
from dfme.nets.generators import Generator
from dfme.nets.torchvision_nets import registered_names
from dfme.nets.whitened import cosine_filters
from dfme.run.components import with_recorded_net
from dfme.run.student_file import load_student, load_student_of_run, save_student
from dfme.spec import ImageSpec


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
        ("resnet34_8x_narrow", (3, 32, 32), 7_272_650),
        ("resnet50_8x", (3, 32, 32), 23_520_842),
        ("wrn16_1", (3, 32, 32), 175_066),
        ("wrn16_2", (3, 32, 32), 691_674),
        ("wrn40_2", (3, 32, 32), 2_243_546),
        ("wrn28_10", (3, 32, 32), 36_479_194),
        ("lenet5", (1, 32, 32), 61_706),
        ("cnn_small", (1, 8, 8), 21_482),
        ("cnn_medium", (3, 12, 12), 105_002),
        ("cnn_large", (3, 32, 32), 292_586),
        ("cnn_whitened", (3, 32, 32), 1_971_352),
    ],
)
def test_parameter_counts_are_the_published_ones(
    name: str, shape: tuple[int, int, int], count: int
) -> None:
    assert sum(parameter.numel() for parameter in _meta(name, shape).parameters()) == count


@pytest.mark.parametrize("name", NETS)
@pytest.mark.parametrize(
    "shape", [(3, 17, 9), *exhaustive((1, 8, 8), (3, 16, 24), (3, 64, 64))], ids=str
)
def test_every_net_takes_every_size(name: str, shape: tuple[int, int, int]) -> None:
    net = _meta(name, shape, 7)
    assert net.training
    assert net(torch.zeros(2, *shape, device="meta")).shape == (2, 7)


@pytest.mark.parametrize("name", ["cnn_small", "cnn_medium", "lenet5", "resnet18_8x", "wrn16_1"])
@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 2, 2), (1, 1, 1)])
def test_one_image_can_be_made_and_trained_on(name: str, shape: tuple[int, int, int]) -> None:
    """Also where an image ends in 1x1 features, which batch normalisation has no statistics of."""
    generator, net = Generator(8, ImageSpec(shape)), build_net(name, shape, 3)
    scores = net(generator.squash(generator(torch.randn(1, 8))))
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


def test_wide_resnet_names_are_the_usual_ones() -> None:
    names = {name.rpartition(".")[0] for name in _meta("wrn16_2").state_dict()}
    blocks = {f"block{stage}.layer.{index}" for stage in (1, 2, 3) for index in (0, 1)}
    layers = {f"{block}.{layer}" for block in blocks for layer in ("bn1", "conv1", "bn2", "conv2")}
    shortcuts = {f"block{stage}.layer.0.convShortcut" for stage in (1, 2, 3)}
    assert names == layers | shortcuts | {"conv1", "bn1", "fc"}
    # With factor 1 the first stage does not change the width and so has no convolution in its
    # shortcut.
    assert "block1.layer.0.convShortcut.weight" not in _meta("wrn16_1").state_dict()


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [("resnet18_8x", "resnet18"), *exhaustive_rows([("resnet50_8x", "resnet50")])],
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
    weight = build_net("resnet18_8x", (3, 32, 32), 10).get_parameter(
        "layer3.0.conv1.weight"
    )  # 128 -> 256
    assert weight.std().item() == pytest.approx(math.sqrt(2 / (256 * 9)), rel=0.01)


def test_wide_resnet_block_by_hand() -> None:
    block = build_net("wrn16_2", (3, 32, 32), 10).eval().get_submodule("block2.layer.0")
    x = torch.randn(2, 32, 8, 8)
    scale = 1 / math.sqrt(1 + 1e-5)  # a fresh batch normalisation in eval mode
    active = (x * scale).relu()
    conv = nn.functional.conv2d
    inner = (conv(active, block.get_parameter("conv1.weight"), stride=2, padding=1) * scale).relu()
    expected = conv(inner, block.get_parameter("conv2.weight"), padding=1) + conv(
        active, block.get_parameter("convShortcut.weight"), stride=2
    )
    torch.testing.assert_close(block(x), expected, rtol=1e-4, atol=1e-5)


def test_lenet_frames_small_images_and_averages_over_large_ones() -> None:
    net = build_net("lenet5", (1, 28, 28), 10).eval()
    small = torch.rand(2, 1, 28, 28)
    with torch.no_grad():
        torch.testing.assert_close(net(small), net(nn.functional.pad(small, (2, 2, 2, 2))))
        uniform = torch.full((1, 1, 32, 32), 0.3)  # every place of a plain image looks the same
        torch.testing.assert_close(
            net(uniform), net(torch.full((1, 1, 48, 40), 0.3)), rtol=1e-4, atol=1e-5
        )


def test_auto_net_goes_by_the_longer_side() -> None:
    shapes = [(1, 8, 8), (3, 12, 12), (3, 16, 8), (3, 32, 16), (3, 64, 64), (3, 224, 224)]
    names = ["cnn_small", "cnn_medium", "cnn_medium", "resnet18_8x", "resnet18_8x", "resnet18"]
    assert [auto_net(shape) for shape in shapes] == names
    on_a_cpu = [auto_net(shape, accelerated=False) for shape in shapes]
    assert on_a_cpu == [*names[:3], "cnn_large", "cnn_large", "cnn_large"]


def test_the_first_layer_of_cnn_whitened_needs_no_images_and_loses_nothing() -> None:
    """Its filters are an orthonormal basis of a patch, whose first one is the mean of its pixels."""
    filters_DCPP = cosine_filters(3)
    basis_DD = filters_DCPP.flatten(1)
    assert basis_DD.shape == (12, 12)
    assert torch.allclose(basis_DD @ basis_DD.T, torch.eye(12), atol=1e-6)
    assert torch.allclose(basis_DD[0], torch.full((12,), 12**-0.5))


def test_the_first_layer_of_cnn_whitened_whitens_what_is_alike_in_all_places() -> None:
    """Pixels that are like their neighbours, and channels like each other, by an even amount."""
    rng = torch.Generator().manual_seed(0)
    shared = torch.randn(64, 1, 32, 32, generator=rng)
    x_BCHW = shared + 0.3 * torch.randn(64, 3, 32, 32, generator=rng)
    x_BCHW = (x_BCHW + x_BCHW.roll(1, 2)) / 2
    x_BCHW = 5 + (x_BCHW + x_BCHW.roll(1, 3)) / 2
    net = build_net("cnn_whitened", (3, 32, 32), 10)
    white_BDHW = net.get_submodule("whitening")(net.get_submodule("stem")(x_BCHW))
    variance_DD = white_BDHW.transpose(0, 1).flatten(1).cov()
    assert torch.allclose(variance_DD, torch.eye(12), atol=0.1)
    assert x_BCHW.transpose(0, 1).flatten(1).corrcoef()[0, 1] > 0.8


def test_cnn_large_averages_large_images_down() -> None:
    """A plain image of cells looks the same to it at any size."""
    net = build_net("cnn_large", (1, 128, 64), 3).eval()
    cells = torch.rand(2, 1, 64, 32)
    with torch.no_grad():
        large = cells.repeat_interleave(2, 2).repeat_interleave(2, 3)
        half_way = nn.functional.avg_pool2d(
            large, (2, 1)
        )  # 128x64: its longer side alone is averaged
        torch.testing.assert_close(net(large), net(half_way))
        torch.testing.assert_close(
            net(torch.full((1, 1, 200, 3), 0.3)), net(torch.full((1, 1, 50, 3), 0.3))
        )


@pytest.mark.parametrize(("arch", "count"), [("resnet18_8x", 1), ("cnn_large", 2)])
def test_a_resumed_run_keeps_the_net_that_auto_was(arch: str, count: int) -> None:
    """Whatever device it goes on with, and whatever a later release would choose."""
    net = _meta(arch).state_dict()
    members = (
        net
        if count == 1
        else {f"members.{n}.{name}": net[name] for n in range(count) for name in net}
    )
    job = Job(ExtractConfig(), TeacherConfig(), {}, "static", None)
    assert with_recorded_net(job, {"trainer": {"nets": members}}).config.student.arch == arch
    assert with_recorded_net(job, {}) == job
    mine = replace(job, config=ExtractConfig(student=StudentConfig(arch="lenet5")))
    assert with_recorded_net(mine, {"trainer": {"nets": members}}) == mine


@pytest.mark.parametrize(
    ("typed", "nearest"), [("resnet18_8y", "resnet18_8x"), ("cnn_smal", "cnn_small")]
)
def test_a_wrong_name_gets_the_nearest(typed: str, nearest: str) -> None:
    refusal(f"{typed}.*did you mean {nearest}", check_net, typed)
    refusal(r"num_classes.*at least 2, got 1", build_net, "cnn_small", (1, 8, 8), 1)


def _shuffled(state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: state[name] for name in sorted(state, reverse=True)}


@pytest.mark.parametrize("name", NETS)
@pytest.mark.parametrize(("channels", "num_classes"), [(3, 7), *exhaustive_rows([(1, 10)])])
def test_our_nets_are_guessed_from_their_weights(
    name: str, channels: int, num_classes: int
) -> None:
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


@pytest.mark.parametrize("deep", [False, *exhaustive(True)])
def test_torchvision_resnets_are_guessed_from_their_weights(deep: bool) -> None:
    models = _torchvision().models
    resnets = [name for name in models.list_models(module=models) if "resne" in name]
    names = [name for name in resnets if bool(re.search("101|152", name)) == deep]
    assert (len(resnets), len(names)) == (10, 5)
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
    refusal("did you mean efficientnet_b", check_net, "efficientnet_b9")


@pytest.mark.parametrize(
    "name", ["mobilenet_v3_small", *exhaustive("resnet18", "vit_b_16", "googlenet")]
)
def test_torchvision_nets_take_grey_images(name: str) -> None:
    _torchvision()
    net = build_net(name, (1, 32, 32), 5)
    assert net.training
    assert net.eval()(torch.rand(2, 1, 32, 32)).shape == (2, 5)


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("alexnet", (3, 8, 8)),
        *exhaustive_rows([("vit_b_16", (3, 28, 28)), ("vit_b_16", (3, 48, 32))]),
    ],
)
def test_a_size_that_does_not_fit_is_named(name: str, shape: tuple[int, int, int]) -> None:
    _torchvision()
    refusal(f"{name}: .*images of {'x'.join(map(str, shape))}: ", build_net, name, shape, 10)


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (
            RuntimeError("operator torchvision::nms does not exist"),
            "torchvision::nms does not exist",
        ),
        (ModuleNotFoundError("No module named 'torchvision'"), "No module named 'torchvision'"),
    ],
)
def test_a_broken_torchvision_is_explained(
    monkeypatch: pytest.MonkeyPatch, error: Exception, says: str
) -> None:
    def fail(name: str) -> ModuleType:
        raise error

    monkeypatch.setattr("dfme.nets.registered_names", lambda package: ("resnet18",))
    monkeypatch.setattr(importlib, "import_module", fail)
    refusal(f"{says}.*install the build that matches", build_net, "resnet18", (3, 32, 32), 10)


HOSTILE = (
    "timm: timm:hf-hub:somebody/net timm:hf_hub:somebody/net timm:local-dir:x timm:../../net"
).split()
HOSTILE += (
    "timm:resnet18.tv_in1k timm:timm/resnet18 timm:os:system timm:create_model Timm:resnet18x"
).split()
HOSTILE += ["timm:\n"]


@pytest.mark.parametrize("name", HOSTILE)
def test_a_name_that_is_no_architecture_imports_and_fetches_nothing(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(dfme.nets, "registered_names", lambda package: ("resnet18",))
    monkeypatch.setattr(
        importlib, "import_module", lambda name: pytest.fail(f"{name} was imported")
    )
    refusal("", check_net, name)
    refusal("", build_net, name, (3, 32, 32), 10)
    if name.startswith("timm:"):
        assert find_net(name) is None, "it is no module:Net"
        path = tmp_path / "student.safetensors"
        save_student(path, torch.nn.Linear(2, 2), name, ImageSpec((3, 32, 32)), 10)
        refusal("of a run, but it is not", load_student, path)


def test_the_nearest_name_and_a_missing_package_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        dfme.nets, "registered_names", {"timm": ("resnet18",), "torchvision": ()}.get
    )
    check_net("timm:resnet18")
    refusal(
        r"did you mean timm:resnet18\?.*\(torchvision is not installed\)",
        check_net,
        "timm:resnet18d",
    )
    monkeypatch.setattr(dfme.nets, "registered_names", lambda package: ())
    refusal(r"timm is not installed: pip install -e '.\[timm\]'", check_net, "timm:resnet18")


@pytest.mark.integration
@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("resnet18", (3, 224, 224)),
        ("resnet18", (1, 8, 8)),
        ("vit_tiny_patch16_224", (1, 32, 48)),
        ("mobilenetv3_small_050", (3, 30, 41)),
    ],
)
def test_it_learns_is_saved_and_loads_again(
    name: str, shape: tuple[int, int, int], tmp_path: Path
) -> None:
    pytest.importorskip("timm")
    net = build_net(f"timm:{name}", shape, 7)
    assert net.training
    net(torch.rand(2, *shape)).sum().backward()
    assert any(item.grad is not None for item in net.parameters())
    save_student(tmp_path / "student.safetensors", net, f"timm:{name}", ImageSpec(shape), 7)
    again, x_BCHW = load_student_of_run(tmp_path / "student.safetensors"), torch.rand(3, *shape)
    assert torch.equal(again(x_BCHW), net.eval()(x_BCHW))


@pytest.mark.integration
def test_names_are_those_that_timm_registers_and_a_size_that_does_not_fit_is_said() -> None:
    timm = pytest.importorskip("timm")
    assert set(registered_names("timm")) == set(timm.list_models())
    refusal(r"arch timm:convnext_atto: .*3x30x40", build_net, "timm:convnext_atto", (3, 30, 40), 10)
