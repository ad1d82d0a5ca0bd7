"""Weights of torchvision's classifiers that do not tell all, or have names of old versions."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from damage import refused
from torch import Tensor, nn

from dfme.config.settings import TeacherConfig
from dfme.nets.torchvision_nets import current_names
from dfme.teachers.build import make_teacher

torchvision = pytest.importorskip("torchvision", exc_type=(ImportError, RuntimeError))

State = dict[str, Tensor]


def load(path: Path, arch: str, edge: int = 96, **options: Any) -> Any:
    config = TeacherConfig(shape=(3, edge, edge), num_classes=4, label_mode="logits")
    given = {"checkpoint": str(path), "arch": arch, **options}
    return make_teacher(config, given, torch.device("cpu"))


def made(arch: str, **arguments: Any) -> nn.Module:
    torch.manual_seed(0)
    net: nn.Module = torchvision.models.get_model(arch, weights=None, num_classes=4, **arguments)
    for module in net.modules():
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=0.1)
    return net.eval()


def answers_as(teacher: Any, net: nn.Module, edge: int = 96) -> None:
    x_BCHW = torch.rand(2, 3, edge, edge)
    with torch.no_grad():
        torch.testing.assert_close(teacher(x_BCHW), net(x_BCHW))


@pytest.mark.parametrize("arch", ["googlenet", "inception_v3"])
def test_what_weights_do_not_tell_is_asked(tmp_path: Path, arch: str) -> None:
    torch.save({"conv1.conv.weight": torch.ones(1, 3, 1, 1)}, tmp_path / "net.pth")
    refused("--teacher.transform-input", load, tmp_path / "net.pth", arch)


def test_what_only_two_networks_can_do_is_refused_of_others(tmp_path: Path) -> None:
    torch.save({"conv1.weight": torch.ones(1, 3, 1, 1)}, tmp_path / "net.pth")
    words = "expected for googlenet or inception_v3 alone, got it for resnet18"
    refused(words, load, tmp_path / "net.pth", "resnet18", transform_input=True)


@pytest.mark.exhaustive
@pytest.mark.parametrize("arch", ["googlenet", "inception_v3"])
def test_auxiliary_heads_are_left_out_and_the_input_is_scaled_as_said(
    tmp_path: Path, arch: str
) -> None:
    path = tmp_path / "net.pth"
    net = made(arch, init_weights=False)
    torch.save(net.state_dict(), path)
    assert any(re.match("aux|Aux", name) for name in net.state_dict())
    plain = load(path, arch, transform_input=False)
    answers_as(plain, net)
    net.transform_input = True
    answers_as(load(path, arch, transform_input=True), net)
    x_BCHW = torch.rand(1, 3, 96, 96)
    assert not torch.allclose(net(x_BCHW), plain(x_BCHW))
    without = {name: value for name, value in net.state_dict().items() if "aux" not in name.lower()}
    torch.save({"state_dict": {f"model.{name}": value for name, value in without.items()}}, path)
    answers_as(load(path, arch, transform_input=True), net)


def old_densenet(state: State) -> State:
    return {
        re.sub(r"(denselayer\d+\.(?:norm|conv))([12])\.", r"\1.\2.", name): value
        for name, value in state.items()
    }


def old_vit(state: State) -> State:
    return {
        name.replace("mlp.0.", "mlp.linear_1.").replace("mlp.3.", "mlp.linear_2."): value
        for name, value in state.items()
    }


OLD = {"densenet121": old_densenet, "vit_b_32": old_vit}


@pytest.mark.exhaustive
@pytest.mark.parametrize("arch", OLD)
def test_names_of_torchvisions_own_files_are_read(tmp_path: Path, arch: str) -> None:
    sized = {"image_size": 96} if arch == "vit_b_32" else {}
    net = made(arch, **sized)
    old = OLD[arch](net.state_dict())
    assert old.keys() != net.state_dict().keys()
    assert current_names(arch, old).keys() == net.state_dict().keys()
    torch.save(old, tmp_path / "net.pth")
    answers_as(load(tmp_path / "net.pth", arch), net)


@pytest.mark.exhaustive
def test_a_network_that_asks_for_the_version_of_its_weights_is_loaded(tmp_path: Path) -> None:
    net = made("mnasnet0_5")
    torch.save(dict(net.state_dict()), tmp_path / "net.pth")
    answers_as(load(tmp_path / "net.pth", "mnasnet0_5"), net)
