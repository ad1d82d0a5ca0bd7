"""The audit's page says figure for figure what audit.json says, in one safe file that is read in order."""

import base64
import json
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from audit_pages import Page, audit, page_of

from dfme.audits.audit import page as page_module
from dfme.audits.audit.model import json_schema
from dfme.audits.audit.page import write_page
from dfme.cli import report
from dfme.errors import RunError, UserError
from dfme.report.summary_file import read_object

LEGEND = {"95", "50", "80", "90", "100", "10000", "1000", "20"}
"""Numbers of the page's own words: 95% intervals, levels, 10,000 queries."""
FORMS = ("{:.0f}", "{:.1f}", "{:.2f}", "{:.3f}", "{:.4f}", "{:g}", "{:.2g}", "{:.4g}")
FIGURE = r"\d+(?:\.\d+)?"
LEVELS = ("0.5", "0.8", "0.9", "0.95")
HOSTILE = "<script src=//evil.example/x></script><img src=x onerror=go()>\"'&$x^{${{7*7}}{spent}"
PICTURE = "data:image/png;base64,iVBORw0KGgo="


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Page:
    """Of the whole sample; for reading only."""
    return page_of(audit(), tmp_path_factory.mktemp("page"))


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leaves out the pictures, which take a second."""
    monkeypatch.setattr(page_module, "curves", lambda told: [])
    monkeypatch.setattr(page_module, "pareto", lambda told: None)


def number(value: float | None, decimals: int = 3, sign: str = "") -> str:
    return "-" if value is None else f"{value:.{decimals}f}{sign}"


def percent(share: float | None) -> str:
    return number(None if share is None else 100 * share, 1, "%")


def percents(shares: list[float]) -> str:
    return ", ".join(map(percent, shares))


def span(pair: list[float]) -> str:
    return f"{percent(pair[0])} to {percent(pair[1])}"


def seeds(counts: list[int | None]) -> str:
    """Queries of each seed, or that none reached it."""
    texts = ["not reached" if count is None else f"{count:,}" for count in counts]
    return ", ".join(texts) if any(counts) else "not reached"


# Figures


def test_prices_are_those_of_the_json_seed_by_seed(page: Page) -> None:
    told = audit()
    rows = zip(page.table("Agreement at the end"), told["price"], told["games"]["advantage"], strict=True)
    for row, each, way in rows:
        spread = [percent(each["mean"]), span(each["interval"]), percent(each["sd"])]
        values = ", ".join(number(value, 2) for value in way["values"])
        assert row == [each["row"], each["mode"], "3,000", *spread, percents(each["agreement"]), values]
    for row, each in zip(page.table("Queries until an agreement"), told["price"], strict=True):
        counts = [seeds(each["queries_to"][level]) for level in LEVELS]
        assert row == [each["row"], each["mode"], *counts, number(each["cost_to_90"], 2)]
    assert "agrees on 10.6%, a guess on 10.0%, and a twin, trained on your own data, on 96.9%" in page.text


def test_defences_stand_beside_what_honest_users_pay_and_the_best_attacker_is_bold(page: Page) -> None:
    told = audit()
    bills = {each["row"]: each["held_out"] for each in told["utility"]}
    rows = page.table("Agreement that each attacker is left")
    for row, each in zip(rows, told["defences"], strict=True):
        for cell, attacker in zip(row[1:5], each["attackers"], strict=True):
            spread = attacker["agreement"]
            text = f"{percent(spread['mean'])} \xb1 {100 * spread['sd']:.1f}" if spread else "-"
            assert cell.startswith(text)
            assert all(remark in cell for remark in attacker["remarks"])
        paid = bills[each["defence"]]
        way = f"{100 * each['to_label_only']:.0f}%"
        assert row[5:] == [way, percent(paid["accuracy_drop"]), number(paid["l1_mean"])]
    assert "relabelled 61.1% \xb1 1.7" in rows[2][1]
    best = [percent(each["best_score"]["mean"]) for each in told["defences"]]
    assert [text.split()[0] for text in page.strong if "\xb1" in text] == best
    for row, point in zip(page.table("Protection against price"), told["pareto"], strict=True):
        figures = [number(point["l1_mean"]), percent(point["accuracy_drop"]), percent(point["agreement"])]
        assert row == [point["name"], point["kind"], *figures, "yes" if point["dominated"] else "no"]


def test_alarms_and_honest_streams_one_by_one_with_the_bound_in_place_of_nothing(page: Page) -> None:
    told = audit()["detection"]
    for row, mode, _, _, *cells in page.table("First alarm"):
        for detector, cell in zip(("pairs", "labels"), cells, strict=True):
            place = row, mode, detector
            own = [x for x in told["attacks"] if (x["row"], x["mode"], x["detector"]) == place]
            firsts, shares = ([each[key] for each in own] for key in ("first_alarm", "agreement_at_alarm"))
            expected = f"{', '.join(map(str, firsts))} {percents(shares)}" if any(firsts) else "never"
            assert cell == expected
    for line, each in zip(page.table("False alarms"), told["benign"], strict=True):
        seen = number(each["per_10000"], 1) if each["alarms"] else "none seen"
        most = f"{each['per_10000_upper']:.0f} from {each['units']} images"
        sessions = f"{each['sessions_with_alarm']} of {each['sessions']}"
        counts = [sessions, f"{each['alarms']}", f"{each['queries']:,}"]
        assert line == [each["stream"], each["detector"], seen, most, *counts]


def test_images_that_fool_the_model_stand_by_source_attack_and_size(page: Page) -> None:
    told = audit()["transfer"]
    cells = {}
    for attack in told["attacks"]:
        for row in page.table(f"{attack}: share of 300 images"):
            for eps, cell in zip(told["eps"], row[3:], strict=True):
                cells[row[0], attack, eps] = cell
    assert cells == {
        (each["source"], each["attack"], each["eps"]): f"{percent(each['success'])} {span(each['interval'])}"
        for each in told["rows"]
    }
    assert page.table("Gain over") == [["clone: frugal, probabilities", "pgd20", "39.5% over twin"]]


def test_the_ledgers_totals_and_every_text_are_told(page: Page) -> None:
    told = audit()
    facts = dict(page.tables["What was audited, and how"])  # type: ignore[arg-type]
    assert facts["Sent by cells"] == "117,250 images in 13 cells"
    assert facts["May have been served"] == "134,763 images"
    assert facts["Money for these"] == "202.14"
    assert facts["Versions"] == "dfme 0.11.0, torch 2.14.1, Python 3.11.7"
    assert facts.keys() & {"Its levels", "Authorised by", "Its defences"} == set(), "they are not known"
    texts = [*told["headline"]["sentences"], *(each["text"] for each in told["advice"])]
    assert all(text in page.text for text in (*texts, told["made"]["command"]))


def figures(value: Any) -> Iterator[set[str]]:
    """Of every number of the JSON the forms that the page has, and those in its texts as they stand."""
    if isinstance(value, dict | list):
        for each in value.values() if isinstance(value, dict) else value:
            yield from figures(each)
    elif isinstance(value, str):
        yield from ({figure} for figure in re.findall(FIGURE, value.replace(",", "")))
    elif isinstance(value, int | float):
        yield {form.format(scale * value) for scale in (1, 100) for form in FORMS}


def test_the_page_has_the_json_s_figures_and_no_others(page: Page) -> None:
    shown = {*re.findall(FIGURE, page.text.replace(",", ""))}
    assert shown - set().union(*figures(audit())) - LEGEND == set()
    for name in ("price", "defences", "pareto", "fidelity_seeds", "transfer"):
        assert [forms for forms in figures(audit()[name]) if not forms & shown] == [], name


def test_the_pictures_show_what_the_json_says(monkeypatch: pytest.MonkeyPatch) -> None:
    told = audit()
    monkeypatch.setattr(page_module, "_address", lambda figure: figure)
    (figure, _), *_ = page_module.curves(told)
    axes, right = figure.axes  # type: ignore[attr-defined]
    lines = {line.get_label(): line for line in axes.lines}
    assert lines["one answer to everything (10.6%)"].get_ydata()[0] == told["games"]["constant"]
    assert lines["twin (96.9%)"].get_ydata()[0] == told["games"]["twin"]["agreement"]
    assert sorted(lines["alarm: labels"].get_xdata()) == [88, 88, 88, 147, 161, 190]
    assert lines["frugal"].get_ydata()[-1] == pytest.approx(told["price"][0]["mean"])
    labels = [text.get_text() for text in right.get_yticklabels()]
    money = {round(at, 2): text for at, text in zip(right.get_yticks(), labels, strict=True)}
    assert money == {0.5: "0.38", 0.8: "1.50", 0.9: f"{told['price'][0]['cost_to_90']:.2f}"}
    figure, _ = page_module.pareto(told)
    points = [point for point in told["pareto"] if point["l1_mean"] is not None]
    drawn = [(line.get_xdata()[0], line.get_ydata()[0], line.get_color()) for line in figure.axes[0].lines]
    colour = {True: page_module.PALE, False: page_module.BLUE}
    assert drawn == [(point["l1_mean"], point["agreement"], colour[point["dominated"]]) for point in points]
    named = [line.get_label() for line in figure.axes[0].lines]
    assert named == [f"{number}: {point['name']}" for number, point in enumerate(points, 1)]


# Form


def test_the_outline_is_one_question_and_its_parts_in_order(page: Page) -> None:
    assert [text for level, text in page.headings if level == "h1"] == [audit()["headline"]["sentences"][0]]
    assert [level for level, _ in page.headings].count("h2") == 10
    levels = [int(level[1]) for level, _ in page.headings]
    assert all(after - before <= 1 for before, after in pairwise(levels))
    assert ("html", {"lang": "en"}) in page.tags


def test_tables_have_captions_and_heads_with_a_scope_and_pictures_say_their_message(page: Page) -> None:
    assert "" not in page.tables
    assert {attributes["scope"] for tag, attributes in page.tags if tag == "th"} == {"col", "row"}
    scrolled = [attributes for _, attributes in page.tags if attributes.get("class") == "wide"]
    assert [(each["tabindex"], each["role"]) for each in scrolled] == [("0", "region")] * len(page.tables)
    assert {each["aria-label"] for each in scrolled} == page.tables.keys(), "a keyboard reaches what scrolls"
    scores, _, pareto = (attributes["alt"] for tag, attributes in page.tags if tag == "img")
    assert scores.endswith("probabilities: frugal 94.2% after 3,000 queries, dfme 72.0% after 3,000 queries.")
    assert "no other beats none (change 0.000, agreement 94.2%); lattice:n=10 (change 0.013" in pareto


def test_the_page_is_one_file_without_scripts(page: Page) -> None:
    assert {tag for tag, _ in page.tags} & {"script", "link", "iframe", "object", "form", "base"} == set()
    addresses = [(tag, each[name]) for tag, each in page.tags for name in ("src", "href") if name in each]
    named = {each["id"] for _, each in page.tags if "id" in each}
    links = {address for tag, address in addresses if tag == "a"}
    assert links == {"#pareto.4", "#defences.3", "#detection"}
    assert {link.removeprefix("#") for link in links} <= named
    drawings = [address for tag, address in addresses if tag != "a"]
    assert len(drawings) == 3
    for address in drawings:
        drawing = base64.b64decode(address.removeprefix("data:image/svg+xml;base64,"), validate=True).decode()
        assert "<script" not in drawing
        assert set(re.findall(r'href="([^#"]*)', drawing)) == {""}, "it refers to itself alone"


def hostile(value: Any, key: str = "") -> Any:
    if isinstance(value, dict):
        return {name: hostile(each, name) for name, each in value.items()}
    if isinstance(value, list):
        return [hostile(each, key) for each in value]
    return f"{value}{HOSTILE}" if isinstance(value, str) and key not in ("schema", "from") else value


def test_nothing_that_the_json_says_becomes_markup(tmp_path: Path, page: Page) -> None:
    sheets = {"samples": "//evil.example/x.png", "disagreements": PICTURE, "<b>x": f'{PICTURE}" a="b'}
    attacked = page_of(hostile(audit()) | {"pictures": sheets}, tmp_path)
    tags = [{tag for tag, _ in each.tags} - {"figcaption"} for each in (attacked, page)]
    assert tags[0] == tags[1], "a sheet has a caption"
    names = [{name for _, attributes in each.tags for name in attributes} for each in (attacked, page)]
    assert names[0] == names[1]
    assert not any("evil" in each.get(name, "") for _, each in attacked.tags for name in ("src", "href"))
    assert [each["src"] for _, each in attacked.tags if "png" in each.get("src", "")] == [PICTURE]
    assert attacked.text.count(HOSTILE) > 100


def test_a_services_audit_says_what_was_left_out(tmp_path: Path) -> None:
    told = audit() | {"detection": None, "transfer": None, "fidelity_seeds": [], "verdicts": [], "advice": []}
    told |= {name: [] for name in ("defences", "utility", "pareto", "fidelity")}
    told["target"] |= {"local": False, "accuracy": None, "authorised_by": "the owner, by letter"}
    told["games"] |= {"twin": None, "advantage": []}
    told["ledger"]["cost"] = told["options"]["price_per_1000"] = None
    service = page_of(told, tmp_path)
    assert [level for level, _ in service.headings].count("h2") == 9, "no limits of yours"
    assert service.text.count("Left out: ") == 6
    facts = dict(service.tables["What was audited, and how"])  # type: ignore[arg-type]
    assert facts["Authorised by"] == "the owner, by letter"
    assert facts.keys() & {"Money for these", "Price of 1,000", "Its accuracy"} == set()
    assert [row[-1] for row in service.table("Agreement at the end")] == ["-"] * 4, "no twin, no advantage"
    assert [tag for tag, _ in service.tags].count("img") == 2
    assert not service.text.count("None")


def test_an_unfinished_audit_says_so_and_shows_what_there_is(tmp_path: Path) -> None:
    told = audit()
    told["made"]["finished"] = False
    for cell in told["cells"][1:]:
        cell |= {"curve": [], **dict.fromkeys(("agreement", "interval", "spent", "cost"))}
    for line in told["price"]:
        line |= {"agreement": [None] * 3, "state": "not run", "reason": "it waits"}
        line |= {"queries_to": dict.fromkeys(LEVELS, [None] * 3)}
        line |= dict.fromkeys(("mean", "sd", "interval", "cost_to_90"))
    unfinished = page_of(told, tmp_path)
    assert "This audit is not finished." in unfinished.text
    assert unfinished.table("Agreement at the end")[3][3:7] == ["- it waits", "-", "-", "-"]
    assert unfinished.table("Queries until")[3][2:] == [", ".join(["not finished"] * 3)] * 4 + ["-"]


@pytest.mark.usefixtures("undrawn")
def test_of_one_seed_there_is_no_deviation(tmp_path: Path) -> None:
    told = json.loads(re.sub(r'"sd": [\d.]+', '"sd": null', json.dumps(audit())))
    once = page_of(told, tmp_path)
    assert once.table("Agreement that each")[0][1] == "94.2%"
    assert "\xb1" not in once.text


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"schema": "dfme.audit/9"}, "expected the schema dfme.audit/1, got 'dfme.audit/9'"),
        ({"price": [{}]}, "price.0.row: Field required"),
        ({"more": 1}, "more: Extra inputs are not permitted"),
    ],
)
def test_what_is_no_audit_is_refused_in_one_line(tmp_path: Path, change: dict[str, Any], says: str) -> None:
    with pytest.raises(RunError, match=re.escape(says)) as error:
        write_page(audit() | change, tmp_path / "audit.html")
    assert "\n" not in str(error.value)
    assert list(tmp_path.iterdir()) == []
    assert {*json_schema()["required"]} == audit().keys()


@pytest.mark.usefixtures("undrawn")
def test_report_makes_the_page_again_from_the_json(tmp_path: Path) -> None:
    (tmp_path / "audit.json").write_text(json.dumps(audit()))
    assert report.run([str(tmp_path)]) == 0
    assert (tmp_path / "audit.html").read_bytes() == write_page(audit(), tmp_path / "other.html").read_bytes()
    for content in ("[" * 100_000, "[1]", "{}", "\x00"):
        (tmp_path / "audit.json").write_text(content)
        with pytest.raises(RunError, match=r"audit\.json: expected"):
            report.run([str(tmp_path)])
    (tmp_path / "audit.json").unlink()
    with pytest.raises(UserError, match="expected a run directory"):
        report.run([str(tmp_path)])
    (tmp_path / "audit.yaml").touch()
    with pytest.raises(
        UserError, match=r"is an audit without audit\.json yet; go on with it by audit --resume"
    ):
        report.run([str(tmp_path)])
    assert read_object(tmp_path) == {}, "a folder is no file"
