"""The sentence, the exit code and the file of a drill."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from dfme.audits.drill.result import (
    ChannelRecord,
    DrillResult,
    Remarks,
    exit_code,
    read,
    sentence,
    write,
)
from dfme.audits.drill.session import CopyCurve
from dfme.errors import RunError

RANG = DrillResult(
    rang=True,
    images=412,
    agreement=0.318,
    agreement_end=0.939,
    constant=0.106,
    images_in_all=3_000,
    refused_at=None,
    attack="frugal",
    teacher="127.0.0.1:8080, model digits",
    channel="alarm_file",
    alarm='{"account": "5f"}',
    recorded=None,
    finished=True,
    made="2026-11-28T17:00:00Z",
    text="",
)
SILENT = replace(RANG, rang=False, images=None, agreement=None, alarm=None)
KEYS = (
    "schema rang images agreement agreement_end constant images_in_all refused_at attack teacher "
    "channel alarm from finished made text"
).split()
SENTENCES = {
    "rang after 412 images, when the copy agreed on 31.8% (one constant answer: 10.6%; in the end "
    "93.9%)": (RANG, Remarks()),
    "rang after 412 images, when the recorded copy agreed on 31.8% (in the end 93.9%)": (
        replace(RANG, recorded="runs/x", constant=None),
        Remarks(),
    ),
    "rang after 412 images": (replace(RANG, agreement=None), Remarks()),
    "rang after 412 images, when the copy agreed on 31.8%, and on 68.3% once it had learned from "
    "450 (one constant answer: 10.6%; in the end 93.9%)": (RANG, Remarks(soon=(450, 0.683))),
    "rang after 412 images; the alarm is of mmd over the traffic of all accounts, at their image "
    "1,408: others may have caused it": (
        replace(RANG, agreement=None),
        Remarks(evaluation=359, image=1_408, detector="mmd", of_all=True),
    ),
    "never rang in 3,000 images; the copy agrees on 93.9% (one constant answer: 10.6%)": (
        SILENT,
        Remarks(),
    ),
    "never rang in 3,000 images": (replace(SILENT, agreement_end=None), Remarks()),
    "never rang in 3,000 images; the service refused us after 2,950 images; 1 alarm came before "
    "the attack's first image, and did not count; 3 lines of the channel could not be read as an "
    "alarm": (
        replace(SILENT, agreement_end=None, refused_at=2_950),
        Remarks(early=1, unreadable=3),
    ),
    "never rang in 3,000 images; 5 alarms of another account (a, b) did not count: if that is this "
    "client, give --account; gone": (
        replace(SILENT, agreement_end=None),
        Remarks(others=("a", "b"), of_others=5, missing="gone"),
    ),
    "rang after 412 images; too late: after more than the 400 images of --within; the alarm is of "
    "scores at image 771 of its account, after this drill's 359 for evaluation": (
        replace(RANG, agreement=None),
        Remarks(within=400, detector="scores", image=771, evaluation=359),
    ),
}


@pytest.mark.parametrize("text", SENTENCES)
def test_a_sentence_says_what_happened(text: str) -> None:
    assert sentence(*SENTENCES[text]) == text


@pytest.mark.parametrize(
    ("result", "within", "code"),
    [(RANG, None, 0), (RANG, 412, 0), (RANG, 411, 4), (SILENT, None, 4), (SILENT, 5_000, 4)],
)
def test_the_exit_code_says_whether_it_rang_in_time(
    result: DrillResult, within: int | None, code: int
) -> None:
    assert exit_code(result, within) == code


def test_the_file_has_the_keys_that_others_read(tmp_path: Path) -> None:
    assert read(tmp_path, DrillResult) is None
    write(tmp_path, RANG)
    content = json.loads((tmp_path / "drill.json").read_text())
    assert [*content] == KEYS
    assert content["schema"] == "dfme.drill/1"
    assert read(tmp_path, DrillResult) == RANG


@pytest.mark.parametrize(
    ("key", "value"),
    [("images", "412"), ("schema", "dfme.drill/2"), ("channel", "mail"), ("more\x1b[2J", 1)],
)
def test_another_content_is_refused_in_one_line(tmp_path: Path, key: str, value: object) -> None:
    write(tmp_path, RANG)
    path = tmp_path / "drill.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {key: value}))
    with pytest.raises(RunError) as raised:
        read(tmp_path, DrillResult)
    assert str(raised.value).startswith(f"{path}: expected what a drill wrote, got ")
    assert str(raised.value).isprintable()


def test_how_it_listens_comes_back(tmp_path: Path) -> None:
    record = ChannelRecord(
        channel="webhook_log", path="/a", match="x", within=5, device=1, inode=2, size=3, early=4
    )
    write(tmp_path, record)
    assert read(tmp_path, ChannelRecord) == record


def test_answers_that_the_copy_learned_from_soon_after_are_said() -> None:
    curve = CopyCurve([(150, 0.1), (200, 0.1), (200, 0.68), (400, 0.8)], 0.1)
    assert (curve.at(192), curve.soon(192)) == (0.1, (200, 0.68))
    assert (curve.at(200), curve.soon(200)) == (0.68, None)
    assert curve.soon(150) is None  # 200 are a third more
    assert CopyCurve([]).soon(10) is None
