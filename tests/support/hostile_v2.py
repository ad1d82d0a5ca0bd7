"""What the hostile server serves: a model whose answers are arithmetic, and just enough of protocol v2 to ask it.

Written from the protocol's description with json, struct and numpy, and with nothing of ``teachers``, so that the
two can be held against each other.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

SHAPE, CLASSES, NAME = (1, 8, 8), 10, "m"
PIXELS = 64
IMAGE_BYTES = 4 * PIXELS

WEIGHT = np.random.default_rng(7).standard_normal((PIXELS, CLASSES))

MODEL: dict[str, Any] = {
    "name": NAME,
    "versions": ["1"],
    "platform": "hostile",
    "inputs": [{"name": "image", "datatype": "FP32", "shape": [-1, *SHAPE]}],
    "outputs": [{"name": "scores", "datatype": "FP32", "shape": [-1, CLASSES]}],
}
SERVER = {"name": "hostile", "version": "1", "extensions": ["binary_tensor_data"]}


def truth(images: NDArray[Any]) -> NDArray[np.float32]:
    """The model: a linear map and a softmax. Bitwise the same for an image in whatever batch it comes."""
    pixels = 3 * (np.asarray(images, np.float64).reshape(len(images), PIXELS, 1) - 0.5)
    scores = (pixels * WEIGHT).sum(1)  # a sum in the order of the pixels, which a matrix product does not promise
    powers = np.exp(scores - scores.max(1, keepdims=True))
    answers: NDArray[np.float32] = (powers / powers.sum(1, keepdims=True)).astype(np.float32)
    return answers


def code(values: NDArray[Any]) -> str:
    """A digest of float32 numbers."""
    return hashlib.sha256(np.ascontiguousarray(values, "<f4").tobytes()).hexdigest()[:24]


@dataclass(frozen=True)
class Query:
    """A question as it came: the images, and whether the answer is wanted in binary."""

    images: NDArray[np.float32]
    binary: bool
    id: str | None

    @property
    def answer(self) -> tuple[bytes, dict[str, str]]:
        """The true answer: body and headers."""
        return packed(truth(self.images), self.binary, self.id)


def read_query(body: bytes, header_length: str | None) -> Query:
    """Take a request apart. Raises ValueError, KeyError or IndexError for one that is none."""
    end = len(body) if header_length is None else int(header_length)
    asked = json.loads(body[:end])
    tensor = asked["inputs"][0]
    if tensor["name"] != "image" or tensor["datatype"] != "FP32" or tuple(tensor["shape"][1:]) != SHAPE:
        raise ValueError(f"{tensor['name']} {tensor['datatype']} {tensor['shape']}")
    size = tensor.get("parameters", {}).get("binary_data_size")
    if size is None:
        values = np.array(tensor["data"], np.float32)
    elif size == len(body) - end:
        values = np.frombuffer(body, "<f4", offset=end)
    else:
        raise ValueError(f"{size} bytes announced, {len(body) - end} came")
    wanted = [asked.get("parameters", {}).get("binary_data_output", False)]
    wanted += [output.get("parameters", {}).get("binary_data", False) for output in asked.get("outputs", [])]
    return Query(values.reshape(tensor["shape"]), any(wanted), asked.get("id"))


def packed(
    scores: NDArray[Any], binary: bool, id: str | None = None, name: str = "scores", datatype: str = "FP32"
) -> tuple[bytes, dict[str, str]]:
    """An answer with these scores: body and headers."""
    tensor: dict[str, Any] = {"name": name, "datatype": datatype, "shape": list(scores.shape)}
    raw = np.ascontiguousarray(scores, "<f4").tobytes()
    if binary:
        tensor["parameters"] = {"binary_data_size": len(raw)}
    else:
        tensor["data"] = [float(value) for value in scores.ravel()]
    answer = {"model_name": NAME, "model_version": "1", "outputs": [tensor]} | ({} if id is None else {"id": id})
    head = json.dumps(answer).encode()
    if not binary:
        return head, {"Content-Type": "application/json"}
    return head + raw, {
        "Content-Type": "application/octet-stream",
        "Inference-Header-Content-Length": str(len(head)),
    }
