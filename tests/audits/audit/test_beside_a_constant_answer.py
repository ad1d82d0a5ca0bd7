"""An audit where a constant answer agrees on much: no copy is called one that is not above it."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from audit_pages import audit, controls_of, curved, judged, page_of, quota_of, sample
from audit_runs import Curve, bill, findings_of, outcome

from dfme.audits.audit import page_parts as pictures
from dfme.audits.audit.advice import NOTHING, UNTRIED, advice
from dfme.audits.audit.exports import bom, junit, sarif
from dfme.audits.audit.findings import Findings
from dfme.audits.audit.headline import headline
from dfme.audits.audit.parts import Twin
from dfme.audits.audit.result import audit_result
from dfme.audits.compare.figures import Outcome
from dfme.report.run_files import LEVELS, Beside

# Words and judgements


def beside(
    constant: float,
    images: int,
    *runs: Outcome,
    balanced: float | None = 0.5,
    labels: float | None = 0.3,
    **more: Any,
) -> Findings:
    """Findings on images of which a constant answer has so much, as the files of real runs would
    say.

    ``labels``: the balanced agreement of copies from labels alone.
    """
    baselines = {"constant_agreement": constant, "constant_balanced": 0.5, "chance": 0.5}
    seen = Beside(constant, 0.5, images)
    result = []
    for run in runs:
        figures = run.figures
        reached = {level: seen.queries_to(figures.curve, level) for level in LEVELS}
        own = labels if run.cell.mode == "label" else balanced
        figures = replace(figures, queries_to=reached, agreement_balanced=own)
        result.append(replace(run, figures=figures))
    findings = findings_of(*result, **more)
    summary = {"evaluation": {"images": images, "held_back": False}, "baselines": baselines}
    return replace(findings, summaries=dict.fromkeys(findings.summaries, summary))


ALL_ONE = ((500, 0.92), (3000, 0.92))
BETTER = ((500, 0.92), (3000, 0.97))


def test_no_copy_is_made_by_one_answer_to_everything() -> None:
    runs = [outcome("frugal", mode, 0, ALL_ONE) for mode in ("probabilities", "label")]
    findings = beside(0.92, 1_000, *runs, outcome("knockoff", "probabilities", 0, ((179, 0.93),)))
    result = headline(findings, (0,))
    assert (result.median, result.cost) == (None, None)
    first, like, labels = result.sentences
    assert first.startswith(
        "No attack without images copied your model: after 3,000 queries the best copy"
    )
    assert "one constant answer agrees on 92.0%. This shows" in first
    assert first.endswith(
        "With each class of your model counting alike, the best copy agrees on 50.0%, one constant "
        "answer on "
        "50.0%. Somebody with weights that anybody can download or with public pictures was not "
        "tried."
    )
    assert "makes no copy: what it learns agrees on 93.0%" in like
    assert "no more than one constant answer" in like
    assert "(with each class counting alike on 30.0%)" in labels
    assert advice(findings, None)[0].text in (NOTHING, UNTRIED)


def test_a_copy_above_a_large_constant_answer_is_called_one_beside_both_figures() -> None:
    findings = beside(0.92, 1_000, outcome("frugal", "probabilities", 0, BETTER), balanced=0.831)
    result = headline(findings, (0,))
    assert (result.median, result.balanced) == (3000, 0.831)
    first = result.sentences[0]
    assert first.startswith(
        "A copy that agrees with your model on 90% of 1,000 held-out images (one constant answer: "
        "92.0%) "
        "costs 3,000 queries"
    )
    assert first.endswith("the best copy agrees on 83.1%, one constant answer on 50.0%.")
    assert [point.balanced for point in findings.pareto()] == [0.831]
    small = beside(0.5, 1_000, outcome("frugal", "probabilities", 0, BETTER), balanced=0.831)
    assert "counting alike" not in headline(small, (0,)).sentences[0]


def test_no_switch_is_advised_against_what_is_no_copy() -> None:
    runs = (
        outcome("frugal", "probabilities", 0, ALL_ONE),
        outcome("frugal", "label", 0, ((3000, 0.4),)),
    )
    bills = [bill("none", 0.0), bill("label", 0.04)]
    (line,) = advice(beside(0.92, 1_000, *runs, bills=bills), None)
    assert line.text == NOTHING
    runs = (
        outcome("frugal", "probabilities", 0, BETTER),
        outcome("frugal", "label", 0, ((3000, 0.4),)),
    )
    (line,) = advice(beside(0.92, 1_000, *runs, bills=bills), None)
    assert line.effect == "5.0 points of agreement less", "to what a constant answer has anyway"
    assert "(97.0% before; one constant answer on 92.0%)" in line.text
    assert "With each class counting alike it is 30.0% (50.0% before)." in line.text
    (line,) = advice(beside(0.92, 1_000, *runs, bills=bills, labels=0.9), None)
    assert line.text == NOTHING, "that copy knows the rare class better"
    (line,) = advice(beside(0.92, 1_000, *runs, bills=bills, balanced=None, labels=None), None)
    assert "counting alike" not in line.text, "of runs of an earlier release"


@pytest.mark.parametrize(
    ("curve", "limit", "passed", "words"),
    [
        (
            ALL_ONE,
            {"queries_to_90": 3000.0},
            None,
            "one constant answer agrees on 92.0% without a query",
        ),
        (ALL_ONE, {"queries_to_95": 3000.0}, True, "no attack got there"),
        (BETTER, {"queries_to_90": 3001.0}, False, "the strongest attack needed 3,000"),
        (BETTER, {"queries_to_90": 3000.0}, True, "the strongest attack needed 3,000"),
        (ALL_ONE, {"agreement": 0.8}, None, "not above one constant answer's 92.0%"),
        (ALL_ONE, {"agreement": 0.95}, True, "the best copy agrees on 92.0%"),
        (BETTER, {"agreement": 0.8}, False, "the best copy agrees on 97.0%"),
        (BETTER, {"agreement": 0.965}, False, "the best copy agrees on 97.0%"),
    ],
)
def test_a_limit_that_a_constant_answer_exceeds_tells_nothing(
    curve: Curve, limit: dict[str, float], passed: bool | None, words: str
) -> None:
    (judged,) = beside(0.92, 1_000, outcome("frugal", "probabilities", 0, curve)).verdicts(limit)
    assert (judged.holds, words in judged.text) == (passed, True), judged.text


def test_an_advantage_is_none_where_a_twin_is_no_better_than_a_constant_answer() -> None:
    findings = beside(0.92, 1_000, outcome("frugal", "probabilities", 0, BETTER))
    assert findings.games(Twin(0.9, None, "twin")).advantage == []
    assert findings.games(None).constant_balanced == 0.5


# The page


def flattered() -> dict[str, Any]:
    """The sample on images of which a constant answer has two thirds, as an audit of today has
    it.
    """
    result = audit()
    result["games"] |= {"constant": 0.66, "constant_balanced": 0.1}
    for at, line in enumerate(result["price"]):
        line |= {"agreement_balanced": [0.1 * at + 0.3] * 3, "balanced": 0.1 * at + 0.3}
    for point in result["pareto"]:
        point["balanced"] = 0.45
    for cell in (*result["cells"], *result["fidelity"]):
        cell["agreement_balanced"] = 0.35
    return result


@pytest.mark.usefixtures("undrawn")
def test_balanced_figures_stand_beside_plain_ones_where_a_constant_answer_is_large(
    tmp_path: Path,
) -> None:
    page = page_of(flattered(), tmp_path)
    rows = {(row[0], row[1]): row[2:4] for row in page.table("Agreement after all")}
    assert rows["frugal", "probabilities"] == ["94.2%", "30.0%"]
    assert rows["dfme", "label"] == ["32.3%", "60.0%"]
    assert rows["one answer to everything", "-"] == ["66.0%", "10.0%"]
    assert (
        "One answer to everything agrees on 66.0%, more than half of the images, without a query"
        in page.text
    )
    assert all("balanced 45.0%" in row[2] for row in page.table("The best copy under each change"))
    assert "balanced 30.0%" in page.behind.table("Agreement at the end of the queries")[0][3]
    assert all("balanced 35.0%" in " ".join(row) for row in page.behind.table("Every cell"))


def test_the_picture_of_switches_has_a_large_constant_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    labels = list[str]()
    monkeypatch.setattr(
        pictures,
        "_legend",
        lambda figure: labels.extend(str(line.get_label()) for line in figure.axes[0].lines),
    )
    pictures.pareto(audit_result(flattered()))
    assert "one answer to everything (66.0%)" in labels
    labels.clear()
    pictures.pareto(audit_result(audit()))
    assert not [label for label in labels if "one answer" in label]


@pytest.mark.usefixtures("undrawn")
def test_an_audit_of_an_earlier_release_has_no_balanced_figures_and_is_read(tmp_path: Path) -> None:
    result = audit()
    assert "balanced" not in json.dumps(result)
    result["games"]["constant"] = 0.66
    assert {row[3] for row in page_of(result, tmp_path).table("Agreement after all")} == {"-"}


# Files for other tools


def test_no_quota_keeps_an_agreement_below_what_a_constant_answer_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    result = curved({"a": [(100, 0.85), (1_000, 0.92)]})
    result["games"]["constant"] = 0.82
    quota = quota_of(result, None)
    assert (quota["images"], quota["lines"], quota["checked"]) == (0, {}, None)
    (text,) = quota["text"]
    assert (
        "No quota keeps an agreement below 80.0%: one constant answer agrees on 82.0% without a "
        "query" in text
    )
    result["quota"] = quota
    assert controls_of(result)[0]["figure"] == text


@pytest.mark.parametrize(
    ("limit", "wanted", "holds", "kind"),
    [
        ("queries_to_90", 300, None, "skipped"),
        ("agreement", 0.8, None, "skipped"),
        ("queries_to_90", 300, True, None),
    ],
)
def test_a_test_case_fails_for_no_level_that_a_constant_answer_has(
    limit: str, wanted: float, holds: bool | None, kind: str | None
) -> None:
    result = curved({"a": [(100, 0.92), (200, 0.92)]})
    result["games"]["constant"] = 0.92
    result["options"]["seeds"] = [0]
    for cell in result["cells"]:
        cell |= {
            "seed": 0,
            "state": "finished",
            "agreement": 0.92,
            "curve": [[100, 0.92], [200, 0.92]],
        }
    result["verdicts"] = [judged(limit, wanted, holds)]
    suite = ElementTree.fromstring(junit(audit_result(result))).find("testsuite")
    assert suite is not None
    (case,) = [entry for entry in suite if entry.get("classname") == f"dfme.audit.{limit}"]
    assert [child.tag for child in case] == ([kind] if kind else [])


def test_a_constant_answer_stands_in_the_files_for_other_tools() -> None:
    result = sample()
    (detail,) = [
        one
        for one in sarif(audit_result(result))["runs"][0]["results"]
        if one["ruleId"] == "output-detail"
    ]
    assert (
        "the best copy agrees on 94.2% (one constant answer: 10.6%)." in detail["message"]["text"]
    )
    result["price"][0]["balanced"] = 0.9
    (model,) = bom(audit_result(result), "ab" * 32)["components"]
    metrics = model["modelCard"]["quantitativeAnalysis"]["performanceMetrics"]
    assert {
        "slice": "one constant answer",
        "type": "agreement after 0 queries",
        "value": "0.1058",
    } in metrics
    assert [entry["value"] for entry in metrics if "balanced" in entry["type"]] == ["0.9000"]
