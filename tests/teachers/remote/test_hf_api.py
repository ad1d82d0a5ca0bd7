"""Pictures to a service in Hugging Face's style, which reads them with Pillow and counts for itself; and our PNGs."""

from __future__ import annotations

import base64
import contextlib
import io
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from service import Request, Service, http

from dfme.config.settings import TeacherConfig
from dfme.errors import Refused, Unusable, UserError
from dfme.oracle.oracle import Ledger, Oracle
from dfme.spec import ImageSpec, LabelMode
from dfme.teachers.remote.hf_api import connect_hf_api
from dfme.teachers.remote.options import HfApiOptions
from dfme.teachers.remote.teacher import RemoteTeacher

Image = pytest.importorskip("PIL.Image", reason="the independent reader of pictures")

pytestmark = pytest.mark.integration

NAMES = ("tench", "great white shark", "dörrobst", "d")
SHAPE = (3, 5, 4)
WEIGHTS = np.arange(SHAPE[0] * SHAPE[1] * SHAPE[2] * len(NAMES)).reshape(-1, len(NAMES)) % 7 - 3


def probabilities(x_HWC: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    logits = (x_HWC.astype(np.float64).reshape(-1) / 255) @ WEIGHTS
    share = np.exp(logits - logits.max())
    return share / share.sum()


class Pipeline:
    """Labels and scores, best first, like the task's pipeline; ``served`` is its own count."""

    def __init__(self, best: int = len(NAMES)) -> None:
        self.best = best
        self.served = 0
        self.seen: list[np.ndarray[Any, Any]] = []
        self.parameters: list[Any] = []

    def __call__(self, asked: Request) -> Any:
        picture, best = asked.body, self.best
        if asked.headers["content-type"] != "image/png":
            picture = base64.b64decode(asked.json["inputs"], validate=True)
            self.parameters.append(asked.json["parameters"])
            best = asked.json["parameters"]["top_k"]
        self.seen.append(np.asarray(Image.open(io.BytesIO(picture))))
        self.served += 1
        scores = probabilities(self.seen[-1])
        order = np.argsort(-scores, kind="stable")[:best]
        return [{"label": NAMES[number], "score": float(scores[number])} for number in order]


@contextlib.contextmanager
def connected(answer: Any, config: dict[str, Any] | None = None, **options: Any) -> Iterator[RemoteTeacher]:
    with Service(answer) as service:
        given = {"url": f"{service.url}/models/x", "classes": NAMES, **options}
        flags = TeacherConfig(**{"shape": SHAPE, **(config or {})})
        teacher = connect_hf_api(HfApiOptions(**given), flags, torch.device("cpu"))
        try:
            yield teacher
        finally:
            teacher.close()


def ask(teacher: RemoteTeacher, x_BCHW: torch.Tensor) -> torch.Tensor:
    assert teacher.max_batch == 1
    return Oracle(teacher, Ledger(len(x_BCHW)))(x_BCHW)


def pixels(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Bytes (B, C, H, W), and the images within 0 and 1 that the oracle would send for them."""
    levels = torch.randint(256, (count, *SHAPE), generator=torch.Generator().manual_seed(count))
    return levels, ImageSpec(SHAPE, levels=256).quantise(levels / 255)


def test_each_picture_arrives_as_it_is_and_scores_are_in_the_order_of_the_classes() -> None:
    service = Pipeline()
    with connected(service) as teacher:
        assert (teacher.spec.levels, teacher.num_classes, teacher.label_mode) == (256, 4, LabelMode("probabilities"))
        levels, x = pixels(3)
        answers = ask(teacher, x)
    expected = [probabilities(image.permute(1, 2, 0).numpy()) for image in levels]
    torch.testing.assert_close(answers, torch.tensor(np.array(expected)).float(), rtol=1e-6, atol=1e-7)
    # Pictures travel side by side: they may arrive in another order than they were sent in.
    sent = [image.permute(1, 2, 0).numpy().astype(np.uint8).tobytes() for image in levels]
    assert sorted(seen.tobytes() for seen in service.seen) == sorted(sent)
    assert service.served == 3


def test_top_k_is_asked_for_and_the_others_are_unknown() -> None:
    service = Pipeline()
    with connected(service, top_k=2) as teacher:
        assert teacher.label_mode == LabelMode("top_k", k=2)
        levels, x = pixels(2)
        answers = ask(teacher, x)
    assert service.parameters == [{"top_k": 2}] * 2
    for answer, image in zip(answers, levels, strict=True):
        truth = probabilities(image.permute(1, 2, 0).numpy())
        best = set(np.argsort(-truth)[:2].tolist())
        assert {number for number in range(4) if not answer[number].isnan()} == best
        assert all(abs(float(answer[number]) - truth[number]) < 1e-6 for number in best)


@pytest.mark.parametrize("mode", ["label", "top_k:2", "top_k:3"])
def test_a_service_that_gives_three_of_four_serves_the_modes_that_need_no_more(mode: str) -> None:
    with connected(Pipeline(best=3), {"label_mode": mode}) as teacher:
        assert teacher.label_mode == LabelMode.parse(mode)
        levels, x = pixels(2)
        answers = ask(teacher, x)
    truth = np.array([probabilities(image.permute(1, 2, 0).numpy()) for image in levels])
    if mode == "label":
        assert answers.tolist() == truth.argmax(1).tolist()
    else:
        assert (~answers.isnan()).sum(1).tolist() == [int(mode[-1])] * 2
        assert answers.nan_to_num(-1).argmax(1).tolist() == truth.argmax(1).tolist()


def test_a_service_that_gives_fewer_than_the_mode_needs_is_not_guessed_at() -> None:
    with connected(Pipeline(best=3)) as teacher, pytest.raises(Unusable, match="label-mode top_k:3"):
        teacher(pixels(1)[1])


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ([{"label": "cat", "score": 1.0}], "--teacher.classes: expected one of the 4 given, got 'cat'"),
        ([{"label": "tenc", "score": 1.0}], "did you mean tench"),
        ([{"label": "d", "score": 0.5}, {"label": "d", "score": 0.5}], "'d' twice"),
        ([{"label": "d", "score": "0.5"}], "expected a number as the score of 'd'"),
        ([{"name": "d"}], "expected a label and a score"),
        ({"error": "CUDA out of memory"}, "got 'CUDA out of memory'"),
        (http(b"<html>"), "expected an answer in JSON"),
    ],
)
def test_an_answer_that_is_none_says_why(answer: Any, words: str) -> None:
    with connected(lambda asked: answer) as teacher, pytest.raises(Unusable, match=words):
        teacher(pixels(1)[1])


@pytest.mark.parametrize(("headers", "seconds"), [({}, 20.5), ({"Retry-After": "3"}, 3.0)])
def test_a_model_that_is_being_loaded_says_for_how_long(headers: dict[str, str], seconds: float) -> None:
    loading = http({"error": "Model x is currently loading", "estimated_time": 20.5}, 503, **headers)
    with connected(lambda asked: loading) as teacher, pytest.raises(Refused, match="currently loading") as caught:
        teacher(pixels(1)[1])
    assert (caught.value.retry, caught.value.retry_after) == (True, seconds)


@pytest.mark.parametrize(
    ("options", "flags", "words"),
    [
        ({"classes": "no/such/file.txt"}, {}, "--teacher.classes: .* no file no/such/file.txt"),
        ({"classes": ("a", "b", "a")}, {}, "each class once, got 'a' twice"),
        ({"classes": ("a",)}, {}, "at least two classes"),
        ({"classes": "a,,b"}, {}, "an empty one as number 2"),
        ({}, {"num_classes": 9}, "--teacher.num-classes: got 9, but --teacher.classes has 4"),
        ({}, {"levels": 16}, "--teacher.levels: got 16"),
        ({}, {"shape": None}, "--teacher.shape"),
        ({}, {"shape": (5, 8, 8)}, "1 to 4 channels"),
        ({"url": "http://192.0.2.1/x"}, {}, "authorised-by"),
    ],
)
def test_what_does_not_fit_is_said_before_a_picture_is_sent(
    options: dict[str, Any], flags: dict[str, Any], words: str
) -> None:
    service = Pipeline()
    with pytest.raises(UserError, match=words), connected(service, flags, **options):
        pass
    assert service.served == 0
