"""CUDA graphs as a CPU can play them: what was captured runs anew on the buffers that it was
captured with."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from dfme import graphs
from dfme.students.trainer import MovingAverage


class FakeGraph(graphs.Graph):
    """Like a real one it sees only its own buffers, fills its own outputs.

    Unlike a real one it computes while it is captured; what comes of that must be undone.
    """

    captured = replayed = 0
    baked: Callable[[], object] = staticmethod(lambda: None)  # type: ignore[assignment]
    """What a real graph would have kept of Python's values: the same whenever it is replayed, or
    the key lacks it."""

    def record(self, run: graphs.Pass) -> tuple[Tensor, ...]:
        FakeGraph.captured += 1
        baked = FakeGraph.baked()

        def play() -> None:
            FakeGraph.replayed += 1
            assert FakeGraph.baked() == baked
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(MovingAverage, "update_parameters", uncounted)
                made = run()
            for own, new in zip(self.outputs, made, strict=True):
                own.copy_(new)
                # a replay makes nothing new: who still looks here looks at the wrong place
                new.fill_(torch.nan)

        self.play = play
        return run()


def uncounted(
    self: MovingAverage, model: nn.Module, update: Any = MovingAverage.update_parameters
) -> None:
    """Counting is the host's."""
    before = int(self.n_averaged)
    update(self, model)
    self.n_averaged.fill_(before)


def fake_graphed_callable(net: nn.Module, given: tuple[Tensor, ...]) -> nn.Module:
    """torch.cuda.make_graphed_callables, warm-up and static memory included."""
    FakeGraph.captured += 1
    plain, learning = (
        net.forward,
        [parameter for parameter in net.parameters() if parameter.requires_grad],
    )
    made: dict[str, Any] = {}

    def forward() -> Tensor:
        with torch.enable_grad():
            made["out"] = net(*given) if "static" not in made else plain(*given)
        return made["out"].detach()

    for _ in range(3):
        torch.autograd.grad(
            forward().clone() * 0 + made["out"], learning, torch.zeros_like(made["out"])
        )
    made["static"] = forward().clone()
    made["grad"] = torch.empty_like(made["static"])
    made["grads"] = [torch.empty_like(parameter) for parameter in learning]

    class Graphed(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *inputs: Tensor) -> Tensor:
            for own, each in zip(given, inputs, strict=False):
                own.copy_(each)
            FakeGraph.replayed += 1
            return made["static"].copy_(forward()).detach()

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
            made["grad"].copy_(grad)
            for own, each in zip(
                made["grads"], torch.autograd.grad(made["out"], learning, made["grad"]), strict=True
            ):
                own.copy_(each)
            return (*([None] * len(given)), *(each.detach() for each in made["grads"]))

    net.forward = lambda *inputs: Graphed.apply(*inputs, *learning)  # type: ignore[method-assign]
    return net


@contextmanager
def faked(graph: type[FakeGraph] = FakeGraph) -> Iterator[type[FakeGraph]]:
    """Graphs on a CPU."""
    graphs.warn_not_captured.cache_clear()
    FakeGraph.captured = FakeGraph.replayed = 0
    FakeGraph.baked = lambda: None  # type: ignore[method-assign]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(graphs.Graph, "record", graph.record)
        patch.setattr(graphs, "graphed_callable", fake_graphed_callable)
        patch.setattr("dfme.run.components.require_gpu", lambda device: None)
        yield FakeGraph
