"""Any API with JSON answers, described in YAML: against services that read what they get by means of their own."""

from __future__ import annotations

import base64
import contextlib
import email
import io
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from clients import SHAPE, K, described
from service import Request, Service

from dfme.config.settings import TeacherConfig
from dfme.errors import Unusable
from dfme.spec import ImageSpec, LabelMode
from dfme.teachers.remote.json_api.api import connect_json
from dfme.teachers.remote.options import JsonOptions
from dfme.teachers.remote.teacher import RemoteTeacher

Image = pytest.importorskip("PIL.Image", reason="the independent reader of pictures")

pytestmark = pytest.mark.integration

ADAPTERS = Path(__file__).resolve().parents[3] / "configs" / "adapters"
Array = np.ndarray[Any, Any]


def levels(count: int, shape: tuple[int, int, int] = SHAPE) -> torch.Tensor:
    return torch.randint(256, (count, *shape), generator=torch.Generator().manual_seed(count))


def scores(x_BHWC: Array) -> Array:
    """Scores (B, K) of bytes: the share of light in each third of the image."""
    thirds = np.stack(
        [part.astype(np.float64).sum(1) for part in np.array_split(x_BHWC.reshape(len(x_BHWC), -1), K, 1)]
    )
    return (thirds / thirds.sum(0)).T


def picture(content: bytes) -> Array:
    return np.asarray(Image.open(io.BytesIO(content)))


@contextlib.contextmanager
def connected(
    paper: dict[str, Any] | Path, answer: Callable[[Request], Any], folder: Path, **flags: Any
) -> Iterator[tuple[RemoteTeacher, Service]]:
    file = paper
    if isinstance(paper, dict):
        file = folder / "adapter.yaml"
        file.write_text(yaml.safe_dump(paper))
    with Service(answer) as service:
        allowed = ("VISION_KEY", "VISION_TOKEN", "KEY")
        options = JsonOptions(adapter=str(file), url=f"{service.url}/classify/?version=2", allow_env=allowed)
        teacher = connect_json(options, TeacherConfig(**flags), torch.device("cpu"))
        try:
            yield teacher, service
        finally:
            teacher.close()


