"""The audit's page and appendix say figure for figure what audit.json says, in safe files read in
order.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from audit_pages import Page, audit, page_of

from dfme.audits.audit import page_parts as pictures
from dfme.audits.audit.page import write_page
from dfme.audits.audit.result import audit_result
from dfme.cli import report
from dfme.errors import RunError, UserError
from dfme.report.run_files import read_object

LEGEND = {"95", "50", "80", "90", "100", "10000", "1000", "20"}
"""Numbers of the page's own words: 95% intervals, levels, 10,000 queries."""
FORMS = ("{:.0f}", "{:.1f}", "{:.2f}", "{:.3f}", "{:.4f}", "{:g}", "{:.2g}", "{:.4g}")
FIGURE = r"\d+(?:\.\d+)?"
LEVELS = ("0.5", "0.8", "0.9", "0.95")


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


def test_prices_are_those_of_the_json_seed_by_seed(page: Page) -> None:
    content = audit()
    rows = page.behind.table("Agreement at the end")
    for row, entry, way in zip(rows, content["price"], content["games"]["advantage"], strict=True):
        spread = [percent(entry["mean"]), span(entry["interval"]), percent(entry["sd"])]
        values = ", ".join(number(value, 2) for value in way["values"])
        assert row == [
            entry["row"],
            entry["mode"],
            "3,000",
            *spread,
            percents(entry["agreement"]),
            values,
        ]
    for row, entry in zip(
        page.behind.table("Queries until an agreement"), content["price"], strict=True
    ):
        counts = [seeds(entry["queries_to"][level]) for level in LEVELS]
        assert row == [entry["row"], entry["mode"], *counts, number(entry["cost_to_90"], 2)]
    assert (
        "agrees on 10.6%, a guess on 10.0%, and a twin, trained on your own data, on 96.9%"
        in page.text
    )


def middle(counts: list[int | None]) -> str:
    """The median with failures last, and how many got there."""
    counts_known = sorted(count for count in counts if count is not None)
    some = f"{len(counts_known)} of {len(counts)}"
    if len(counts_known) <= len(counts) / 2:
        return f"in {some}" if counts_known else ""
    return f"{counts_known[len(counts) // 2]:,}" + f" ({some})" * (len(counts_known) < len(counts))


def test_the_page_says_medians_over_seeds_the_cheapest_copy_first(page: Page) -> None:
    content = audit()
    lines = [content["price"][at] for at in (0, 2, 1, 3)]  # both on scores, then both on labels
    for row, entry in zip(page.table("Agreement after all"), lines, strict=True):
        shares = entry["agreement"]
        reached = [middle(entry["queries_to"][level]) or "not reached" for level in LEVELS[1:]]
        spread = [percent(entry["mean"]), f"{percent(min(shares))} to {percent(max(shares))}"]
        cells = [cell.replace("\xa0", " ") for cell in row]
        assert cells == [
            entry["row"],
            entry["mode"],
            *spread,
            *reached,
            number(entry["cost_to_90"], 2),
        ]
    assert "in 1 of 3" in page.text.replace("\xa0", " ")


def test_first_alarms_stand_beside_the_worst_honest_stream(page: Page) -> None:
    content = audit()["detection"]
    content["attacks"] = [
        x for x in content["attacks"] if (x["mode"], x["defence"]) == ("probabilities", "none")
    ]
    for detector, *cells, alarms, most, name in page.table("Queries until the first alarm"):
        for attacker, cell in zip(("frugal", "dfme"), cells, strict=True):
            own = [
                x for x in content["attacks"] if (x["row"], x["detector"]) == (attacker, detector)
            ]
            worth = sorted(x["agreement_at_alarm"] for x in own if x["first_alarm"] is not None)
            first = middle([x["first_alarm"] for x in own])
            text = f"{first} {percent(worth[len(worth) // 2])}" if worth else "never"
            assert cell.replace("\xa0", " ") == text
        streams = [x for x in content["benign"] if x["detector"] == detector]
        worst = max(streams, key=lambda x: (x["per_10000"], x["per_10000_upper"]))
        assert (alarms, most) == (number(worst["per_10000"], 1), f"{worst['per_10000_upper']:,.0f}")
        assert name in {x["stream"] for x in streams if x["per_10000"] == worst["per_10000"]}


