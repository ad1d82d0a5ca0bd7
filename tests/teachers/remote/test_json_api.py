"""Any API with JSON answers, described in YAML: against services that read what they get by means
of their own."""

import base64
import contextlib
import email
import io
import struct
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from clients import SHAPE, K, described
from damage import refused
from processes import EVALUATION, METHOD, command, finished, summary
from service import Request, Service

from dfme.config.settings import TeacherConfig
from dfme.errors import Unusable
from dfme.oracle.ledger import Ledger
from dfme.oracle.oracle import Oracle
from dfme.spec import ImageSpec
from dfme.teachers.options import HfApiOptions, JsonOptions
from dfme.teachers.remote.json_api.api import connect_json
from dfme.teachers.remote.teacher import RemoteTeacher

Image = pytest.importorskip("PIL.Image", reason="the independent reader of pictures")

pytestmark = pytest.mark.integration

Array = np.ndarray[Any, Any]


def levels(count: int, shape: tuple[int, int, int] = SHAPE) -> torch.Tensor:
    return torch.randint(256, (count, *shape), generator=torch.Generator().manual_seed(count))


def scores(x_BHWC: Array) -> Array:
    """Scores (B, K) of bytes: the share of light in each third of the image."""
    thirds = np.stack(
        [
            part.astype(np.float64).sum(1)
            for part in np.array_split(x_BHWC.reshape(len(x_BHWC), -1), K, 1)
        ]
    )
    return (thirds / thirds.sum(0)).T


def picture(content: bytes) -> Array:
    return np.asarray(Image.open(io.BytesIO(content)))


def ask(
    paper: dict[str, Any] | str | Callable[..., JsonOptions],
    answer: Callable[[Request], Any],
    x: torch.Tensor,
    folder: Path,
    **flags: Any,
) -> tuple[torch.Tensor, RemoteTeacher, list[Request]]:
    """Answers to images, one of which needs no oracle, the teacher, and the requests.

    The teacher is by a description, by the name of an adapter that ships, or by options of another
    kind.
    """
    if isinstance(paper, dict):
        (folder / "adapter.yaml").write_text(yaml.safe_dump(paper))
        paper = str(folder / "adapter")
    make = partial(JsonOptions, adapter=f"{paper}.yaml") if isinstance(paper, str) else paper
    with Service(answer) as service:
        allowed = ("VISION_KEY", "VISION_TOKEN", "KEY")
        options = make(url=f"{service.url}/classify/?version=2", allow_env=allowed)
        teacher = connect_json(options, TeacherConfig(**flags), torch.device("cpu"))
        with contextlib.closing(teacher):
            return (
                (teacher if len(x) == 1 else Oracle(teacher, Ledger(len(x))))(x),
                teacher,
                service.posted,
            )


