"""The v2 client against MLServer, a server of others; only where its command is found.

``DFME_MLSERVER`` names the command if it is not on the path, such as one in an environment of its own.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dfme.config.settings import TeacherConfig
from dfme.errors import BatchTooLarge, Refused, Unanswered, UserError
from dfme.spec import LabelMode
from dfme.teachers.open_inference.client import connect_v2
from dfme.teachers.remote.options import V2Options

MLSERVER = os.environ.get("DFME_MLSERVER") or shutil.which("mlserver")

pytestmark = [
    pytest.mark.integration,
    pytest.mark.exhaustive,
    pytest.mark.skipif(MLSERVER is None, reason="no mlserver command; DFME_MLSERVER may name one"),
]

RUNTIME = '''
"""Sums and means of images, by numpy alone; every image goes into a file before it is answered."""

import os
from pathlib import Path

import numpy as np
from mlserver import MLModel
from mlserver.errors import MLServerError
from mlserver.types import InferenceRequest, InferenceResponse, ResponseOutput

COUNT = Path(__file__).with_name("images.log")


class Linear(MLModel):
    async def load(self) -> bool:
        self._log = os.open(COUNT, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        (image,) = payload.inputs
        x = np.array(image.data.root, np.float32).reshape(image.shape)
        if len(x) > 5:
            raise MLServerError(f"batch of {len(x)} images: expected at most 5 images", 400)
        os.write(self._log, f"{len(x)}\\n".encode())
        flat = x.reshape(len(x), -1)
        if self.name == "labels":
            labels = (flat[:, 0] > 0.5).astype(np.int64)
            output = ResponseOutput(name="label", shape=[len(x), 1], datatype="INT64", data=labels.tolist())
        else:
            scores = np.stack([flat[:, 0], flat[:, 1] * 2, flat[:, 2] + flat[:, 3]], axis=1).astype(np.float32)
            output = ResponseOutput(name="scores", shape=list(scores.shape), datatype="FP32", data=scores.tolist())
        return InferenceResponse(id=payload.id, model_name=self.name, model_version=self.version, outputs=[output])
'''
IMAGE = {"name": "image", "datatype": "FP32", "shape": [-1, 1, 2, 2]}
MODELS: dict[str, dict[str, Any]] = {
    "linear": {"inputs": [IMAGE], "outputs": [{"name": "scores", "datatype": "FP32", "shape": [-1, 3]}]},
    "labels": {"inputs": [IMAGE], "outputs": [{"name": "label", "datatype": "INT64", "shape": [-1, 1]}]},
    "silent": {},
}


@dataclass
class MLServer:
    """A running MLServer: where it is, and the images it has counted."""

    url: str
    folder: Path

    def served(self, model: str) -> int:
        """Images that a model was asked for."""
        log = self.folder / model / "images.log"
        return sum(map(int, log.read_text().split())) if log.exists() else 0


def free_ports(count: int) -> list[int]:
    """Ports of this machine that nobody uses."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def is_ready(url: str) -> bool:
    """Whether all models of the server are loaded."""
    try:
        for model in MODELS:
            urllib.request.urlopen(f"{url}/v2/models/{model}/ready", timeout=5).close()
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return False
    return True


@pytest.fixture(scope="module")
def mlserver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MLServer]:
    """MLServer with three models of one runtime."""
    folder = tmp_path_factory.mktemp("mlserver")
    http, grpc, metrics = free_ports(3)
    ports = {"http_port": http, "grpc_port": grpc, "metrics_port": metrics, "metrics_dir": str(folder / "metrics")}
    server = {"host": "127.0.0.1", **ports, "parallel_workers": 0, "debug": False}
    (folder / "settings.json").write_text(json.dumps(server))
    for model, tensors in MODELS.items():
        (folder / model).mkdir()
        (folder / model / f"runtime_{model}.py").write_text(RUNTIME)
        settings = {"name": model, "implementation": f"runtime_{model}.Linear", "parameters": {"version": "v1"}}
        (folder / model / "model-settings.json").write_text(json.dumps({**settings, **tensors}))
    with (folder / "log").open("w") as log:
        words = [str(MLSERVER), "start", str(folder)]
        process = subprocess.Popen(words, cwd=folder, stdout=log, stderr=subprocess.STDOUT)
        try:
            url, deadline = f"http://127.0.0.1:{http}", time.monotonic() + 60
            while not is_ready(url):
                assert process.poll() is None, (folder / "log").read_text()
                assert time.monotonic() < deadline, (folder / "log").read_text()
                time.sleep(0.1)
            yield MLServer(url, folder)
        finally:
            process.terminate()
            process.wait(timeout=30)


