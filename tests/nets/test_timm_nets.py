"""timm's architectures as students, by name: what is taken, what never is, and a file that loads again."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest
import torch

import dfme.nets
from dfme.errors import UserError
from dfme.nets import build_net, check_net, find_net
from dfme.nets.torchvision_nets import registered_names
from dfme.run.student_file import load_student, load_student_of_run, save_student
from dfme.spec import ImageSpec

HOSTILE = [
    *("timm:", "timm:hf-hub:somebody/net", "timm:hf_hub:somebody/net", "timm:local-dir:x", "timm:../../net"),
    *(
        "timm:resnet18.tv_in1k",
        "timm:timm/resnet18",
        "timm:os:system",
        "timm:create_model",
        "Timm:resnet18x",
        "timm:\n",
    ),
]


@pytest.mark.parametrize("name", HOSTILE)
def test_a_name_that_is_no_architecture_imports_and_fetches_nothing(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(dfme.nets, "registered_names", lambda package: ("resnet18",))
    monkeypatch.setattr(importlib, "import_module", lambda name: pytest.fail(f"{name} was imported"))
    with pytest.raises(UserError) as raised:
        check_net(name)
    assert "\n" not in str(raised.value)
    with pytest.raises(UserError):
        build_net(name, (3, 32, 32), 10)
    if name.startswith("timm:"):
        assert find_net(name) is None, "it is no module:Net"
        path = tmp_path / "student.safetensors"
        save_student(path, torch.nn.Linear(2, 2), name, ImageSpec((3, 32, 32)), 10)
        with pytest.raises(UserError, match="of a run, but it is not"):
            load_student(path)


def test_the_nearest_name_and_a_missing_package_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dfme.nets, "registered_names", lambda package: ("resnet18",) if package == "timm" else ())
    check_net("timm:resnet18")
    with pytest.raises(UserError, match=r"did you mean timm:resnet18\?.*\(torchvision is not installed\)"):
        check_net("timm:resnet18d")
    monkeypatch.setattr(dfme.nets, "registered_names", lambda package: ())
    with pytest.raises(UserError, match=r"timm:NAME without a tag.*timm is not installed: pip install -e '.\[timm\]'"):
        check_net("timm:resnet18")


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
def test_it_learns_is_saved_and_loads_again(name: str, shape: tuple[int, int, int], tmp_path: Path) -> None:
    timm = pytest.importorskip("timm")
    net = build_net(f"timm:{name}", shape, 7)
    assert net.training
    net(torch.rand(2, *shape)).sum().backward()
    assert any(each.grad is not None for each in net.parameters())
    save_student(tmp_path / "student.safetensors", net, f"timm:{name}", ImageSpec(shape), 7)
    again, x_BCHW = load_student_of_run(tmp_path / "student.safetensors"), torch.rand(3, *shape)
    assert torch.equal(again(x_BCHW), net.eval()(x_BCHW))
    torch.manual_seed(5)
    ours = build_net("timm:resnet18", (3, 32, 32), 4).state_dict()
    torch.manual_seed(5)
    theirs = timm.create_model("resnet18", pretrained=False, num_classes=4).state_dict()
    assert all(torch.equal(ours[key], theirs[key]) for key in theirs)


@pytest.mark.integration
def test_names_are_those_that_timm_registers_and_a_size_that_does_not_fit_is_said() -> None:
    timm = pytest.importorskip("timm")
    assert set(registered_names("timm")) == set(timm.list_models())
    with pytest.raises(UserError, match=r"arch timm:convnext_atto: .*3x30x40"):
        build_net("timm:convnext_atto", (3, 30, 40), 10)
