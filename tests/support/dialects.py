"""The languages that the hostile service speaks: protocol v2, TensorFlow Serving's, Hugging Face's, and one of JSON.

Each reads a question and packs an answer by itself, with json, numpy and Pillow, and says which options ask for it.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from protocols import CLASSES, LENGTH, PIXELS, SHAPE, V2, Asked, Packed, packed, read, tensor
from service import Reply, Request, http

NAMES = [f"class {number}" for number in range(CLASSES)]

ADAPTER = f"""
batch: 64
image: {{encoding: list, dtype: float32, layout: nchw}}
request: {{json: {{pictures: "${{images}}"}}}}
answer: {{path: "scores[*]"}}
teacher: {{shape: {list(SHAPE)}, num_classes: {CLASSES}, label_mode: probabilities}}
"""


@dataclass(frozen=True)
class Dialect:
    """``options`` are those of the teacher, besides its URL; ``config`` is what no service of this kind tells.

    ``only``: names of faults that are words of this language alone.
    """

    kind: str
    path: str
    pages: Callable[[dict[str, object]], Callable[[Request], Reply]]
    read: Callable[[Request], Asked]
    packed: Callable[..., Packed]
    options: dict[str, Any]
    config: dict[str, Any]
    only: frozenset[str] = frozenset()


def _v2_pages(pages: dict[str, object]) -> V2:
    image, scores = tensor("x", "FP32", [-1, *SHAPE]), tensor("y", "FP32", [-1, CLASSES])
    return V2([image], [scores], ["binary_tensor_data"], pages=pages)


def _v2_read(request: Request) -> Asked:
    asked = read(request)
    if asked.message["inputs"][0]["name"] != "x":
        raise ValueError(f"{asked.message['inputs']}")
    return asked


def _no_pages(pages: dict[str, object]) -> Callable[[Request], Reply]:
    return lambda request: http(b"", 404)


def _tf_pages(pages: dict[str, object]) -> Callable[[Request], Reply]:
    _, height, width = SHAPE

    def tensor_info(*sizes: int) -> dict[str, Any]:
        return {"dtype": "DT_FLOAT", "tensor_shape": {"dim": [{"size": str(size)} for size in sizes]}}

    def page(request: Request) -> Reply:
        if request.path == "/v1/models/m":
            return {"model_version_status": [{"version": "1", "state": "AVAILABLE", "status": {"error_code": "OK"}}]}
        inputs, outputs = {"x": tensor_info(-1, height, width, 1)}, {"y": tensor_info(-1, CLASSES)}
        return {
            "metadata": {
                "signature_def": {"signature_def": {"serving_default": {"inputs": inputs, "outputs": outputs}}}
            }
        }

    return page


def _json_read(key: str) -> Callable[[Request], Asked]:
    def read_list(request: Request) -> Asked:
        pixels = np.array(request.json[key], np.float64).astype(np.float32)
        return Asked(request, {}, pixels.reshape(len(pixels), *SHAPE), False)

    return read_list


def _json_packed(key: str) -> Callable[..., Packed]:
    def pack(asked: Asked, array: np.ndarray, binary: bool | None = None, **changes: Any) -> Packed:
        return json.dumps({key: array.astype(float).tolist()}).encode(), {"Content-Type": "application/json"}

    return pack


def _picture_read(request: Request) -> Asked:
    from PIL import Image

    pixels = np.asarray(Image.open(io.BytesIO(request.body))).astype(np.float32) / np.float32(255)
    return Asked(request, {}, pixels.reshape(1, *SHAPE), False)


def _pairs_packed(asked: Asked, array: np.ndarray, binary: bool | None = None, **changes: Any) -> Packed:
    names = [*NAMES, "one more"]
    pairs = [{"label": names[k], "score": float(score)} for row in array for k, score in enumerate(row)]
    return json.dumps(pairs[::-1]).encode(), {"Content-Type": "application/json"}


WORDS_OF_V2 = frozenset({"other_name", "other_type", "short_header", "swapped", "no_outputs"})
V2_ = Dialect("v2", "/v2/models/m/infer", _v2_pages, _v2_read, packed, {"model": "m"}, {}, WORDS_OF_V2)
TF = Dialect(
    "tf-serving",
    "/v1/models/m:predict",
    _tf_pages,
    _json_read("instances"),
    _json_packed("predictions"),
    {"model": "m"},
    {},
)
HF = Dialect("hf-api", "/", _no_pages, _picture_read, _pairs_packed, {"classes": tuple(NAMES)}, {"shape": SHAPE})
JSON_API = Dialect("json", "/", _no_pages, _json_read("pictures"), _json_packed("scores"), {}, {})


def images_unread(request: Request) -> int | None:
    """How many images a binary question of v2 holds, by its head alone; None for every other question."""
    head = request.headers.get(LENGTH.lower())
    return None if head is None else (int(request.headers["content-length"]) - int(head)) // (4 * PIXELS)
