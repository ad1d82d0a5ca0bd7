"""The teacher that is carried: it grows without a change of its answers, and its weights in half
precision are read as any others.
"""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from dfme.config.settings import TeacherConfig
from dfme.data import load_dataset
from dfme.nets.architectures import BasicBlock, ResNet8x
from dfme.nets.files import infer_net
from dfme.teachers.build import make_teacher
from research.tasks import carried, carry
from research.tasks.carried import Stage, grown, rate_at, save, trained
from research.tasks.carry import ITEMS, Item

NARROW = (4, 8, 8, 8)


@pytest.fixture
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        carried, "STAGES", (Stage((1, 1, 1, 1), 24, 0.01), Stage((3, 4, 6, 3), 16, 0.01))
    )
    monkeypatch.setattr(carried, "BATCH", 8)
    monkeypatch.setattr(carried, "SAVED_EVERY", 2)


@pytest.fixture
def data(tmp_path: Path) -> str:
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (32, 3, 8, 8), dtype=np.uint8)
    labels = np.arange(32, dtype=np.uint8) % 2
    path = tmp_path / "task.npz"
    parts = {"train_images": images, "train_labels": labels}
    np.savez(path, **parts, test_images=images[:10], test_labels=labels[:10])
    return str(path)


def test_a_net_that_grows_answers_as_before() -> None:
    torch.manual_seed(0)
    shallow = ResNet8x(BasicBlock, (1, 1, 1, 1), 3, 5, NARROW)
    for module in shallow.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.normal_(module.bias)
    deep = ResNet8x(BasicBlock, (3, 4, 6, 3), 3, 5, NARROW)
    x_BCHW = torch.rand(4, 3, 16, 16)
    before = shallow.eval()(x_BCHW)
    assert not torch.allclose(deep.eval()(x_BCHW), before, atol=0.1)
    assert torch.allclose(grown(shallow, deep).eval()(x_BCHW), before, atol=1e-5)


def test_rates_rise_and_end_at_nothing() -> None:
    assert (rate_at(0), rate_at(0.05), rate_at(0.1), rate_at(1)) == (0, 0.5, 1, 0)


@pytest.mark.usefixtures("_small")
def test_a_training_goes_on_where_it_was_stopped(
    data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last place kept is the second step of the second stage; it begins there."""
    train = load_dataset(data, "train")
    part = tmp_path / "out.part"
    trained(train, part, 0)
    began: list[int] = []
    steps = carried.Training.steps

    def noted(training: carried.Training, first: int):  # type: ignore[no-untyped-def]
        began.append(first)
        return steps(training, first)

    monkeypatch.setattr(carried.Training, "steps", noted)
    net, place = trained(train, part, 0)
    assert (began, place.stage, place.step) == ([2], 1, 2)
    assert sum(isinstance(module, BasicBlock) for module in net.modules()) == 16


@pytest.mark.usefixtures("_small")
def test_weights_in_half_precision_are_a_teacher(data: str, tmp_path: Path) -> None:
    train = load_dataset(data, "train")
    net, place = trained(train, tmp_path / "out.part", 0)
    path = tmp_path / "out.safetensors"
    share = save(path, net, data, place)
    half = {name: value.half() for name, value in net.state_dict().items()}
    floats = sum(value.numel() for value in half.values())
    assert path.stat().st_size < 2 * floats + 40_000
    assert path.stat().st_size < 16e6
    teacher = make_teacher(TeacherConfig(), {"checkpoint": str(path)}, torch.device("cpu"))
    answers = teacher(torch.rand(2, 3, 8, 8))
    assert answers.dtype == torch.float32
    assert answers.isfinite().all()
    test = load_dataset(data, "test")
    right = (teacher(test.batch(slice(0, 10))).argmax(1) == test.required_labels).float().mean()
    assert float(right) == pytest.approx(share)
    guess = infer_net(net.state_dict())
    assert guess is not None
    assert guess.arch == carried.ARCH


def test_what_is_carried_is_packed_and_what_is_missing_is_named(data: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    said = carry.carry(Item("t.npz", "task.npz", "somehow", tested=True), tmp_path, out)
    with np.load(out / "t.npz") as packed:
        assert sorted(packed.files) == ["test_images", "test_labels"]
        assert (packed["test_images"] == load_dataset(data, "test").images.numpy()).all()
    assert said.startswith("t.npz: 0.0 MB")
    lacking = carry.carry(ITEMS[0], tmp_path, out)
    assert lacking.endswith("it is made by: python -m research.tasks plates")