def test_the_example_with_base64(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("VISION_KEY", "s3cret-key")

    def answer(request: Request) -> Any:
        assert request.path == "/classify/?version=2"
        assert request.headers["x-api-key"] == "s3cret-key"
        assert request.json["options"] == {"detail": "full"}
        (row,) = scores(
            picture(base64.b64decode(request.json["image"], validate=True))[None]
        ).round(4)
        return {
            "status": "ok",
            "result": {"scores": {"bird": row[2], "cat": row[0], "dog": row[1]}},
        }

    x = levels(2, (3, 32, 32))
    answers, teacher, posted = ask("configs/adapters/png_base64", answer, x / 255, tmp_path)
    assert (teacher.info.max_batch, teacher.num_classes, len(posted)) == (1, 3, 2)
    assert (teacher.spec, str(teacher.label_mode)) == (
        ImageSpec((3, 32, 32), levels=256),
        "probabilities:4",
    )
    expected = scores(x.permute(0, 2, 3, 1).numpy()).round(4)
    assert np.array_equal(answers.numpy(), expected.astype(np.float32))


def test_the_example_with_lists(tmp_path: Path) -> None:
    def answer(request: Request) -> Any:
        sums = [np.sum(instance["pixels"]) for instance in request.json["instances"]]
        return {"predictions": [{"logits": [float(entry), *range(9)]} for entry in sums]}

    x = levels(5, (1, 8, 8))
    answers, teacher, posted = ask(
        "configs/adapters/nested_list", answer, x / 255, tmp_path, levels=256
    )
    assert (teacher.info.max_batch, str(teacher.label_mode)) == (64, "logits")
    sent = np.array([instance["pixels"] for instance in posted[0].json["instances"]])
    assert np.array_equal(sent, x.permute(0, 2, 3, 1).numpy()), "whole numbers, exactly"
    assert answers.tolist() == [[total, *range(9)] for total in x.flatten(1).sum(1).tolist()]


def test_the_example_with_an_upload(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("VISION_TOKEN", "t0ken")

    def answer(request: Request) -> Any:
        assert request.headers["authorization"] == "Token t0ken"
        head = f"Content-Type: {request.headers['content-type']}\n\n".encode()
        message = email.message_from_bytes(head + request.body)
        parts = {
            part.get_param("name", header="content-disposition"): part
            for part in message.get_payload()
        }
        assert parts["limit"].get_payload(decode=True) == b"2"
        assert parts["file"].get_filename() == "image.png"
        (row,) = scores(picture(parts["file"].get_payload(decode=True))[None])
        best = np.argsort(-row)[:2]
        return {
            "results": [
                {"tag": {"en": ("cat", "dog", "bird")[n]}, "confidence": row[n]} for n in best
            ]
        }

    x = levels(1, (3, 32, 32))
    (answers,), teacher, _ = ask("configs/adapters/multipart", answer, x / 255, tmp_path)
    assert str(teacher.label_mode) == "top_k:2"
    (row,) = scores(x.permute(0, 2, 3, 1).numpy())
    assert int(answers.isnan().nonzero()) == row.argmin()
    assert float(answers.nan_to_num(0).max()) == pytest.approx(row.max(), rel=1e-6)


READERS: dict[str, Callable[[Any], Array]] = {
    "data_url": lambda said: picture(base64.b64decode(said.removeprefix("data:image/png;base64,"))),
    "raw_base64": lambda said: np.frombuffer(base64.b64decode(said), np.uint8).reshape(4, 5, 3),
    "list": np.array,
}


def first(request: Request) -> Any:
    return {"scores": [1, 0, 0]}


@pytest.mark.parametrize("encoding", READERS)
def test_bytes_arrive_in_every_form(encoding: str, tmp_path: Path) -> None:
    x = levels(1)
    _, _, posted = ask(described(image__encoding=encoding), first, x / 255, tmp_path)
    assert np.array_equal(READERS[encoding](posted[0].json["image"]), x[0].permute(1, 2, 0))


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize("encoding", ["raw", "list"])
def test_floats_arrive_exactly_in_either_layout(encoding: str, layout: str, tmp_path: Path) -> None:
    raw = encoding == "raw"
    changes = {"request__json": None, "request__bytes": "application/octet-stream"} if raw else {}
    image = {"encoding": encoding, "dtype": "float32", "layout": layout, "flat": not raw}
    x = torch.rand(1, *SHAPE) * 2 - 1
    _, _, (body,) = ask(described(image=image, **changes), first, x, tmp_path, bounds=(-1.0, 1.0))
    sent = struct.unpack("<60f", body.body) if raw else body.json["image"]
    wanted = x[0] if layout == "nchw" else x[0].permute(1, 2, 0)
    assert np.array_equal(np.array(sent, np.float32), wanted.reshape(-1).numpy())


@pytest.mark.parametrize("template", [["${images}"], {"a": [{"b": [1, "x ${image}"]}], "c": None}])
def test_several_images_in_one_request(template: Any, tmp_path: Path) -> None:
    def answer(request: Request) -> Any:
        said = request.json
        texts = said[0] if isinstance(said, list) else [item["b"][1][2:] for item in said["a"]]
        images = np.array([picture(base64.b64decode(text)) for text in texts])
        return [{"out": [None, *row[1:]]} for row in scores(images).tolist()]

    paper = described(batch=8, request__json=template, answer__path="[*].out")
    x = levels(3)
    answers, teacher, _ = ask(paper, answer, x / 255, tmp_path, label_mode="top_k:2", max_batch=4)
    assert teacher.info.max_batch == 4
    expected = scores(x.permute(0, 2, 3, 1).numpy()).astype(np.float32)
    expected[:, 0] = np.nan
    assert np.array_equal(answers.numpy(), expected, equal_nan=True)


@pytest.mark.parametrize(
    ("form", "said", "classes"),
    [
        ("name", "b", ["a", "b", "c"]),
        ("number", 1, None),
        ("pairs", [{"label": 1, "score": 0.6}], None),
    ],
)
def test_labels(form: str, said: Any, classes: Any, tmp_path: Path) -> None:
    paper = described(answer={"path": 'out["the answer"].0', "form": form, "classes": classes})
    body = {"out": {"the answer": [said]}}
    answers, teacher, _ = ask(
        paper, lambda request: body, levels(1) / 255, tmp_path, label_mode="label"
    )
    assert (answers.tolist(), str(teacher.label_mode)) == ([1], "label")


@pytest.mark.parametrize(
    ("said", "words"), [("quota\nexceeded", r"'quota\nexceeded'"), ("k=my-secret", "secret")]
)
def test_the_services_own_words_are_shown_but_no_secret(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, said: str, words: str
) -> None:
    monkeypatch.setenv("KEY", "my-secret")
    paper = described(
        request__json={"image": "${image}", "key": "k=${KEY}"}, answer__error="error.message"
    )

    def answer(request: Request) -> Any:
        assert request.json["key"] == "k=my-secret"
        return {"error": {"message": said}}

    caught = refused(words, ask, paper, answer, levels(1) / 255, tmp_path, error=Unusable)
    assert "my-secret" not in str(caught)
    assert caught.__cause__ is None


def test_hugging_faces_image_classification(tmp_path: Path) -> None:
    names = ("tench", "great white shark", "d\u00f6rrobst")
    (tmp_path / "names.txt").write_text("\n".join(names))

    def answer(request: Request) -> Any:
        assert request.headers["content-type"] == "image/png"
        (row,) = scores(picture(request.body)[None])
        return [{"label": names[k], "score": row[k]} for k in np.argsort(-row)[:2]]

    x = levels(2)
    answers, teacher, _ = ask(
        partial(HfApiOptions, classes=str(tmp_path / "names.txt")),
        answer,
        x / 255,
        tmp_path,
        shape=SHAPE,
        label_mode="top_k:2",
    )
    assert (teacher.info.max_batch, teacher.spec.levels, teacher.info.class_names) == (
        1,
        256,
        names,
    )
    expected = scores(x.permute(0, 2, 3, 1).numpy()).astype(np.float32)
    expected[[0, 1], expected.argmin(1)] = np.nan
    assert np.array_equal(answers.numpy(), expected, equal_nan=True)


def test_the_kinds_of_shipped_adapters_run_resume_and_are_on_record(tmp_path: Path) -> None:
    run = tmp_path / "run"
    words = "--teacher tf-serving --teacher.num-classes 3 --teacher.shape 1,4,4 --budget 16".split()
    pixels = lambda request: np.array(request.json["instances"]).reshape(-1, 16)  # noqa: E731
    with Service(
        lambda request: {"predictions": [[0.5, 0.25, 0.25]] * len(pixels(request))}
    ) as service:
        url = f"{service.url}/v1/models/m:predict"
        words += ["--teacher.url", url, "--out", str(run), *METHOD, *EVALUATION]
        finished(command(words))
        finished(command(["--resume", "--out", str(run), "--budget", "32"]))
    assert summary(run)["teacher"]["target"] == url
    assert "path: predictions[*]" in (run / "adapter.yaml").read_text()
    assert "adapter: configs/adapters/tf_serving.yaml" in (run / "config.yaml").read_text()
