"""Unpaid images and mixed answers: the views, the mixtures, what is asked, and what a start leaves."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from dfme.nets import build_net
from dfme.spec import ImageSpec, LabelMode
from research import unpaid
from research.unpaid import Loop, covered, cropped, mirrored, mixed, recoloured, with_statistics

SHAPE = (3, 16, 16)


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("idea", ["mixup", "cutmix"])
def test_a_mixed_answer_has_the_shares_of_the_mixed_pixels(idea: str) -> None:
    white_B = torch.arange(8) % 2
    x_BCHW = white_B.float()[:, None, None, None].expand(8, *SHAPE)
    mixtures = set()
    for seed in range(20):
        x, target = mixed(x_BCHW, nn.functional.one_hot(white_B).float(), idea, rng(seed))
        torch.testing.assert_close(x.mean((1, 2, 3)), target[:, 1])
        assert torch.allclose(target.sum(1), torch.ones(8))
        mixtures.update(target[:, 1].tolist())
    assert len(mixtures) > 10


def test_a_mirrored_image_is_read_from_the_right() -> None:
    x_BCHW = torch.rand(64, *SHAPE, generator=rng())
    turned = mirrored(x_BCHW, rng())
    same = (turned == x_BCHW).all(3).all(2).all(1)
    assert torch.equal(turned[~same], torch.from_numpy(x_BCHW.numpy()[..., ::-1].copy())[~same])
    assert 16 < int(same.sum()) < 48


def test_at_most_a_quarter_of_an_image_is_covered_by_its_mean() -> None:
    x_BCHW = torch.rand(64, *SHAPE, generator=rng())
    seen = covered(x_BCHW, rng())
    changed = (seen != x_BCHW).any(1)
    assert changed.sum((1, 2)).max() == 64  # of 256 pixels
    assert (changed.sum((1, 2)) > 0).all()
    mean = x_BCHW.mean((1, 2, 3), keepdim=True).expand_as(x_BCHW)
    assert torch.equal(
        seen[changed[:, None].expand_as(seen)], mean[changed[:, None].expand_as(seen)]
    )


@pytest.mark.parametrize("channels", [1, 3])
def test_colours_change_and_stay_within_bounds(channels: int) -> None:
    x_BCHW = torch.rand(64, channels, 16, 16, generator=rng())
    seen = recoloured(x_BCHW, rng())
    assert 0 <= seen.min() < seen.max() <= 1
    assert ((seen - x_BCHW).abs().mean((1, 2, 3)) > 1e-3).all()


def test_a_crop_of_a_ramp_is_part_of_it() -> None:
    ramp = torch.linspace(0, 1, 16).expand(64, 1, 16, 16)
    spread = (lambda x: x.amax((1, 2, 3)) - x.amin((1, 2, 3)))(cropped(ramp, rng()))
    assert spread.min() > 0.45  # the side of .3 of the area is .55
    assert spread.max() < 1
    assert spread.std() > 0.05


def test_statistics_are_those_of_the_images() -> None:
    net = nn.Sequential(nn.BatchNorm2d(3))
    images = torch.randint(256, (1000, *SHAPE), dtype=torch.uint8, generator=rng())
    images[:, 1] //= 4
    other = with_statistics(net, images, rng())
    expected = images.double().mean((0, 2, 3)).float() / 255
    torch.testing.assert_close(other[0].running_mean, expected)  # type: ignore[index]
    assert torch.equal(net[0].running_mean, torch.zeros(3))  # type: ignore[arg-type]


def test_a_start_moves_all_but_the_last_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unpaid, "PAIRS", 8)
    images = torch.randint(256, (200, *SHAPE), dtype=torch.uint8, generator=rng())
    net = build_net("cnn_small", SHAPE, 4)
    before = {key: value.clone() for key, value in net.state_dict().items()}
    Loop("plain", False, False, images[:1], torch.eye(4)[:1], images, rng()).start(net, 2)
    moved = {key for key, value in net.named_parameters() if not torch.equal(value, before[key])}
    assert moved == {key for key, _ in net.named_parameters() if not key.startswith("linear")}


class Bright:
    """A teacher of two classes: dark and bright images."""

    spec = ImageSpec(SHAPE)
    num_classes = 2
    label_mode = LabelMode()

    def __init__(self) -> None:
        self.images = 0

    def __call__(self, x_BCHW: Tensor) -> Tensor:
        self.images += len(x_BCHW)
        return torch.stack([0 * (bright := 20 * x_BCHW.mean((1, 2, 3)) - 10), bright], 1).softmax(1)


@pytest.fixture
def bright(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bright:
    teacher = Bright()
    monkeypatch.setattr(unpaid, "teacher_of", lambda *_: teacher)
    monkeypatch.setattr(unpaid, "ARCH", "cnn_small")
    monkeypatch.setattr(unpaid, "PAIRS", 8)
    level = np.random.default_rng(0).integers(0, 2, (300, 1, 1, 1)) * 120
    images = (level + np.random.default_rng(1).integers(0, 120, (300, *SHAPE))).astype(np.uint8)
    labels = level[:, 0, 0, 0] // 120
    np.savez(
        tmp_path / "pool.npz",
        test_images=images[:100],
        test_labels=labels[:100],
        train_images=images,
        train_labels=labels,
    )
    monkeypatch.chdir(tmp_path)
    return teacher


@pytest.mark.parametrize(
    "flags",
    [
        ["--idea", "plain"],
        ["--idea", "cutmix", "--mirror", "--colour", "--labels"],
        ["--idea", "consistency", "--statistics", "--start-steps", "2"],
    ],
)
def test_only_paid_images_are_asked_and_the_student_learns(
    flags: list[str],
    bright: Bright,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    line = ["unpaid", "t.safetensors", "pool.npz", "--paid", "pool.npz", "--unasked", "pool.npz"]
    monkeypatch.setattr("sys.argv", [*line, "-n", "60", "-s", "25", "--seeds", "10", *flags])
    unpaid.main()
    assert bright.images == 60 + 100  # and the test images
    rows = capsys.readouterr().out.splitlines()
    assert len(rows) == (3 if "--statistics" in flags else 2)
    assert float(rows[1].split("balanced")[0].split()[-1]) > 90
    assert "paid: classes 2" in rows[1]
