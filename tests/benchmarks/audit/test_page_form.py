"""The audit's page is one safe file that can be read in order, whatever audit.json holds and whatever it lacks."""

from __future__ import annotations

import base64
import json
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from audit_pages import Page, page_of
from audit_sample import audit

from dfme.benchmarks.audit import page as page_module
from dfme.benchmarks.audit.options import read_object
from dfme.benchmarks.audit.page import write_page
from dfme.cli import report
from dfme.errors import RunError, UserError

HEADINGS = [
    *("Your limits", "What to do", "What a copy costs", "What raises the price, and for whom", "Would you notice?"),
    *("What the copy is good for", "What this does not tell", "What was not run", "How to make it again"),
    "What this is called elsewhere",
]
HOSTILE = "<script src=//evil.example/x></script><img src=x onerror=go()>\"'&$x^{${{7*7}}{spent}"
SAMPLE = "data:image/png;base64,iVBORw0KGgo="


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Page:
    """Of the whole sample; for reading only."""
    return page_of(audit(), tmp_path_factory.mktemp("page"))


def test_the_outline_is_one_question_and_its_parts_in_order(page: Page) -> None:
    assert [text for level, text in page.headings if level == "h1"] == [audit()["headline"]["sentences"][0]]
    assert page.headings[0][0] == "h1"
    assert [text for level, text in page.headings if level == "h2"] == HEADINGS
    levels = [int(level[1]) for level, _ in page.headings]
    assert all(after - before <= 1 for before, after in pairwise(levels))
    assert ("html", {"lang": "en"}) in page.tags


def test_tables_have_captions_and_heads_with_a_scope_and_pictures_say_their_message(page: Page) -> None:
    assert "" not in page.tables
    assert len(page.tables) > 15
    assert {attributes["scope"] for tag, attributes in page.tags if tag == "th"} == {"col", "row"}
    scrolled = [attributes for _, attributes in page.tags if attributes.get("class") == "wide"]
    assert [(each["tabindex"], each["role"]) for each in scrolled] == [("0", "region")] * len(page.tables)
    assert {each["aria-label"] for each in scrolled} == page.tables.keys(), "a keyboard reaches what scrolls"
    scores, labels, pareto = (attributes["alt"] for tag, attributes in page.tags if tag == "img")
    assert scores.endswith("answers probabilities, after 3,000 queries: frugal 94.2%, dfme 72.0%.")
    assert labels.endswith("answers label, after 3,000 queries: frugal 74.2%, dfme 32.3%.")
    assert "no other beats none (change 0.000, agreement 94.2%); lattice:n=10 (change 0.013" in pareto
    assert "reverse_sigmoid" not in pareto


