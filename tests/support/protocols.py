"""What a service of protocol v2 answers: its documents and its bodies, as ``Service`` sends them.

Written from the protocol's description with json and numpy, and with nothing of ``teachers``, so
that the two can be held against each other. The one input is called x, the one output y, the model
m.
"""

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from service import Reply, Request, http

NUMPY = {"FP32": "<f4", "FP16": "<f2", "FP64": "<f8", "UINT8": "u1", "INT64": "<i8"}
LENGTH = "Inference-Header-Content-Length"
Packed = tuple[bytes, dict[str, str]]
"""A body and its headers."""

SHAPE, CLASSES, PIXELS = (1, 8, 8), 10, 64
WEIGHT = np.random.default_rng(7).standard_normal((PIXELS, CLASSES))


def truth(images: NDArray[Any]) -> NDArray[np.float32]:
    """The model: a linear map and a softmax. Bitwise the same for an image in whatever batch it
    comes.
    """
    pixels = 3 * (np.asarray(images, np.float64).reshape(len(images), PIXELS, 1) - 0.5)
    # a sum in the order of the pixels, which a matrix product does not promise
    scores = (pixels * WEIGHT).sum(1)
    powers = np.exp(scores - scores.max(1, keepdims=True))
    answers: NDArray[np.float32] = (powers / powers.sum(1, keepdims=True)).astype(np.float32)
    return answers


def code(values: NDArray[Any]) -> str:
    """A digest of float32 numbers."""
    return hashlib.sha256(np.ascontiguousarray(values, "<f4").tobytes()).hexdigest()[:24]


def tensor(name: str, datatype: str, shape: list[int]) -> dict[str, Any]:
    """A tensor in the model's metadata."""
    return {"name": name, "datatype": datatype, "shape": shape}


@dataclass
class Asked:
    """A question as it came: its JSON part, the pixels of its only input."""

    request: Request
    message: dict[str, Any]
    pixels: np.ndarray
    binary: bool

    @property
    def id(self) -> str | None:
        return self.message.get("id")

    @property
    def path(self) -> str:
        return self.request.path

    @property
    def headers(self) -> dict[str, str]:
        return self.request.headers

    @property
    def wants_binary(self) -> bool:
        """Whether the answer is to come in binary."""
        wanted = [self.message.get("parameters", {}).get("binary_data_output", False)]
        outputs = self.message.get("outputs", [])
        return any(
            wanted + [output.get("parameters", {}).get("binary_data", False) for output in outputs]
        )


def read(request: Request) -> Asked:
    """Take a question apart. Raises ValueError or KeyError for one that is none."""
    length = request.headers.get(LENGTH.lower())
    end = len(request.body) if length is None else int(length)
    message = json.loads(request.body[:end])
    (entry,) = message["inputs"]
    dtype = NUMPY[entry["datatype"]]
    came = {} if length is None else {"binary_data_size": len(request.body) - end}
    if entry.get("parameters", {}) != came:
        raise ValueError(f"{entry['parameters']}, but {came} came")
    if length is None:
        pixels = np.array(entry["data"], np.float64).astype(dtype)
    else:
        pixels = np.frombuffer(request.body, dtype, offset=end)
    return Asked(request, message, pixels.reshape(entry["shape"]), length is not None)


def packed(asked: Asked, array: np.ndarray, binary: bool | None = None, **changes: Any) -> Packed:
    """An answer with one output; ``changes`` replace keys of the message or of its output. In
    JSON.
    """
    datatype = next(word for word, dtype in NUMPY.items() if np.dtype(dtype) == array.dtype)
    output = tensor("y", datatype, list(array.shape))
    message = {"model_name": "m", "model_version": "1"} | (
        {} if asked.id is None else {"id": asked.id}
    )
    for key, value in changes.items():
        (output if key in ("name", "datatype", "shape", "data") else message)[key] = value
    if asked.wants_binary if binary is None else binary:
        output["parameters"] = {"binary_data_size": array.nbytes}
        head = json.dumps({**message, "outputs": [output]}).encode()
        return head + array.tobytes(), {
            "Content-Type": "application/octet-stream",
            LENGTH: str(len(head)),
        }
    output.setdefault(
        "data", [None if item != item else item for item in array.reshape(-1).tolist()]
    )
    return json.dumps({**message, "outputs": [output]}).encode(), {
        "Content-Type": "application/json"
    }


def answer(asked: Asked, array: np.ndarray, binary: bool | None = None, **changes: Any) -> bytes:
    """The same as a whole answer."""
    body, headers = packed(asked, array, binary, **changes)
    return http(body, **headers)


def scores(pixels: np.ndarray, classes: int = 3) -> np.ndarray:
    """What the model answers if nothing else is said: the mean of the pixels in halves of k + 1."""
    flat = pixels.reshape(len(pixels), -1).astype(np.float32)
    return (
        flat.mean(1, keepdims=True) * np.arange(1, classes + 1, dtype=np.float32) / 2 + flat[:, :1]
    )


@dataclass
class V2:
    """What a server of one model says to each request.

    ``pages``: what GET gives instead, by path: bytes, a status, or a document. ``infer``: what a
    question gets.
    """

    inputs: list[dict[str, Any]] = field(
        default_factory=lambda: [tensor("x", "FP32", [-1, 1, 2, 2])]
    )
    outputs: list[dict[str, Any]] = field(default_factory=lambda: [tensor("y", "FP32", [-1, 3])])
    extensions: list[str] = field(default_factory=lambda: ["binary_tensor_data"])
    parameters: dict[str, Any] | None = None
    config: dict[str, Any] | None = None
    pages: dict[str, object] = field(default_factory=dict)
    infer: Callable[[Asked], Reply] = lambda asked: answer(asked, scores(asked.pixels))
    asked: list[Asked] = field(default_factory=list)
    got: list[str] = field(default_factory=list)

    def __call__(self, request: Request) -> Reply:
        if request.method == "POST":
            self.asked.append(read(request))
            return self.infer(self.asked[-1])
        self.got.append(request.path)
        page = self.pages.get(request.path)
        if isinstance(page, int):
            return http({"error": "no"}, page)
        return self.document(request.path) if page is None else page

    def document(self, path: str) -> Reply:
        """What GET gives."""
        if path == "/v2":
            return {"name": "scripted", "version": "1", "extensions": self.extensions}
        if path.endswith("/config"):
            return http({"error": "no such path"}, 404) if self.config is None else self.config
        if path.endswith("/ready"):
            return http()
        document = {"name": "m", "platform": "test", "inputs": self.inputs, "outputs": self.outputs}
        return document if self.parameters is None else {**document, "parameters": self.parameters}
