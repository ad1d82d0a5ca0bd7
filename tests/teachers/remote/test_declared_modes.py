"""A service that tells more than its label mode, announced or given by flag, over each protocol: cut, and said once."""

from __future__ import annotations

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

Made = tuple[Callable[[Request], Any], str, dict[str, Any]]
"""What a service answers, the kind of teacher, and its options."""


def v2(announced: str | None, scores: np.ndarray[Any, Any], folder: Path) -> Made:
    parameters = {"label_mode": announced} if announced else None
    said = [tensor("x", "FP32", [-1, *SHAPE])], [tensor("y", "FP64", [-1, K])]
    infer = lambda asked: answer(asked, np.repeat(scores[None], len(asked.pixels), 0))  # noqa: E731
    return V2(*said, parameters=parameters, infer=infer), "v2", {"model": "m"}


def tf_serving(announced: str | None, scores: np.ndarray[Any, Any], folder: Path) -> Made:
    def dims(*sizes: int) -> dict[str, Any]:
        return {"dtype": "DT_FLOAT", "tensor_shape": {"dim": [{"size": str(size)} for size in sizes]}, "name": "a:0"}

    def reply(asked: Request) -> Any:
        if asked.path.endswith("/metadata"):
            signature = {"inputs": {"x": dims(-1, 2, 2, 3)}, "outputs": {"y": dims(-1, K)}}
            return {"metadata": {"signature_def": {"signature_def": {"serving_default": signature}}}}
        if asked.method == "GET":
            return {"model_version_status": [{"version": "7", "state": "AVAILABLE"}]}
        return {"predictions": [scores.tolist() for _ in asked.json["instances"]]}

    return reply, "tf-serving", {"model": "m"}


def hf_api(announced: str | None, scores: np.ndarray[Any, Any], folder: Path) -> Made:
    pairs = [{"label": name, "score": score} for name, score in zip("abcd", scores.tolist(), strict=True)]
    return lambda asked: pairs, "hf-api", {"classes": "a,b,c,d"}


def json_api(announced: str | None, scores: np.ndarray[Any, Any], folder: Path) -> Made:
    paper = described(teacher__shape=list(SHAPE), teacher__num_classes=K, teacher__label_mode=announced)
    (folder / "adapter.yaml").write_text(yaml.safe_dump(paper))
    return lambda asked: {"scores": scores.tolist()}, "json", {"adapter": str(folder / "adapter.yaml")}


KINDS = {"v2": v2, "tf-serving": tf_serving, "hf-api": hf_api, "json": json_api}


def asked(kind: str, announced: str | None, flag: str | None, scores: Any, folder: Path) -> tuple[Any, list[str]]:
    """Two batches of answers through an oracle, and what it told."""
    reply, name, options = KINDS[kind](announced, np.array(scores), folder)
    told: list[str] = []
    with Service(reply) as service:
        options["url"] = service.url
        shape = SHAPE if kind == "hf-api" else None
        config = TeacherConfig(kind=name, label_mode=flag, shape=shape)
        teacher: Teacher = make_teacher(config, options, torch.device("cpu"))
        oracle = Oracle(teacher, Ledger(100), tell=told.append)
        answers = torch.cat([oracle(torch.rand(2, *SHAPE)) for _ in range(2)])
        getattr(teacher, "close", lambda: None)()
    return answers.numpy(), told


@pytest.mark.parametrize("mode", ["probabilities:4", "top_k:2:3", "top_k:2"])
@pytest.mark.parametrize(
    ("kind", "by"),
    [*((kind, "flag") for kind in KINDS), ("v2", "announced"), ("v2", "both"), ("json", "announced")],
)
def test_what_is_told_beyond_the_label_mode_is_cut_and_said_once(kind: str, by: str, mode: str, tmp_path: Path) -> None:
    announced, flag = (mode if by in ("announced", "both") else None), (mode if by in ("flag", "both") else None)
    answers, told = asked(kind, announced, flag, SCORES, tmp_path)
    expected = np.array([ROUNDED[mode]] * 4, dtype=float).astype(np.float32)
    assert np.array_equal(answers, expected, equal_nan=True)
    assert told == [f"the service tells more than {mode}; its answers are cut to that"]


@pytest.mark.parametrize("mode", ["probabilities:4", "probabilities", None])
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_told_within_it_stays_as_it_is_in_silence(kind: str, mode: str | None, tmp_path: Path) -> None:
    scores = ROUNDED[mode or "probabilities"]
    answers, told = asked(kind, mode, mode, scores, tmp_path)
    assert np.array_equal(answers, np.array([scores] * 4).astype(np.float32))
    assert told == []


@pytest.mark.parametrize("kind", KINDS)
def test_a_label_is_taken_from_scores_where_the_user_says_so(kind: str, tmp_path: Path) -> None:
    answers, _ = asked(kind, None, "label", SCORES, tmp_path)
    assert answers.tolist() == [2] * 4


@pytest.mark.parametrize("flag", [(), ("--teacher.label-mode", "label")])
def test_a_service_that_announces_logits_from_one_day_on_is_refused_on_resume(
    flag: tuple[str, ...], tmp_path: Path
) -> None:
    """Also where the logits would be cut to the form that the run was begun with; and the old service goes on."""
    reply, _, _ = v2("probabilities", SCORES, tmp_path)
    with Service(reply) as service:
        finished(command(words(service.url, tmp_path / "run", *flag, budget=16)))
        service.what, asked = v2("logits", SCORES, tmp_path)[0], len(service.posted)
        ended = command(["--resume", "--out", str(tmp_path / "run"), "--budget", "32"])
        assert (ended.code, len(service.posted)) == (2, asked)
        assert "uncut_label_mode probabilities (now logits)" in ended.line
        service.what = reply
        finished(command(["--resume", "--out", str(tmp_path / "run"), "--budget", "32"]))
