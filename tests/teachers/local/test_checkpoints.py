"""A network on this machine, a teacher made from its weights, and what it multiplies in."""

import warnings
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numerics
import pytest
import torch
from damage import refused
from model_folders import save_weights
from safetensors.torch import save_file
from tables import exhaustive
from torch import Tensor, nn

from dfme.compute import device as device_module
from dfme.compute.device import ieee_fp32
from dfme.config.settings import TeacherConfig
from dfme.data import load_dataset
from dfme.errors import ShapeUnknown
from dfme.nets import NETS, build_net
from dfme.run.job import PROJECT
from dfme.run.student_file import save_student
from dfme.spec import ImageSpec, LabelMode, Teacher
from dfme.teachers.build import make_teacher
from dfme.teachers.facts import teacher_facts
from dfme.teachers.local.pytorch import Normalise, TorchTeacher, load_torch
from dfme.teachers.local.weights import Card
from dfme.teachers.options import TorchOptions
from research.behind_api import as_seen

CPU = torch.device("cpu")


class Channels(nn.Module):
    """Logits that are the sums of the channels: its right answer is arithmetic."""

    def forward(self, x_BCHW: Tensor) -> Tensor:
        assert not self.training
        return x_BCHW.sum((2, 3))


def test_torch_teacher_normalises_and_records_no_autograd() -> None:
    teacher = TorchTeacher(
        Channels().train(), ImageSpec((2, 3, 3)), 2, mean=(0.5, 0.25), std=(0.5, 2.0)
    )
    assert isinstance(teacher, Teacher)
    x_BCHW = torch.rand(4, 2, 3, 3, requires_grad=True)
    answer = teacher(x_BCHW)
    expected = torch.stack([(x_BCHW[:, 0] - 0.5) / 0.5, (x_BCHW[:, 1] - 0.25) / 2.0], 1).sum((2, 3))
    torch.testing.assert_close(answer, expected.detach())
    assert not answer.requires_grad
    loss = nn.functional.l1_loss(torch.zeros(4, 2, requires_grad=True), answer)
    loss.backward()  # an answer can be the target of a student's loss


def test_torch_teacher_stays_in_eval_mode_and_fp32() -> None:
    module = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Dropout(0.5), nn.Flatten())
    teacher = TorchTeacher(module, ImageSpec((1, 3, 3)), 4)
    x_BCHW = torch.rand(6, 1, 3, 3)
    before = teacher(x_BCHW)
    module.train()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        torch.testing.assert_close(teacher(x_BCHW), before, rtol=0, atol=0)
    assert module[1].num_batches_tracked == 0


def test_normalisation_that_cannot_work() -> None:
    refused("both or neither", Normalise, (0.5,), None, channels=3)
    refused("3 numbers each", Normalise, (0.5, 0.5), (0.5, 0.5), channels=3)
    refused("positive", Normalise, (0.5,), (0.0,), channels=3)


def torch_teacher(path: Path, arch: str | None = None, **common: Any) -> Teacher:
    return make_teacher(TeacherConfig(**common), {"checkpoint": str(path), "arch": arch}, CPU)


def published(
    tmp_path: Path, arch: str, shape: tuple[int, int, int], classes: int
) -> tuple[Path, nn.Module]:
    net = build_net(arch, shape, classes).eval()
    path = tmp_path / f"{arch}.pth"
    torch.save(
        {"state_dict": {f"module.{name}": value for name, value in net.state_dict().items()}}, path
    )
    return path, net


SMALL = ["lenet5", "cnn_medium", "resnet18_8x", "wrn16_1"]


@pytest.mark.parametrize(
    "arch",
    [
        *SMALL,
        *exhaustive(*(name for name in NETS if name not in (*SMALL, *("wrn28_10", "resnet50_8x")))),
    ],
)
def test_every_net_of_ours_is_recognised(tmp_path: Path, arch: str) -> None:
    path, net = published(tmp_path, arch, (3, 16, 16), 7)
    before = torch.get_rng_state()
    teacher = torch_teacher(path, shape=(3, 16, 16), label_mode="logits")
    assert torch.equal(torch.get_rng_state(), before)
    x_BCHW = torch.rand(2, 3, 16, 16)
    with torch.no_grad():
        torch.testing.assert_close(teacher(x_BCHW), net(x_BCHW))


