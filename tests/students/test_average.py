"""The moving average of a student is torch's own, bit for bit."""

from __future__ import annotations

import copy

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from dfme.nets import build_net
from dfme.students.average import MovingAverage


def trained(net: nn.Module, steps: int) -> nn.Module:
    """The net with other weights and statistics."""
    net.train()
    with torch.no_grad():
        for _ in range(steps):
            net(torch.rand(8, 1, 8, 8))
            for parameter in net.parameters():
                parameter.add_(torch.randn_like(parameter))
    return net


def test_the_average_is_torchs() -> None:
    torch.manual_seed(0)
    net = build_net("cnn_small", (1, 8, 8), 3)
    ours = MovingAverage(net, 0.9)
    theirs = AveragedModel(copy.deepcopy(net), multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=True)
    for _ in range(4):
        trained(net, 5)
        ours.update_parameters(net)
        theirs.update_parameters(net)
    assert ours.state_dict().keys() == theirs.state_dict().keys()
    for name, value in theirs.state_dict().items():
        assert torch.equal(ours.state_dict()[name], value), name
    assert ours.n_averaged == 4
