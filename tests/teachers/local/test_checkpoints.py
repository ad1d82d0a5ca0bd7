"""A network on this machine, and a teacher made from its weights."""

from pathlib import Path
from typing import Any

import pytest
import torch
from damage import refused
from model_folders import save_weights
from safetensors.torch import save_file
from tables import exhaustive
from torch import Tensor, nn

from dfme.config.settings import TeacherConfig
from dfme.data import load_dataset
from dfme.errors import ShapeUnknown
from dfme.nets import NETS, build_net
from dfme.run.student_file import save_student
from dfme.spec import ImageSpec, Teacher
from dfme.teachers.build import make_teacher
from dfme.teachers.local.pytorch import Normalise, TorchTeacher
from dfme.teachers.local.weights import Card

CPU = torch.device("cpu")

CHECKPOINTS = Path(__file__).resolve().parents[3] / "teachers" / "checkpoints"


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
LARGE = ("wrn28_10", "resnet50_8x")


@pytest.mark.parametrize(
    "arch", [*SMALL, *exhaustive(*(name for name in NETS if name not in (*SMALL, *LARGE)))]
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
    path = CHECKPOINTS / f"{name}.safetensors"
    assert path.stat().st_size < size
    teacher = torch_teacher(path, label_mode="label")
    test = load_dataset(name, "test", shape=teacher.spec.shape)
    labels_N = torch.cat([teacher(test.batch(slice(i, i + 500))) for i in range(0, len(test), 500)])
    assert (labels_N == test.labels).float().mean().item() >= least
