"""``dfme.Guard`` told where images and scores are: rows of JSON by docs/watch.md, and wrongly."""

import base64
import json
import re
import struct
import zlib
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from guarded_apps import FORM, SECRETS, SHAPE, X, answering, ask, guard, leaks, model, read
from PIL import Image
from processes import PROJECT
from refusals import refusal
from torch import Tensor

import dfme
from dfme.config.settings import TeacherConfig
from dfme.teachers.remote.endpoint import Reply
from dfme.teachers.remote.json_api.adapter_file import load_adapter, model_spec
from dfme.teachers.remote.json_api.api import JsonAdapter, body_of, png
from dfme.teachers.remote.secrets import Secrets


async def rows(scope: Any, receive: Any, send: Any) -> None:
    x_BHWC = torch.tensor(json.loads(await read(receive))["instances"])
    content = {"predictions": model(x_BHWC.permute(0, 3, 1, 2)).tolist(), "best": SECRETS}
    await answering(json.dumps(content).encode())(scope, receive, send)


def test_the_lines_of_the_docs_read_and_replace_what_the_adapter_writes_and_reads() -> None:
    page = (PROJECT / "docs/watch.md").read_text()
    (lines,) = re.findall(
        r"^      images=lambda body: .*\n(?:      \w+=.*\n){2}", page, re.MULTILINE
    )
    form = eval(f"dict({lines})", {"json": json, "np": np})
    api = load_adapter("configs/adapters/tf_serving.yaml")
    spec = model_spec(api, TeacherConfig(shape=SHAPE, num_classes=5))
    adapter = JsonAdapter(
        api.description.image, body_of(api, Secrets({})), api.description.answer, spec
    )
    answer = ask(
        guard(rows, paths=["/v1/{name}:predict"], **form),
        path="/v1/m:predict",
        body=adapter.encode(X).body,
    )
    answers = adapter.decode(Reply(*answer), len(X))
    assert ((answers * 4 % 1 == 0).all(), leaks(answer)) == (True, False)
    assert answers.argmax(1).equal(model(X).argmax(1))


ODD = """
batch: 3
image: {encoding: data_url}
request: {json: {asked: [1, [{picture: {all: "it is ${image}!"}}]], top: 5}}
answer: {path: "result.1.items[*].found", form: pairs, label: tag.en, score: tag.sure, scale: 100,
  classes: [ape, bee, cow, dog, elk]}
teacher: {shape: [1, 4, 4], bounds: [-1, 1]}
"""
RAW = """
batch: 3
image: {encoding: list, dtype: float32, layout: nchw, flat: true, scale: [0.1, 2.64]}
request: {json: {x: ["${image}"]}}
answer: {path: "y[*]"}
teacher: {shape: [1, 4, 4], num_classes: 5, bounds: [-1, 1]}
"""


def picture(text: str | bytes) -> np.ndarray[Any, Any]:
    data = base64.b64decode(text) if isinstance(text, str) else text
    x_HWC = np.asarray(Image.open(BytesIO(data))).reshape(4, 4, -1)
    return x_HWC.transpose(2, 0, 1) / np.float32(255)


def pairs_of(rows: list[list[float]], names: list[str]) -> list[Any]:
    return [
        [{"label": name, "score": score} for name, score in zip(names, row, strict=True)]
        for row in rows
    ]


def odd_answer(rows: list[list[float]]) -> Any:
    entries = [
        [
            {"tag": {"sure": 100 * entry, "en": name}}
            for name, entry in zip("ape bee cow dog elk".split(), row, strict=True)
        ]
        for row in rows
    ]
    return {
        "result": [SECRETS, {"items": [{"found": entry, "best": SECRETS} for entry in entries]}]
    }


PNG = png(np.full((4, 4, 1), 7, np.uint8))

# name -> the file, what an app of this API finds in a body, and what it answers
APIS: dict[str, tuple[str, Callable[[bytes], Any], Callable[[list[list[float]]], Any]]] = {
    "rows": (
        "configs/adapters/tf_serving.yaml",
        lambda body: np.array(json.loads(body)["instances"]).transpose(0, 3, 1, 2),
        lambda rows: {"predictions": rows, "best": SECRETS},
    ),
    "logits": (
        "configs/adapters/nested_list.yaml",
        lambda body: (
            np.array([each["pixels"] for each in json.loads(body)["instances"]])[..., 0] / 255
        ),
        lambda rows: {
            "predictions": [{"logits": np.log(row).tolist(), "best": SECRETS} for row in rows]
        },
    ),
    "a picture, names": (
        "configs/adapters/png_base64.yaml",
        lambda body: picture(json.loads(body)["image"]),
        lambda rows: {
            "result": {
                "scores": dict(zip(["cat", "dog", "bird"], rows[0], strict=True)),
                "best": SECRETS,
            }
        },
    ),
    "a picture, pairs": (
        "configs/adapters/hf_api.yaml",
        picture,
        lambda rows: pairs_of(rows, [*"01234"])[0],
    ),
    "an odd one": (
        ODD,
        lambda body: [
            2 * picture(each["picture"]["all"].removeprefix("it is data:image/png;base64,")[:-1])
            - 1
            for each in json.loads(body)["asked"][1]
        ],
        odd_answer,
    ),
    "flat numbers": (
        RAW,
        lambda body: 2 * (np.array(json.loads(body)["x"]) - 0.1) / (2.64 - 0.1) - 1,
        lambda rows: {"y": rows},
    ),
}


