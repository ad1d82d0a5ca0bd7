"""What a local teacher multiplies in: the owner's choice, whoever asks; by default the asker's."""

import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import numerics
import pytest
import torch
from torch import Tensor, nn

from dfme.compute import device as device_module
from dfme.compute.device import ieee_fp32
from dfme.config.settings import TeacherConfig
from dfme.run.job import PROJECT
from dfme.spec import ImageSpec, LabelMode
from dfme.teachers.build import make_teacher
from dfme.teachers.facts import teacher_facts
from dfme.teachers.local.pytorch import TorchTeacher, load_torch
from dfme.teachers.options import TorchOptions
from research.behind_api import as_seen

CPU = torch.device("cpu")
SHAPES = {"checkpoint": str(PROJECT / "teachers/checkpoints/shapes.safetensors")}


def under_bf16() -> AbstractContextManager[object]:
    return torch.autocast("cpu", torch.bfloat16)


ASKERS: list[Callable[[], AbstractContextManager[object]]] = [nullcontext, ieee_fp32, under_bf16]


@pytest.fixture
def images() -> Tensor:
    return torch.rand(6, 3, 12, 12, generator=torch.Generator().manual_seed(0))


def answers(teacher: Any, images: Tensor) -> list[Tensor]:
    """Under each asker's own settings."""
    result = []
    for asker in ASKERS:
        with asker():
            result.append(teacher(images))
    return result


def made(options: dict[str, Any], kind: str = "torch", **common: Any) -> Any:
    return make_teacher(TeacherConfig(kind=kind, label_mode="logits", **common), options, CPU)


def held_to_be_the_owners(
    kind: str, options: dict[str, Any], images: Tensor, **common: Any
) -> None:
    """Of each precision one answer, as float32, whoever asks; bf16's is another, near the exact
    one.
    """
    exact, ieee, tf32, bf16 = (
        answers(made(options | {"precision": name}, kind, **common), images)
        for name in ("auto", "ieee", "tf32", "bf16")
    )
    for result in (exact, ieee, tf32, bf16):
        assert all(
            answer.dtype == torch.float32 and torch.equal(answer, result[0]) for answer in result
        )
    assert torch.equal(exact[0], ieee[0])
    assert torch.equal(exact[0], tf32[0])  # of a CPU, which has none
    assert 1e-4 < (bf16[0] - exact[0]).abs().max() < 0.1 * exact[0].abs().max()


def test_the_answers_are_the_owners_whoever_asks(images: Tensor) -> None:
    held_to_be_the_owners("torch", SHAPES, images)


@pytest.mark.integration
@pytest.mark.parametrize("kind", ["pt2", "torchscript"])
def test_programs_too(tmp_path: Path, images: Tensor, kind: str) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(800, 5)).eval()
    path = tmp_path / "net"
    if kind == "pt2":
        exported = torch.export.export(
            net, (images,), dynamic_shapes=({0: torch.export.Dim("batch")},)
        )
        torch.export.save(exported, path := path.with_suffix(".pt2"))
    else:
        with warnings.catch_warnings(action="ignore"):
            torch.jit.save(torch.jit.script(net), str(path))
    held_to_be_the_owners(kind, {"program": str(path), "trust": True}, images, shape=(3, 12, 12))


class Watching(nn.Module):
    """Notes what the process multiplies in while it answers."""

    seen = ""

    def forward(self, x_BCHW: Tensor) -> Tensor:
        Watching.seen = torch.get_float32_matmul_precision()
        return x_BCHW.flatten(1)[:, :3]


@pytest.mark.parametrize(
    ("name", "seen"), [("auto", "medium"), ("ieee", "highest"), ("bf16", "highest")]
)
def test_the_askers_settings_reach_it_only_by_auto(name: Any, seen: str) -> None:
    teacher = TorchTeacher(Watching(), ImageSpec((1, 2, 2)), 3, precision=name)
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("medium")
        teacher(torch.rand(2, 1, 2, 2))
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision(before)
    assert Watching.seen == seen


def test_tf32_holds_inside_a_difference_of_ieee(
    monkeypatch: pytest.MonkeyPatch, images: Tensor
) -> None:
    monkeypatch.setattr(device_module, "tf32", numerics.tf32)
    plain, coarse = made(SHAPES), made(SHAPES | {"precision": "tf32"})
    with numerics.tf32():
        expected = plain(images)
    with ieee_fp32():
        assert torch.equal(coarse(images), expected)
        assert not torch.equal(plain(images), expected)


def test_the_white_box_is_seen_in_the_owners_precision(images: Tensor) -> None:
    """And its own logits, of which the truth is made, are what they were."""
    options = (TorchOptions(**SHAPES | {"precision": name}) for name in ("auto", "bf16"))
    plain, coarse = (load_torch(item, TeacherConfig(), CPU) for item in options)
    mode = LabelMode("logits")
    seen = as_seen(coarse, None, mode, ieee_fp32)(images)
    assert torch.equal(seen, made(SHAPES | {"precision": "bf16"})(images))
    assert not torch.equal(seen, as_seen(plain, None, mode, ieee_fp32)(images))
    assert torch.equal(plain.logits(images), coarse.logits(images))


def test_it_is_on_record() -> None:
    for options, result in ((SHAPES, None), (SHAPES | {"precision": "bf16"}, "bf16")):
        assert teacher_facts(made(options), "torch", options).get("precision") == result


def test_tf32_on_a_cpu_is_said_to_be_idle(caplog: pytest.LogCaptureFixture) -> None:
    made(SHAPES | {"precision": "tf32"})
    assert ["tf32 is idle on cpu" in message for message in caplog.messages] == [True]
    caplog.clear()
    made(SHAPES | {"precision": "bf16"})
    assert caplog.messages == []


class Unmoved(nn.Sequential):
    """Stays where it is, as if there were a GPU."""

    def to(self, *places: Any, **kwargs: Any) -> Any:
        return super().to(**kwargs) if kwargs else self


@pytest.mark.parametrize(("device", "stride"), [("cpu", (27, 9, 3, 1)), ("cuda", (27, 1, 9, 3))])
def test_on_cuda_convolutions_are_channels_last_and_nothing_else_is(
    device: str, stride: tuple[int, ...]
) -> None:
    net = Unmoved(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Flatten(), nn.Linear(8, 3))
    before = [weight.stride() for weight in net.parameters()]
    TorchTeacher(net, ImageSpec((3, 3, 3)), 3, device=device)
    assert [weight.stride() for weight in net.parameters()] == [stride, *before[1:]]


@pytest.mark.gpu
def test_a_gpus_answers_are_the_owners_whoever_asks() -> None:
    torch.manual_seed(0)
    layers = (nn.Conv2d(64, 64, 3, padding=1) for _ in range(4))
    net = nn.Sequential(*layers, nn.Flatten(), nn.Linear(64 * 256, 10))
    x_BCHW = torch.randn(32, 64, 16, 16, device="cuda")
    result = {}
    for name in ("ieee", "tf32", "bf16"):
        teacher = TorchTeacher(net, ImageSpec((64, 16, 16)), 10, device="cuda", precision=name)
        with ieee_fp32():
            result[name] = teacher(x_BCHW)
        with device_module.tf32():
            torch.testing.assert_close(teacher(x_BCHW), result[name], rtol=1e-5, atol=1e-6)
    truth = net.double()(x_BCHW.double())
    off = {name: float((item - truth).abs().max()) for name, item in result.items()}
    assert 10 * off["ieee"] < off["tf32"] < off["bf16"]
