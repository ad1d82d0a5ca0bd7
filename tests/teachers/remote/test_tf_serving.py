"""TensorFlow Serving's REST interface, against a service whose model is arithmetic and which counts for itself."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from service import Request, Service, http

from dfme.config.settings import TeacherConfig
from dfme.errors import BatchTooLarge, UserError
from dfme.spec import ImageSpec, LabelMode
from dfme.teachers.remote.options import TfServingOptions
from dfme.teachers.remote.teacher import RemoteTeacher
from dfme.teachers.remote.tf_serving import connect_tf_serving

pytestmark = pytest.mark.integration

H, W, C, K = 3, 4, 2, 3
WEIGHTS = np.arange(H * W * C * K, dtype=np.float64).reshape(-1, K) / 32 - 1


def tensor(dtype: str, *sizes: int) -> dict[str, Any]:
    return {
        "dtype": dtype,
        "tensor_shape": {"dim": [{"size": str(size), "name": ""} for size in sizes], "unknown_rank": False},
        "name": "any:0",
    }


class Model:
    """A linear model behind the protocol; ``served`` is its own count of images."""

    def __init__(self) -> None:
        self.inputs = {"x": tensor("DT_FLOAT", -1, H, W, C)}
        self.outputs = {"scores": tensor("DT_FLOAT", -1, K)}
        self.state = "AVAILABLE"
        self.most = 8
        self.served = 0
        self.seen: list[np.ndarray[Any, Any]] = []

    def __call__(self, asked: Request) -> Any:
        if asked.path in ("/v1/models/m", "/v1/models/m/versions/7"):
            return {"model_version_status": [{"version": "7", "state": self.state, "status": {"error_code": "OK"}}]}
        if asked.path in ("/v1/models/m/metadata", "/v1/models/m/versions/7/metadata"):
            signature = {"inputs": self.inputs, "outputs": self.outputs, "method_name": "tensorflow/serving/predict"}
            signatures = {"serving_default": signature, "__saved_model_init_op": {"inputs": {}, "outputs": {}}}
            return {"model_spec": {"name": "m"}, "metadata": {"signature_def": {"signature_def": signatures}}}
        assert asked.path in ("/v1/models/m:predict", "/v1/models/m/versions/7:predict")
        question = asked.json
        rows = question["instances"] if "instances" in question else question["inputs"]["x"]
        if len(rows) > self.most:
            text = f"Task size {len(rows)} is larger than maximum input batch size {self.most}"
            return http({"error": text}, 400)
        self.served += len(rows)
        self.seen.append(np.array(rows))
        return self.answer(np.array(rows, np.float64).reshape(len(rows), -1) @ WEIGHTS, "instances" in question)

    def answer(self, scores: np.ndarray[Any, Any], in_rows: bool) -> Any:
        return {"predictions": scores.tolist()} if in_rows else {"outputs": scores.tolist()}


@pytest.fixture
def model() -> Model:
    return Model()


@contextlib.contextmanager
def connected(model: Model, config: TeacherConfig | None = None, **options: Any) -> Iterator[RemoteTeacher]:
    with Service(model) as service:
        config = config or TeacherConfig(label_mode="logits")
        options = {"url": service.url, "model": "m", **options}
        teacher = connect_tf_serving(TfServingOptions(**options), config, torch.device("cpu"))
        try:
            yield teacher
        finally:
            teacher.close()


def truth(x_BCHW: torch.Tensor) -> torch.Tensor:
    x = x_BCHW.double().permute(0, 2, 3, 1).flatten(1)
    return (x @ torch.from_numpy(WEIGHTS)).float()


def test_scores_are_the_models_and_shape_and_classes_are_its_signatures(model: Model) -> None:
    with connected(model) as teacher:
        assert (teacher.spec, teacher.num_classes) == (ImageSpec((C, H, W)), K)
        assert (teacher.label_mode, teacher.max_batch) == (LabelMode("logits"), None)
        x = torch.rand(5, C, H, W)
        torch.testing.assert_close(teacher(x), truth(x), rtol=1e-6, atol=1e-6)
    assert model.served == 5
    assert np.array_equal(model.seen[0].astype(np.float32), x.permute(0, 2, 3, 1).numpy()), "every float came through"


@pytest.mark.parametrize("options", [{"version": "7"}, {"input": "x"}, {"input": "x", "output": "scores"}])
def test_versions_and_columns(model: Model, options: dict[str, Any]) -> None:
    with connected(model, **options) as teacher:
        x = torch.rand(2, C, H, W)
        torch.testing.assert_close(teacher(x), truth(x), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("in_rows", [True, False])
def test_one_of_several_outputs(model: Model, in_rows: bool) -> None:
    model.outputs["features"] = tensor("DT_FLOAT", -1, 2)
    rows = {"answer": lambda s, _: {"predictions": [{"scores": row, "features": [0, 0]} for row in s.tolist()]}}
    columns = {"answer": lambda s, _: {"outputs": {"scores": s.tolist(), "features": [[0, 0]] * len(s)}}}
    model.answer = (rows if in_rows else columns)["answer"]  # type: ignore[method-assign]
    with pytest.raises(UserError, match=r"--teacher.output: expected one of scores, features"), connected(model):
        pass
    with connected(model, output="scores", input=None if in_rows else "x") as teacher:
        x = torch.rand(2, C, H, W)
        torch.testing.assert_close(teacher(x), truth(x), rtol=1e-6, atol=1e-6)


def test_bytes_are_sent_as_whole_numbers(model: Model) -> None:
    model.inputs = {"x": tensor("DT_UINT8", -1, H, W, C)}
    with connected(model, TeacherConfig(label_mode="logits", bounds=(-1.0, 1.0))) as teacher:
        assert teacher.spec == ImageSpec((C, H, W), (-1.0, 1.0), 256)
        levels = torch.randint(256, (2, C, H, W))
        teacher(teacher.spec.quantise(levels / 255 * 2 - 1))
    assert model.seen[0].dtype.kind == "i"
    assert np.array_equal(model.seen[0], levels.permute(0, 2, 3, 1).numpy())


@pytest.mark.parametrize(
    ("sizes", "flags", "layout", "sent"),
    [
        ((-1, C, H, W), {}, "nchw", (C, H, W)),
        ((-1, -1, -1, C), {"shape": (C, H, W)}, "nhwc", (H, W, C)),
        ((-1, C * H * W), {"shape": (C, H, W)}, "nhwc", (H * W * C,)),
        ((-1, H, W * C), {}, "nhwc", (H, W * C)),
    ],
)
def test_other_axes(
    model: Model, sizes: tuple[int, ...], flags: dict[str, Any], layout: str, sent: tuple[int, ...]
) -> None:
    model.inputs = {"x": tensor("DT_FLOAT", *sizes)}
    with connected(model, TeacherConfig(label_mode="logits", **flags), layout=layout) as teacher:
        x = torch.rand(2, *teacher.spec.shape)
        assert teacher(x).shape == (2, K)
    assert model.seen[0].shape == (2, *sent)
    wanted = x.permute(0, 2, 3, 1) if layout == "nhwc" else x
    assert np.array_equal(model.seen[0].astype(np.float32), wanted.reshape(2, *sent).numpy())


def test_a_limit_is_read_from_the_refusal_and_nothing_was_served(model: Model) -> None:
    with connected(model) as teacher, pytest.raises(BatchTooLarge) as caught:
        teacher(torch.rand(9, C, H, W))
    assert (caught.value.limit, model.served) == (8, 0)


def test_labels_and_a_lone_score(model: Model) -> None:
    model.outputs = {"class": tensor("DT_INT64", -1)}
    model.answer = lambda s, _: {"predictions": s.argmax(1).tolist()}  # type: ignore[method-assign]
    x = torch.rand(4, C, H, W)
    with connected(model, TeacherConfig(num_classes=K)) as teacher:
        assert teacher.label_mode == LabelMode("label")
        assert torch.equal(teacher(x), truth(x).argmax(1))
    model.outputs = {"p": tensor("DT_FLOAT", -1, 1)}
    model.answer = lambda s, _: {"predictions": [[0.25]] * len(s)}  # type: ignore[method-assign]
    with connected(model, TeacherConfig()) as teacher:
        assert teacher.num_classes == 2
        assert teacher(x).tolist() == [[0.75, 0.25]] * 4


@pytest.mark.parametrize(
    ("change", "flags", "words"),
    [
        ({"state": "LOADING"}, {}, r"AVAILABLE, got none \(LOADING\)"),
        ({}, {"shape": (1, 8, 8)}, r"--teacher.shape: got 1,8,8, but input x has the axes"),
        ({}, {"num_classes": 4}, r"--teacher.num-classes: got 4, but output scores has 3"),
        ({"inputs": {"x": tensor("DT_STRING", -1)}}, {}, "--teacher json can send"),
        ({"inputs": {"x": tensor("DT_FLOAT", -1, -1, -1, C)}}, {}, "leaves sizes open"),
        ({"inputs": {"x": tensor("DT_FLOAT", 4, H, W, C)}}, {}, "exactly 4 images"),
        ({"inputs": {"x": tensor("DT_UINT8", -1, H, W, C)}}, {"levels": 16}, "--teacher.levels: got 16"),
        ({"outputs": {"scores": tensor("DT_FLOAT", -1, -1)}}, {}, "cannot be told from output scores; give it"),
        ({"outputs": {"scores": tensor("DT_FLOAT", -1, 2, K)}}, {}, "expected axes for batch and classes"),
        ({"inputs": {}}, {}, r"--teacher.signature: expected one with inputs"),
    ],
)
def test_what_does_not_fit_is_said_before_an_image_is_sent(
    model: Model, change: dict[str, Any], flags: dict[str, Any], words: str
) -> None:
    for name, value in change.items():
        setattr(model, name, value)
    with pytest.raises(UserError, match=words), connected(model, TeacherConfig(**flags)):
        pass
    assert model.served == 0


def test_another_host_is_not_asked_without_consent() -> None:
    options = TfServingOptions(url="http://192.0.2.1:8501", model="m")
    with pytest.raises(UserError, match="authorised-by"):
        connect_tf_serving(options, TeacherConfig(), torch.device("cpu"))
