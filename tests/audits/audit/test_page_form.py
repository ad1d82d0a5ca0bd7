"""The form of the audit's page and appendix: outline, captions, links, sheets; safe files without markup."""

import base64
import json
import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from audit_pages import Page, audit, hostile, page_of

from dfme.audits.audit.accounts import many_accounts
from dfme.audits.audit.headline import model_card
from dfme.audits.audit.result import audit_result, document
from dfme.measured import ACCOUNTS, SplitAttack

HOSTILE = "<script src=//evil.example/x></script><img src=x onerror=go()>\"'&$x^{${{7*7}}{spent}"
STEERING = "\x1b\x07\x9b\u202e\u2066\u200b\u2028\ufeff"
PICTURE = "data:image/png;base64,iVBORw0KGgo="


def test_the_outline_is_one_question_and_its_parts_in_order(page: Page) -> None:
    assert [text for level, text in page.headings if level == "h1"] == [
        audit()["headline"]["sentences"][0]
    ]
    for entry, parts in ((page, 10), (page.behind, 10)):
        assert [level for level, _ in entry.headings].count("h2") == parts
        levels = [int(level[1]) for level, _ in entry.headings]
        assert all(after - before <= 1 for before, after in pairwise(levels))
        assert ("html", {"lang": "en"}) in entry.tags


def test_tables_have_captions_and_heads_with_a_scope_and_pictures_say_their_message(
    page: Page,
) -> None:
    for part in (page, page.behind):
        assert "" not in part.tables
        assert {attributes["scope"] for tag, attributes in part.tags if tag == "th"} == {
            "col",
            "row",
        }
        scrolled = [attributes for _, attributes in part.tags if attributes.get("class") == "wide"]
        assert [(entry["tabindex"], entry["role"]) for entry in scrolled] == [
            ("0", "region")
        ] * len(part.tables)
        assert {entry["aria-label"] for entry in scrolled} == part.tables.keys(), (
            "a keyboard can scroll it"
        )
    scores, _, pareto, *_ = (attributes["alt"] for tag, attributes in page.tags if tag == "img")
    assert scores.endswith(
        "probabilities: frugal 94.2% after 3,000 queries, dfme 72.0% after 3,000 queries."
    )
    assert (
        "no other beats as deployed (change 0.000, agreement 94.2%); lattice:n=10 (change 0.013"
        in pareto
    )


def test_the_pages_are_files_without_scripts_whose_links_name_what_they_open(page: Page) -> None:
    links = []
    for part, pictures in ((page, 3), (page.behind, 2)):
        assert {tag for tag, _ in part.tags} & {
            "script",
            "link",
            "iframe",
            "object",
            "form",
            "base",
        } == set()
        addresses = [
            (tag, entry[name])
            for tag, entry in part.tags
            for name in ("src", "href")
            if name in entry
        ]
        links += [address for tag, address in addresses if tag == "a"]
        drawings = [address for tag, address in addresses if tag != "a" and "svg" in address]
        assert len(drawings) == pictures
        for address in drawings:
            coded = address.removeprefix("data:image/svg+xml;base64,")
            drawing = base64.b64decode(coded, validate=True).decode()
            assert "<script" not in drawing
            assert set(re.findall(r'href="([^#"]*)', drawing)) == {""}, "it refers to itself alone"
    named, named_behind = (
        {entry["id"] for _, entry in part.tags if "id" in entry} for part in (page, page.behind)
    )
    own = {link.removeprefix("#") for link in links if link.startswith("#")}
    assert own == {"alarms", "changes"} <= named
    behind = {link.removeprefix("appendix.html#") for link in links if link.startswith("appendix")}
    assert len(behind) == 12
    assert behind <= named_behind
    assert links.count("audit.html") == 1
    assert "all first alarms (appendix)" in page.text
    assert not re.search(r"(price|defences|pareto|attacks)\.\d", page.text), "no key of the JSON"


def later() -> dict[str, Any]:
    """An audit with the parts that the sample lacks."""
    file = Path(__file__).with_name("audit_2.json")
    return json.loads(file.read_text(encoding="utf-8"))  # type: ignore[no-any-return]


def test_nothing_that_the_json_says_becomes_markup(tmp_path: Path, page: Page) -> None:
    sheets = {
        "samples": "//evil.example/x.png",
        "disagreements": PICTURE,
        "<b>x": f'{PICTURE}" a="b',
    }
    content = hostile(audit(), f"{HOSTILE}{STEERING}\n# e") | {"pictures": sheets}
    content["differences"]["shown"][0]["image"] = PICTURE
    content |= {part: hostile(later()[part], HOSTILE) for part in ("history", "drill", "marks")}
    content["history"] |= {"model": "other", "images": "same"}
    attacked = page_of(content, tmp_path)
    for bad, good in ((attacked, page), (attacked.behind, page.behind)):
        tags, wanted = ({tag for tag, _ in entry.tags} - {"figcaption"} for entry in (bad, good))
        assert tags == wanted, "a sheet has a caption"
        names, wanted = ({name for _, part in entry.tags for name in part} for entry in (bad, good))
        assert names == wanted
        assert not any(
            "evil" in entry.get(name, "") for _, entry in bad.tags for name in ("src", "href")
        )
        assert [entry["src"] for _, entry in bad.tags if "png" in entry.get("src", "")] == [PICTURE]
    assert f"{attacked.text}{attacked.behind.text}".count(HOSTILE) > 100
    card = model_card(audit_result(content))
    files = [(tmp_path / name).read_text() for name in ("audit.html", "appendix.html")]
    assert [letter for letter in STEERING if letter in "".join([card, *files])] == []
    outside = "\n".join(line for line in card.splitlines() if not line.startswith("    "))
    assert "<img" not in outside
    assert "\n# e" not in card


@pytest.mark.usefixtures("undrawn")
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


def split_over_accounts(content: dict[str, Any]) -> Any:
    """The attacks of the first seed from many accounts, at which all detectors raise alarms."""
    cell = content["detection"]["attacks"][0]["cell"]
    rows = [
        SplitAttack(
            cell=cell,
            detector=f"detector {at}",
            accounts=accounts,
            images=12_000,
            most=-(-12_000 // accounts),
            alarmed=accounts,
            first_alarm=9_999,
        )
        for at in range(9)
        for accounts in ACCOUNTS
    ]
    part = many_accounts(audit_result(content), rows)
    assert part is not None
    return document(replace(part, attacker="frugal"))


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
    content["accounts"] = split_over_accounts(content)
    content["marks"] = later()["marks"]
    content["differences"]["shown"] = [content["differences"]["shown"][0]] * 24
    return content


@pytest.mark.usefixtures("undrawn")
def test_a_standard_audit_has_tables_for_six_sheets_of_paper(tmp_path: Path) -> None:
    """Printed by Chromium, a page of these sizes has six sheets of A4, with a quarter of one to
    spare.
    """
    page = page_of(standard(audit()), tmp_path)
    sizes = {caption.split()[0].strip(","): len(rows) - 1 for caption, rows in page.tables.items()}
    assert sizes.pop("Left") < 10
    assert sizes == {"Agreement": 21, "The": 10, "Queries": 9, "Split": 5, "Controls": 7}
    assert {len(rows[0]) for rows in page.tables.values()} <= {2, 4, 6, 8, 11}, "columns"
    assert len(page.text.split()) < 1_900
