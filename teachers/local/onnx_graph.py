"""The last operation of each output of an ONNX model, read without the package onnx."""

import mmap
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from dfme.files import open_file
from dfme.teachers.local.answer_forms import End

MAX_NODES = 200_000

# numbers of the fields of onnx.proto
GRAPH = 7
NODE = 1
INITIALIZER = 5
OUTPUT = 12
INPUTS = 1
OUTPUTS = 2
KIND = 4
DOMAIN = 7
NAME = 1
TENSOR_NAME = 8

ENDS: dict[str, End] = {
    "Sigmoid": "sigmoid",
    "HardSigmoid": "sigmoid",
    "Gemm": "unbounded",
    "MatMul": "unbounded",
    "Conv": "unbounded",
    "Relu": "unbounded",
}

KEEPING = frozenset(
    {
        "Identity",
        "Cast",
        "Reshape",
        "Squeeze",
        "Unsqueeze",
        "Flatten",
        "Transpose",
        "Dropout",
        "GlobalAveragePool",
        "AveragePool",
        "ReduceMean",
        "Gather",
        "Slice",
    }
)
"""Operations after which a probability is still one, and a logit still a logit."""

LENGTHS = {1: 8, 5: 4}  # bytes of a value by its wire type, where they are fixed


@dataclass
class _Node:
    kind: str = ""
    inputs: list[str] = field(default_factory=list)


@dataclass
class _Graph:
    """Each node by the names that it writes, the outputs in order, and the names of constants."""

    nodes: dict[str, _Node] = field(default_factory=dict)
    outputs: list[str] = field(default_factory=list)
    constants: set[str] = field(default_factory=set)

    def is_constant(self, name: str) -> bool:
        """True if a value is the same for every image."""
        return name in self.constants or (
            name in self.nodes and self.nodes[name].kind == "Constant"
        )


_EXTERNAL = re.compile(rb"\n\x08location\x12(.)", re.DOTALL)
"""What stands before the name of a file of weights; the last byte is the name's length."""


def external_files(path: Path) -> set[str]:
    """Names of the files that hold weights of a model."""
    with (
        open_file(path) as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content,
    ):
        names = [
            content[match.end() : match.end() + match[1][0]]
            for match in _EXTERNAL.finditer(content)
        ]
    return {name.decode(errors="replace") for name in names}


def ends_of(path: Path) -> dict[str, End | None]:
    """The kind of the last operation by the output's name; empty if the file cannot be read so."""
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            view = memoryview(data)
            try:
                graph = _read(view)
            finally:
                view.release()
    except (OSError, ValueError, IndexError, UnicodeDecodeError):
        return {}
    return {name: _end(graph, name) for name in graph.outputs}


def _end(graph: _Graph, name: str) -> End | None:
    """The kind of the operation that decides the range of a value."""
    for _ in range(MAX_NODES):
        node = graph.nodes.get(name)
        if node is None or (node.kind in KEEPING and not node.inputs):
            return None
        if node.kind in ("Log", "Add"):
            return _end_of_two(graph, node)
        if node.kind not in KEEPING:
            return ENDS.get(node.kind)
        name = node.inputs[0]
    return None


def _end_of_two(graph: _Graph, node: _Node) -> End | None:
    """The end of a logarithm of a sigmoid, and of a sum that is a linear map and its bias."""
    moving = [value for value in node.inputs if not graph.is_constant(value)]
    below = graph.nodes.get(moving[0], _Node()).kind if len(moving) == 1 else ""
    if node.kind == "Log":
        return "log-sigmoid" if below == "Sigmoid" else None
    return "unbounded" if below in ("MatMul", "Gemm", "Conv") else None


def _read(model: memoryview) -> _Graph:
    """The graph of a model. ValueError or IndexError for what is none."""
    graph = _Graph()
    for number, part in _fields(model):
        if number != GRAPH:
            continue
        for inner, value in _fields(part):
            if inner == NODE:
                _add_node(graph, value)
            elif inner == OUTPUT:
                graph.outputs += [_text(name) for key, name in _fields(value) if key == NAME]
            elif inner == INITIALIZER:
                graph.constants.update(
                    _text(name) for key, name in _fields(value) if key == TENSOR_NAME
                )
            if len(graph.nodes) > MAX_NODES:
                raise ValueError("a graph of too many nodes")
    return graph


def _add_node(graph: _Graph, data: memoryview) -> None:
    node = _Node()
    written = list[str]()
    for number, value in _fields(data):
        if number == INPUTS:
            node.inputs.append(_text(value))
        elif number == OUTPUTS:
            written.append(_text(value))
        elif number == KIND:
            node.kind = _text(value) + node.kind
        elif number == DOMAIN and _text(value) not in ("", "ai.onnx"):
            node.kind = "?"  # not one of ONNX's own operations, whatever its name
    graph.nodes.update(dict.fromkeys(written, node))


def _text(value: memoryview) -> str:
    return bytes(value).decode()


def _fields(data: memoryview) -> Iterator[tuple[int, memoryview]]:
    """The fields of a protocol buffer with their numbers, except those that hold a number."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        kind = key & 7
        if kind == 0:
            at = _varint(data, at)[1]
            continue
        if kind == 2:
            length, at = _varint(data, at)
        elif kind in LENGTHS:
            length = LENGTHS[kind]
        else:
            raise ValueError("no protocol buffer")
        if length > len(data) - at:
            raise ValueError("a protocol buffer that is cut short")
        if kind == 2:
            yield key >> 3, data[at : at + length]
        at += length


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    """A number of seven bits a byte, and where it ends."""
    value = 0
    for place in range(10):
        byte = data[at + place]
        value |= (byte & 127) << (7 * place)
        if byte < 128:
            return value, at + place + 1
    raise ValueError("a number of more than ten bytes")
