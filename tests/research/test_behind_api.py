"""A network as an API shows it: the same network with and without an API before it."""

import pytest
import torch
from torch import nn

from dfme.config.settings import TeacherConfig
from dfme.run.job import PROJECT
from dfme.spec import ImageSpec, LabelMode
from dfme.teachers.build import make_teacher
from dfme.teachers.local.pytorch import TorchTeacher, load_torch
from dfme.teachers.options import TorchOptions
from research.behind_api import as_seen

CPU = torch.device("cpu")
OPTIONS = {"checkpoint": str(PROJECT / "teachers/checkpoints/shapes.safetensors")}


@pytest.fixture(scope="module")
def images() -> torch.Tensor:
    return torch.rand(6, 3, 12, 12, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    "mode", ["logits", "probabilities", "probabilities:4", "top_k:3", "top_k:3:2", "label"]
)
def test_what_is_seen_is_what_the_teacher_would_answer(images, mode):
    box = load_torch(TorchOptions(**OPTIONS), TeacherConfig(), CPU)
    seen = as_seen(box, None, LabelMode.parse(mode))
    teacher = make_teacher(TeacherConfig(label_mode=mode), OPTIONS, CPU)
    torch.testing.assert_close(seen(images), teacher(images), rtol=0, atol=0, equal_nan=True)
    assert seen.label_mode == teacher.label_mode
    assert not seen(images).requires_grad
    assert as_seen(box, 256, LabelMode.parse(mode)).spec.levels == 256


def test_gradients_go_through_the_normalisation():
    linear = nn.Sequential(nn.Flatten(), nn.Linear(4, 3, bias=False))
    box = TorchTeacher(linear, ImageSpec((1, 2, 2)), 3, mean=(0.5,), std=(0.25,))
    x_BCHW = torch.rand(2, 1, 2, 2, requires_grad=True)
    (grad_BCHW,) = torch.autograd.grad(box.logits(x_BCHW)[:, 1].sum(), x_BCHW)
    torch.testing.assert_close(
        grad_BCHW, (linear[1].weight[1] / 0.25).view(1, 1, 2, 2).expand(2, -1, -1, -1)
    )
