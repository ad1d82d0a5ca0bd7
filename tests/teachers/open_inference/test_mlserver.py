"""The v2 client against MLServer, a server of others; only where its command is found.

``DFME_MLSERVER`` names the command if it is not on the path, such as one in an environment of its
own.
"""

import json
import os
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from damage import refused

from dfme.config.settings import TeacherConfig
from dfme.errors import BatchTooLarge, Refused, Unanswered
from dfme.teachers.open_inference.client import connect_v2
from dfme.teachers.options import V2Options
from dfme.teachers.remote.teacher import RemoteTeacher

MLSERVER = os.environ.get("DFME_MLSERVER") or shutil.which("mlserver")

pytestmark = [
    pytest.mark.integration,
    pytest.mark.exhaustive,
    pytest.mark.skipif(MLSERVER is None, reason="no mlserver command; DFME_MLSERVER may name one"),
]

RUNTIME = '''
"""Scores of images, by numpy alone; every image goes into a file before it is answered."""

from pathlib import Path

import numpy as np
from mlserver import MLModel
from mlserver.errors import MLServerError
from mlserver.types import InferenceRequest, InferenceResponse, ResponseOutput


class Linear(MLModel):
    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        (image,) = payload.inputs
        x = np.array(image.data.root, np.float32).reshape(image.shape[0], -1)
        if len(x) > 5:
            raise MLServerError(f"batch of {len(x)} images: expected at most 5 images", 400)
        with Path(__file__).with_name("images.log").open("a") as log:
            log.write(f"{len(x)}\\n")
        scores = np.stack([x[:, 0], x[:, 1] * 2, x[:, 2] + x[:, 3]], axis=1)
        output = ResponseOutput(name="scores", shape=[len(x), 3], datatype="FP32", data=scores.tolist())
        names = {"model_name": self.name, "model_version": self.version}
        return InferenceResponse(id=payload.id, outputs=[output], **names)
'''
MODELS: dict[str, dict[str, Any]] = {
    "linear": {
        "inputs": [{"name": "image", "datatype": "FP32", "shape": [-1, 1, 2, 2]}],
        "outputs": [{"name": "scores", "datatype": "FP32", "shape": [-1, 3]}],
    },
    "silent": {},
}


@dataclass
class MLServer:
    """A running MLServer: where it is, and the images it has counted."""

    url: str
    folder: Path

    def served(self, model: str) -> int:
        log = self.folder / model / "images.log"
        return sum(map(int, log.read_text().split())) if log.exists() else 0


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


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
    """MLServer with two models of one runtime."""
    folder = tmp_path_factory.mktemp("mlserver")
    ports = {name: free_port() for name in ("http_port", "grpc_port", "metrics_port")}
    server = {
        "host": "127.0.0.1",
        **ports,
        "metrics_dir": str(folder / "metrics"),
        "parallel_workers": 0,
    }
    (folder / "settings.json").write_text(json.dumps(server))
    for model, tensors in MODELS.items():
        (folder / model).mkdir()
        (folder / model / f"runtime_{model}.py").write_text(RUNTIME)
        settings = {
            "name": model,
            "implementation": f"runtime_{model}.Linear",
            "parameters": {"version": "v1"},
        }
        (folder / model / "model-settings.json").write_text(json.dumps({**settings, **tensors}))
    with (folder / "log").open("w") as log:
        words = [str(MLSERVER), "start", str(folder)]
        process = subprocess.Popen(words, cwd=folder, stdout=log, stderr=subprocess.STDOUT)
        try:
            url, deadline = f"http://127.0.0.1:{ports['http_port']}", time.monotonic() + 60
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


def connected(
    server: MLServer, config: dict[str, Any] | None = None, **options: Any
) -> closing[RemoteTeacher]:
    return closing(
        connect_v2(
            V2Options(url=server.url, **{"model": "linear", **options}),
            TeacherConfig(**config or {}),
            torch.device("cpu"),
        )
    )


@pytest.mark.parametrize("encoding", ["auto", "json"])
@pytest.mark.parametrize("version", [None, "v1"])
def test_scores_equal_the_arithmetic_and_every_image_is_counted(
    mlserver: MLServer, encoding: str, version: str | None
) -> None:
    before = mlserver.served("linear")
    with connected(
        mlserver, {"label_mode": "logits"}, version=version, encoding=encoding
    ) as client:
        assert (client.spec.shape, client.num_classes, str(client.label_mode)) == (
            (1, 2, 2),
            3,
            "logits",
        )
        for batch in (1, 5):
            assert np.array_equal(
                client(images(batch, batch)).numpy(), arithmetic(images(batch, batch))
            )
    assert mlserver.served("linear") - before == 6


def test_what_it_refuses_is_not_served(mlserver: MLServer) -> None:
    before = mlserver.served("linear")
    with connected(mlserver) as client:
        assert refused("at most 5 images", client, images(6), error=BatchTooLarge).limit == 5
    # 500: it does not look for binary tensors, which it cannot read
    with connected(mlserver, encoding="binary") as client, pytest.raises((Refused, Unanswered)):
        client(images(2))
    assert mlserver.served("linear") == before
    refused("404", connected, mlserver, model="linaer")


def test_a_model_that_says_nothing_of_its_tensors(mlserver: MLServer) -> None:
    config = {"shape": (1, 2, 2), "num_classes": 3}
    with connected(mlserver, config, model="silent", input="image", layout="nchw") as client:
        assert np.array_equal(client(images(3)).numpy(), arithmetic(images(3)))
    assert mlserver.served("silent") == 3
