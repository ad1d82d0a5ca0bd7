"""`research.fast_student`: no step waits for the device, each image once a pass, rates as published,
directions as an eigendecomposition has them.
"""

import pytest
import torch
from numerics import HostReadError, unreadable

from research.fast_student import LAST, NETS, DeviceLoop, cosine, descent, student, triangle
from research.nets import Answered, Course, measured, scores
from research.whitened_net import PrincipalNet, principal_filters


def paid(images: int = 40) -> Answered:
    rng = torch.Generator().manual_seed(0)
    scores_NK = torch.rand(images, 5, generator=rng).softmax(1)
    return Answered(torch.rand(images, 3, 20, 20, generator=rng), scores_NK)


@pytest.mark.parametrize("loop", ["adamw", "sgd"])
@pytest.mark.parametrize("name", NETS)
def test_no_step_reads_the_device(name: str, loop: str) -> None:
    with unreadable():
        answers = Answered(torch.rand(40, 3, 20, 20), torch.rand(40, 5))
        net = student(name, (3, 20, 20), 5)
        if isinstance(net, PrincipalNet):
            net.whiten = lambda _: None  # type: ignore[method-assign]  # which waits, before any step
        training = DeviceLoop(net, loop, answers, Course(3, False, 0), 16)
        for _ in range(3):
            loss = training.step()
        with pytest.raises((HostReadError, RuntimeError)):
            loss.cpu()


def test_each_image_is_learnt_from_once_in_each_pass() -> None:
    training = DeviceLoop(
        student("narrow", (3, 20, 20), 5), "adamw", paid(), Course(5, False, 1), 16
    )
    assert training.order[:80].bincount().tolist() == [2] * 40


def test_what_is_plain_is_learnt() -> None:
    """Five classes of five shades."""
    torch.manual_seed(0)
    labels_N = torch.arange(40) % 5
    shade_N = labels_N / 5
    x_NCHW = shade_N[:, None, None, None] + 0.05 * torch.rand(40, 3, 20, 20)
    answers = Answered(x_NCHW, torch.eye(5)[labels_N])
    for loop in ("adamw", "sgd"):
        net = DeviceLoop(student("narrow", (3, 20, 20), 5), loop, answers, Course(40, True, 1), 40)
        right, _ = measured(answers, scores(net.run(), x_NCHW))
        assert right > 50, loop  # a constant answer is right on 20


def test_rates_rise_and_fall_between_their_ends() -> None:
    shares = [step / 100 for step in range(101)]
    rates = [triangle(share) for share in shares]
    assert (rates[0], max(rates), round(rates[-1], 6)) == (0.2, 1.0, LAST)
    assert rates.index(1.0) == 23
    assert (cosine(0), cosine(0.5), cosine(1)) == (1.0, pytest.approx(0.5), 0.0)


def test_the_published_rates_at_their_batch_are_those_of_a_sum() -> None:
    """11.5 a thousand examples and .0153 of decay, each over 1024 (1 + 1 / (1 - .85))."""
    net = student("cnn_whitened", (3, 32, 32), 10)
    at = descent("sgd", net, 50_000, 1024)
    kilostep = 1024 * (1 + 1 / (1 - 0.85))
    biases, others = at.optimizer.param_groups
    assert at.rates == pytest.approx((64 * 11.5 * 1024 / kilostep, 11.5 * 1024 / kilostep))
    assert others["weight_decay"] * at.rates[1] == pytest.approx(0.0153 * 1024 / kilostep)
    assert biases["weight_decay"] * at.rates[0] == pytest.approx(0.0153 * 1024 / kilostep)
    count = sum(value.numel() for value in net.parameters())
    grouped = sum(value.numel() for group in (biases, others) for value in group["params"])
    assert grouped == count


def test_principal_filters_make_the_variance_of_patches_one() -> None:
    rng = torch.Generator().manual_seed(0)
    x_NCHW = torch.randn(200, 3, 12, 12, generator=rng)
    x_NCHW = x_NCHW + 2 * x_NCHW.roll(1, 3) + x_NCHW.mean(1, keepdim=True)
    filters_DCPP = principal_filters(x_NCHW)
    white_DM = torch.nn.functional.conv2d(x_NCHW, filters_DCPP).transpose(0, 1).flatten(1)
    assert torch.allclose(white_DM.cov(), torch.eye(12), atol=0.02)