def test_torchvision_resnet_by_its_names(tmp_path: Path) -> None:
    torchvision = pytest.importorskip("torchvision", exc_type=(ImportError, RuntimeError))
    net = torchvision.models.resnet18(num_classes=5).eval()
    torch.save(net.state_dict(), tmp_path / "resnet18.pth")
    refused("--teacher.shape", torch_teacher, tmp_path / "resnet18.pth", error=ShapeUnknown)
    small = torch_teacher(tmp_path / "resnet18.pth", shape=(3, 64, 64), label_mode="logits")
    assert small.num_classes == 5
    assert small.info.inferred == (
        "architecture resnet18 (--teacher.arch)",
        "5 classes (--teacher.num-classes)",
        "no normalisation: the network gets the pixels as they are (--teacher.mean, --teacher.std)",
    )
    x_BCHW = torch.rand(2, 3, 64, 64)
    with torch.no_grad():
        torch.testing.assert_close(small(x_BCHW), net(x_BCHW))


def test_torchvision_classifier_by_name(tmp_path: Path) -> None:
    torchvision = pytest.importorskip("torchvision", exc_type=(ImportError, RuntimeError))
    torch.save(torchvision.models.squeezenet1_1(num_classes=4).state_dict(), tmp_path / "net.pth")
    refused("give --teacher.arch", torch_teacher, tmp_path / "net.pth")
    refused("--teacher.num-classes", torch_teacher, tmp_path / "net.pth", arch="squeezenet1_1")
    teacher = torch_teacher(
        tmp_path / "net.pth", arch="squeezenet1_1", num_classes=4, shape=(3, 64, 64)
    )
    assert teacher(torch.rand(2, 3, 64, 64)).shape == (2, 4)


def test_what_is_given_must_fit_what_is_found(tmp_path: Path) -> None:
    path, _ = published(tmp_path, "cnn_small", (1, 8, 8), 10)
    refused(
        "--teacher.num-classes: got 7, but the", torch_teacher, path, num_classes=7, shape=(1, 8, 8)
    )
    refused("--teacher.shape: got 3,8,8, but the weights", torch_teacher, path, shape=(3, 8, 8))
    refused(
        "as lenet5 (they look like cnn_small)", torch_teacher, path, arch="lenet5", shape=(1, 8, 8)
    )
    refused("cnn_small", torch_teacher, path, arch="cnn_smal")


def test_the_card_tells_everything_and_the_configuration_wins(tmp_path: Path) -> None:
    net = build_net("cnn_small", (1, 8, 8), 3)
    path = tmp_path / "teacher.safetensors"
    save_weights(
        path, net, Card("cnn_small", (1, 8, 8), 3, mean=(0.5,), std=(0.5,), bounds=(-1.0, 1.0))
    )
    teacher = torch_teacher(path, label_mode="logits", levels=256, max_batch=17)
    assert teacher.spec == ImageSpec((1, 8, 8), (-1.0, 1.0), 256)
    assert teacher.info.max_batch == 17
    x_BCHW = torch.rand(2, 1, 8, 8)
    with torch.no_grad():
        torch.testing.assert_close(teacher(x_BCHW), net.eval()((x_BCHW - 0.5) / 0.5))
        plain = torch_teacher(path, mean=(0.0,), std=(1.0,), bounds=(0.0, 1.0), label_mode="logits")
        torch.testing.assert_close(plain(x_BCHW), net(x_BCHW))
    assert plain.spec.bounds == (0.0, 1.0)
    says = (
        "mean 0.5 (--teacher.mean), std 0.5 (--teacher.std), bounds -1,1 (--teacher.bounds) "
        "as the file's metadata say"
    )
    assert teacher.info.inferred == (says,)
    assert plain.info.inferred == ()


