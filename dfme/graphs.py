"""Steps as CUDA graphs: the host launches one graph instead of many kernels; same numbers.

A graph reads and writes the addresses that it was captured with. So inputs are copied into buffers
of its own, outputs are overwritten by the next replay, and weights, buffers and moments keep their
places: checkpoints and rounds copy into them. What Python decides, or draws from the run's streams,
is done outside.
"""

import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor, nn

from dfme.errors import OptionError, flag, say
from dfme.precision import in_force

WARM_UP = 3  # calls before a form is captured, which are steps like any other,
RECENT = 64  # among the last so many
MAX_GRAPHS = 8  # of a part

Pass = Callable[..., tuple[Tensor, ...]]
graphed_callable: Callable[..., Any] = torch.cuda.make_graphed_callables
_side = cache(torch.cuda.Stream)


def require_gpu(device: torch.device) -> None:
    """UserError for a device that has no graphs."""
    if device.type != "cuda":
        raise OptionError(
            "graphs", say("expected a CUDA device, got {}; leave {graphs} out", device.type)
        )


class Graph:
    """One captured call of ``run``, with outputs refilled by every call. Tests replace
    ``record``.
    """

    def __init__(self, run: Pass, given: Sequence[Any]) -> None:
        self._buffers = [each.clone() if isinstance(each, Tensor) else each for each in given]
        self.outputs = self.record(lambda: run(*self._buffers))

    def __call__(self, *given: Any) -> tuple[Tensor, ...]:
        for buffer, each in zip(self._buffers, given, strict=True):
            if isinstance(buffer, Tensor):
                buffer.copy_(each)
        self.play()
        return self.outputs

    def record(self, run: Pass) -> tuple[Tensor, ...]:
        graph = torch.cuda.CUDAGraph()
        self.play = graph.replay
        with torch.cuda.graph(graph, stream=torch.cuda.current_stream()):
            return run()


@dataclass(eq=False)
class Captured:
    """A function of tensors, captured once for each form of its arguments and replayed from then
    on.

    ``run`` maps tensors and plain values to tensors, which a later call overwrites; it changes the
    tensors ``state``. A form that is seen too seldom runs as it is, and all do for good where a
    capture fails.
    """

    part: str
    run: Pass
    state: Callable[[], Sequence[Tensor]]
    make: Callable[[Pass, Sequence[Any]], Pass] = Graph
    _replays: dict[object, Pass] = field(default_factory=dict)
    _recent: deque[object] = field(default_factory=partial(deque, maxlen=RECENT))
    _off: bool = False

    def __call__(self, *given: Any) -> tuple[Tensor, ...]:
        shapes = [(x.shape, x.stride(), x.dtype) if isinstance(x, Tensor) else x for x in given]
        form = in_force(), *shapes
        if replay := self._replays.get(form):
            return replay(*given)
        self._recent.append(form)
        device: torch.device = given[0].device
        if self._off or len(self._replays) == MAX_GRAPHS or self._recent.count(form) <= WARM_UP:
            with on_side_stream(device):
                return self.run(*given)
        try:
            gpus = [device] if device.type == "cuda" else []
            with torch.random.fork_rng(gpus), on_side_stream(device, self.state()):
                self._replays[form] = self.make(self.run, given)
        except Exception as error:  # whatever somebody's own net does that a graph cannot
            self._off = True
            problem = f"{type(error).__name__}: {str(error)[:120]}"
            warn_not_captured(self.part, f"it cannot be captured ({problem})")
        return self(*given)


class GraphedForward:
    """A net's forward as graphs in place of its own until ``release``; outputs are the caller's.

    Passes without a gradient are replayed, and of a net in train mode ``with_gradient`` those with
    one, backward pass included, unless the last such still waits for its backward pass. Nets that a
    hook watches run as they are.
    """

    def __init__(self, net: nn.Module, part: str, with_gradient: bool = False) -> None:
        self.net = net
        self._part = part
        self._modules = list(net.modules())
        self._waiting = False
        self._plain: Callable[..., Any] = net.forward
        self.before: Any = vars(net).get("forward")
        given = part, lambda x, _: (self._plain(x),), lambda: list(net.buffers())
        self._still = Captured(*given)
        self._learning = Captured(*given, self._graphed) if with_gradient else None
        vars(net)["forward"] = self

    def __call__(self, x: Tensor) -> Any:
        if any(module._forward_hooks for module in self._modules):
            warn_not_captured(self._part, "a hook watches what its layers read")
        elif not (torch.is_grad_enabled() or x.requires_grad):
            return self._still(x, self.net.training)[0].clone()
        elif (
            self._learning is not None
            and self.net.training
            and not (x.requires_grad or self._waiting)
        ):
            return self._learning(x, True)[0]
        return self._plain(x)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        copied = memo[id(self.net)]  # has its class's own
        return type(copied).forward.__get__(copied)

    def _graphed(self, _: Pass, given: Sequence[Any]) -> Pass:
        vars(self.net)["forward"] = self._plain
        try:
            graphed = graphed_callable(self.net, (given[0].clone(),)).forward
        finally:
            vars(self.net)["forward"] = self

        def replay(x: Tensor, _: bool) -> tuple[Tensor, ...]:
            out: Tensor = graphed(x).clone()
            out.register_hook(lambda _: setattr(self, "_waiting", False))
            self._waiting = True
            return (out,)

        return replay


def release(nets: Iterable[nn.Module | None]) -> None:
    """The plain nets, to store, copy or save; the memory of their graphs is freed."""
    for net in filter(None, nets):
        if isinstance(graphed := vars(net).pop("forward", None), GraphedForward) and graphed.before:
            net.forward = graphed.before


@cache
def warn_not_captured(part: str, reason: str) -> None:
    """Say, once, why a part of a run goes on kernel by kernel."""
    logging.getLogger("dfme").warning(
        f"{flag('graphs')}: %s goes on without, since %s", part, reason
    )


@contextmanager
def on_side_stream(device: torch.device, state: Sequence[Tensor] = ()) -> Iterator[None]:
    """Run on a stream of its own, as capturing needs; ``state`` is restored whatever happens."""
    with ExitStack() as undo:
        if state := [
            each.data for each in state
        ]:  # whose version, unlike theirs, no backward pass heeds
            undo.callback(torch._foreach_copy_, state, [each.clone() for each in state])
        if device.type == "cuda":
            current = torch.cuda.current_stream(device)
            side = _side(device)
            side.wait_stream(current)
            undo.callback(current.wait_stream, side)
            undo.enter_context(torch.cuda.stream(side))
        yield