def images(batch: int, seed: int = 0) -> torch.Tensor:
    return torch.rand(batch, 1, 2, 2, generator=torch.Generator().manual_seed(seed))


def arithmetic(x_BCHW: torch.Tensor) -> np.ndarray:
    """What the model answers, in float32."""
    flat = x_BCHW.numpy().reshape(len(x_BCHW), -1)
    return np.stack([flat[:, 0], flat[:, 1] * 2, flat[:, 2] + flat[:, 3]], axis=1)


@pytest.mark.parametrize("encoding", ["auto", "json"])
@pytest.mark.parametrize("version", [None, "v1"])
def test_scores_equal_the_arithmetic_and_every_image_is_counted(
    mlserver: MLServer, encoding: str, version: str | None
) -> None:
    before = mlserver.served("linear")
    options = V2Options(url=mlserver.url, model="linear", version=version, encoding=encoding)  # type: ignore[arg-type]
    made = connect_v2(options, TeacherConfig(label_mode="logits"), torch.device("cpu"))
    assert (made.spec.shape, made.num_classes, made.label_mode) == ((1, 2, 2), 3, LabelMode("logits"))
    for batch in (1, 5):
        assert np.array_equal(made(images(batch, batch)).numpy(), arithmetic(images(batch, batch)))
    made.close()
    assert mlserver.served("linear") - before == 6


def test_binary_tensors_come_only_where_the_user_insists_and_are_not_served(mlserver: MLServer) -> None:
    with urllib.request.urlopen(f"{mlserver.url}/v2", timeout=5) as answer:
        assert "binary_tensor_data" not in json.load(answer)["extensions"]
    before = mlserver.served("linear")
    made = connect_v2(
        V2Options(url=mlserver.url, model="linear", encoding="binary"), TeacherConfig(), torch.device("cpu")
    )
    with pytest.raises((Refused, Unanswered), match=r"answered [45]"):  # 500: it does not look for what it cannot read
        made(images(2))
    made.close()
    assert mlserver.served("linear") == before


def test_a_batch_beyond_the_models_limit_is_not_served(mlserver: MLServer) -> None:
    before = mlserver.served("linear")
    made = connect_v2(V2Options(url=mlserver.url, model="linear"), TeacherConfig(), torch.device("cpu"))
    with pytest.raises(BatchTooLarge, match="at most 5 images") as caught:
        made(images(6))
    made.close()
    assert caught.value.limit == 5
    assert mlserver.served("linear") == before


def test_labels_and_a_model_that_says_nothing_of_its_tensors(mlserver: MLServer) -> None:
    config = TeacherConfig(label_mode="label", num_classes=2)
    made = connect_v2(V2Options(url=mlserver.url, model="labels"), config, torch.device("cpu"))
    assert made.label_mode == LabelMode("label")
    assert made(images(4)).tolist() == (images(4).flatten(1)[:, 0] > 0.5).long().tolist()
    made.close()
    config = TeacherConfig(shape=(1, 2, 2), num_classes=3)
    options = V2Options(url=mlserver.url, model="silent", input="image", layout="nchw")
    made = connect_v2(options, config, torch.device("cpu"))
    assert np.array_equal(made(images(3)).numpy(), arithmetic(images(3)))
    made.close()
    assert mlserver.served("silent") == 3


def test_an_unknown_model_is_said_in_a_line(mlserver: MLServer) -> None:
    with pytest.raises(UserError, match="404") as caught:
        connect_v2(V2Options(url=mlserver.url, model="linaer"), TeacherConfig(), torch.device("cpu"))
    assert "\n" not in str(caught.value)
