"""The loop that says what programs are worth: what it counts, what it trains on, and a whole run."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from dfme.spec import ImageSpec
from research import programs
from research.programs import Copy, images_of, main, train

CHECKPOINT = Path(__file__).parents[2] / "teachers" / "checkpoints" / "digits.safetensors"


def test_one_sided_answers_are_seen() -> None:
    answers_K = torch.tensor([990, 9, 1, 0])
    shares = (0.990, 0.009, 0.001)
    copy = Copy(nn.Identity(), answers_K)
    assert copy.reached == 1
    assert copy.entropy == pytest.approx(-sum(p * math.log(p) for p in shares) / math.log(4))
    even = Copy(nn.Identity(), torch.tensor([99, 1, 0, 0]))
    assert even.reached == 2
    assert Copy(nn.Identity(), torch.full((4,), 5)).entropy == pytest.approx(1)


def test_a_file_in_place_of_a_program_gives_its_training_images(tmp_path: Path) -> None:
    train_images = np.arange(20, dtype=np.uint8).repeat(16).reshape(20, 4, 4)
    parts = {"train_images": train_images, "train_labels": np.arange(20) % 2}
    test = {"test_images": train_images + 100, "test_labels": np.arange(20) % 2}
    np.savez(tmp_path / "own.npz", **parts, **test)
    spec = ImageSpec((1, 4, 4), bounds=(-1.0, 1.0))
    rng = torch.Generator().manual_seed(0)
    drawn = images_of(str(tmp_path / "own.npz"), spec, 12, rng)
    assert drawn.shape == (12, 1, 4, 4)
    values = (drawn[:, 0, 0, 0] + 1) * 255 / 2
    assert len(values.unique()) == 12
    assert float(values.max()) < 19.5
    mixed = images_of("leaves+pen", spec, 12, rng)
    assert mixed.shape == (12, 1, 4, 4)
    assert float(mixed.min()) < -0.5


def test_frugal_training_augments_and_decays(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = list[str]()
    monkeypatch.setattr(programs, "augment", lambda x, how, rng: seen.append(how) or x)
    weights = list[float]()
    for frugal in (False, True):
        net = nn.Sequential(nn.Flatten(), nn.Linear(4, 3, bias=False))
        nn.init.constant_(net[1].weight, 1.0)
        # hardly anything to learn, so that the decay is what moves the weights
        train(net, torch.ones(50, 1, 2, 2), torch.full((50, 3), 1 / 3), 10, frugal)
        weights.append(float(net[1].weight.detach().mean()))
    assert seen == ["none"] * 10 + ["affine"] * 10
    assert weights[1] < weights[0] - 0.05


def test_a_row_has_the_agreement_and_how_the_answers_spread(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = f"programs {CHECKPOINT} digits noise -n 40 -s 2 --seeds 1 2".split()
    monkeypatch.setattr("sys.argv", words)
    main()
    constant, row = capsys.readouterr().out.splitlines()
    assert "balanced  10.0" in constant
    assert row.startswith("noise")
    for word in ("balanced", "classes", "entropy", "s each)"):
        assert word in row
