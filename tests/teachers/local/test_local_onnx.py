"""ONNX teachers: equal to the network they were exported from, whatever their batch, axes,
dtype.
"""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from damage import refused
from model_folders import near
from torch import Tensor

from dfme.config.settings import TeacherConfig
from dfme.oracle.ledger import Ledger
from dfme.oracle.oracle import Oracle
from dfme.spec import ImageSpec
from dfme.teachers.build import make_teacher

onnx = pytest.importorskip("onnx")

pytestmark = pytest.mark.integration

FLOAT, UINT8 = onnx.TensorProto.FLOAT, onnx.TensorProto.UINT8
WEIGHT = np.random.default_rng(0).standard_normal((12, 5)).astype(np.float32)


def load(path: Path, options: dict[str, Any] | None = None, **common: Any) -> Any:
    common.setdefault("label_mode", "logits")
    return make_teacher(
        TeacherConfig(kind="onnx", **common),
        {"model": str(path), **(options or {})},
        torch.device("cpu"),
    )


def linear(
    path: Path,
    axes: tuple[Any, ...] = ("batch", 3, 2, 2),
    *,
    kind: int = FLOAT,
    nhwc: bool = False,
    end: str | None = None,
    more: list[str] | None = None,
    opset: int = 17,
    ir: int = 8,
) -> Path:
    """A model whose scores are the flattened image times WEIGHT; ``end`` is one more node."""
    make, value = onnx.helper, onnx.helper.make_tensor_value_info
    order = [0, 3, 1, 2] if nhwc else list(range(len(axes)))
    nodes = [
        make.make_node("Transpose", ["image"], ["t"], perm=order),
        make.make_node("Cast", ["t"], ["c"], to=FLOAT),
        make.make_node("Flatten", ["c"], ["f"]),
        make.make_node("MatMul", ["f", "w"], ["scores"]),
        make.make_node("ArgMax", ["scores"], ["best"], axis=1),
        *([make.make_node(end, ["scores"], ["ended"])] if end else []),
    ]
    names = [*(["ended"] if end else []), "scores", "best"]
    inputs = [value("image", kind, list(axes)), *(value(name, FLOAT, [1]) for name in more or [])]
    outputs = [value(name, 7 if name == "best" else FLOAT, None) for name in names]
    graph = make.make_graph(
        nodes, "g", inputs, outputs, [onnx.numpy_helper.from_array(WEIGHT, "w")]
    )
    onnx.save(
        make.make_model(graph, opset_imports=[make.make_opsetid("", opset)], ir_version=ir),
        str(path),
    )
    return path


def truth(x_BCHW: Tensor) -> Tensor:
    return x_BCHW.flatten(1) @ torch.from_numpy(WEIGHT)


def test_a_fixed_batch_is_filled_up_and_its_rows_dropped(tmp_path: Path) -> None:
    teacher = load(linear(tmp_path / "m.onnx", (4, 3, 2, 2)))
    assert teacher.info.max_batch == 4
    oracle = Oracle(teacher, Ledger(100))
    x_BCHW = torch.rand(10, 3, 2, 2)  # 4, 4 and 2
    near(oracle(x_BCHW), truth(x_BCHW))
    assert oracle.ledger.spent == 10
    smaller = load(tmp_path / "m.onnx", max_batch=3)
    assert smaller.info.max_batch == 3
    near(smaller(x_BCHW[:3]), truth(x_BCHW[:3]))