def test_defences_stand_beside_what_honest_users_pay_and_the_best_attacker_is_bold(
    page: Page,
) -> None:
    content = audit()
    bills = {entry["row"]: entry["held_out"] for entry in content["utility"]}
    rows = page.behind.table("Agreement that each attacker is left")
    for row, entry in zip(rows, content["defences"], strict=True):
        for cell, attacker in zip(row[1:5], entry["attackers"], strict=True):
            spread = attacker["agreement"]
            text = f"{percent(spread['mean'])} \xb1 {100 * spread['sd']:.1f}" if spread else "-"
            assert cell.startswith(text)
            assert all(remark in cell for remark in attacker["remarks"])
        paid = bills[entry["defence"]]
        way = f"{100 * entry['to_label_only']:.0f}%"
        assert row[5:] == [way, percent(paid["accuracy_drop"]), number(paid["l1_mean"])]
    assert "relabelled 61.1% \xb1 1.7" in rows[2][1]
    best = [percent(entry["best_score"]["mean"]) for entry in content["defences"]]
    assert [text.split()[0] for text in page.behind.strong if "\xb1" in text] == best
    for row, point in zip(page.table("The best copy under each"), content["pareto"], strict=True):
        figures = [
            percent(point["agreement"]),
            percent(point["accuracy_drop"]),
            number(point["l1_mean"]),
        ]
        named = ["as deployed", "-"] if point["name"] == "none" else [point["name"], point["kind"]]
        named[1] = {"label mode": "form of answers"}.get(named[1], named[1])
        assert row == [*named, *figures, "yes" if point["dominated"] else "no"]


def test_alarms_and_honest_streams_one_by_one_with_the_bound_in_place_of_nothing(
    page: Page,
) -> None:
    content = audit()["detection"]
    for row, mode, _, _, *cells in page.behind.table("First alarm"):
        for detector, cell in zip(("pairs", "labels"), cells, strict=True):
            place = row, mode, detector
            own = [x for x in content["attacks"] if (x["row"], x["mode"], x["detector"]) == place]
            firsts, shares = (
                [entry[key] for entry in own] for key in ("first_alarm", "agreement_at_alarm")
            )
            assert cell == (
                f"{', '.join(map(str, firsts))} {percents(shares)}" if any(firsts) else "never"
            )
    for line, entry in zip(page.behind.table("False alarms"), content["benign"], strict=True):
        seen = number(entry["per_10000"], 1) if entry["alarms"] else "none seen"
        most = f"{entry['per_10000_upper']:.0f} from {entry['units']} images"
        sessions = f"{entry['sessions_with_alarm']} of {entry['sessions']}"
        counts = [sessions, f"{entry['alarms']}", f"{entry['queries']:,}"]
        assert line == [entry["stream"], entry["detector"], seen, most, *counts]


def test_images_that_fool_the_model_stand_by_source_attack_and_size(page: Page) -> None:
    content = audit()["transfer"]
    cells = {}
    for attack in content["attacks"]:
        for row in page.behind.table(f"{attack}: share of 300 images"):
            for eps, cell in zip(content["eps"], row[3:], strict=True):
                cells[row[0], attack, eps] = cell
    assert cells == {
        (
            entry["source"],
            entry["attack"],
            entry["eps"],
        ): f"{percent(entry['success'])} {span(entry['interval'])}"
        for entry in content["rows"]
    }
    assert page.behind.table("Gain over") == [
        ["clone: frugal, probabilities", "pgd20", "39.5% over twin"]
    ]


def test_the_ledgers_totals_and_every_text_are_told(page: Page) -> None:
    content = audit()
    facts = dict(page.behind.tables["What was audited, and how"])  # type: ignore[arg-type]
    assert facts["Sent by attacks"] == "117,250 images in 13 attacks"
    assert facts["May have been served"] == "134,763 images"
    assert facts["Money for these"] == "202.14"
    assert facts["Versions"] == "dfme 0.11.0, torch 2.14.1, Python 3.11.7"
    assert facts.keys() & {"Its levels", "Authorised by", "Its defences"} == set(), (
        "they are not known"
    )
    texts = [*content["headline"]["sentences"], *(entry["text"] for entry in content["advice"])]
    assert all(text in page.text for text in (*texts, content["made"]["command"]))


