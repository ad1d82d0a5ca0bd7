"""The last operation of each output of a program that PyTorch saved."""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch
from torch import fx
from torch.export import ExportedProgram

from dfme.teachers.local.answer_forms import End

FARTHEST = 50  # operations that are passed on the way to the one that decides

ENDS: dict[str, End] = {
    "sigmoid": "sigmoid",
    "sigmoid_": "sigmoid",
    "hardsigmoid": "sigmoid",
    "log_sigmoid": "log-sigmoid",
    "log_sigmoid_forward": "log-sigmoid",
    "linear": "unbounded",
    "addmm": "unbounded",
    "mm": "unbounded",
    "matmul": "unbounded",
    "conv2d": "unbounded",
    "convolution": "unbounded",
    "_convolution": "unbounded",
    "relu": "unbounded",
    "relu_": "unbounded",
}

KEEPING = frozenset(
    {
        "squeeze",
        "unsqueeze",
        "view",
        "reshape",
        "flatten",
        "to",
        "_to_copy",
        "clone",
        "contiguous",
        "detach",
        "detach_",
        "alias",
        "mean",
        "adaptive_avg_pool2d",
        "select",
        "slice",
        "dropout",
        "getitem",
    }
)
"""Operations after which a probability is still one, and a logit still a logit."""


def ends_of_export(exported: ExportedProgram) -> list[End | None]:
    """The kind of the last operation of each output, in their order."""
    named = {node.name: node for node in exported.graph.nodes}
    outputs = [name for name in exported.graph_signature.user_outputs if isinstance(name, str)]
    return [_end(named.get(name), _fx_kind, lambda node: node.args[0]) for name in outputs]


def ends_of_script(module: Any) -> list[End | None]:
    """The same of a TorchScript module; none where its graph branches or cannot be read."""
    try:
        outputs = list(module.inlined_graph.outputs())
        node = outputs[0].node() if len(outputs) == 1 else None
        if node is not None and node.kind() in ("prim::TupleConstruct", "prim::ListConstruct"):
            outputs = list(node.inputs())
        return [
            _end(value.node(), _script_kind, lambda node: next(node.inputs()).node())
            for value in outputs
        ]
    except (RuntimeError, AttributeError):
        return []


def _end(node: Any, kind_of: Callable[[Any], str], before: Callable[[Any], Any]) -> End | None:
    """The kind of the operation that decides the range of a value."""
    with suppress(IndexError, StopIteration):
        for _ in range(FARTHEST):
            kind = kind_of(node)
            if kind not in KEEPING:
                return ENDS.get(kind)
            node = before(node)
    return None


def _fx_kind(node: Any) -> str:
    """Name of a node's operation without library and overload; empty for another node."""
    if not isinstance(node, fx.Node) or node.op != "call_function":
        return ""
    if isinstance(node.target, torch._ops.OpOverload):
        return str(node.target._schema.name).partition("::")[2]
    return getattr(node.target, "__name__", "")


def _script_kind(node: Any) -> str:
    library, _, name = str(node.kind()).partition("::")
    return name if library == "aten" else ""