@pytest.mark.parametrize(
    ("axes", "nhwc", "layout", "options", "shape"),
    [
        (("n", 2, 2, 3), True, "auto", None, (3, 2, 2)),
        (("n", 2, 2, 3), True, "nhwc", None, (3, 2, 2)),
        # nothing is known: as ONNX's own operators have it
        (("n", "a", "b", "c"), False, "auto", (3, 2, 2), (3, 2, 2)),
        (("n", "a", "b", 3), True, "auto", (3, 2, 2), (3, 2, 2)),
        (("n", 2, 2, "c"), True, "auto", (3, 2, 2), (3, 2, 2)),  # only what is given tells
        # the sizes alone would say otherwise
        (("n", 6, 2, 1), False, "auto", (6, 2, 1), (6, 2, 1)),
        (("n", 3, 1, 4), False, "auto", (3, 1, 4), (3, 1, 4)),
        (("n", 1, 1, 12), False, "auto", None, (1, 1, 12)),
    ],
)
def test_the_order_of_the_axes_is_told_by_their_sizes(
    tmp_path: Path, axes: Any, nhwc: bool, layout: str, options: Any, shape: tuple[int, int, int]
) -> None:
    path = linear(tmp_path / "m.onnx", axes, nhwc=nhwc)
    teacher = load(path, {"layout": layout}, shape=options)
    assert teacher.spec.shape == shape
    x_BCHW = torch.rand(3, *shape)
    near(teacher(x_BCHW), truth(x_BCHW))


def test_bytes_are_the_levels_of_the_wire(tmp_path: Path) -> None:
    path = linear(tmp_path / "m.onnx", kind=UINT8)
    teacher = load(path, bounds=(-1.0, 1.0))
    assert teacher.spec == ImageSpec((3, 2, 2), (-1.0, 1.0), 256)
    bytes_BCHW = torch.randint(0, 256, (6, 3, 2, 2))
    x_BCHW = teacher.spec.quantise(bytes_BCHW / 255 * 2 - 1)
    torch.testing.assert_close(teacher(x_BCHW), truth(bytes_BCHW.float()), rtol=1e-5, atol=1e-3)
    refused("--teacher.levels: got 16, but the pixels of", load, path, levels=16)
    refused("--teacher.mean: m.onnx takes 8-bit pixels", load, path, mean=(0.5,), std=(0.5,))


def test_half_precision_is_cast_in_and_out(tmp_path: Path) -> None:
    teacher = load(linear(tmp_path / "m.onnx", kind=onnx.TensorProto.FLOAT16))
    x_BCHW = torch.rand(2, 3, 2, 2).half().float()
    near(teacher(x_BCHW), truth(x_BCHW))
    assert teacher(x_BCHW).dtype == torch.float32


def test_the_range_and_order_of_pixels_are_those_of_the_metadata(tmp_path: Path) -> None:
    path = linear(tmp_path / "m.onnx")
    model = onnx.load(str(path))
    said = {"Image.NominalPixelRange": "NominalRange_0_255", "Image.BitmapPixelFormat": "Bgr8"}
    onnx.helper.set_model_props(model, said)
    onnx.save(model, str(path))
    x_BCHW = torch.rand(3, 3, 2, 2)
    scores_BK = truth(255 * x_BCHW.flip(1))
    torch.testing.assert_close(load(path)(x_BCHW), scores_BK, rtol=1e-4, atol=1e-2)
    torch.testing.assert_close(
        load(path, bounds=(0.0, 255.0))(255 * x_BCHW), scores_BK, rtol=1e-4, atol=1e-2
    )
    given = load(path, mean=(0.5,), std=(0.1,))
    expected_BK = truth((x_BCHW.flip(1) - 0.5) / 0.1)
    torch.testing.assert_close(given(x_BCHW), expected_BK, rtol=1e-4, atol=1e-2)
    assert any("pixels from 0 to 255" in line for line in load(path).info.inferred)


def test_probabilities_are_not_mistaken_for_logits(tmp_path: Path) -> None:
    path = linear(tmp_path / "m.onnx", end="Softmax")
    said = {"answers": "probabilities", "output": "scores"}
    refused("say --teacher.answers logits", load, path, said)
    refused(
        "say --teacher.answers probabilities", load, path, {"answers": "logits", "output": "ended"}
    )
    refused("only probabilities", load, path, {"output": "ended"}, label_mode="logits")


def test_names(tmp_path: Path) -> None:
    path = linear(tmp_path / "m.onnx", end="Softmax")
    teacher = load(path, {"input": "image", "output": "scores"})
    x_BCHW = torch.rand(3, 3, 2, 2)
    near(teacher(x_BCHW), truth(x_BCHW))
    refused("did you mean image", load, path, {"input": "imag"})
    refused("ended, scores, best", load, path, {"output": "score"})
    refused("best holds no scores", load, path, {"output": "best"})
    refused("ended (B, 5), scores (B, 5), best (B, 1) of int64; name", load, path)
    refused(
        "temperature", load, linear(tmp_path / "two.onnx", more=["temperature"]), {"input": "image"}
    )


