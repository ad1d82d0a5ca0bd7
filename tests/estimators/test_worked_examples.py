"""The worked examples this project grew from: a chain rule cut in the middle gives what autograd gives."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from dfme.estimators.upstream import backward


@pytest.mark.parametrize(("cut", "upstream"), [("c", 0.005), ("b", 0.04)])
def test_scalar_chain_cut_in_the_middle(cut: str, upstream: float) -> None:
    """a = 5, b = a a, c = 8 b, d = log c: d d / d a = 2 / a = 0.4 from 1 / c = 0.005 or 8 / c = 0.04."""
    a = torch.tensor(5.0, requires_grad=True)
    b = a * a
    c = 8 * b
    backward({"b": b, "c": c}[cut], torch.tensor(upstream))
    assert a.grad is not None
    assert a.grad.item() == pytest.approx(0.4, rel=1e-6)


@pytest.mark.parametrize("cut", ["d", "c", "b"])
def test_vector_chain_cut_at_every_place(cut: str) -> None:
    a = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
    b = a * a
    c = 8 * b
    d = c.log()
    upstream = {"d": torch.ones(3), "c": 1 / c.detach(), "b": 8 / c.detach()}[cut]
    backward({"b": b, "c": c, "d": d}[cut], upstream)
    assert_close(a.grad, torch.tensor([2.0, 1.0, 0.6667]), atol=5e-5, rtol=0)


@pytest.mark.parametrize("seed", range(5))
def test_doubling_until_the_norm_passes_a_thousand(seed: int) -> None:
    x = torch.randn(3, generator=torch.Generator().manual_seed(seed), requires_grad=True)
    y, doublings = x * 2, 1
    while y.norm() < 1000:
        y, doublings = y * 2, doublings + 1
    external = torch.tensor([0.1, 1.0, 0.0001])
    backward(y, external)
    assert_close(x.grad, 2.0**doublings * external, atol=0, rtol=0)  # powers of two multiply without rounding


class Network:
    """linear - ReLU - linear - mean squared error, with every gradient written by hand beside autograd's."""

    def __init__(self) -> None:
        rng = torch.Generator().manual_seed(3)

        def leaf(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=rng, dtype=torch.float64).requires_grad_()

        self.leaves = {"x": leaf(6, 5), "w1": leaf(5, 4), "b1": leaf(4), "w2": leaf(4, 1), "b2": leaf(1)}
        self.target = torch.randn(6, 1, generator=rng, dtype=torch.float64)
        self.hidden = self.leaves["x"] @ self.leaves["w1"] + self.leaves["b1"]
        self.active = self.hidden.relu()
        self.out = self.active @ self.leaves["w2"] + self.leaves["b2"]

    def autograd(self) -> dict[str, Tensor]:
        """The gradient of the loss at every leaf and at every layer's output, without a cut."""
        loss = (self.out - self.target).square().mean()
        tensors = {**self.leaves, "hidden": self.hidden, "active": self.active, "out": self.out}
        return dict(zip(tensors, torch.autograd.grad(loss, list(tensors.values()), retain_graph=True), strict=True))

    def by_hand(self) -> dict[str, Tensor]:
        """The same by the textbook's rules, no autograd anywhere."""
        with torch.no_grad():
            x, w1, w2 = (self.leaves[name] for name in ("x", "w1", "w2"))
            out = 2 * (self.out - self.target) / len(self.target)
            active = out @ w2.T
            hidden = active * (self.hidden > 0)
            return {
                "out": out,
                "active": active,
                "hidden": hidden,
                "w2": self.active.T @ out,
                "b2": out.sum(0),
                "w1": x.T @ hidden,
                "b1": hidden.sum(0),
                "x": hidden @ w1.T,
            }


def test_gradients_written_by_hand_are_autograds() -> None:
    network = Network()
    assert_close(network.by_hand(), network.autograd())


@pytest.mark.parametrize(
    ("cut", "reached"),
    [("out", {"x", "w1", "b1", "w2", "b2"}), ("active", {"x", "w1", "b1"}), ("hidden", {"x", "w1", "b1"})],
)
def test_network_cut_at_every_layer_with_a_gradient_made_by_hand(cut: str, reached: set[str]) -> None:
    network = Network()
    truth = network.autograd()
    backward(getattr(network, cut), network.by_hand()[cut])
    assert {name for name, leaf in network.leaves.items() if leaf.grad is not None} == reached
    for name in reached:
        assert_close(network.leaves[name].grad, truth[name])