def test_the_example_with_base64(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("VISION_KEY", "s3cret-key")

    def answer(asked: Request) -> Any:
        assert asked.path == "/classify/?version=2"
        assert asked.headers["x-api-key"] == "s3cret-key"
        assert asked.json["options"] == {"detail": "full"}
        (row,) = scores(picture(base64.b64decode(asked.json["image"], validate=True))[None]).round(4)
        return {"status": "ok", "result": {"scores": {"bird": row[2], "cat": row[0], "dog": row[1]}}}

    x = levels(2, (3, 32, 32))
    with connected(ADAPTERS / "png_base64.yaml", answer, tmp_path) as (teacher, service):
        assert (teacher.max_batch, teacher.num_classes) == (1, 3)
        assert (teacher.spec, teacher.label_mode) == (
            ImageSpec((3, 32, 32), levels=256),
            LabelMode.parse("probabilities:4"),
        )
        answers = torch.cat([teacher(image[None] / 255) for image in x])
        assert len(service.posted) == 2
    expected = scores(x.permute(0, 2, 3, 1).numpy()).round(4)
    assert np.array_equal(answers.numpy(), expected.astype(np.float32))


def test_the_example_with_lists(tmp_path: Path) -> None:
    served = []

    def answer(asked: Request) -> Any:
        x_BHWC = np.array([instance["pixels"] for instance in asked.json["instances"]])
        served.append(x_BHWC)
        return {"predictions": [{"logits": [float(x.sum()), *range(9)]} for x in x_BHWC]}

    x = levels(5, (1, 8, 8))
    with connected(ADAPTERS / "nested_list.yaml", answer, tmp_path, levels=256) as (teacher, service):
        assert (teacher.max_batch, teacher.label_mode) == (64, LabelMode("logits"))
        answers = teacher(teacher.spec.quantise(x / 255))
        assert len(service.posted) == 1
    assert np.array_equal(served[0], x.permute(0, 2, 3, 1).numpy()), "whole numbers, exactly"
    assert answers[:, 0].tolist() == x.flatten(1).sum(1).tolist()
    assert answers[:, 1:].tolist() == [list(range(9))] * 5


def test_the_example_with_an_upload(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("VISION_TOKEN", "t0ken")

    def answer(asked: Request) -> Any:
        assert asked.headers["authorization"] == "Token t0ken"
        message = email.message_from_bytes(
            b"Content-Type: " + asked.headers["content-type"].encode() + b"\n\n" + asked.body
        )
        parts = {part.get_param("name", header="content-disposition"): part for part in message.get_payload()}
        assert parts["limit"].get_payload(decode=True) == b"2"
        assert parts["file"].get_filename() == "image.png"
        (row,) = scores(picture(parts["file"].get_payload(decode=True))[None])
        best = np.argsort(-row)[:2]
        return {"results": [{"tag": {"en": ("cat", "dog", "bird")[n]}, "confidence": row[n]} for n in best]}

    x = levels(1, (3, 32, 32))
    with connected(ADAPTERS / "multipart.yaml", answer, tmp_path) as (teacher, _):
        assert teacher.label_mode == LabelMode("top_k", k=2)
        (answers,) = teacher(x / 255)
    (row,) = scores(x.permute(0, 2, 3, 1).numpy())
    assert int(answers.isnan().nonzero()) == row.argmin()
    assert float(answers.nan_to_num(0).max()) == pytest.approx(row.max(), rel=1e-6)


def read_list(asked: Request) -> Array:
    return np.array(asked.json["image"])


READERS: dict[str, Callable[[Request], Array]] = {
    "data_url": lambda asked: picture(base64.b64decode(asked.json["image"].removeprefix("data:image/png;base64,"))),
    "raw_base64": lambda asked: np.frombuffer(base64.b64decode(asked.json["image"]), np.uint8).reshape(4, 5, 3),
    "list": read_list,
}


@pytest.mark.parametrize("encoding", READERS)
def test_bytes_arrive_in_every_form(encoding: str, tmp_path: Path) -> None:
    paper = described(image__encoding=encoding)
    with connected(paper, lambda asked: {"scores": scores(READERS[encoding](asked)[None])[0].tolist()}, tmp_path) as (
        teacher,
        service,
    ):
        x = levels(1)
        teacher(x / 255)
        assert np.array_equal(READERS[encoding](service.posted[0]), x[0].permute(1, 2, 0))


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize("encoding", ["raw", "list"])
def test_floats_arrive_exactly_in_either_layout(encoding: str, layout: str, tmp_path: Path) -> None:
    changes = {"request__json": None, "request__bytes": "application/octet-stream"} if encoding == "raw" else {}
    image = {"encoding": encoding, "dtype": "float32", "layout": layout, "flat": encoding == "list"}
    paper = described(image=image, **changes)
    with connected(paper, lambda asked: {"scores": [1, 0, 0]}, tmp_path, bounds=(-1.0, 1.0)) as (teacher, service):
        x = torch.rand(1, *SHAPE) * 2 - 1
        teacher(x)
        body = service.posted[0]
    sent = struct.unpack("<60f", body.body) if encoding == "raw" else body.json["image"]
    wanted = x[0] if layout == "nchw" else x[0].permute(1, 2, 0)
    assert np.array_equal(np.array(sent, np.float32), wanted.reshape(-1).numpy())


@pytest.mark.parametrize("template", [["${images}"], {"a": [{"b": [1, "x ${image}"]}], "c": None}])
def test_several_images_in_one_request(template: Any, tmp_path: Path) -> None:
    def read(asked: Request) -> list[str]:
        return asked.json[0] if isinstance(asked.json, list) else [item["b"][1][2:] for item in asked.json["a"]]

    def answer(asked: Request) -> Any:
        images = np.array([picture(base64.b64decode(text)) for text in read(asked)])
        return [{"out": [None, *row[1:]]} for row in scores(images).tolist()]

    paper = described(batch=8, request__json=template, answer__path="[*].out")
    with connected(paper, answer, tmp_path, label_mode="top_k:2", max_batch=4) as (teacher, _):
        assert teacher.max_batch == 4
        x = levels(3)
        answers = teacher(x / 255)
    expected = scores(x.permute(0, 2, 3, 1).numpy()).astype(np.float32)
    assert answers[:, 0].isnan().all()
    assert np.array_equal(answers[:, 1:].numpy(), expected[:, 1:])


@pytest.mark.parametrize(
    ("form", "said", "classes"),
    [("name", "b", ["a", "b", "c"]), ("number", 1, None), ("pairs", [{"label": 1, "score": 0.6}], None)],
)
def test_labels(form: str, said: Any, classes: Any, tmp_path: Path) -> None:
    paper = described(answer={"path": 'out["the answer"].0', "form": form, "classes": classes})
    with connected(paper, lambda asked: {"out": {"the answer": [said]}}, tmp_path, label_mode="label") as (teacher, _):
        assert teacher.label_mode == LabelMode("label")
        assert teacher(levels(1) / 255).tolist() == [1]


def test_the_services_own_words_are_shown_but_no_secret(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("KEY", "very-secret-value")
    paper = described(request__json={"image": "${image}", "key": "k=${KEY}"}, answer__error="error.message")
    with connected(paper, lambda asked: {"error": {"message": "quota\nexceeded"}}, tmp_path) as (teacher, service):
        with pytest.raises(Unusable, match=r"got the error 'quota\\nexceeded'"):
            teacher(levels(1) / 255)
        assert service.posted[0].json["key"] == "k=very-secret-value"
    with connected(paper, lambda asked: {"error": {"message": f"no such key: {asked.json['key']}"}}, tmp_path) as (
        teacher,
        _,
    ):
        with pytest.raises(Unusable, match="repeats a secret") as caught:
            teacher(levels(1) / 255)
        assert caught.value.__cause__ is None