def test_the_page_is_one_file_without_scripts(page: Page) -> None:
    assert {tag for tag, _ in page.tags} & {"script", "link", "iframe", "object", "form", "base"} == set()
    addresses = [(tag, each[name]) for tag, each in page.tags for name in ("src", "href") if name in each]
    named = {each["id"] for _, each in page.tags if "id" in each}
    assert {address for tag, address in addresses if tag == "a"} == {"#pareto.4", "#defences.3", "#detection"}
    assert {address.removeprefix("#") for tag, address in addresses if tag == "a"} <= named
    drawings = [address.partition(",") for tag, address in addresses if tag != "a"]
    assert [kind for kind, _, _ in drawings] == ["data:image/svg+xml;base64"] * 3
    for _, _, data in drawings:
        drawing = base64.b64decode(data, validate=True).decode()
        assert "<script" not in drawing
        assert set(re.findall(r'href="([^#"]*)', drawing)) == {""}, "it refers to itself alone"


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leaves out the pictures, which take a second."""
    monkeypatch.setattr(page_module.pictures, "curves", lambda told: [])
    monkeypatch.setattr(page_module.pictures, "pareto", lambda told: None)


def hostile(value: Any, key: str = "") -> Any:
    if isinstance(value, dict):
        return {name: hostile(each, name) for name, each in value.items()}
    if isinstance(value, list):
        return [hostile(each, key) for each in value]
    return f"{value}{HOSTILE}" if isinstance(value, str) and key not in ("schema", "from") else value


def test_nothing_that_the_json_says_becomes_markup(tmp_path: Path, page: Page) -> None:
    told = hostile(audit())
    told["pictures"] = {"samples": "//evil.example/x.png", "disagreements": SAMPLE, f"<b>{HOSTILE}": f'{SAMPLE}" a="b'}
    attacked = page_of(told, tmp_path)
    assert {tag for tag, _ in attacked.tags} - {"figcaption"} == {tag for tag, _ in page.tags}, "a sheet has a caption"
    assert {name for _, each in attacked.tags for name in each} == {name for _, each in page.tags for name in each}
    assert not any("evil" in each.get(name, "") for _, each in attacked.tags for name in ("src", "href"))
    assert [each["src"] for _, each in attacked.tags if "png" in each.get("src", "")] == [SAMPLE]
    assert attacked.text.count(HOSTILE) > 100


def test_a_services_audit_says_what_was_left_out(tmp_path: Path) -> None:
    told = audit() | {"detection": None, "transfer": None, "fidelity_seeds": [], "verdicts": [], "advice": []}
    told |= {name: [] for name in ("defences", "utility", "pareto", "fidelity")}
    told["target"] |= {"kind": "http", "local": False, "accuracy": None, "authorised_by": "the owner, by letter"}
    told["games"] |= {"twin": None, "advantage": []}
    told["ledger"] |= {"cost": None}
    told["options"] |= {"price_per_1000": None}
    service = page_of(told, tmp_path)
    assert [text for level, text in service.headings if level == "h2"] == HEADINGS[1:]
    assert service.text.count("Left out: ") == 6
    assert "Nothing that was measured gives an advice." in service.text
    facts = dict(service.tables["What was audited, and how"])  # type: ignore[arg-type]
    assert facts["Authorised by"] == "the owner, by letter"
    assert facts.keys() & {"Money for these", "Price of 1,000", "Its accuracy"} == set()
    assert [row[-1] for row in service.table("Agreement after")] == ["-"] * 4, "no twin, no advantage"
    assert "twin" not in service.text.split("One answer to everything")[1].split("What raises")[0]
    assert [tag for tag, _ in service.tags].count("img") == 2
    assert not service.text.count("None")


def test_an_unfinished_audit_says_so_and_shows_what_there_is(tmp_path: Path) -> None:
    told = audit()
    told["made"]["finished"] = False
    for cell in told["cells"][1:]:
        cell |= {"state": "not run", "agreement": None, "interval": None, "curve": [], "spent": None, "cost": None}
    for line in told["price"]:
        line |= {"agreement": [None] * 3, "mean": None, "sd": None, "interval": None, "cost_to_90": None}
        line |= {"queries_to": dict.fromkeys(line["queries_to"], [None] * 3), "state": "not run", "reason": "it waits"}
    unfinished = page_of(told, tmp_path)
    assert "This audit is not finished." in unfinished.text
    assert unfinished.table("Agreement after")[3][2:6] == ["- it waits", "-", "-", "-"]
    assert unfinished.table("Queries until")[3][2:] == [", ".join(["not finished"] * 3)] * 4 + ["-"]
    alts = [attributes["alt"] for tag, attributes in unfinished.tags if tag == "img"]
    assert alts[0].endswith("3,000 queries: not known yet.")
    assert len(alts) == 2, "one curve is drawn, and the points"


@pytest.mark.usefixtures("undrawn")
def test_of_one_seed_there_is_no_deviation(tmp_path: Path) -> None:
    told = audit()
    for line in told["defences"]:
        for each in (*line["attackers"], {"score": line["best_score"], "agreement": None}):
            for spread in filter(None, (each["agreement"], each["score"])):
                spread |= {"sd": None, "n": 1}
    once = page_of(told, tmp_path)
    assert once.table("Agreement that each")[0][1] == "94.2%"
    assert "\xb1" not in once.text


def test_the_same_pictures_come_twice_and_show_money_on_the_right() -> None:
    pictures, told = page_module.pictures, audit() | {"detection": None}
    told["cells"][1:3] = [cell | {"curve": []} for cell in told["cells"][1:3]]
    priced = pictures.curves(told)
    assert pictures.curves(told) == priced
    told["options"] |= {"price_per_1000": None}
    assert [source for source, _ in pictures.curves(told)] != [source for source, _ in priced]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"schema": "dfme.audit/9"}, "expected the schema dfme.audit/1, got 'dfme.audit/9'"),
        ({"price": [{}]}, "KeyError: 'row'"),
        ({"games": None}, "TypeError"),
        ({"pareto": [{"l1_mean": "much", "agreement": 1, "dominated": False}] * 2}, "ValueError"),
        ({"transfer": {"asked": "many"}}, "ValueError"),
        ({"limits": 7}, "TypeError"),
        ({"headline": {}}, "sentences"),
        ({"target": audit()["target"] | {"accuracy": 10**400}}, "OverflowError"),
    ],
)
@pytest.mark.usefixtures("undrawn")
def test_what_is_no_audit_is_refused_in_one_line(tmp_path: Path, change: dict[str, Any], says: str) -> None:
    with pytest.raises(RunError, match=re.escape(says)) as error:
        write_page(audit() | change, tmp_path / "audit.html")
    assert "\n" not in str(error.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("undrawn")
def test_report_makes_the_page_again_from_the_json(tmp_path: Path) -> None:
    (tmp_path / "audit.json").write_text(json.dumps(audit()))
    assert report.run([str(tmp_path)]) == 0
    assert (tmp_path / "audit.html").read_bytes() == write_page(audit(), tmp_path / "other.html").read_bytes()
    for content in ("[", "[" * 100_000, "[1]", "{}", "\x00", json.dumps(audit() | {"made": 10**400})):
        (tmp_path / "audit.json").write_text(content)
        with pytest.raises(RunError, match=r"audit\.json: expected"):
            report.run([str(tmp_path)])
    (tmp_path / "audit.json").unlink()
    with pytest.raises(UserError, match="no audit"):
        report.run([str(tmp_path)])
    assert read_object(tmp_path) == {}, "a folder is no file"


def test_the_pictures_show_what_the_json_says(monkeypatch: pytest.MonkeyPatch) -> None:
    told, pictures = audit(), page_module.pictures
    monkeypatch.setattr(pictures, "_address", lambda figure: figure)
    for figure, _ in pictures.curves(told)[:1]:
        axes, right = figure.axes
        lines = {line.get_label(): line for line in axes.lines}
        assert lines["one answer to everything (10.6%)"].get_ydata()[0] == told["games"]["constant"]
        assert lines["twin (96.9%)"].get_ydata()[0] == told["games"]["twin"]["agreement"]
        assert sorted(lines["alarm: labels"].get_xdata()) == [88, 88, 88, 147, 161, 190]
        assert lines["frugal"].get_ydata()[-1] == pytest.approx(told["price"][0]["mean"])
        assert axes.get_xscale() == "log"
        money = {
            round(at, 2): text.get_text() for at, text in zip(right.get_yticks(), right.get_yticklabels(), strict=True)
        }
        assert money == {0.5: "0.38", 0.8: "1.50", 0.9: f"{told['price'][0]['cost_to_90']:.2f}"}
    figure, _ = pictures.pareto(told)
    points = [point for point in told["pareto"] if point["l1_mean"] is not None]
    drawn = [(line.get_xdata()[0], line.get_ydata()[0], line.get_color()) for line in figure.axes[0].lines]
    colour = {True: pictures.PALE, False: pictures.BLUE}
    assert drawn == [(point["l1_mean"], point["agreement"], colour[point["dominated"]]) for point in points]
    assert [text.get_text() for text in figure.axes[0].texts] == [point["name"] for point in points]
