"""What the report leads with: warnings, the verdict beside its baselines, what was audited."""

import json
from pathlib import Path

import pytest
from handmade import DEFENDED, LEADING, SUMMARY, make_run, page_of


def test_the_page_leads_with_what_a_manager_asks(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    (run / "config.yaml").write_text(
        "teacher:\n  kind: json\n  authorised_by: ticket 4711\nmethod:\n  name: dfme\n"
    )
    (run / "summary.json").write_text(json.dumps(SUMMARY | LEADING))
    page = page_of(run)
    answer = (
        "1,000 queries at a price of 1.36 gave a copy that agrees with the teacher on "
        "97.5% of the 360 "
        "evaluation images, where one answer to everything would on 50.0%."
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
    """Of a service nobody knows what it would answer undefended."""
    service = {"refused": {}, "failed": {}, "seconds_answering": 1.0, "seconds_waited": 0.0}
    run = make_run(tmp_path / "run")
    said = ("whatever defends it", "without its defences", "undefended teacher")
    for more, expected in (({}, ()), ({"service": service}, said[:1]), (DEFENDED, said[1:])):
        (run / "summary.json").write_text(json.dumps(SUMMARY | LEADING | more))
        page = page_of(run)
        text = " ".join(page.text)
        assert [item for item in said if item in text] == list(expected)
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
    rows = "cat 50.0% 47.2% 99.9% <i>dog</i> 25.0% 27.8% 0.1% cow 25.0% 25.0% 0.0%".split()
    assert page.text[start + 3 : start + 15] == rows
    source = (run / "report.html").read_text()
    assert "--share: 47.2%" in source
    assert "<i>" not in source
    assert "<script" not in source


def test_of_many_classes_the_most_frequent_are_shown(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    answers = {"classes": [*range(1_000)], "teacher": [*range(1, 1_001)]}
    (run / "summary.json").write_text(json.dumps(SUMMARY | {"answers": answers}))
    page = page_of(run)
    shown = [text for text in page.text if text.startswith("class ")]
    assert shown == [f"class {number}" for number in range(980, 1_000)]
    assert any("980 others were answered less often" in text for text in page.text)


@pytest.mark.parametrize(
    "answers",
    [12, {"classes": [7, 8], "teacher": [0, 0], "queries": [0, 3]}],
    ids=["of a retrain", "few"],
)
def test_a_run_with_less_on_record_is_reported_without_what_it_lacks(
    tmp_path: Path, answers: object
) -> None:
    run = make_run(tmp_path / "run")
    (run / "summary.json").write_text(json.dumps(SUMMARY | {"answers": answers}))
    page = page_of(run)
    assert "Result" in page.text
    assert not {"Warning:", "Constant answer", "Adapter", "Started"} & {*page.text}
    assert ("Answers by class" in page.text) == isinstance(answers, dict)
