"""Answers in which an image has no class, class numbers that count from one, and one score an
image.
"""

import json
from collections.abc import Iterator
from math import nan
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from clients import SHAPE, described
from damage import refused
from processes import no_waiting
from refusals import refusal
from service import Request, Service, http

from dfme.answers.reading import NO_ANSWER, UNKNOWN_CLASS, PartialAnswers, unanswered
from dfme.config.settings import TeacherConfig
from dfme.config.yaml_files import dump_yaml
from dfme.errors import TeacherError, Unserved, Unusable
from dfme.oracle.ledger import Ledger
from dfme.oracle.oracle import Oracle
from dfme.oracle.retry import MAX_UNKNOWN
from dfme.spec import ImageSpec, LabelMode, RequestPolicy, TeacherInfo
from dfme.teachers.build import make_teacher
from dfme.teachers.remote.endpoint import Reply
from dfme.teachers.remote.json_api.adapter_file import ModelSpec, load_adapter
from dfme.teachers.remote.json_api.api import JsonAdapter
from dfme.teachers.remote.json_api.description import AnswerForm, ImageForm
from dfme.teachers.remote.json_bodies import ClassNames

CLASSES = ("cat", "dog", "owl")


@pytest.fixture(autouse=True)
def _no_waiting() -> Iterator[None]:
    with no_waiting():
        yield


def reader(mode: str = "label", classes: tuple[str, ...] = CLASSES, **answer: Any) -> JsonAdapter:
    model = ModelSpec(ImageSpec(SHAPE, levels=256), ClassNames(classes), LabelMode.parse(mode))
    return JsonAdapter(ImageForm(), lambda images: (b"", {}), AnswerForm(**answer), model)


def read(adapter: JsonAdapter, answer: Any, batch: int = 1) -> Any:
    return adapter.decode(Reply(200, {}, json.dumps(answer).encode()), batch)


def gaps(answer: Any) -> list[int]:
    assert isinstance(answer, PartialAnswers)
    return list(answer.gaps)


PAIRS = {"form": "pairs", "mode": "top_k:1", "path": "Labels"}
NAME = {"form": "name", "path": "label"}
CAT = [{"label": "cat", "score": 0.9}]


@pytest.mark.parametrize(
    ("form", "answer", "mark"),
    [
        (PAIRS, {"Labels": []}, NO_ANSWER),
        (PAIRS, {"Labels": None}, NO_ANSWER),
        (PAIRS, {"Labels": [{"label": "vase", "score": 0.9}]}, UNKNOWN_CLASS),
        (
            PAIRS | {"no_answer": ("vase",)},
            {"Labels": [{"label": "vase", "score": 0.9}]},
            NO_ANSWER,
        ),
        (
            PAIRS | {"no_answer": ("vase",)},
            {"Labels": [*CAT, {"label": "vase", "score": 1}]},
            NO_ANSWER,
        ),
        (NAME, {"label": None}, NO_ANSWER),
        (NAME, {"label": ""}, NO_ANSWER),
        (NAME, {"label": "I am not sure"}, UNKNOWN_CLASS),
        (NAME | {"no_answer": ("I am not sure",)}, {"label": "I am not sure"}, NO_ANSWER),
        (NAME | {"optional": True}, {"note": "nothing found"}, NO_ANSWER),
        (NAME | {"path": "predictions[0].label"}, {"predictions": []}, NO_ANSWER),
        (NAME | {"path": "result.label"}, {"result": None}, NO_ANSWER),
        (NAME | {"path": "predictions[*].label"}, {"predictions": []}, NO_ANSWER),
        ({"form": "number", "path": "class"}, {"class": -1}, UNKNOWN_CLASS),
        ({"form": "number", "path": "class", "no_answer": (-1,)}, {"class": -1}, NO_ANSWER),
        ({"form": "mapping", "mode": "probabilities"}, {}, NO_ANSWER),
        (
            {"form": "lists", "mode": "top_k:1", "label": "l", "score": "s"},
            {"l": [], "s": []},
            NO_ANSWER,
        ),
    ],
)
def test_what_says_that_there_is_no_class(form: dict[str, Any], answer: Any, mark: int) -> None:
    assert gaps(read(reader(**form), answer)) == [mark]


def test_in_a_batch_the_others_are_read() -> None:
    adapter = reader(path="predictions[*].label", form="name")
    labels = ["owl", None, "dog", "who knows", "cat"]
    answer = read(adapter, {"predictions": [{"label": label} for label in labels]}, 5)
    assert gaps(answer) == [0, NO_ANSWER, 0, UNKNOWN_CLASS, 0]
    assert (answer.answers.tolist(), answer.names) == ([2, 1, 0], ("'who knows'",))


