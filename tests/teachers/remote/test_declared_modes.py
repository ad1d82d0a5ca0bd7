"""A service that tells more than its label mode, announced or given by flag, over each protocol: cut."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from clients import described
from http_runs import command, finished, words
from protocols import V2, answer, tensor
from service import Request, Service

from dfme.config.settings import TeacherConfig
from dfme.oracle.ledger import Ledger
from dfme.oracle.oracle import Oracle
from dfme.spec import Teacher
from dfme.teachers.build import make_teacher

pytestmark = pytest.mark.integration

SHAPE, K = (3, 2, 2), 4
SCORES = np.array([0.1234567, 0.2345678, 0.3456789, 0.2962966])
"""Seven decimals, whatever the image."""

ROUNDED = {"probabilities:4": [0.1235, 0.2346, 0.3457, 0.2963], "top_k:2:3": [None, None, 0.346, 0.296]}
ROUNDED |= {"top_k:2": [None, None, 0.3456789, 0.2962966], "probabilities": SCORES.tolist()}

KINDS = ("v2", "json", "tf-serving", "hf-api")
Replies = Callable[[Request], Any]


def v2(announced: str | None, scores: Any) -> V2:
    """A model that announces a label mode and answers so."""
    parameters = {"label_mode": announced} if announced else None
    said = [tensor("x", "FP32", [-1, *SHAPE])], [tensor("y", "FP64", [-1, K])]
    infer = lambda asked: answer(asked, np.repeat(np.array(scores)[None], len(asked.pixels), 0))  # noqa: E731
    return V2(*said, parameters=parameters, infer=infer)


def made(kind: str, announced: str | None, scores: Any, folder: Path) -> tuple[Replies, dict[str, Any]]:
    """What a service answers, and the options of the teacher, common ones included."""
    if kind == "v2":
        return v2(announced, scores), {"model": "m"}
    if kind == "hf-api":
        pairs = [{"label": name, "score": score} for name, score in zip("abcd", scores, strict=True)]
        return lambda asked: pairs, {"classes": "a,b,c,d"}
    if kind == "tf-serving":
        return lambda asked: {"predictions": [list(scores)] * len(asked.json["instances"])}, {}
    paper = described(teacher__shape=list(SHAPE), teacher__num_classes=K, teacher__label_mode=announced)
    (folder / "adapter.yaml").write_text(yaml.safe_dump(paper))
    return lambda asked: {"scores": list(scores)}, {"adapter": str(folder / "adapter.yaml")}


def asked(
    kind: str, announced: str | None, flag: str | None, scores: Any, folder: Path
) -> tuple[Any, list[str]]:
    """Two batches of answers through an oracle, and what it told."""
    reply, options = made(kind, announced, scores, folder)
    stated = {"shape": SHAPE, "num_classes": K} if kind in ("tf-serving", "hf-api") else {}
    told: list[str] = []
    with Service(reply) as service:
        config = TeacherConfig(kind=kind, label_mode=flag, **stated)  # type: ignore[arg-type]
        teacher: Teacher = make_teacher(config, {**options, "url": service.url}, torch.device("cpu"))
        oracle = Oracle(teacher, Ledger(100), tell=told.append)
        answers = torch.cat([oracle(torch.rand(2, *SHAPE)) for _ in range(2)])
        getattr(teacher, "close", lambda: None)()
    return answers.numpy(), told


@pytest.mark.parametrize("mode", ["probabilities:4", "top_k:2:3", "top_k:2"])
@pytest.mark.parametrize(
    ("kind", "by"),
    [*((kind, "flag") for kind in KINDS), ("v2", "announced"), ("v2", "both"), ("json", "announced")],
)
def test_what_is_told_beyond_the_label_mode_is_cut_and_said_once(
    kind: str, by: str, mode: str, tmp_path: Path
) -> None:
    announced = mode if by in ("announced", "both") else None
    flag = mode if by in ("flag", "both") else None
    answers, told = asked(kind, announced, flag, SCORES, tmp_path)
    expected = np.array([ROUNDED[mode]] * 4, dtype=float).astype(np.float32)
    assert np.array_equal(answers, expected, equal_nan=True)
    assert told == [f"the service tells more than {mode}; its answers are cut to that"]


@pytest.mark.parametrize("mode", ["probabilities:4", "probabilities", None])
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_told_within_it_stays_as_it_is_in_silence(
    kind: str, mode: str | None, tmp_path: Path
) -> None:
    scores = ROUNDED[mode or "probabilities"]
    answers, told = asked(kind, mode, mode, scores, tmp_path)
    assert np.array_equal(answers, np.array([scores] * 4).astype(np.float32))
    assert told == []
    labels, _ = asked(kind, None, "label", SCORES, tmp_path)
    assert labels.tolist() == [2] * 4


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
