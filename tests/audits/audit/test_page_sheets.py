"""The page's sheets: images that differ, and no more on them than fits six sheets of paper."""

from pathlib import Path
from typing import Any

import pytest
from audit_pages import audit, page_of

pytestmark = pytest.mark.usefixtures("undrawn")


def test_images_that_differ_stand_with_both_answers_or_there_is_a_sentence(tmp_path: Path) -> None:
    content = audit()
    page = page_of(content, tmp_path)
    assert (
        "The copy by frugal gives another answer than your model on 21 of 359 evaluation"
        in page.text
    )
    assert all(text in page.text for text in ("model: 3 copy: 8", "model: 9 copy: 7"))
    pictures = [
        entry["src"]
        for tag, entry in page.tags
        if entry.get("alt", "").startswith("Evaluation image")
    ]
    assert pictures == [entry["image"] for entry in content["differences"]["shown"]]
    content["differences"] |= {"differ": 0, "shown": []}
    assert (
        "gives your model's answer on all 359 evaluation images." in page_of(content, tmp_path).text
    )


def standard(content: dict[str, Any]) -> dict[str, Any]:
    """The sample at the size of a standard audit: attackers, label modes, switches, detectors,
    images.
    """
    content["price"] = [
        line | {"row": f"attacker {row}", "mode": mode}
        for row in range(7)
        for mode, line in zip(
            ("probabilities", "label", "probabilities:2"), content["price"], strict=False
        )
    ]
    content["pareto"] = [content["pareto"][1] | {"name": f"switch {at}"} for at in range(10)]
    watched = content["detection"]
    cells = [
        (line["cells"], line["row"]) for line in content["price"] if line["mode"] == "probabilities"
    ]
    like = watched["attacks"][0]
    watched["attacks"] = [
        like | {"cell": name, "row": row, "detector": f"detector {at}"}
        for names, row in cells
        for name in names
        for at in range(9)
    ]
    content["differences"]["shown"] = [content["differences"]["shown"][0]] * 24
    return content


def test_a_standard_audit_has_tables_for_six_sheets_of_paper(tmp_path: Path) -> None:
    """Printed by Chromium, a page of these sizes has six sheets of A4, with a quarter of one to
    spare.
    """
    page = page_of(standard(audit()), tmp_path)
    sizes = {caption.split()[0].strip(","): len(rows) - 1 for caption, rows in page.tables.items()}
    assert sizes.pop("Left") < 10
    assert sizes == {"Agreement": 21, "The": 10, "Queries": 9, "Controls": 8}
    assert {len(rows[0]) for rows in page.tables.values()} <= {2, 4, 6, 8, 11}, "columns"
    assert len(page.text.split()) < 1_900
