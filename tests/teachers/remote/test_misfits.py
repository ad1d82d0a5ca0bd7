"""A whole answer of another form than is read ends a run at once, and says what came and which key missed it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from clients import SHAPE, described
from http_runs import no_waiting
from protocols import V2, tensor
from service import Request, Service, http

from dfme.config.settings import TeacherConfig
from dfme.config.yaml_files import dump_yaml
from dfme.errors import TeacherError
from dfme.oracle.ledger import Ledger
from dfme.oracle.oracle import Oracle
from dfme.teachers.build import make_teacher
from dfme.teachers.remote.json_bodies import outline

TOP3 = {"predictions": [{"label": name, "score": 0.3} for name in ("cat", "dog", "bird")]}
OUTLINE = '{"predictions": [3 x {"label": str, "score": float}]}'


@pytest.fixture(autouse=True)
def _no_waiting() -> Iterator[None]:
    with no_waiting():
        yield


def adapter(folder: Path, **answer: Any) -> dict[str, Any]:
    """Options of kind json, for an adapter with this answer section."""
    file = folder / "my.yaml"
    file.write_text(dump_yaml(described() | {"answer": answer}))
    return {"adapter": str(file)}


def ask(kind: str, service: Service, options: dict[str, Any], batch: int = 6) -> tuple[str, Ledger]:
    """How a batch ends, in requests of one image, four at once."""
    config = {} if kind in ("json", "v2", "tf-serving") else {"shape": SHAPE}
    teacher = make_teacher(
        TeacherConfig(kind=kind, max_batch=1, **config), {"url": service.url, **options}, torch.device("cpu")
    )
    ledger = Ledger(100)
    oracle = Oracle(teacher, ledger)
    with pytest.raises(TeacherError) as caught:
        oracle(torch.zeros(batch, *teacher.spec.shape))
    oracle.close()
    teacher.close()  # type: ignore[attr-defined]
    return str(caught.value), ledger


JSON_MISSES = [
    ({"path": "outputs[0].scores"}, TOP3, "answer.path: 'outputs[0].scores' found nothing at 'outputs'", OUTLINE),
    ({"path": "predictions"}, TOP3, "answer.form scores: expected numbers as scores, got an object of 2", OUTLINE),
    ({"path": "predictions", "form": "mapping"}, TOP3, "answer.form mapping: expected an object", OUTLINE),
    ({"path": "predictions", "form": "pairs", "score": "p"}, TOP3, "answer.score: 'p' found nothing at 'p'", OUTLINE),
    ({"path": "predictions[*].score"}, TOP3, "answer.path: 'predictions[*].score' found 3 answers to 1 images", None),
    (
        {"path": "predictions", "form": "pairs", "classes": ["cat", "dog", "brid"]},
        TOP3,
        "my.yaml: answer.classes: expected one of the 3 given, got 'bird'; did you mean brid?",
        OUTLINE,
    ),
    ({"path": "r"}, {"r": [0.5, 0.5]}, "answer.form scores: expected 3 scores for each image", '{"r": [2 x float]}'),
    ({"path": "r"}, {"r": [5.0, -2.0, 1.0]}, "start a new run with --teacher.label-mode logits", None),
]


@pytest.mark.integration
@pytest.mark.parametrize(("answer", "said", "words", "form"), JSON_MISSES, ids=[row[2][:24] for row in JSON_MISSES])
def test_an_adapter_that_misses_the_answer(
    answer: dict[str, Any], said: Any, words: str, form: str | None, tmp_path: Path
) -> None:
    with Service(said) as service:
        line, ledger = ask("json", service, adapter(tmp_path, **answer))
        assert len(service.requests) == 1, "nothing else is sent meanwhile"
    assert words in line
    assert form is None or f"the answer was {form}" in line
    assert (ledger.spent, ledger.failed) == (1, 1), "what was sent stays charged"


@pytest.mark.integration
@pytest.mark.parametrize(
    ("kind", "service", "options", "words"),
    [
        ("hf-api", TOP3, {"classes": ("cat", "dog")}, f"expected a list of labels and scores, .* was {OUTLINE}"),
        ("hf-api", TOP3["predictions"], {"classes": ("cat", "dog")}, "--teacher.classes: expected one of the 2 given"),
    ],
)
def test_a_service_of_hugging_faces_kind(kind: str, service: Any, options: dict[str, Any], words: str) -> None:
    with Service(service) as served:
        line, ledger = ask(kind, served, options)
        assert (len(served.requests), ledger.failed) == (1, 1)
    import re

    assert re.search(words.replace("{", r"\{").replace("[", r"\["), line), line


@pytest.mark.integration
def test_tensorflow_serving_and_protocol_v2(tmp_path: Path) -> None:
    def tf(request: Request) -> Any:
        from dialects import TF

        return {"predictions": [[0.5, 0.5]]} if request.method == "POST" else TF.pages({})(request)

    with Service(tf) as service:
        line, ledger = ask("tf-serving", service, {"model": "m"})
        assert len(service.posted) == ledger.failed == 1
    assert line.endswith('the answer was {"predictions": [1 x [2 x float]]}')

    def infer(asked: Any) -> Any:
        return http({"outputs": [{"name": "y", "datatype": "FP32", "shape": [1, 2], "data": [0.5, 0.5]}]})

    with Service(V2([tensor("x", "FP32", [-1, 1, 2, 2])], [tensor("y", "FP32", [-1, 3])], infer=infer)) as service:
        line, ledger = ask("v2", service, {"model": "m"})
        assert len(service.posted) == ledger.failed == 1
    assert "output 'y': expected scores [1, 3], got FP32 [1, 2]" in line
    assert 'the answer was {"outputs": [1 x {"name": str, "datatype": str, "shape": [2 x int], ' in line


def passing(*first: Any) -> Callable[[Request], Any]:
    """A service that answers so at first, then as it should."""
    left = list(first)
    return lambda request: left.pop(0) if left else {"scores": [0.2, 0.3, 0.5]}


@pytest.mark.integration
@pytest.mark.parametrize(
    "first",
    [
        [http(b'{"scores": [0.2, 0.3', 200)],
        [http({"error": "loading"}, 500)],
        [{"error": "the model is loading"}],
        [{"scores": [0.2, 0.3, 0.5]}, {"other": 1}],
    ],
    ids=["cut short", "500", "an error", "odd among right ones"],
)
def test_what_may_pass_is_asked_again(first: list[Any], tmp_path: Path) -> None:
    with Service(passing(*first)) as service:
        options = {"url": service.url, **adapter(tmp_path, path="scores")}
        teacher = make_teacher(TeacherConfig(kind="json"), options, torch.device("cpu"))
        ledger = Ledger(100)
        Oracle(teacher, ledger)(torch.zeros(3, *SHAPE))
        assert (ledger.useful, ledger.failed, len(service.requests)) == (3, 1, 4)
        teacher.close()  # type: ignore[attr-defined]


@pytest.mark.integration
def test_an_outline_shows_no_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", "s3cr3t-of-mine")
    with Service({"you said s3cr3t-of-mine": 1}) as service:
        line, _ = ask("json", service, {**adapter(tmp_path, path="scores"), "api_key_env": "MY_KEY"})
        assert len(service.requests) == 1
    assert "s3cr3t" not in line
    assert "repeats a secret" in line


def test_an_outline_is_short_and_harmless_whatever_comes() -> None:
    hostile = {
        "a\x1b[2J\n" + "b" * 10_000: {"c": [[[[[[1]]]]]]},
        "d": [{"e": None}] * 9,
        **{str(i): i for i in range(99)},
    }
    text = outline(hostile)
    assert text.isprintable()
    assert len(text) < 400
    assert '"d": [9 x {"e": null}]' in text
    assert text.endswith("95 more}")
    wide: Any = 1
    for _ in range(50):
        wide = {str(number): wide for number in range(20)}
    assert len(outline(wide)) < 100_000
    assert outline(json.loads("[]")) == "[]"
