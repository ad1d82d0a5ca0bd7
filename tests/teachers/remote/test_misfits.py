"""A whole answer of another form than is read ends a run; one that tells more than its mode is
cut.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from clients import SHAPE, described
from processes import command, finished, no_waiting, words
from protocols import V2, answer, tensor
from refusals import refusal
from service import Request, Service, http

from dfme.config.settings import TeacherConfig
from dfme.config.yaml_files import dump_yaml
from dfme.errors import TeacherError
from dfme.oracle.ledger import Ledger
from dfme.oracle.oracle import Oracle
from dfme.spec import Teacher
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
        settings = {"url": service.url, **options}
        teacher = make_teacher(
            TeacherConfig(kind=kind, max_batch=1, **config), settings, torch.device("cpu")
        )
        ledger = Ledger(100)
        oracle = Oracle(teacher, ledger)
        caught = refusal("", oracle, torch.zeros(6, *teacher.spec.shape), error=TeacherError)
        oracle.close()
        teacher.close()  # type: ignore[attr-defined]
        assert len(service.posted) == 1, "nothing else is sent meanwhile"
    assert (ledger.spent, ledger.failed) == (1, 1)
    return str(caught)


PAIRS = {"path": "predictions", "form": "pairs"}


@pytest.mark.integration
@pytest.mark.parametrize(
    ("answer", "said", "words"),
    [
        (
            {"path": "outputs[0].scores"},
            TOP3,
            ("answer.path: 'outputs[0].scores' found nothing", OUTLINE),
        ),
        ({"path": "predictions"}, TOP3, ("answer.form scores", OUTLINE)),
        ({"path": "predictions", "form": "mapping"}, TOP3, ("answer.form mapping", OUTLINE)),
        (PAIRS | {"score": "p"}, TOP3, ("answer.score: 'p'", OUTLINE)),
        ({"path": "predictions[*].score"}, TOP3, ("answer.path", "3 answers to 1 images")),
        (
            PAIRS | {"classes": ["cat", "dog", "brid"]},
            TOP3,
            ("my.yaml: answer.classes", "mean brid?", OUTLINE),
        ),
        (
            {"path": "r"},
            {"r": [0.5, 0.5]},
            ("answer.form scores", "3 scores", '{"r": [2 x float]}'),
        ),
        ({"path": "r"}, {"r": [5.0, -2.0, 1.0]}, ("--teacher.label-mode logits",)),
    ],
)
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
    model = V2(
        [tensor("x", "FP32", [-1, 1, 2, 2])], infer=lambda asked: http({"outputs": [output]})
    )
    line = ask("v2", model, {"model": "m"})
    assert "output 'y': expected scores [1, 3], got FP32 [1, 2]" in line
    assert (
        'the answer was {"outputs": [1 x {"name": str, "datatype": str, "shape": [2 x int], '
        in line
    )


def passing(*first: Any) -> Callable[[Request], Any]:
    """A service that answers so at first, then as it should."""
    remaining = list(first)
    return lambda request: remaining.pop(0) if remaining else {"scores": [0.2, 0.3, 0.5]}


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


SMALL, FOUR = (3, 2, 2), 4
SCORES = np.array([0.1234567, 0.2345678, 0.3456789, 0.2962966])
"""Seven decimals, whatever the image."""

ROUNDED = {
    "probabilities:4": [0.1235, 0.2346, 0.3457, 0.2963],
    "top_k:2:3": [None, None, 0.346, 0.296],
}
ROUNDED |= {"top_k:2": [None, None, 0.3456789, 0.2962966], "probabilities": SCORES.tolist()}

KINDS = ("v2", "json", "tf-serving", "hf-api")
Replies = Callable[[Request], Any]


def v2(announced: str | None, scores: Any) -> V2:
    """A model that announces a label mode and answers so."""
    parameters = {"label_mode": announced} if announced else None
    said = [tensor("x", "FP32", [-1, *SMALL])], [tensor("y", "FP64", [-1, FOUR])]
    infer = lambda asked: answer(asked, np.repeat(np.array(scores)[None], len(asked.pixels), 0))  # noqa: E731
    return V2(*said, parameters=parameters, infer=infer)


def service_of(
    kind: str, announced: str | None, scores: Any, folder: Path
) -> tuple[Replies, dict[str, Any]]:
    """What a service answers, and the options of the teacher, common ones included."""
    if kind == "v2":
        return v2(announced, scores), {"model": "m"}
    if kind == "hf-api":
        pairs = [
            {"label": name, "score": score} for name, score in zip("abcd", scores, strict=True)
        ]
        return lambda asked: pairs, {"classes": "a,b,c,d"}
    if kind == "tf-serving":
        return lambda asked: {"predictions": [list(scores)] * len(asked.json["instances"])}, {}
    paper = described(
        teacher__shape=list(SMALL), teacher__num_classes=FOUR, teacher__label_mode=announced
    )
    (folder / "adapter.yaml").write_text(dump_yaml(paper))
    return lambda asked: {"scores": list(scores)}, {"adapter": str(folder / "adapter.yaml")}


def asked(
    kind: str, announced: str | None, flag: str | None, scores: Any, folder: Path
) -> tuple[Any, list[str]]:
    """Two batches of answers through an oracle, and what it told."""
    reply, options = service_of(kind, announced, scores, folder)
    stated = {"shape": SMALL, "num_classes": FOUR} if kind in ("tf-serving", "hf-api") else {}
    lines: list[str] = []
    with Service(reply) as service:
        config = TeacherConfig(kind=kind, label_mode=flag, **stated)  # type: ignore[arg-type]
        teacher: Teacher = make_teacher(
            config, {**options, "url": service.url}, torch.device("cpu")
        )
        oracle = Oracle(teacher, Ledger(100), tell=lines.append)
        answers = torch.cat([oracle(torch.rand(2, *SMALL)) for _ in range(2)])
        getattr(teacher, "close", lambda: None)()
    return answers.numpy(), lines


@pytest.mark.integration
@pytest.mark.parametrize("mode", ["probabilities:4", "top_k:2:3", "top_k:2"])
@pytest.mark.parametrize(
    ("kind", "by"),
    [
        *((kind, "flag") for kind in KINDS),
        ("v2", "announced"),
        ("v2", "both"),
        ("json", "announced"),
    ],
)
def test_what_is_told_beyond_the_label_mode_is_cut_and_said_once(
    kind: str, by: str, mode: str, tmp_path: Path
) -> None:
    answers, lines = asked(
        kind,
        mode if by in ("announced", "both") else None,
        mode if by in ("flag", "both") else None,
        SCORES,
        tmp_path,
    )
    expected = np.array([ROUNDED[mode]] * 4, dtype=float).astype(np.float32)
    assert np.array_equal(answers, expected, equal_nan=True)
    assert lines == [f"the service tells more than {mode}; its answers are cut to that"]


@pytest.mark.integration
@pytest.mark.parametrize("mode", ["probabilities:4", "probabilities", None])
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_told_within_it_stays_as_it_is_in_silence(
    kind: str, mode: str | None, tmp_path: Path
) -> None:
    scores = ROUNDED[mode or "probabilities"]
    answers, lines = asked(kind, mode, mode, scores, tmp_path)
    assert np.array_equal(answers, np.array([scores] * 4).astype(np.float32))
    assert lines == []
    labels, _ = asked(kind, None, "label", SCORES, tmp_path)
    assert labels.tolist() == [2] * 4


@pytest.mark.integration
@pytest.mark.parametrize("flag", [(), ("--teacher.label-mode", "label")])
def test_a_service_that_announces_logits_from_one_day_on_is_refused_on_resume(
    flag: tuple[str, ...], tmp_path: Path
) -> None:
    """Also where the logits would be cut to the form that the run was begun with."""
    reply = v2("probabilities", SCORES)
    resume = ["--resume", "--out", str(tmp_path / "run"), "--budget", "32"]
    with Service(reply) as service:
        finished(command(words(service.url, tmp_path / "run", *flag, budget=16)))
        service.what, posted = v2("logits", SCORES), len(service.posted)
        ended = command(resume)
        assert (ended.code, len(service.posted)) == (2, posted)
        assert "uncut_label_mode" in ended.line
        service.what = reply
        finished(command(resume))
