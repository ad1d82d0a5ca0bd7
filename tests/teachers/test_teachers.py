"""Teachers: what they reveal, how one is made from weights or from a user's own code, and what is refused."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from dfme.config.settings import TeacherConfig
from dfme.config.values import options_of
from dfme.data import load_dataset
from dfme.errors import TeacherError, UserError
from dfme.nets import NETS, build_net
from dfme.run.student_file import save_student
from dfme.spec import ImageSpec, LabelMode, Teacher
from teachers import KINDS
from teachers.build import make_teacher, wrap_callable
from teachers.label_modes import Label, Probabilities, TopK, restrict
from teachers.local.card import Card
from teachers.local.pytorch import Normalise, TorchTeacher
from teachers.local.weights import save_weights

CPU = torch.device("cpu")
CHECKPOINTS = Path(__file__).resolve().parents[2] / "teachers" / "checkpoints"


class Fixed:
    """A teacher that always answers the same rows, whatever it is asked."""

    def __init__(self, scores: list[list[float]], mode: str = "logits") -> None:
        self.spec = ImageSpec((1, 2, 2))
        self.num_classes = len(scores[0])
        self.label_mode = LabelMode.parse(mode)
        self._scores = torch.tensor(scores)

    def __call__(self, images: Tensor, /) -> Tensor:
        return self._scores


class Channels(nn.Module):
    """Logits that are the sums of the channels: its right answer is arithmetic."""

    def forward(self, x_BCHW: Tensor) -> Tensor:
        assert not self.training
        return x_BCHW.sum((2, 3))


# --- label modes -------------------------------------------------------------------------------------------


def test_probabilities_are_the_softmax_rounded() -> None:
    teacher = Fixed([[0.0, np.log(2.0), np.log(4.0)]])
    torch.testing.assert_close(Probabilities(teacher)(torch.empty(1)), torch.tensor([[1 / 7, 2 / 7, 4 / 7]]))
    rounded = Probabilities(teacher, decimals=2)
    assert rounded(torch.empty(1))[0].tolist() == pytest.approx([0.14, 0.29, 0.57])
    assert str(rounded.label_mode) == "probabilities:2"


def test_top_k_hides_the_others_and_label_is_the_first_largest() -> None:
    teacher = Fixed([[0.1, 0.6, 0.26, 0.04], [0.3, 0.3, 0.2, 0.2]], "probabilities")
    answer = TopK(teacher, k=2, decimals=1)(torch.empty(2))
    torch.testing.assert_close(
        answer,
        torch.tensor([[torch.nan, 0.6, 0.3, torch.nan], [0.3, 0.3, torch.nan, torch.nan]]),
        equal_nan=True,
    )
    labels = Label(teacher)(torch.empty(2))
    assert labels.dtype == torch.int64
    assert labels.tolist() == [1, 0]


def test_label_modes_can_be_stacked() -> None:
    teacher = Fixed([[0.0, 1.0, 2.0, 3.0], [3.0, -1.0, 0.0, 1.0]])
    three = TopK(Probabilities(teacher, 4), 3, 3)
    one = TopK(three, 1, 1)
    assert torch.isnan(one(torch.empty(2))).sum(1).tolist() == [3, 3]
    assert Label(one)(torch.empty(2)).tolist() == [3, 0]
    assert one.spec is teacher.spec


LADDER = ["logits", "probabilities", "probabilities:4", "probabilities:2", "top_k:2:2", "top_k:1:2", "label"]


def test_restrict_only_ever_reveals_less() -> None:
    for i, given in enumerate(LADDER):
        for j, wanted in enumerate(LADDER):
            teacher = Fixed([[0.1, 0.5, 0.4]], given)
            if i == j:
                assert restrict(teacher, LabelMode.parse(wanted)) is teacher
            elif i < j:
                assert str(restrict(teacher, LabelMode.parse(wanted)).label_mode) == wanted
            else:
                with pytest.raises(UserError, match=f"{wanted}: the teacher gives only {given}"):
                    restrict(teacher, LabelMode.parse(wanted))


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ("probabilities:2", "top_k:2"),
        ("top_k:2", "top_k:3"),
        ("top_k:2:2", "top_k:2"),
        ("top_k:2", "probabilities:1"),
    ],
)
def test_no_restriction_reveals_more_decimals_or_classes(given: str, wanted: str) -> None:
    with pytest.raises(UserError, match="which tells less"):
        restrict(Fixed([[0.1, 0.5, 0.4]], given), LabelMode.parse(wanted))


def test_top_k_of_more_classes_than_there_are() -> None:
    with pytest.raises(UserError, match="only 3 classes"):
        TopK(Fixed([[0.1, 0.5, 0.4]]), 4)


# --- a network on this machine -----------------------------------------------------------------------------


def test_torch_teacher_normalises_and_records_no_autograd() -> None:
    teacher = TorchTeacher(Channels().train(), ImageSpec((2, 3, 3)), 2, mean=(0.5, 0.25), std=(0.5, 2.0))
    assert isinstance(teacher, Teacher)
    x_BCHW = torch.rand(4, 2, 3, 3, requires_grad=True)
    answer = teacher(x_BCHW)
    expected = torch.stack([(x_BCHW[:, 0] - 0.5) / 0.5, (x_BCHW[:, 1] - 0.25) / 2.0], 1).sum((2, 3))
    torch.testing.assert_close(answer, expected.detach())
    assert not answer.requires_grad
    loss = nn.functional.l1_loss(torch.zeros(4, 2, requires_grad=True), answer)
    loss.backward()  # an answer can be the target of a student's loss


@pytest.mark.parametrize("mode", LADDER)
def test_torch_teacher_answers_in_its_mode(mode: str) -> None:
    x_BCHW = torch.rand(5, 3, 2, 2)
    logits = TorchTeacher(Channels(), ImageSpec((3, 2, 2)), 3)
    answer = TorchTeacher(Channels(), ImageSpec((3, 2, 2)), 3, LabelMode.parse(mode))(x_BCHW)
    torch.testing.assert_close(answer, restrict(logits, LabelMode.parse(mode))(x_BCHW), equal_nan=True)


def test_torch_teacher_stays_in_eval_mode_and_fp32() -> None:
    module = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Dropout(0.5), nn.Flatten(), nn.Linear(4, 3))
    teacher = TorchTeacher(module, ImageSpec((1, 3, 3)), 3)
    x_BCHW = torch.rand(6, 1, 3, 3)
    before = teacher(x_BCHW)
    module.train()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        torch.testing.assert_close(teacher(x_BCHW), before, rtol=0, atol=0)
    assert module[1].num_batches_tracked == 0


def test_one_output_is_the_logit_of_class_one() -> None:
    module = nn.Sequential(nn.Flatten(), nn.Linear(4, 1))
    teacher = TorchTeacher(module, ImageSpec((1, 2, 2)), 2, LabelMode("probabilities"))
    x_BCHW = torch.rand(3, 1, 2, 2)
    p_B = torch.sigmoid(module(x_BCHW))[:, 0]
    torch.testing.assert_close(teacher(x_BCHW), torch.stack([1 - p_B, p_B], 1).detach())


@pytest.mark.parametrize(
    ("mean", "std", "message"),
    [
        ((0.5,), None, "both or neither"),
        ((0.5, 0.5), (0.5, 0.5), "expected 3 numbers each"),
        ((0.5,), (0.0,), "positive"),
    ],
)
def test_normalisation_that_cannot_work(mean: Any, std: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        Normalise(mean, std, channels=3)


# --- from weights ------------------------------------------------------------------------------------------


def torch_teacher(path: Path, arch: str | None = None, **common: Any) -> Teacher:
    return make_teacher(TeacherConfig(**common), {"checkpoint": str(path), "arch": arch}, CPU)


def published(tmp_path: Path, arch: str, shape: tuple[int, int, int], classes: int) -> tuple[Path, nn.Module]:
    net = build_net(arch, shape, classes).eval()
    path = tmp_path / f"{arch}.pth"
    torch.save({"state_dict": {f"module.{name}": value for name, value in net.state_dict().items()}}, path)
    return path, net


def test_a_published_resnet34_8x_loads_as_it_is(tmp_path: Path) -> None:
    path, net = published(tmp_path, "resnet34_8x", (3, 32, 32), 10)
    teacher = torch_teacher(path, mean=(0.5, 0.4, 0.3), std=(0.2, 0.2, 0.2))
    assert teacher.spec.shape == (3, 32, 32)
    assert teacher.num_classes == 10
    assert str(teacher.label_mode) == "probabilities"
    x_BCHW = torch.rand(2, 3, 32, 32)
    with torch.no_grad():
        mean = torch.tensor([0.5, 0.4, 0.3])[:, None, None]
        expected = net((x_BCHW - mean) / 0.2).softmax(1)
    torch.testing.assert_close(teacher(x_BCHW), expected)


@pytest.mark.parametrize("arch", [name for name in NETS if name not in ("resnet34_8x", "wrn28_10", "resnet50_8x")])
def test_every_net_of_ours_is_recognised(tmp_path: Path, arch: str) -> None:
    path, net = published(tmp_path, arch, (3, 16, 16), 7)
    teacher = torch_teacher(path, shape=(3, 16, 16), label_mode="logits")
    x_BCHW = torch.rand(2, 3, 16, 16)
    with torch.no_grad():
        torch.testing.assert_close(teacher(x_BCHW), net(x_BCHW))


def test_torchvision_resnet_by_its_names(tmp_path: Path) -> None:
    torchvision = pytest.importorskip("torchvision", exc_type=(ImportError, RuntimeError))
    net = torchvision.models.resnet18(num_classes=5).eval()
    torch.save(net.state_dict(), tmp_path / "resnet18.pth")
    teacher = torch_teacher(tmp_path / "resnet18.pth", label_mode="logits")
    assert teacher.spec.shape == (3, 224, 224)
    assert teacher.num_classes == 5
    small = torch_teacher(tmp_path / "resnet18.pth", arch="resnet18", shape=(3, 64, 64), label_mode="logits")
    x_BCHW = torch.rand(2, 3, 64, 64)
    with torch.no_grad():
        torch.testing.assert_close(small(x_BCHW), net(x_BCHW))


def test_torchvision_classifier_by_name(tmp_path: Path) -> None:
    torchvision = pytest.importorskip("torchvision", exc_type=(ImportError, RuntimeError))
    net = torchvision.models.squeezenet1_1(num_classes=4)
    torch.save(net.state_dict(), tmp_path / "net.pth")
    with pytest.raises(UserError, match=r"give --teacher\.arch"):
        torch_teacher(tmp_path / "net.pth")
    with pytest.raises(UserError, match=r"--teacher\.num-classes: .* cannot be told"):
        torch_teacher(tmp_path / "net.pth", arch="squeezenet1_1")
    teacher = torch_teacher(tmp_path / "net.pth", arch="squeezenet1_1", num_classes=4, shape=(3, 64, 64))
    assert teacher(torch.rand(2, 3, 64, 64)).shape == (2, 4)


def test_what_is_given_must_fit_what_is_found(tmp_path: Path) -> None:
    path, _ = published(tmp_path, "cnn_small", (1, 8, 8), 10)
    with pytest.raises(UserError, match=r"--teacher\.num-classes: got 7, but the weights are for 10"):
        torch_teacher(path, num_classes=7, shape=(1, 8, 8))
    with pytest.raises(UserError, match=r"--teacher\.shape: got 3,8,8, but the weights are for 1,8,8"):
        torch_teacher(path, shape=(3, 8, 8))
    with pytest.raises(UserError, match=r"as lenet5 \(they look like cnn_small\): .* missing, first"):
        torch_teacher(path, arch="lenet5", shape=(1, 8, 8))
    with pytest.raises(UserError, match="cnn_small"):
        torch_teacher(path, arch="cnn_smal")


def test_the_card_tells_everything_and_the_configuration_wins(tmp_path: Path) -> None:
    net = build_net("cnn_small", (1, 8, 8), 3)
    path = tmp_path / "teacher.safetensors"
    save_weights(path, net, Card("cnn_small", (1, 8, 8), 3, mean=(0.5,), std=(0.5,), bounds=(-1.0, 1.0)))
    teacher = torch_teacher(path, label_mode="logits", levels=256, max_batch=17)
    assert teacher.spec == ImageSpec((1, 8, 8), (-1.0, 1.0), 256)
    assert teacher.max_batch == 17  # type: ignore[attr-defined]
    x_BCHW = torch.rand(2, 1, 8, 8)
    with torch.no_grad():
        torch.testing.assert_close(teacher(x_BCHW), net.eval()((x_BCHW - 0.5) / 0.5))
        plain = torch_teacher(path, mean=(0.0,), std=(1.0,), bounds=(0.0, 1.0), label_mode="logits")
        torch.testing.assert_close(plain(x_BCHW), net(x_BCHW))
    assert plain.spec.bounds == (0.0, 1.0)


def test_a_student_can_be_the_next_teacher(tmp_path: Path) -> None:
    net = build_net("cnn_small", (1, 8, 8), 3)
    path = tmp_path / "student.safetensors"
    save_student(path, net, "cnn_small", ImageSpec((1, 8, 8), (-1.0, 1.0)), 3)
    teacher = torch_teacher(path, label_mode="logits")
    assert teacher.spec == ImageSpec((1, 8, 8), (-1.0, 1.0))
    x_BCHW = torch.rand(2, 1, 8, 8)
    with torch.no_grad():
        torch.testing.assert_close(teacher(x_BCHW), net.eval()(x_BCHW))


def test_loading_draws_from_no_random_state(tmp_path: Path) -> None:
    path, _ = published(tmp_path, "cnn_small", (1, 8, 8), 10)
    before = torch.get_rng_state()
    torch_teacher(path, shape=(1, 8, 8))
    assert torch.equal(torch.get_rng_state(), before)


# --- one's own ---------------------------------------------------------------------------------------------

MODULE = '''
import torch

class MyTeacher:
    """Doubles as documentation."""

    shape = (1, 2, 2)
    num_classes = 2

    def __init__(self, sharpness: float, path: str = "none"):
        if sharpness < 0:
            raise ValueError("sharpness must not be negative")
        self.sharpness = sharpness

    def __call__(self, images):
        score = self.sharpness * images.flatten(1).mean(1)
        return torch.stack([score, -score], 1).softmax(1)

def make_teacher(num_classes: int = 3):
    return lambda images: torch.full((len(images), num_classes), 1 / num_classes)

def make_nothing():
    return None

def predict(images):
    return images

constant = 3
'''


@pytest.fixture
def own_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    name = f"own_{tmp_path.name}".replace("-", "_")
    (tmp_path / f"{name}.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return name


def own(kind: str, options: dict[str, Any] | None = None, **common: Any) -> Teacher:
    return make_teacher(TeacherConfig(kind=kind, **common), options or {}, CPU)


def test_own_class_with_its_arguments(own_module: str) -> None:
    teacher = own(f"{own_module}:MyTeacher", {"sharpness": 2.0}, levels=256)
    assert teacher.spec == ImageSpec((1, 2, 2), (0.0, 1.0), 256)
    assert str(teacher.label_mode) == "probabilities"
    p = torch.sigmoid(torch.tensor(4.0)).item()
    torch.testing.assert_close(teacher(torch.ones(1, 1, 2, 2)), torch.tensor([[p, 1 - p]]))
    label = own(f"{own_module}:MyTeacher", {"sharpness": 2.0}, label_mode="label")
    assert label(torch.ones(3, 1, 2, 2)).tolist() == [0, 0, 0]


def test_own_function_shares_the_common_keys_it_asks_for(own_module: str) -> None:
    teacher = own(f"{own_module}:make_teacher", shape=(3, 4, 4), num_classes=5)
    assert teacher(torch.ones(2, 3, 4, 4)).shape == (2, 5)
    given_as_option = own(f"{own_module}:make_teacher", {"num_classes": 4}, shape=(3, 4, 4))
    assert given_as_option.num_classes == 4


def test_own_teacher_behind_normalisation(own_module: str) -> None:
    teacher = own(f"{own_module}:MyTeacher", {"sharpness": 1.0}, mean=(0.5,), std=(0.25,))
    p = torch.sigmoid(torch.tensor(4.0)).item()
    torch.testing.assert_close(teacher(torch.ones(1, 1, 2, 2)), torch.tensor([[p, 1 - p]]))


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        ("nowhere_to_be_found:MyTeacher", {}, "no module"),
        ("MODULE:MyTeachr", {}, "MyTeacher"),
        ("MODULE:constant", {}, "constant is .*int"),
        ("MODULE:MyTeacher", {}, r"sharpness.*it is MyTeacher\(sharpness: float"),
        ("MODULE:MyTeacher", {"sharpnes": 1.0}, "sharpnes"),
        (
            "MODULE:MyTeacher",
            {"sharpness": -1.0},
            r"ValueError: sharpness must not be negative \(own_.*line 12\)",
        ),
        ("MODULE:predict", {}, "a function named here makes the teacher"),
        ("MODULE:make_nothing", {}, "expected a callable"),
        (
            "MODULE:make_teacher",
            {},
            r"shape = \(C, H, W\), or say --teacher\.shape .*extract\(\.\.\., shape=",
        ),
        ("torhc", {}, "did you mean torch"),
        ("torch", {}, "option checkpoint is missing"),
        ("torch", {"checkpoint": "a", "chekpoint": "b"}, "no option chekpoint"),
    ],
)
def test_own_and_built_in_kinds_that_cannot_work(
    own_module: str, kind: str, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError, match=message) as error:
        own(kind.replace("MODULE", own_module), options)
    assert "\n" not in str(error.value)


def test_a_module_that_fails_on_import_says_where(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_broken.py").write_text("x = 1\nimport not_installed_anywhere\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    with pytest.raises(UserError, match=r"not_installed_anywhere.*own_broken\.py, line 2"):
        own("own_broken:Teacher")


def uniform(images: Tensor) -> Tensor:
    return torch.full((len(images), 4), 0.25)


def test_a_plain_function_is_a_teacher() -> None:
    teacher = wrap_callable(uniform, shape=(1, 2, 2), num_classes=4, bounds=(-1.0, 1.0), max_batch=8)
    assert isinstance(teacher, Teacher)
    assert teacher.spec == ImageSpec((1, 2, 2), (-1.0, 1.0))
    assert str(teacher.label_mode) == "probabilities"
    assert teacher(torch.zeros(2, 1, 2, 2)).tolist() == [[0.25] * 4] * 2


@pytest.mark.parametrize(
    ("answer", "mode", "expected"),
    [
        (lambda x: np.array([[0.25, 0.75]]), None, [[0.25, 0.75]]),
        (lambda x: [[0.25, 0.75]], "probabilities:1", [[0.2, 0.8]]),
        (lambda x: torch.tensor([[0.75]]), None, [[0.25, 0.75]]),
        (lambda x: torch.tensor([1]), "label", [1]),
        (lambda x: torch.tensor([[0.25, 0.75]]), "label", [1]),
        (lambda x: torch.tensor([[3.0, -7.0]]), "logits", [[3.0, -7.0]]),
    ],
)
def test_answers_of_every_sort(answer: Callable[[Tensor], Any], mode: str | None, expected: Any) -> None:
    teacher = wrap_callable(answer, shape=(1, 2, 2), num_classes=2, label_mode=mode)
    result = teacher(torch.zeros(1, 1, 2, 2))
    torch.testing.assert_close(result.double(), torch.tensor(expected).double())


def test_an_answer_that_is_no_array() -> None:
    teacher = wrap_callable(lambda x: {"scores": [1.0]}, shape=(1, 2, 2), num_classes=2)
    with pytest.raises(TeacherError, match="expected a tensor, an array or a list of numbers, got dict"):
        teacher(torch.zeros(1, 1, 2, 2))


def test_attributes_win_and_contradictions_are_refused() -> None:
    class WithFacts:
        shape = (1, 2, 2)
        num_classes = 4
        bounds = (-1.0, 1.0)
        label_mode = "top_k:2"
        max_batch = 5

        def __call__(self, images: Tensor) -> Tensor:
            return uniform(images)

    teacher = wrap_callable(WithFacts(), bounds=(0.0, 1.0), max_batch=9)
    assert teacher.spec == ImageSpec((1, 2, 2), (-1.0, 1.0))
    assert teacher.max_batch == 5  # type: ignore[attr-defined]
    assert str(wrap_callable(WithFacts(), label_mode="label").label_mode) == "label"
    with pytest.raises(UserError, match="tells less"):
        wrap_callable(WithFacts(), label_mode="probabilities")
    with pytest.raises(UserError, match=r"--teacher\.shape: got \(3, 2, 2\), but the teacher itself says \(1, 2, 2\)"):
        wrap_callable(WithFacts(), shape=(3, 2, 2))
    with pytest.raises(UserError, match=r"num_classes = 10, or say --teacher\.num-classes"):
        wrap_callable(uniform, shape=(1, 2, 2))


def test_a_module_in_training_mode_is_refused() -> None:
    module = nn.Sequential(nn.Flatten(), nn.Linear(4, 3), nn.Softmax(1))
    with pytest.raises(UserError, match="eval"):
        wrap_callable(module, shape=(1, 2, 2), num_classes=3)
    assert wrap_callable(module.eval(), shape=(1, 2, 2), num_classes=3)(torch.ones(2, 1, 2, 2)).shape == (
        2,
        3,
    )


# --- the house ---------------------------------------------------------------------------------------------


def test_options_need_no_torch() -> None:
    code = "import sys, teachers, teachers.options; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_every_option_of_a_kind_has_its_help() -> None:
    for kind in KINDS.values():
        assert kind.options.__doc__
        assert [option.key for option in options_of(kind.options) if not option.help] == []


@pytest.mark.parametrize(("name", "least", "size"), [("digits", 0.98, 500_000), ("shapes", 0.95, 600_000)])
def test_embedded_teachers_reach_their_accuracy(name: str, least: float, size: int) -> None:
    path = CHECKPOINTS / f"{name}.safetensors"
    assert path.stat().st_size < size
    teacher = torch_teacher(path, label_mode="label")
    test = load_dataset(name, "test", shape=teacher.spec.shape)
    labels_N = torch.cat([teacher(test.batch(slice(i, i + 500))) for i in range(0, len(test), 500)])
    assert (labels_N == test.labels).float().mean().item() >= least
