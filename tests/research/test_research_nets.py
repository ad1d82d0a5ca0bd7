"""What `research.nets` compares, and how it trains: nets at equal cost, and each image once a
pass.
"""

import pytest
import torch

from research.nets import Answered, batches, measured, spread
from research.student_nets import COSTS, make_student


@pytest.mark.parametrize("name", COSTS)
def test_each_net_takes_images_of_the_tasks(name: str):
    for shape in ((3, 32, 32), (1, 28, 28), (1, 12, 12)):
        assert make_student(name, shape, 7)(torch.rand(2, *shape)).shape == (2, 7)


def test_the_other_net_has_the_parameters_that_its_page_says():
    sizes = [
        parameter.numel() for parameter in make_student("preact", (3, 32, 32), 10).parameters()
    ]
    assert sum(sizes) == 283_674


def test_group_norm_sees_one_image_at_a_time_and_batch_norm_all():
    x_BCHW = torch.rand(4, 3, 32, 32)
    for name, alike in (("cnn_large_gn", True), ("cnn_large", False)):
        net = make_student(name, (3, 32, 32), 10)
        alone = torch.cat([net(x_1CHW) for x_1CHW in x_BCHW.split(1)])
        assert torch.allclose(net(x_BCHW), alone, atol=1e-5) is alike


def test_smooth_strides_see_what_a_stride_of_two_skips():
    checkerboard = torch.zeros(1, 3, 32, 32)
    checkerboard[..., ::2, ::2] = 1.0
    moved = checkerboard.roll(1, 3)  # by a pixel, so what a stride of two meets changes altogether
    changes = []
    for name in ("cnn_large_smooth", "cnn_large"):
        torch.manual_seed(0)
        first = make_student(name, (3, 32, 32), 10).features[:2]
        inner = (first(image)[..., 1:-1, 1:-1] for image in (checkerboard, moved))
        changes.append(torch.dist(*inner).item())
    assert changes[0] < 1e-4 < changes[1]


def test_batches_show_each_image_once_in_each_pass():
    rng = torch.Generator().manual_seed(0)
    shown = torch.cat(list(batches(96, 6, rng)))
    assert len(shown) == 6 * 64
    assert shown.bincount().tolist() == [4] * 96


def test_agreement_and_spread_of_known_answers():
    labels_N = torch.tensor([0, 0, 0, 1])
    answered = Answered(torch.zeros(4, 1, 1, 1), torch.eye(4)[labels_N])
    constant_NK = torch.eye(4)[[0, 0, 0, 0]]
    assert measured(answered, constant_NK) == (75.0, 50.0)
    assert spread(torch.arange(4), 4) == "constant 25.0, 4 classes, entropy 1.00"
    assert spread(labels_N, 4).startswith("constant 75.0, 2 classes, entropy 0.41")