def test_what_is_given_must_fit_the_model(tmp_path: Path) -> None:
    open_size = linear(tmp_path / "any.onnx", ("n", 3, "h", "w"))
    refused("C,H,W = 3,?,?", load, open_size)
    refused("does not take an image of shape 3,4,4", load, open_size, shape=(3, 4, 4))
    refused("four axes", load, linear(tmp_path / "flat.onnx", ("n", 12)))


def with_external_weights(path: Path, location: str) -> Path:
    """The linear model, with its weights in a file of this name."""
    model = onnx.load(str(linear(path)))
    weight = model.graph.initializer[0]
    weight.ClearField("raw_data")
    weight.data_location = onnx.TensorProto.EXTERNAL
    entry = weight.external_data.add()
    entry.key, entry.value = "location", location
    path.write_bytes(model.SerializeToString())
    return path


def test_weights_beside_the_model_and_nowhere_else(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    for place in (tmp_path, folder):
        (place / "w.bin").write_bytes(WEIGHT.tobytes())
    x_BCHW = torch.rand(2, 3, 2, 2)
    near(load(with_external_weights(folder / "m.onnx", "w.bin"))(x_BCHW), truth(x_BCHW))
    (folder / "link.bin").symlink_to(tmp_path / "w.bin")
    for location in ("../w.bin", str(tmp_path / "w.bin"), "link.bin"):
        refused("xternal data", load, with_external_weights(folder / "m.onnx", location))


def test_a_runtime_that_reads_weights_from_anywhere_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("onnxruntime.__version__", "1.23.2")
    refused("expected onnxruntime 1.24 or later", load, linear(tmp_path / "m.onnx"))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda path: linear(path, ir=99), "IR version: 99"),
        (lambda path: linear(path, opset=99), "Opset 99"),
        (lambda path: linear(path, end="Foo"), "No Op registered for Foo"),
        (lambda path: path.write_bytes(b"not a model at all"), "cannot run it"),
        (lambda path: path.write_bytes(b""), "cannot run it"),
        (lambda path: path.write_bytes(linear(path).read_bytes()[:200]), "cannot run it"),
    ],
)
def test_what_cannot_run_is_one_line(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], make: Any, words: str
) -> None:
    make(tmp_path / "m.onnx")
    assert "onnxruntime_src" not in str(refused(words, load, tmp_path / "m.onnx"))
    assert capfd.readouterr() == ("", "")


def test_a_model_left_in_training_mode_is_refused(tmp_path: Path) -> None:
    make = onnx.helper
    train = onnx.numpy_helper.from_array(np.array(True), "train")
    half = onnx.numpy_helper.from_array(np.array(0.5, np.float32), "half")
    model = onnx.load(str(linear(tmp_path / "m.onnx")))
    model.graph.initializer.extend([train, half])
    model.graph.node.append(make.make_node("Dropout", ["scores", "half", "train"], ["dropped"]))
    del model.graph.output[:]
    model.graph.output.append(make.make_tensor_value_info("dropped", FLOAT, None))
    onnx.save(model, str(tmp_path / "m.onnx"))
    refused("answers the same image differently each", load, tmp_path / "m.onnx")


def test_a_gpu_that_onnxruntime_cannot_use_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    import onnxruntime

    if "CUDAExecutionProvider" in onnxruntime.get_available_providers():
        pytest.skip("this onnxruntime can use one")
    options = {"model": str(linear(tmp_path / "m.onnx"))}
    teacher = make_teacher(
        TeacherConfig(kind="onnx", label_mode="logits"), options, torch.device("cuda")
    )
    x_BCHW = torch.rand(2, 3, 2, 2)
    near(teacher(x_BCHW), truth(x_BCHW))
    assert ["has no CUDA" in record.getMessage() for record in caplog.records] == [True]


def test_without_onnxruntime_the_command_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    refused("is not installed; pip install onnxruntime", load, linear(tmp_path / "m.onnx"))
