"""What became cheaper since the audit before, in SARIF, JUnit, page, card and terminal."""

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from audit_histories import audited, beside, line
from audit_pages import page_of
from junitparser import JUnitXml
from test_exports import SARIF

from dfme.audits.audit.ending import last_words
from dfme.audits.audit.headline import model_card
from dfme.audits.audit.junit import junit
from dfme.audits.audit.result import audit_result, document
from dfme.audits.audit.sarif import sarif


@pytest.fixture
def compared() -> dict[str, Any]:
    """An audit with a line that became cheaper, one that became dearer, one that cannot be told, and
    one that is not compared.
    """
    now = audited(
        line([0.9]),
        line([0.5], mode="probabilities:2"),
        line([0.5], mode="label"),
        line([0.5], row="new"),
    )
    before = audited(line([0.5]), line([0.9], mode="probabilities:2"), line([0.51], mode="label"))
    now["games"]["advantage"] = []
    return now | {"history": document(beside(now, before)), "advice": []}


def test_sarif_says_what_is_new_unchanged_and_updated(compared: dict[str, Any]) -> None:
    result = sarif(audit_result(compared))
    jsonschema.validate(result, SARIF, format_checker=jsonschema.FormatChecker())
    (run,) = result["runs"]
    states = [
        (entry["ruleId"], entry.get("baselineState"), entry["level"]) for entry in run["results"]
    ]
    assert states == [
        ("copy-90", "updated", "note"),
        ("labels-only", "unchanged", "note"),
        ("no-alarm", None, "note"),
        ("output-detail", "updated", "note"),
        ("price-change", "new", "error"),
        ("price-change", "updated", "note"),
    ]
    before = audited(line([0.5])) | {"made": compared["made"]}
    before["made"] = before["made"] | {"started": compared["history"]["started"]}
    (old,) = sarif(audit_result(before))["runs"]
    assert run["baselineGuid"] == old["automationDetails"]["guid"]
    marks = [entry["partialFingerprints"]["dfmeAudit/v1"] for entry in run["results"]]
    assert len({*marks}) == len(marks)
    assert marks[:4] == [
        entry["partialFingerprints"]["dfmeAudit/v1"] for entry in old["results"]
    ], "they are stable from release to release"
    assert "baselineState" not in json.dumps(old)


def test_junit_has_a_case_a_line_that_fails_where_it_is_cheaper(compared: dict[str, Any]) -> None:
    (suite,) = JUnitXml.fromstring(junit(audit_result(compared)).encode())
    cases = {
        case.name: [type(part).__name__ for part in case.result]
        for case in suite
        if case.classname == "dfme.audit.against"
    }
    assert cases == {
        "frugal, probabilities": ["Failure"],
        "frugal, probabilities:2": [],
        "frugal, label": [],
        "new, probabilities": ["Skipped"],
    }


def interval(difference: Any) -> str:
    return f"{100 * difference.low:+.1f}% to {100 * difference.high:+.1f}%"


@pytest.mark.usefixtures("undrawn")
def test_page_card_and_terminal_have_the_counts_and_the_lines_that_changed(
    compared: dict[str, Any], tmp_path: Path
) -> None:
    result = audit_result(compared)
    assert result.history is not None
    count = (
        "of 3 prices, one for each attacker and form of answers, 1 became cheaper and 1 dearer, "
        "and for 1 no change can be told; 1 more could not be compared."
    )
    page = page_of(compared, tmp_path)
    after = page.text.partition("Since the audit before")[2].partition("What to do")[0]
    assert count in after
    for text in (model_card(result), "\n".join(last_words(result))):
        assert count in text
        assert [told.text in text for told in result.history.lines] == [True, True, False]
    assert page.table("What became cheaper or dearer") == [
        ["frugal", mode, told.change, now, before, interval(told.difference), *["not reached"] * 2]
        for told, mode, now, before in zip(
            result.history.changed,
            ("probabilities", "probabilities:2"),
            ("90.0%", "50.0%"),
            ("50.0%", "90.0%"),
            strict=True,
        )
    ]
    rows = page.behind.table("Each attacker and form of answers, before and now")
    assert [(row[1], row[2]) for row in rows] == [
        ("probabilities", "cheaper"),
        ("probabilities:2", "dearer"),
        ("label", "cannot be told"),
    ]
    assert page.behind.table("Not compared") == [
        ["new, probabilities", "it has no finished attack in the audit before"]
    ]
