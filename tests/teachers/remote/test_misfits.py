"""A whole answer of another form than is read ends a run at once."""

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
    (folder / "my.yaml").write_text(dump_yaml(described() | {"answer": answer}))
    return {"adapter": str(folder / "my.yaml")}


def ask(kind: str, said: Any, options: dict[str, Any], **config: Any) -> str:
    """How a batch ends, in requests of one image, four at once: one is sent, and stays charged."""
    with Service(said) as service:
        given = {"url": service.url, **options}
        teacher = make_teacher(TeacherConfig(kind=kind, max_batch=1, **config), given, torch.device("cpu"))
        ledger = Ledger(100)
        oracle = Oracle(teacher, ledger)
        with pytest.raises(TeacherError) as caught:
            oracle(torch.zeros(6, *teacher.spec.shape))
        oracle.close()
        teacher.close()  # type: ignore[attr-defined]
        assert len(service.posted) == 1, "nothing else is sent meanwhile"
    assert (ledger.spent, ledger.failed) == (1, 1)
    return str(caught.value)


PAIRS = {"path": "predictions", "form": "pairs"}
JSON_MISSES: list[tuple[dict[str, Any], Any, tuple[str, ...]]] = [
    ({"path": "outputs[0].scores"}, TOP3, ("answer.path: 'outputs[0].scores' found nothing", OUTLINE)),
    ({"path": "predictions"}, TOP3, ("answer.form scores", OUTLINE)),
    ({"path": "predictions", "form": "mapping"}, TOP3, ("answer.form mapping", OUTLINE)),
    (PAIRS | {"score": "p"}, TOP3, ("answer.score: 'p'", OUTLINE)),
    ({"path": "predictions[*].score"}, TOP3, ("answer.path", "3 answers to 1 images")),
    (PAIRS | {"classes": ["cat", "dog", "brid"]}, TOP3, ("my.yaml: answer.classes", "mean brid?", OUTLINE)),
    ({"path": "r"}, {"r": [0.5, 0.5]}, ("answer.form scores", "3 scores", '{"r": [2 x float]}')),
    ({"path": "r"}, {"r": [5.0, -2.0, 1.0]}, ("--teacher.label-mode logits",)),
]


@pytest.mark.integration
@pytest.mark.parametrize(("answer", "said", "words"), JSON_MISSES)
def test_an_adapter_that_misses_the_answer(
    answer: dict[str, Any], said: Any, words: tuple[str, ...], tmp_path: Path
) -> None:
    line = ask("json", said, adapter(tmp_path, **answer))
    assert all(word in line for word in words)


@pytest.mark.integration
def test_the_other_kinds() -> None:
    pairs = {"classes": ("cat", "dog")}
    assert OUTLINE in ask("hf-api", TOP3, pairs, shape=SHAPE)
    assert "--teacher.classes: " in ask("hf-api", TOP3["predictions"], pairs, shape=SHAPE)
    line = ask("tf-serving", {"predictions": [[0.5, 0.5]]}, {}, shape=SHAPE, num_classes=3)
    assert line.endswith('the answer was {"predictions": [1 x [2 x float]]}')
    output = {"name": "y", "datatype": "FP32", "shape": [1, 2], "data": [0.5, 0.5]}
    model = V2([tensor("x", "FP32", [-1, 1, 2, 2])], infer=lambda asked: http({"outputs": [output]}))
    line = ask("v2", model, {"model": "m"})
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
