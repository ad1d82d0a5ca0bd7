"""The white box: the same network with and without an API before it."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import nn

from dfme.config.settings import TeacherConfig
from dfme.precision import arithmetic
from dfme.run.job import PROJECT
from dfme.spec import ImageSpec, LabelMode
from dfme.teachers.build import make_teacher
from dfme.teachers.local.pytorch import TorchTeacher
from dfme.teachers.local.white_box import TorchWhiteBox, open_white_box

CPU = torch.device("cpu")
OPTIONS = {"checkpoint": str(PROJECT / "teachers/checkpoints/shapes.safetensors")}


@pytest.fixture(scope="module")
def images() -> torch.Tensor:
    return torch.rand(6, 3, 12, 12, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("mode", ["logits", "probabilities", "probabilities:4", "top_k:3", "top_k:3:2", "label"])
def test_what_is_seen_is_what_the_teacher_would_answer(images, mode):
    box = open_white_box(TeacherConfig(), OPTIONS, CPU)
    seen = box.as_seen(None, LabelMode.parse(mode))
    teacher = make_teacher(TeacherConfig(label_mode=mode), OPTIONS, CPU)
    torch.testing.assert_close(seen(images), teacher(images), rtol=0, atol=0, equal_nan=True)
    assert seen.label_mode == teacher.label_mode
    assert not seen(images).requires_grad


def test_the_wire_is_part_of_what_is_seen_and_not_of_the_box():
    box = open_white_box(TeacherConfig(levels=256), OPTIONS, CPU)
    assert box.spec == ImageSpec((3, 12, 12))
    assert box.as_seen(256, LabelMode("probabilities")).spec.levels == 256
    assert box.as_seen(None, LabelMode("probabilities")).spec.levels is None


def test_gradients_go_through_the_normalisation():
    linear = nn.Sequential(nn.Flatten(), nn.Linear(4, 3, bias=False))
    box = TorchWhiteBox(TorchTeacher(linear, ImageSpec((1, 2, 2)), 3, mean=(0.5,), std=(0.25,)))
    x_BCHW = torch.rand(2, 1, 2, 2, requires_grad=True)
    (grad_BCHW,) = torch.autograd.grad(box.logits(x_BCHW)[:, 1].sum(), x_BCHW)
    torch.testing.assert_close(grad_BCHW, (linear[1].weight[1] / 0.25).view(1, 1, 2, 2).expand(2, -1, -1, -1))


def test_arithmetic_that_is_asked_for_holds_inside_and_nowhere_else(images):
    box = open_white_box(TeacherConfig(), OPTIONS, CPU)
    exact, coarse = (
        box.as_seen(None, LabelMode("logits"), partial(arithmetic, kind, CPU))(images) for kind in ("ieee", "bf16")
    )
    difference = (exact - coarse).abs().max()
    assert 1e-4 < difference < 1.0
    assert coarse.dtype == torch.float32
    assert not torch.is_autocast_enabled("cpu")
    torch.testing.assert_close(box.logits(images).detach(), exact, rtol=0, atol=0)
