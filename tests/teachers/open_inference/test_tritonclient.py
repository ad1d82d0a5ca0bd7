"""The served teacher as an independent client sees it: Triton's own, in JSON and in raw bytes."""

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from damage import refused
from toys import LinearTeacher

from dfme.config.settings import TeacherConfig
from dfme.run.job import PROJECT
from dfme.spec import ImageSpec, Teacher
from dfme.teachers.build import make_teacher

pytest.importorskip("tritonclient.http")

import tritonclient.http as triton

from dfme.teachers.owner.serve.server import Serving

pytestmark = pytest.mark.integration


def digits(label_mode: str | None = None) -> Teacher:
    options = {"checkpoint": str(PROJECT / "teachers" / "checkpoints" / "digits.safetensors")}
    return make_teacher(TeacherConfig(label_mode=label_mode), options, torch.device("cpu"))


@pytest.fixture
def served() -> Iterator[tuple[Any, Serving]]:
    with Serving(digits(), "digits", max_batch=64) as serving, connected(serving) as client:
        yield client, serving


def connected(serving: Serving) -> Any:
    return triton.InferenceServerClient(serving.url.removeprefix("http://"), network_timeout=30)


def tensor(array: np.ndarray, binary: bool, datatype: str = "FP32") -> Any:
    image = triton.InferInput("image", list(array.shape), datatype)
    image.set_data_from_numpy(array, binary_data=binary)
    return image


def rand(batch: int) -> np.ndarray:
    return np.random.default_rng(batch).random((batch, 1, 8, 8), dtype=np.float32)


def test_health_and_metadata_are_understood(served: tuple[Any, Serving]) -> None:
    client, _ = served
    assert client.is_server_live()
    assert client.is_server_ready()
    asked = [("digits", ""), ("digits", "1"), ("digits", "2"), ("other", "")]
    assert [client.is_model_ready(*model) for model in asked] == [True, True, False, False]
    assert "binary_tensor_data" in client.get_server_metadata()["extensions"]
    described = client.get_model_metadata("digits", "1")
    assert described["inputs"] == [{"name": "image", "datatype": "FP32", "shape": [-1, 1, 8, 8]}]
    assert described["outputs"] == [{"name": "scores", "datatype": "FP32", "shape": [-1, 10]}]
    assert client.get_model_config("digits")["max_batch_size"] == 64
    assert client.get_model_repository_index()[0]["name"] == "digits"


@pytest.mark.parametrize("label_mode", ["logits", "probabilities", "top_k:3:4", "label"])
def test_answers_equal_those_of_the_teacher_in_this_process(label_mode: str) -> None:
    teacher, batch = digits(label_mode), rand(7)
    truth = teacher(torch.from_numpy(batch)).numpy()
    name = "label" if label_mode == "label" else "scores"
    with Serving(teacher, "digits") as serving, connected(serving) as client:
        for raw_in, raw_out in itertools.product((False, True), repeat=2):
            wanted = [triton.InferRequestedOutput(name, binary_data=raw_out)]
            result = client.infer(
                "digits", [tensor(batch, raw_in)], outputs=wanted, request_id="audit-7"
            )
            # in JSON, unrevealed classes are null
            answered = result.as_numpy(name).astype(truth.dtype)
            assert np.array_equal(answered, truth, equal_nan=name == "scores")
            assert result.get_response()["id"] == "audit-7"
        unnamed = client.infer("digits", [tensor(batch, True)]).as_numpy(name)
    assert np.array_equal(unnamed, truth, equal_nan=name == "scores")
    assert serving.meter.images == 35


def test_bytes_as_pixels() -> None:
    spec = ImageSpec((3, 4, 4), levels=256)
    levels = np.random.default_rng(0).integers(0, 256, (5, 3, 4, 4), np.uint8)
    truth = LinearTeacher(spec)(spec.quantise(torch.from_numpy(levels) / 255)).numpy()
    with Serving(LinearTeacher(spec), "toy") as serving, connected(serving) as client:
        answered = client.infer("toy", [tensor(levels, True, "UINT8")]).as_numpy("scores")
    assert np.array_equal(answered, truth)


def test_refusals_arrive_as_words(served: tuple[Any, Serving]) -> None:
    client, serving = served

    def no(words: str, model: str, batch: int, **more: Any) -> None:
        refused(
            words,
            client.infer,
            model,
            [tensor(rand(batch), True)],
            error=triton.InferenceServerException,
            **more,
        )

    no("at most 64 images", "digits", 65)
    no("at most 64 images", "digits", 20_000)  # 5 MB: over the limit of the body
    no("unknown model 'other'", "other", 1)
    no("Content-Encoding", "digits", 1, request_compression_algorithm="gzip")
    assert serving.meter.images == 0
