"""What the report leads with: warnings, the verdict beside its baselines, what was audited, answers by class."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from report_runs import DEFENDED, LEADING, SUMMARY, make_run, page_of

from dfme.errors import RunError


def test_the_page_leads_with_what_a_manager_asks(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    (run / "config.yaml").write_text("teacher:\n  kind: json\n  authorised_by: ticket 4711\nmethod:\n  name: dfme\n")
    (run / "summary.json").write_text(json.dumps(SUMMARY | LEADING))
    page = page_of(run)
    answer = (
        "1,000 queries at a price of 1.36 gave a copy that agrees with the teacher on 97.5% of the 360 evaluation "
        "images, where one answer to everything would on 50.0%."
    )
    order = [
        *("Warning:", answer, "Target", "Adapter", "Authorised by", "Started", "Ended", "Price"),
        *("What agreement costs", "Answers by class", "Result", "What was spent"),
    ]
    places = [page.text.index(text) for text in order]
    assert places == sorted(places)
    assert page.text[places[0] + 1] == LEADING["warnings"][0] + "."
    assert page.text[0] == "json, cloned by queries"
    assert any(text.startswith("json · run · How many queries") for text in page.text)
    assert page.after("Target") == "POST https://api.example/v1, model <b>cats</b>"
    assert page.after("Adapter") == "adapter.yaml (SHA-256 0123456789abcdef...)"
    assert page.after("Authorised by") == "ticket 4711"
    assert page.after("Constant answer") == "accuracy 45.00%, agreement 50.00%; a guess: 33.33%"


def test_whom_the_copy_agrees_with_is_said_where_it_matters(tmp_path: Path) -> None:
    """Of a service nobody knows what it would answer undefended; of a plain teacher here there is no doubt."""
    service = {"refused": {}, "failed": {}, "seconds_answering": 1.0, "seconds_waited": 0.0}
    run, said = make_run(tmp_path / "run"), ("whatever defends it", "without its defences", "undefended teacher")
    for more, expected in (({}, ()), ({"service": service}, said[:1]), (DEFENDED, said[1:])):
        (run / "summary.json").write_text(json.dumps(SUMMARY | LEADING | more))
        page = page_of(run)
        text = " ".join(page.text)
        assert [each for each in said if each in text] == list(expected)
    assert page.after("Defences") == "counting:<b>n</b>=3"
    assert page.after("Defences report") == "counting.<i>asked</i> 400"
    assert page.after("Agreement served") == "70.00%"
    assert "Agreement relabelled" not in page.text


def test_answers_are_shown_by_the_classes_names_with_bars(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    (run / "summary.json").write_text(json.dumps(SUMMARY | LEADING))
    page = page_of(run)
    heads = ["Teacher, evaluation images", "Student, evaluation images", "Teacher, paid queries"]
    start = page.text.index(heads[0])
    assert page.text[start : start + 3] == heads
    rows = ["cat", "50.0%", "47.2%", "99.9%", "<i>dog</i>", "25.0%", "27.8%", "0.1%", "cow", "25.0%", "25.0%", "0.0%"]
    assert page.text[start + 3 : start + 15] == rows
    source = (run / "report.html").read_text()
    assert "--share: 47.2%" in source
    assert "<i>" not in source
    assert "<script" not in source


def test_of_many_classes_the_most_frequent_are_shown(tmp_path: Path) -> None:
    run, many = make_run(tmp_path / "run"), list(range(1, 1_001))
    answers = {"classes": list(range(1_000)), "names": None, "teacher": many, "student": None, "queries": many[::-1]}
    (run / "summary.json").write_text(json.dumps(SUMMARY | {"answers": answers | {"queries": None}}))
    page = page_of(run)
    shown = [text for text in page.text if text.startswith("class ")]
    assert shown == [f"class {number}" for number in range(980, 1_000)]
    assert any("980 others were answered less often" in text for text in page.text)


def test_a_run_of_an_earlier_version_is_reported_without_what_it_lacks(tmp_path: Path) -> None:
    page = page_of(make_run(tmp_path / "run"))
    absent = ["Warning:", "Answers by class", "Constant answer", "Adapter", "Started"]
    assert not set(absent) & set(page.text)


@pytest.mark.parametrize(
    "answers",
    [
        12,  # of a retrain
        {"classes": []},
        {"classes": [0], "more": 5},
        {"classes": [7, 8], "teacher": [0, 0], "queries": [0, 3]},
        {"classes": [2**62], "teacher": [2**62], "student": [2**62], "queries": None, "names": ["\ud800"]},
    ],
)
def test_a_summary_with_less_or_odd_figures_is_shown(tmp_path: Path, answers: object) -> None:
    run = make_run(tmp_path / "run")
    (run / "summary.json").write_text(json.dumps(SUMMARY | {"answers": answers, "teacher": LEADING["teacher"]}))
    assert "Result" in page_of(run).text


@pytest.mark.parametrize(
    "hostile",
    [
        {"warnings": "a line"},
        {"warnings": [1]},
        {"warnings": ["\x1b[2J"]},
        {"baselines": {"chance": 2}},
        {"baselines": {"constant_agreement": "<b>", "chance": 0.1}},
        {"answers": {**LEADING["answers"], "names": ["cat"]}},
        {"answers": {**LEADING["answers"], "teacher": [1, 2, -3]}},
        {"answers": {**LEADING["answers"], "queries": [1, 2, 1.5]}},
        {"answers": [1, 2]},
        {"answers": {"names": ["cat"]}},
        {"started": 12},
        {"teacher": {**LEADING["teacher"], "adapter": {"file": ["x"], "sha256": "0"}}},
        {"teacher": {**LEADING["teacher"], "target": {"url": "x"}}},
    ],
)
def test_a_summary_of_another_form_is_refused_in_one_line(tmp_path: Path, hostile: dict[str, Any]) -> None:
    run = make_run(tmp_path / "run")
    (run / "summary.json").write_text(json.dumps(SUMMARY | LEADING | hostile))
    with pytest.raises(RunError, match=f"its {next(iter(hostile))} is") as caught:
        page_of(run)
    assert "\n" not in str(caught.value)
