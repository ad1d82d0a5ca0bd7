"""Would you recognise the copy, with the mark? The row, the appendix and the control of an audit."""

import json
from pathlib import Path
from typing import Any

import pytest
from audit_pages import audit, controls_of, page_of

from dfme.audits.audit.ending import last_words
from dfme.audits.audit.headline import model_card
from dfme.audits.audit.result import audit_result

FILE = Path(__file__).with_name("audit_2.json")
CELLS = ["frugal-label-3k-seed0", "frugal-label-3k-seed1"]


def marks() -> dict[str, Any]:
    content: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))["marks"]
    content["rows"][0]["cells"] = CELLS
    return content


def figure(content: dict[str, Any]) -> tuple[str | None, str | None]:
    (row,) = [row for row in controls_of(content) if row["control"] == "11.3.3"]
    return row["figure"], row["dir"]


def test_the_control_of_marks_counts_the_copies_that_they_recognise() -> None:
    text, folder = figure(audit() | {"marks": marks()})
    assert text == (
        "The test of run.py verify recognises 4 of 6 copies. With the mark it recognises 1 of 2 "
        "copies."
    )
    assert folder == figure(audit())[1]
    alone = audit() | {"marks": marks(), "recognition": None}
    assert figure(alone) == (
        "With the mark it recognises 1 of 2 copies.",
        f"cells/{CELLS[0]}",
    )
    assert figure(audit() | {"recognition": None}) == (None, None)


@pytest.mark.usefixtures("undrawn")
def test_the_page_says_it_first_and_the_appendix_has_each_copy(tmp_path: Path) -> None:
    content = audit() | {"marks": marks()}
    page = page_of(content, tmp_path)
    assert page.text.count(marks()["text"]) == 1
    assert page.text.index(marks()["text"]) < page.text.index("What the figures are evidence for")
    ((*who, repeated, controls, e_values, recognised),) = page.behind.table("Secret images")
    assert who == ["frugal", "probabilities"]
    assert (repeated, controls) == ("84.0%, 6.0%", "2.0%, 4.0%")
    assert (e_values, recognised) == ("3.5e+32, 0.002", "yes, no")
    for part in ("50 marks and 50 controls", "repeat 4.0%, 0.0% of the marks", "5e" * 32):
        assert part in page.behind.text, part
    for lines in (model_card(audit_result(content)), "\n".join(last_words(audit_result(content)))):
        assert marks()["text"] in " ".join(lines.split())


@pytest.mark.usefixtures("undrawn")
def test_an_audit_without_marks_has_no_word_of_them(tmp_path: Path) -> None:
    page = page_of(audit(), tmp_path)
    assert "with the mark" not in f"{page.text}{page.behind.text}".lower()