def test_a_scaling_that_others_wrote_is_not_used_and_that_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    net = build_net("cnn_small", (1, 8, 8), 3).eval()
    path = tmp_path / "theirs.safetensors"
    theirs = {"mean": "[0.5]", "std": "[0.5]", "bounds": "[0, 255]"}
    save_file(net.state_dict(), path, metadata=theirs)
    teacher = torch_teacher(path, shape=(1, 8, 8), label_mode="logits")
    assert teacher.spec.bounds == (0.0, 1.0)
    x_BCHW = torch.rand(2, 1, 8, 8)
    with torch.no_grad():
        torch.testing.assert_close(teacher(x_BCHW), net(x_BCHW))
    assert "mean, std, bounds; if the network needs them, give --teacher.mean" in caplog.text
    caplog.clear()
    torch_teacher(path, shape=(1, 8, 8), mean=(0.5,), std=(0.5,), bounds=(0.0, 255.0))
    assert not caplog.text


def test_a_student_can_be_the_next_teacher(tmp_path: Path) -> None:
    net = build_net("cnn_small", (1, 8, 8), 3)
    path = tmp_path / "student.safetensors"
    save_student(path, net, "cnn_small", ImageSpec((1, 8, 8), (-1.0, 1.0)), 3)
    teacher = torch_teacher(path, label_mode="logits")
    assert teacher.spec == ImageSpec((1, 8, 8), (-1.0, 1.0))
    x_BCHW = torch.rand(2, 1, 8, 8)
    with torch.no_grad():
        torch.testing.assert_close(teacher(x_BCHW), net.eval()(x_BCHW))


@pytest.mark.parametrize(
    ("name", "least", "size"),
    [("digits", 0.98, 500_000), ("shapes", 0.95, 600_000), ("letters", 0.98, 120_000)],
)
def test_embedded_teachers_reach_their_accuracy(name: str, least: float, size: int) -> None:
    path = (
        Path(__file__).resolve().parents[3] / "teachers" / "checkpoints"
    ) / f"{name}.safetensors"
    assert path.stat().st_size < size
    teacher = torch_teacher(path, label_mode="label")
    test = load_dataset(name, "test", shape=teacher.spec.shape)
    labels_N = torch.cat([teacher(test.batch(slice(i, i + 500))) for i in range(0, len(test), 500)])
    assert (labels_N == test.labels).float().mean().item() >= least


SHAPES = {"checkpoint": str(PROJECT / "teachers/checkpoints/shapes.safetensors")}


@pytest.fixture
def images() -> Tensor:
    return torch.rand(6, 3, 12, 12, generator=torch.Generator().manual_seed(0))


def answers(teacher: Any, images: Tensor) -> list[Tensor]:
    """Under each asker's own settings."""
    result = []
    for asker in [nullcontext, ieee_fp32, lambda: torch.autocast("cpu", torch.bfloat16)]:
        with asker():
            result.append(teacher(images))
    return result


def teacher_of(options: dict[str, Any], kind: str = "torch", **common: Any) -> Any:
    return make_teacher(TeacherConfig(kind=kind, label_mode="logits", **common), options, CPU)


def held_to_be_the_owners(
    kind: str, options: dict[str, Any], images: Tensor, **common: Any
) -> None:
    """Of each precision one answer, as float32, whoever asks; bf16's is another, near the exact
    one.
    """
    exact, ieee, tf32, bf16 = (
        answers(teacher_of(options | {"precision": name}, kind, **common), images)
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
    plain, coarse = teacher_of(SHAPES), teacher_of(SHAPES | {"precision": "tf32"})
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
    assert torch.equal(seen, teacher_of(SHAPES | {"precision": "bf16"})(images))
    assert not torch.equal(seen, as_seen(plain, None, mode, ieee_fp32)(images))
    assert torch.equal(plain.logits(images), coarse.logits(images))


def test_it_is_on_record() -> None:
    for options, result in ((SHAPES, None), (SHAPES | {"precision": "bf16"}, "bf16")):
        assert teacher_facts(teacher_of(options), "torch", options).get("precision") == result


def test_tf32_on_a_cpu_is_said_to_be_idle(caplog: pytest.LogCaptureFixture) -> None:
    teacher_of(SHAPES | {"precision": "tf32"})
    assert ["tf32 is idle on cpu" in message for message in caplog.messages] == [True]
    caplog.clear()
    teacher_of(SHAPES | {"precision": "bf16"})
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