@pytest.mark.parametrize(
    ("form", "answer", "words"),
    [
        (NAME, {"label": {"a": 1}}, "expected one of the 3 given, got an object of 1"),
        (NAME, {"note": "nothing found"}, "say answer.optional: true"),
        (
            {"form": "number"},
            3,
            "from 0 to 2, got 3: a service that counts from 1 wants form: name",
        ),
        ({"form": "number"}, "2", "what is a text wants form: name"),
        ({"form": "number"}, -2, "from 0 to 2, got -2"),
    ],
)
def test_what_is_rather_a_fault_of_the_adapter_is_refused(
    form: dict[str, Any], answer: Any, words: str
) -> None:
    refused(words, read, reader(**form), answer, error=Unusable)


@pytest.mark.parametrize(
    ("form", "answer"),
    [
        (
            {"form": "lists", "label": "labels", "score": "confidences"},
            {"labels": ["owl", "cat"], "confidences": [0.75, 0.125]},
        ),
        (
            {"form": "lists", "label": "labels[*].name", "score": "scores", "scale": 100.0},
            {"labels": [{"name": "owl"}, {"name": "cat"}], "scores": ["75 %", "12.5%"]},
        ),
        ({"form": "pairs", "label": "0", "score": "1"}, [["owl", 0.75], ["cat", 0.125]]),
        ({"form": "mapping"}, [{"owl": 0.75}, {"cat": 0.125}]),
        ({"form": "mapping", "scale": 100.0}, {"cat": "12.5%", "owl": "75.0%"}),
    ],
)
def test_scores_go_by_name_in_whatever_order_and_shape(form: dict[str, Any], answer: Any) -> None:
    scores = read(reader("top_k:2", **form), answer)[0]
    assert scores[[0, 2]].tolist() == [0.125, 0.75]
    assert scores[1].isnan()


@pytest.mark.parametrize(
    ("form", "answer", "words"),
    [
        (NAME, {"label": "dogg"}, "did you mean dog?; if that stands for no class"),
        (PAIRS, {"Labels": [*CAT, {"label": "vase", "score": 0.1}]}, "name it in answer.no_answer"),
        (PAIRS, {"Labels": [*CAT, {"label": "cat", "score": 0.1}]}, "expected each class once"),
    ],
)
def test_what_may_be_a_slip_is_refused_at_first_and_left_out_later(
    form: dict[str, Any], answer: Any, words: str
) -> None:
    came = read(reader(**form), answer)
    assert gaps(came) == [UNKNOWN_CLASS]
    assert words in came.slip
    remote = SimpleNamespace(wire=RequestPolicy(), ask=lambda images, key: came)
    kind = LabelMode("label") if form["form"] == "name" else LabelMode.parse("top_k:1")
    teacher = SimpleNamespace(
        spec=ImageSpec(SHAPE), num_classes=3, label_mode=kind, info=TeacherInfo(remote=remote)
    )
    ledger = Ledger(10)
    refused(words, Oracle(teacher, ledger), torch.zeros(1, *SHAPE), error=TeacherError)
    assert (ledger.spent, ledger.failed) == (1, 1)
    remote.ask = lambda images, key: (
        torch.tensor([0]) if kind.kind == "label" else torch.tensor([[1, nan, nan]])
    )
    oracle = Oracle(teacher, ledger)
    oracle(torch.zeros(1, *SHAPE))
    remote.ask = lambda images, key: came
    assert unanswered(oracle(torch.zeros(1, *SHAPE))).tolist() == [True]
    assert (ledger.spent, ledger.failed, ledger.paid_without_answer) == (3, 1, 1)


def test_lists_of_different_lengths_are_refused() -> None:
    adapter = reader("top_k:1", form="lists", label="l", score="s")
    refused(
        "expected as many scores as names (1), got 2",
        read,
        adapter,
        {"l": ["cat"], "s": [1, 2]},
        error=Unusable,
    )


TWO = ("no", "yes")


@pytest.mark.parametrize("answer", [[[0.75]], [0.75], ["0.75"], [["75%"]]])
def test_one_score_an_image_is_that_of_the_second_class(answer: Any) -> None:
    scale = {"scale": 100.0} if answer == [["75%"]] else {}
    for mode, truth in (("probabilities", [0.25, 0.75]), ("label", 1), ("logits", [0.0, 0.75])):
        if scale and mode == "logits":
            continue
        came = read(reader(mode, TWO, path="p[*]", form="scores", **scale), {"p": answer})
        assert came[0].tolist() == truth