def figures(value: Any) -> Iterator[set[str]]:
    """Of every number of the JSON the forms that the page has, and those in its texts as they
    stand.
    """
    if isinstance(value, dict | list):
        for entry in value.values() if isinstance(value, dict) else value:
            yield from figures(entry)
    elif isinstance(value, str):
        yield from ({figure} for figure in re.findall(FIGURE, value.replace(",", "")))
    elif isinstance(value, int | float):
        yield {form.format(scale * value) for scale in (1, 100) for form in FORMS}


def test_the_pages_have_the_json_s_figures_and_no_others(page: Page) -> None:
    shown = {*re.findall(FIGURE, f"{page.text} {page.behind.text}".replace(",", ""))}
    assert shown - set().union(*figures(audit())) - LEGEND == set()
    for name in ("price", "defences", "pareto", "fidelity_seeds", "transfer", "recognition"):
        assert [forms for forms in figures(audit()[name]) if not forms & shown] == [], name


def test_the_pictures_show_what_the_json_says(monkeypatch: pytest.MonkeyPatch) -> None:
    content = audit()
    monkeypatch.setattr(pictures, "_address", lambda figure: figure)
    drawn: Any = pictures.curves(audit_result(content), alarms=True)[0].address
    axes, right = drawn.axes
    lines = {line.get_label(): line for line in axes.lines}
    assert lines["one answer to everything (10.6%)"].get_ydata()[0] == content["games"]["constant"]
    assert lines["twin (96.9%)"].get_ydata()[0] == content["games"]["twin"]["agreement"]
    assert sorted(lines["alarm: labels"].get_xdata()) == [88, 88, 88, 147, 161, 190]
    assert lines["frugal"].get_ydata()[-1] == pytest.approx(content["price"][0]["mean"])
    labels = [text.get_text() for text in right.get_yticklabels()]
    money = {round(at, 2): text for at, text in zip(right.get_yticks(), labels, strict=True)}
    assert money == {0.5: "0.38", 0.8: "1.50", 0.9: f"{content['price'][0]['cost_to_90']:.2f}"}
    switches: Any = pictures.pareto(audit_result(content))
    points = [point for point in content["pareto"] if point["l1_mean"] is not None]
    drawn = [
        (line.get_xdata()[0], line.get_ydata()[0], line.get_color())
        for line in switches.address.axes[0].lines
    ]
    colour = {True: pictures.PALE, False: pictures.BLUE}
    assert drawn == [
        (point["l1_mean"], point["agreement"], colour[point["dominated"]]) for point in points
    ]
    named = [line.get_label() for line in switches.address.axes[0].lines]
    names = ["as deployed", *(point["name"] for point in points[1:])]
    assert named == [f"{number}: {name}" for number, name in enumerate(names, 1)]


def test_a_services_audit_says_what_was_left_out(tmp_path: Path) -> None:
    content = audit() | {
        "detection": None,
        "transfer": None,
        "fidelity_seeds": [],
        "verdicts": [],
        "advice": [],
    }
    content |= {name: [] for name in ("defences", "utility", "pareto", "fidelity")} | {
        "differences": None
    }
    content["target"] |= {"local": False, "accuracy": None, "authorised_by": "the owner, by letter"}
    content["games"] |= {"twin": None, "advantage": []}
    content["ledger"]["cost"] = content["options"]["price_per_1000"] = None
    service = page_of(content, tmp_path)
    assert [level for level, _ in service.headings].count("h2") == 9, "no limits of yours"
    assert (service.text.count("Left out: "), service.behind.text.count("Left out: ")) == (3, 5)
    facts = dict(service.behind.tables["What was audited, and how"])  # type: ignore[arg-type]
    assert facts["Authorised by"] == "the owner, by letter"
    assert facts.keys() & {"Money for these", "Price of 1,000", "Its accuracy"} == set()
    assert [row[-1] for row in service.behind.table("Agreement at the end")] == ["-"] * 4, (
        "no advantage"
    )
    assert [tag for tag, _ in service.tags].count("img") == 2
    assert not f"{service.text}{service.behind.text}".count("None")


