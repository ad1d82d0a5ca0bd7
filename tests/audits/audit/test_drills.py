"""The drill beside an audit: a stranger's file, in sentences, and of whom it was."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from audit_pages import audit, controls_of, page_of
from damage import refused

from dfme.audits.audit.drills import drill_text, of_whom, read_drill, response_text
from dfme.audits.audit.ending import last_words
from dfme.audits.audit.headline import model_card
from dfme.audits.audit.result import audit_result
from dfme.audits.audit.sarif import sarif

DRILL: dict[str, Any] = {
    "schema": "dfme.drill/1",
    "rang": True,
    "images": 161,
    "agreement": 0.42,
    "agreement_end": 0.58,
    "constant": 0.1,
    "images_in_all": 300,
    "refused_at": 170,
    "attack": "frugal",
    "teacher": "http://127.0.0.1:8080",
    "channel": "alarm_file",
    "alarm": "alarm",
    "from": None,
    "finished": True,
    "made": "2026-11-27T07:13:12Z",
    "text": "rang after 161 images, when the copy agreed on 42.0%; the alarm is of labels.",
}
SILENT = {"rang": False, "images": None, "agreement": None, "alarm": None}


def made(folder: Path, **changed: Any) -> str:
    folder.mkdir(exist_ok=True)
    (folder / "drill.json").write_text(json.dumps(DRILL | changed))
    return str(folder)


def test_a_drill_is_said_in_its_own_words_and_whether_the_service_then_refused(
    tmp_path: Path,
) -> None:
    drill = read_drill(made(tmp_path))
    assert drill_text(drill) == f"The drill says: {DRILL['text']}"
    long = read_drill(made(tmp_path, text="never rang\n\x1b[2J" + "a" * 1_900))
    assert len(drill_text(long)) < 900
    assert "\x1b" not in drill_text(long)
    assert response_text(drill) == (
        "In the drill the service refused the attack after 170 images, 9 after its alarm."
    )
    for refused_at, words in {161: "as its alarm rang.", 100: "61 before its alarm."}.items():
        other = read_drill(made(tmp_path, refused_at=refused_at))
        assert response_text(other).endswith(f"after {refused_at} images, {words}")
    silent = read_drill(made(tmp_path, **SILENT, refused_at=None))
    assert "no alarm rang, and nothing refused the attack in 300 images" in response_text(silent)
    refused_only = read_drill(made(tmp_path, **SILENT))
    assert response_text(refused_only).endswith("after 170 images, without an alarm.")
    unheard = read_drill(made(tmp_path, refused_at=None))
    assert "an alarm rang, and nothing refused" in response_text(unheard)


def test_a_drill_of_another_name_is_said_to_be_one(tmp_path: Path) -> None:
    drill = read_drill(made(tmp_path))
    assert "is not known here; a drill of another one proves nothing" in of_whom(drill, "mine")
    same = of_whom(drill, DRILL["teacher"])
    assert same.endswith("The audited model has the same name.")
    assert "proves nothing" not in same


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"schema": "dfme.drill/2"}, "expected the schema dfme.drill/1, got 'dfme.drill/2'"),
        ({"finished": False}, "expected a finished drill"),
        ({"images": None}, "expected the images until an alarm where one rang"),
        ({"rang": False}, "expected the images until an alarm where one rang"),
        ({"images": -1}, "got images: Input should be greater than or equal to 0"),
        ({"agreement": 1.5}, "got agreement: Input should be less than or equal to 1"),
        ({"agreement": "0.4"}, "got agreement: Input should be a valid number"),
        ({"alarm": "a" * 301}, "got alarm: String should have at most 300"),
        ({"channel": "\x1b[2J"}, "got channel"),
        ({"more": 1}, "got more"),
        ({"refused_at": 10**30}, "got refused_at: Input should be less than or equal to 10000"),
        ({"text": " "}, "expected what the drill says, got an empty text"),
    ],
)
def test_a_drill_that_does_not_fit_is_one_line(
    tmp_path: Path, content: dict[str, Any], words: str
) -> None:
    error = refused(words, read_drill, made(tmp_path, **content))
    assert "\x1b" not in str(error)


def test_what_is_no_drill_is_one_line(tmp_path: Path) -> None:
    expected = "expected a folder with drill.json"
    refused(expected, read_drill, str(tmp_path / "nowhere"))
    for number, text in enumerate(("[1]", "{", "[" * 100_000, "\x00", "")):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "drill.json").write_text(text)
        refused(expected, read_drill, str(folder))
    pipe = tmp_path / "pipe"
    pipe.mkdir()
    os.mkfifo(pipe / "drill.json")
    refused(expected, read_drill, str(pipe))


@pytest.mark.usefixtures("undrawn")
def test_it_stands_on_page_card_terminal_sarif_and_beside_its_controls(tmp_path: Path) -> None:
    content = audit() | {"drill": DRILL}
    content["controls"] = controls_of(content)
    result = audit_result(content)
    assert result.drill is not None
    sentence = drill_text(result.drill)
    page = page_of(content, tmp_path)
    after = page.text.partition("Would you notice?")[2].partition("Where copy and model")[0]
    assert sentence in after
    assert "a drill of another one proves nothing" in after
    assert sentence in model_card(result)
    assert any(sentence in line for line in last_words(result))
    alarm = sarif(result)["runs"][0]["results"][2]
    assert sentence in alarm["message"]["text"]
    rows = {row["control"]: row["figure"] for row in content["controls"]}
    assert rows["11.3.1"] == f"2 detectors saw all queries of 6 attacks. {sentence}"
    assert rows["11.3.4"] == response_text(result.drill)
    bare = {row["control"]: row["figure"] for row in controls_of(audit())}
    assert bare["11.3.1"] == "2 detectors saw all queries of 6 attacks. No drill was given."
    assert bare["11.3.4"] is None
