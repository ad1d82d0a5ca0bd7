"""Every size of image and every number of classes goes through a whole run, with both methods."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor
from toys import LinearTeacher

import dfme
from dfme.spec import ImageSpec

# shape, classes, student
SIZES = [
    ((1, 8, 8), 2, "auto"),
    ((1, 8, 8), 100, "auto"),
    ((3, 8, 8), 10, "cnn_small"),
    ((1, 12, 12), 3, "auto"),
    ((3, 9, 13), 2, "auto"),
    ((1, 5, 16), 4, "cnn_medium"),
    ((3, 16, 24), 100, "cnn_medium"),
    ((2, 15, 11), 5, "cnn_small"),
    ((1, 28, 28), 10, "lenet5"),
    ((3, 32, 32), 2, "wrn16_1"),
    ((3, 64, 64), 100, "cnn_small"),
    ((1, 33, 64), 7, "cnn_small"),
]


class Watched(LinearTeacher):
    """Holds every query to the description: its shape, its dtype, its bounds, and no autograd."""

    def __call__(self, images: Tensor, /) -> Tensor:
        low, high = self.spec.bounds
        assert images.shape[1:] == self.spec.shape
        assert images.dtype == torch.float32
        assert not images.requires_grad
        assert not torch.is_grad_enabled()
        assert low <= float(images.min())
        assert float(images.max()) <= high
        return super().__call__(images)


@pytest.mark.parametrize("method", ["dfme", "static"])
@pytest.mark.parametrize(("shape", "classes", "arch"), SIZES, ids=lambda value: str(value).replace(" ", ""))
def test_a_run_of_every_size(tmp_path: Path, shape: tuple[int, int, int], classes: int, arch: str, method: str) -> None:
    teacher = Watched(ImageSpec(shape, bounds=(-1.0, 2.0)), classes)
    options = {"batch_size": 4, "student_steps": 1, "latent_size": 8}
    cost = 12 if method == "dfme" else 4
    result = dfme.extract(
        teacher,
        budget=2 * cost + 3,  # two steps, and three images that are left
        method=method,
        method_options=options,
        student={"arch": arch, "replay_steps": 1, "replay_batch": 4},
        bounds=teacher.spec.bounds,
        out=tmp_path / "run",
    )
    assert result.finished
    assert result.summary["spent"] == teacher.images == 2 * cost + 3
    assert result.summary["student_steps"] == 6
    again = dfme.load_student(tmp_path / "run")
    assert again(torch.rand(3, *shape)).shape == (3, classes)
    weights = result.student.state_dict()
    assert all(torch.equal(value, weights[name]) for name, value in again.state_dict().items())