def test_an_unfinished_audit_says_so_and_shows_what_there_is(tmp_path: Path) -> None:
    content = audit()
    content["made"]["finished"] = False
    for cell in content["cells"][1:]:
        cell |= {"curve": [], **dict.fromkeys(("agreement", "interval", "spent", "cost"))}
    for line in content["price"]:
        line |= {"agreement": [None] * 3, "state": "waiting", "reason": "it waits"}
        line |= {"queries_to": dict.fromkeys(LEVELS, [None] * 3)}
        line |= dict.fromkeys(("mean", "sd", "interval", "cost_to_90"))
    page = page_of(content, tmp_path)
    assert [row[2] for row in page.table("Agreement after all")] == ["-"] * 4
    assert "This audit is not finished." in page.text
    unfinished = page.behind
    assert unfinished.table("Agreement at the end")[3][3:7] == ["- it waits", "-", "-", "-"]
    assert unfinished.table("Queries until")[3][2:] == [", ".join(["not finished"] * 3)] * 4 + ["-"]


@pytest.mark.usefixtures("undrawn")
def test_of_one_seed_there_is_no_deviation(tmp_path: Path) -> None:
    content = json.loads(re.sub(r'"sd": [\d.]+', '"sd": null', json.dumps(audit())))
    once = page_of(content, tmp_path).behind
    assert once.table("Agreement that each")[0][1] == "94.2%"
    assert "\xb1" not in once.text


@pytest.mark.usefixtures("undrawn")
def test_report_makes_the_page_again_from_the_json(tmp_path: Path) -> None:
    (tmp_path / "audit.json").write_text(json.dumps(audit()))
    assert report.run([str(tmp_path)]) == 0
    page = write_page(audit_result(audit()), tmp_path / "other.html")
    assert (tmp_path / "audit.html").read_bytes() == page.read_bytes()
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


@pytest.mark.usefixtures("undrawn")
def test_the_ladder_has_two_decimals_and_labels_beside_each_attacker(tmp_path: Path) -> None:
    content = audit()
    like = content["price"][0]
    had = "weights that anybody can download (net.safetensors) and images drawn by programs"
    public = {"row": "public", "has": had, "weights": "net.safetensors"}
    content["price"] = [
        like | {"has": "images drawn by programs", "hours_to_90": None, "alarms": [None, None, 48]},
        *(
            like
            | public
            | {"mode": mode, "mean": share, "hours_to_90": hours, "alarms": alarms}
            | {"queries_to": like["queries_to"] | {"0.9": reached}}
            for mode, share, hours, alarms, reached in (
                ("probabilities", 1.0, 25.5, [120, 48, 60], [1500, 1500, 1500]),
                ("probabilities:2", 0.63, None, [60, 60, 60], [None, None, None]),
                ("label", 0.52, None, [], [None, None, None]),
            )
        ),
    ]
    content["games"]["advantage"] = []
    content["options"]["rate"] = "60/hour"
    content["untried"] = ["pictures like yours"]
    page = page_of(content, tmp_path)
    rows = [
        [cell.replace("\xa0", " ") for cell in row] for row in page.table("What each attacker had")
    ]
    cost = number(like["cost_to_90"], 2)
    reached = middle(like["queries_to"]["0.9"])
    assert rows == [
        [
            "frugal",
            "images drawn by programs",
            f"94.2% {reached}",
            "-",
            "-",
            cost,
            "-",
            "in 1 of 3",
        ],
        [
            "public",
            had,
            "100.0% 1,500",
            "63.0% not reached",
            "52.0% not reached",
            cost,
            "26 hours",
            "60",
        ],
    ]
    assert (
        "not that the model is safe. Somebody with pictures like yours was not tried." in page.text
    )
    assert [row[:2] for row in page.behind.table("Agreement after all")] == [
        ["public", "probabilities"],
        ["frugal", "probabilities"],
        ["public", "probabilities:2"],
        ["public", "label"],
    ]
