"""A scheduled optimiser: its learning rate is asked at every step; it takes up its state; it starts
anew.
"""

from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import nn

from dfme.config.settings import StudentConfig
from dfme.students.optimizers import ScheduledOptimizer, make_optimizer


def scheduled(net: nn.Module, factors: list[float], momentum: float = 0.0) -> ScheduledOptimizer:
    return ScheduledOptimizer(
        torch.optim.SGD(net.parameters(), 0.5, momentum=momentum), lambda: factors[0]
    )


def step(net: nn.Linear, optimizer: ScheduledOptimizer) -> float:
    """How far the only weight moves by one step whose gradient is 1."""
    optimizer.zero_grad()
    assert net.weight.grad is None
    net.weight.sum().backward()
    before = net.weight.item()
    optimizer.step()
    return before - net.weight.item()


def test_each_step_is_taken_at_the_learning_rate_of_now() -> None:
    net, factors = nn.Linear(1, 1, bias=False), [1.0]
    nn.init.zeros_(net.weight)
    optimizer = scheduled(net, factors)
    assert step(net, optimizer) == optimizer.lr == 0.5
    factors[0] = 0.25
    assert step(net, optimizer) == optimizer.lr == 0.125
    optimizer.set_weight_decay(2.0)  # the weight is -0.625, so the gradient is 1 - 1.25
    assert step(net, optimizer) == 0.125 * (1 - 1.25)


def test_momentum_is_in_the_state_and_can_be_forgotten() -> None:
    factors = [1.0]
    net, other = nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)
    nn.init.zeros_(net.weight)
    optimizer, resumed = scheduled(net, factors, 0.5), scheduled(other, factors, 0.5)
    step(net, optimizer)
    other.load_state_dict(net.state_dict())
    resumed.load_state_dict(deepcopy(optimizer.state_dict()))
    assert step(other, resumed) == step(net, optimizer) == 0.5 * 1.5
    optimizer.forget_moments()
    assert step(net, optimizer) == 0.5


@pytest.mark.parametrize(
    ("name", "torchs", "momentum"),
    [
        ("adamw", torch.optim.AdamW, {}),
        ("adam", torch.optim.Adam, {}),
        ("sgd", torch.optim.SGD, {"momentum": 0.9}),
    ],
)
def test_steps_are_those_of_torchs_optimisers(
    name: str, torchs: Any, momentum: dict[str, float]
) -> None:
    ours, theirs = nn.Linear(2, 1), nn.Linear(2, 1)
    theirs.load_state_dict(ours.state_dict())
    settings = {"lr": 0.5, "weight_decay": 0.1, **momentum}
    mine = make_optimizer(ours, StudentConfig(optimizer=name, **settings))
    for net, optimizer in (
        (ours, mine),
        (theirs, torchs(theirs.parameters(), fused=True, **settings)),
    ):
        for _ in range(3):
            optimizer.zero_grad()
            net(torch.ones(1, 2)).square().sum().backward()
            optimizer.step()
    assert torch.equal(ours.weight, theirs.weight)