@pytest.mark.parametrize("mode", ["probabilities", "label"])
@pytest.mark.parametrize("score", [2.5, -1.0])
def test_a_lone_score_that_is_no_probability_is_refused_in_every_mode(
    mode: str, score: float
) -> None:
    refused(
        "--teacher.label-mode logits",
        read,
        reader(mode, TWO, path="p[*]", form="scores"),
        {"p": [[score]]},
        error=Unusable,
    )
    if mode == "label":
        logits = reader(mode, TWO, path="p[*]", form="scores", values="logits")
        assert read(logits, {"p": [[0.3], [-0.3], [score]]}, 3).tolist() == [1, 0, int(score > 0)]


@pytest.mark.parametrize("form", ["pairs", "mapping"])
def test_of_two_classes_the_one_that_is_not_named_has_the_rest(form: str) -> None:
    answer = [{"label": "yes", "score": 0.25}] if form == "pairs" else {"yes": 0.25}
    assert read(reader("probabilities", TWO, form=form), answer)[0].tolist() == [0.75, 0.25]
    assert read(reader("label", TWO, form=form), answer).tolist() == [0]


def test_one_score_of_several_classes_says_what_to_do() -> None:
    refused(
        "--teacher.num-classes 2",
        read,
        reader("probabilities", form="scores"),
        [0.75],
        error=Unusable,
    )


def one_by_one(oracle: Oracle, images: int) -> torch.Tensor:
    """The answers to so many images, each in a call of its own."""
    return torch.cat([oracle(torch.zeros(1, *SHAPE)) for _ in range(images)])


def teacher_of(service: Service, folder: Path, answer: dict[str, Any]) -> Any:
    (folder / "a.yaml").write_text(
        dump_yaml(described() | {"answer": {"classes": list(CLASSES), **answer}})
    )
    options = {"url": service.url, "adapter": str(folder / "a.yaml")}
    return make_teacher(TeacherConfig(kind="json"), options, torch.device("cpu"))


@pytest.mark.integration
@pytest.mark.parametrize(
    ("nothing", "answer"),
    [
        (http(b"", 204), {}),
        (http({"detail": "no object found"}, 422), {"no_answer_status": [422]}),
        (http({"label": None}), {}),
        (http({"label": "not sure"}), {}),
    ],
)
def test_a_service_without_a_class_now_and_then_is_asked_once_about_each_image(
    nothing: bytes, answer: dict[str, Any], tmp_path: Path
) -> None:
    replies: list[Any] = [{"label": "owl"}, nothing, {"label": "cat"}, nothing]

    def said(request: Request) -> Any:
        return replies.pop(0)

    with Service(said) as service:
        teacher = teacher_of(service, tmp_path, {"path": "label", "form": "name", **answer})
        ledger = Ledger(10)
        with torch.no_grad():
            labels = one_by_one(Oracle(teacher, ledger), 4)
        teacher.close()
    assert labels.tolist() == [2, NO_ANSWER, 0, NO_ANSWER]
    assert unanswered(labels).tolist() == [False, True, False, True]
    assert (ledger.spent, ledger.failed, ledger.paid_without_answer) == (4, 0, 2)
    assert not replies


@pytest.mark.integration
def test_names_that_are_never_a_class_end_the_run_with_what_was_said(tmp_path: Path) -> None:
    with Service(lambda request: {"label": "vase"}) as service:
        teacher = teacher_of(service, tmp_path, {"path": "label", "form": "name"})
        ledger = Ledger(100)
        lines: list[str] = []
        oracle = Oracle(teacher, ledger, tell=lines.append)
        refusal(
            r"for 20 of the first 20 images \('vase'\): name all",
            one_by_one,
            oracle,
            100,
            error=Unserved,
        )
        refusal("", oracle, torch.zeros(1, *SHAPE), error=Unserved)
        teacher.close()
        assert ledger.spent == len(service.posted) == MAX_UNKNOWN
    assert len(lines) == 1


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (
            {"no_answer": ["cat"]},
            "answer.no_answer: expected what is none of answer.classes, got 'cat'",
        ),
        ({"no_answer_status": [500]}, "answer.no_answer_status: expected some of 204, 400"),
        ({"no_answer_status": [429]}, "answer.no_answer_status"),
        ({"label": "a[*].b", "form": "pairs"}, "answer.label: expected a path without [*]"),
    ],
)
def test_a_description_that_contradicts_itself(
    answer: dict[str, Any], words: str, tmp_path: Path
) -> None:
    file = tmp_path / "a.yaml"
    file.write_text(dump_yaml(described() | {"answer": {"classes": list(CLASSES), **answer}}))
    refused(words, load_adapter, file)
