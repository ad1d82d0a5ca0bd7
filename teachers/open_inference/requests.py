"""Requests to a v2 model: images in its datatype, layout and shape, in JSON or as raw bytes after it."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from dfme.config.settings import TeacherConfig
from dfme.errors import UserError
from teachers.arrays import Array
from teachers.local.pytorch import Normalise
from teachers.open_inference.message import HEADER_LENGTH, Envelope, pack
from teachers.open_inference.metadata import V2Model
from teachers.open_inference.tensors import DATATYPES, NamedTensor
from teachers.remote.teacher import Query


class RequestWriter:
    """Writes the requests to one model, from several threads. UserError for a normalisation of bytes."""

    def __init__(self, model: V2Model, config: TeacherConfig) -> None:
        if config.mean is not None and model.input.datatype == "UINT8":
            raise UserError(f"--teacher.mean and --teacher.std: the input {model.input} takes bytes; leave them out")
        self._model = model
        self._normalise = Normalise(config.mean, config.std, model.spec.shape[0])
        self._path = f"{model.path}/infer"
        self._envelopes: dict[int, Envelope] = {}

    def write(self, images_BCHW: Tensor, key: str, binary: bool) -> Query:
        """The request whose id is ``key`` for images float32 on the CPU; a binary body is their only copy."""
        pixels, name = self._pixels(images_BCHW), str(self._model.input.name)
        if binary:
            if len(pixels) not in self._envelopes:
                self._envelopes[len(pixels)] = Envelope(self._header(binary), name, pixels, "inputs")
            body, length = self._envelopes[len(pixels)].fill(key, pixels)
            return Query(self._path, body, {"Content-Type": "application/octet-stream", HEADER_LENGTH: str(length)})
        body, _ = pack({"id": key, **self._header(binary)}, [NamedTensor(name, pixels)], "inputs", binary)
        return Query(self._path, body, {"Content-Type": "application/json"})

    def _pixels(self, images_BCHW: Tensor) -> Array:
        """The images as the model takes them."""
        model = self._model
        if model.input.datatype == "UINT8":
            array: Array = model.spec.encode(images_BCHW).numpy()
        else:
            array = self._normalise(images_BCHW).numpy().astype(DATATYPES[model.input.datatype], copy=False)
        if model.layout.order == "nhwc":
            array = array.transpose(0, 2, 3, 1)
        return array.reshape(len(array), *model.layout.sent)

    def _header(self, binary: bool) -> dict[str, Any]:
        """A request without its id and its input."""
        header: dict[str, Any] = {"parameters": {"binary_data_output": True}} if binary else {}
        asked: dict[str, Any] = {"binary_data": True} if binary else {}
        if self._model.classification:
            asked["classification"] = self._model.classification
        if self._model.output.name is not None:
            header["outputs"] = [{"name": self._model.output.name, **({"parameters": asked} if asked else {})}]
        return header