class Seen:
    """A defence that rounds to quarters, and keeps what the guard says that was asked."""

    images: ClassVar[list[Tensor]] = []

    def answer(self, p_BK: Tensor, images_BCHW: Tensor) -> Tensor:
        Seen.images.append(images_BCHW)
        rest_BK = (p_BK * 4).floor() / 4
        return rest_BK + torch.eye(p_BK.shape[1])[p_BK.argmax(1)] * (
            1 - rest_BK.sum(1, keepdim=True)
        )


@pytest.mark.parametrize("name", APIS)
def test_an_adapters_file_is_a_form_for_the_app_that_it_describes(
    name: str, tmp_path: Path
) -> None:
    path, images_in, answer_of = APIS[name]
    if "\n" in path:
        (tmp_path / "own.yaml").write_text(path)
        path = str(tmp_path / "own.yaml")
    api = load_adapter(path)
    shape = (3, 4, 4) if name == "a picture, names" else SHAPE
    classes = 3 if name == "a picture, names" else 5
    low, high = bounds = api.description.teacher.bounds or (0.0, 1.0)
    spec = model_spec(api, TeacherConfig(shape=shape, num_classes=classes))
    adapter = JsonAdapter(
        api.description.image, body_of(api, Secrets({})), api.description.answer, spec
    )
    random = torch.Generator().manual_seed(5)
    weight = torch.randn(shape[0] * 16, classes, generator=random)
    levels_BCHW = torch.randint(0, 256, (min(3, api.description.batch), *shape), generator=random)
    levels_BCHW[0, 0, 0, :2] = torch.tensor([0, 255])
    x_BCHW = low + levels_BCHW / 255 * (high - low)
    seen: list[Tensor] = []

    def network(images: Tensor) -> Tensor:
        return (images.flatten(1) @ weight).softmax(1)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        images = torch.tensor(np.array(images_in(await read(receive))), dtype=torch.float32)
        seen.append(images.reshape(-1, *shape))
        await answering(json.dumps(answer_of(network(seen[-1]).tolist())).encode())(
            scope, receive, send
        )

    options: dict[str, Any] = {
        "shape": shape,
        "num_classes": classes,
        "bounds": bounds,
        "form": path,
    }
    before = dfme.Guard(app, teacher=network, defences=f"{__name__}:Seen", **options)
    answer = ask(before, body=adapter.encode(x_BCHW).body)
    assert answer[0] == 200
    for value in (seen[-1], Seen.images[-1]):
        assert torch.allclose(value, x_BCHW, atol=1e-6)
    answers = adapter.decode(Reply(*answer), len(x_BCHW))
    p_BK = answers.softmax(1) if name == "logits" else answers
    assert torch.allclose(p_BK * 4, (p_BK * 4).round(), atol=1e-4), p_BK
    assert p_BK.argmax(1).equal(network(x_BCHW).argmax(1))
    assert not any(
        f"{value:.6f}"[2:].encode() in answer[2] for value in network(x_BCHW).flatten().tolist()
    )
    assert not leaks(answer)


def bomb(side: int) -> bytes:
    """A PNG whose header says how large it is, and which has nothing else."""
    head = b"IHDR" + struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + head + struct.pack(">I", zlib.crc32(head))


@pytest.mark.parametrize(
    "body", [b"", b"junk", bomb(4), bomb(5), bomb(2**31 - 1), PNG[:40], b"II*\0" + PNG]
)
def test_a_picture_that_cannot_be_read_gets_no_answer_whatever_the_app_says(body: bytes) -> None:
    names = json.dumps(pairs_of(model(X[:1]).tolist(), [*"01234"])[0]).encode()
    before = guard(
        answering(names),
        form="configs/adapters/hf_api.yaml",
        paths="/predict",
        **dict.fromkeys(FORM),
    )
    assert ask(before, body=PNG)[0] == 200
    answer = ask(before, body=body)
    assert (answer[0], leaks(answer)) == (500, False)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (
            "request: {multipart: file}",
            "request.multipart: expected json or bytes, where images can be found",
        ),
        ("answer: {form: number}", "teacher.label_mode: expected scores of all classes, got label"),
        (
            "teacher: {label_mode: 'top_k:2'}",
            "teacher.label_mode: expected scores of all classes, got top_k:2",
        ),
        ("answer: {classes: [a, b]}", "got 5, but the adapter names 2 classes"),
        ("image: {encoding: jpeg}", "own.yaml: image.encoding: "),
    ],
)
def test_a_file_that_is_no_form_is_refused_before_it_serves(
    change: str, text: str, tmp_path: Path
) -> None:
    base = ("image: {encoding: png}", "request: {bytes: image/png}")
    lines = [line for line in base if line.split(":")[0] != change.split(":")[0]]
    (tmp_path / "own.yaml").write_text("\n".join([*lines, change]))
    options = {"shape": SHAPE, "num_classes": 5, "defences": "lattice:n=4"}
    for path in ("own.yaml", "none.yaml"):
        refusal(
            text if path == "own.yaml" else "none.yaml: no such file",
            dfme.Guard,
            rows,
            teacher=model,
            form=str(tmp_path / path),
            **options,
            error=dfme.UserError,
        )


@pytest.mark.parametrize(
    "form", [{"form": "v3"}, {"form": "v2", **FORM}, {"images": FORM["images"]}]
)
def test_a_form_that_cannot_be_is_refused_before_it_serves(form: dict[str, Any]) -> None:
    refusal(
        r"either form, .* or all of images, scores, replace; got form=",
        dfme.Guard,
        rows,
        teacher=model,
        shape=SHAPE,
        num_classes=5,
        **form,
        error=dfme.UserError,
    )
