"""Pools of crops, and the published ResNet-20: its layers and parameters as the paper counts them."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from dfme.errors import UserError
from research.tasks.crops import crops
from research.tasks.resnet20 import Published, ResNet20


def test_crops_are_squares_of_the_photographs_and_the_first_is_the_middle(tmp_path: Path) -> None:
    rows, columns = np.mgrid[:60, :90]
    photograph = np.stack([2 * columns, 2 * rows, 0 * rows], axis=2).astype(np.uint8)
    (tmp_path / "folder").mkdir()
    Image.fromarray(photograph).save(tmp_path / "folder" / "a.png")
    Image.fromarray(photograph + np.uint8([0, 0, 200])).save(tmp_path / "b.PNG")
    pool = crops(tmp_path, 30, 4, seed=0)
    assert pool.shape == (8, 3, 30, 30)
    assert pool.dtype == np.uint8
    assert sorted(pool[:, 2].mean(axis=(1, 2)).tolist()) == [0] * 4 + [200] * 4
    first = pool[0].astype(float)
    assert np.allclose(first[0].mean(), 89, atol=1)  # columns 15 to 74
    assert np.allclose(first[1].mean(), 59, atol=1)  # all 60 rows
    steps = np.diff(pool[:, 0].astype(float), axis=2)[:, :, 5:-5].mean(axis=(1, 2))
    assert (steps >= 2 * 0.4 * 60 / 30 - 0.2).all()  # a square of at least .4 of the shorter side
    assert (steps <= 2 * 60 / 30 + 0.2).all()


def test_a_folder_without_photographs_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="expected a folder of photographs, got none"):
        crops(tmp_path, 32, 1, seed=0)
    broken = tmp_path / "broken.jpg"
    broken.write_bytes(b"\xff\xd8 not a photograph")
    with pytest.raises(UserError, match=r"broken\.jpg: cannot be read as an image"):
        crops(tmp_path, 32, 1, seed=0)


def test_a_photograph_of_one_pixel_gives_squares_too(tmp_path: Path) -> None:
    Image.new("RGB", (1, 1), (9, 9, 9)).save(tmp_path / "dot.png")
    assert (crops(tmp_path, 8, 5, seed=0) == 9).all()


def test_resnet20_has_the_layers_and_parameters_of_the_paper() -> None:
    net = ResNet20()
    layers = [part for part in net.modules() if isinstance(part, torch.nn.Conv2d | torch.nn.Linear)]
    assert len(layers) == 20  # the paper's table 6: 20 layers, .27 million parameters
    assert round(sum(value.numel() for value in net.parameters()) / 1e6, 2) == 0.27


def test_published_weights_see_images_of_unit_range(tmp_path: Path) -> None:
    torch.manual_seed(0)
    net = ResNet20().eval()
    state = {f"module.{name}": value for name, value in net.state_dict().items()}
    torch.save({"state_dict": state, "best_prec1": 1.0}, tmp_path / "weights.th")
    x_BCHW = torch.rand(3, 3, 32, 32)
    mean = torch.tensor([0.485, 0.456, 0.406]).view(1, 3, 1, 1)
    deviation = torch.tensor([0.229, 0.224, 0.225]).view(1, 3, 1, 1)
    with torch.no_grad():
        scores_BK = Published(tmp_path / "weights.th").eval()(x_BCHW)
        assert torch.equal(scores_BK, net((x_BCHW - mean) / deviation))
