"""The audit's page says figure for figure what audit.json says, and nothing else."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from audit_pages import Page, page_of
from audit_sample import DEFENDED, audit

LEGEND = {"95", "50", "80", "90", "100", "10000", "1000", "20"}
"""Numbers of the page's own words: 95% intervals, levels, 10,000 queries."""
FORMS = ("{:.0f}", "{:.1f}", "{:.2f}", "{:.3f}", "{:.4f}", "{:g}", "{:.2g}", "{:.4g}")
FIGURE = r"\d+(?:\.\d+)?"
LEVELS = ("0.5", "0.8", "0.9", "0.95")


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Page:
    """Of the whole sample; for reading only."""
    return page_of(audit(), tmp_path_factory.mktemp("page"))


def percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f}%"


def number(value: float | None, decimals: int = 3) -> str:
    return "-" if value is None else f"{value:.{decimals}f}"


def percents(shares: list[float]) -> str:
    return ", ".join(map(percent, shares))


def span(pair: list[float]) -> str:
    return f"{percent(pair[0])} to {percent(pair[1])}"


def seeds(counts: list[int | None]) -> str:
    """Queries of each seed, or that none reached it."""
    texts = ["not reached" if count is None else f"{count:,}" for count in counts]
    return ", ".join(texts) if any(counts) else "not reached"


def test_prices_are_those_of_the_json_seed_by_seed(page: Page) -> None:
    told = audit()
    expected = [
        [each["row"], each["mode"], percent(each["mean"]), span(each["interval"]), percent(each["sd"])]
        for each in told["price"]
    ]
    ways = [", ".join(number(value, 2) for value in each["values"]) for each in told["games"]["advantage"]]
    last = [[percents(each["agreement"]), way] for each, way in zip(told["price"], ways, strict=True)]
    rows = page.table("Agreement after 3,000 queries")
    assert rows == [[*row, *more] for row, more in zip(expected, last, strict=True)]
    assert page.table("Queries until an agreement") == [
        [
            each["row"],
            each["mode"],
            *(seeds(each["queries_to"][level]) for level in LEVELS),
            number(each["cost_to_90"], 2),
        ]
        for each in told["price"]
    ]
    assert "agrees on 10.6%, a guess on 10.0%, and a twin, trained on your own data, on 96.9%" in page.text


def test_defences_stand_beside_what_honest_users_pay_and_the_best_attacker_is_bold(page: Page) -> None:
    told, bills = audit(), {each["row"]: each for each in audit()["utility"]}
    rows = page.table("Agreement that each attacker is left")
    assert [row[0] for row in rows] == [*DEFENDED]
    for row, each in zip(rows, told["defences"], strict=True):
        for cell, attacker in zip(row[1:5], each["attackers"], strict=True):
            spread = attacker["agreement"]
            text = f"{percent(spread['mean'])} \xb1 {100 * spread['sd']:.1f}" if spread else "-"
            assert cell.startswith(text)
            assert all(remark in cell for remark in attacker["remarks"])
        paid = bills[each["defence"]]["held_out"]
        way = f"{100 * each['to_label_only']:.0f}%"
        assert row[5:] == [way, percent(paid["accuracy_drop"]), number(paid["l1_mean"])]
    assert "relabelled 61.1% \xb1 1.7" in rows[2][1]
    best = [f"{percent(each['best_score']['mean'])}" for each in told["defences"]]
    assert [text.split()[0] for text in page.strong if "\xb1" in text] == best


def test_what_honest_users_pay_and_the_points_of_the_picture(page: Page) -> None:
    told = audit()
    for row, each in zip(page.table("What honest users pay"), told["utility"], strict=True):
        pairs = [(each["held_out"][key], each["corrupted"][key]) for key in ("accuracy_drop", "top1_changed")]
        expected = [f"{percent(one)} / {percent(two)}" for one, two in pairs]
        for key, decimals in (("l1_mean", 3), ("l1_p95", 2), ("confidence_auroc", 3)):
            one, two = (number(each[images][key], decimals) for images in ("held_out", "corrupted"))
            expected.append("-" if "-" in (one, two) else f"{one} / {two}")
        assert row[:-1] == [each["row"], *expected, number(each["ms"]["ms_1"], 2)]
        assert float(row[-1]) == each["state_mb"]
    assert page.table("Protection against price") == [
        [
            *(each["name"], each["kind"], number(each["l1_mean"]), percent(each["accuracy_drop"])),
            *(percent(each["agreement"]), "yes" if each["dominated"] else "no"),
        ]
        for each in told["pareto"]
    ]


def test_alarms_and_honest_streams_one_by_one_with_the_bound_in_place_of_nothing(page: Page) -> None:
    told = audit()["detection"]
    alarms = {tuple(row[:4]): row[4:] for row in page.table("First alarm")}
    for (row, mode, defence, _), cells in alarms.items():
        for detector, cell in zip(("pairs", "labels"), cells, strict=True):
            own = [each for each in told["attacks"] if (each["row"], each["mode"]) == (row, mode)]
            own = [each for each in own if each["detector"] == detector]
            assert (defence, [each["seed"] for each in own]) == ("none", [0, 1, 2])
            firsts, shares = ([each[key] for each in own] for key in ("first_alarm", "agreement_at_alarm"))
            expected = f"{', '.join(map(str, firsts))} {percents(shares)}" if any(firsts) else "never"
            assert cell == expected
    assert len(alarms) == 4
    assert page.table("False alarms") == [
        [
            *(each["stream"], each["detector"], number(each["per_10000"], 1) if each["alarms"] else "none seen"),
            f"{each['per_10000_upper']:.0f} from {each['units']} images",
            *(f"{each['sessions_with_alarm']} of {each['sessions']}", f"{each['alarms']}", f"{each['queries']:,}"),
        ]
        for each in told["benign"]
    ]
    rows = page.table("AUROC")
    streams = ("random order", "corrupted", "skewed")
    cells = {(row[0], row[1], stream): cell for row in rows for stream, cell in zip(streams, row[2:], strict=True)}
    assert cells == {
        (each["row"], each["detector"], each["stream"]): f"{each['auroc']:.3f} "
        f"{each['interval'][0]:.3f} to {each['interval'][1]:.3f}; {each['attack_sessions']} / {each['benign_sessions']}"
        for each in told["auroc"]
    }
    assert page.table("Detectors") == [
        [each["name"], each["statistic"], f"{each['threshold']:.4f}", f"{each['memory_mb']:g}"]
        for each in told["detectors"]
    ]


def test_fidelity_and_transfer_are_those_of_the_json(page: Page) -> None:
    told = audit()
    for row, each in zip(page.table("Agreement, and where"), told["fidelity"], strict=True):
        wrong = each["where_wrong"]
        where = f"{wrong['same']} of {wrong['images']} {span(wrong['interval'])}"
        procedural = f"{percent(each['procedural']['agreement'])} of {each['procedural']['images']:,}"
        agreement = f"{percent(each['agreement'])} {span(each['interval'])}"
        assert row[:3] == [each["row"], each["mode"], str(each["seed"])]
        assert row[3:] == [agreement, str(each["images"]), where, procedural, "-"]
    for row, each in zip(page.table("How close the scores"), told["fidelity"], strict=True):
        ece = each["teacher_ece"]
        scores = [percent(each["top3_equal"]), *(number(each[key]) for key in ("kendall_tau", "kl", "l1"))]
        assert row[3:] == [*scores, "{:.3f} {:.3f} to {:.3f}".format(ece["value"], *ece["interval"]), "-"]
    for row, each in zip(page.table("Over seeds"), told["fidelity_seeds"], strict=True):
        values = f"sd {number(each['sd'])}: {', '.join(map(number, each['values']))}"
        assert row == [each["row"], each["mode"], f"{number(each['mean'])} {values}"]
    for at, row in enumerate(page.table("Agreement by the class")):
        classes = [each["per_class"][at] for each in told["fidelity"]]
        assert row == [str(at), str(classes[0]["images"]), *(percent(each["agreement"]) for each in classes)]
    cells = {}
    for attack in told["transfer"]["attacks"]:
        for row in page.table(f"{attack}: share of 300 images"):
            for eps, cell in zip((0.05, 0.1, 0.2), row[3:], strict=True):
                cells[row[0], row[2], attack, eps] = cell
    assert cells == {
        (each["source"], percent(each["agreement"]), each["attack"], each["eps"]): f"{percent(each['success'])} "
        + span(each["interval"])
        for each in told["transfer"]["rows"]
    }
    clone = "clone: frugal, probabilities"
    assert page.tables["Gain over the best stranger"][0][2] == "eps 0.1"
    assert page.table("Gain over") == [[clone, "pgd20", "39.5% over twin"]]


def test_every_cell_and_the_ledgers_totals_are_told(page: Page) -> None:
    told = audit()
    for row, each in zip(page.table("Every cell"), told["cells"], strict=True):
        assert row[:3] == [each["dir"], each["defence"], each["answers"]]
        assert row[3] == " ".join(filter(None, (each["state"], each["reason"])))
        scored = f"{percent(each['agreement'])} {span(each['interval'])}" if each["interval"] else "-"
        assert row[4:] == [f"{each['spent']:,}", "60", scored, number(each["cost"], 2), each["config_hash"]]
    facts = dict(page.tables["What was audited, and how"])  # type: ignore[arg-type]
    assert facts["Sent by cells"] == "117,250 images in 13 cells"
    assert facts["Sent besides"] == "4,308 images to score, 13,205 for transfer"
    assert facts["May have been served"] == "134,763 images"
    assert facts["Money for these"] == "202.14"
    assert facts["Versions"] == "dfme 0.11.0, torch 2.14.1, Python 3.11.7"
    assert facts["Its accuracy"] == "99.44%"
    assert facts.keys() & {"Its levels", "Authorised by", "Its defences"} == set(), "they are not known"
    for text in (*told["headline"]["sentences"], told["made"]["command"], *(each["text"] for each in told["advice"])):
        assert text in page.text


def figures(value: Any) -> Iterator[str]:
    """Every number of the JSON in every form that the page has, and those in its texts as they stand."""
    if isinstance(value, dict | list):
        for each in value.values() if isinstance(value, dict) else value:
            yield from figures(each)
    elif isinstance(value, str):
        yield from re.findall(FIGURE, value.replace(",", ""))
    elif isinstance(value, int | float):
        yield from (form.format(scale * value) for scale in (1, 100) for form in FORMS)


def test_no_figure_is_on_the_page_that_is_not_in_the_json(page: Page) -> None:
    shown = re.findall(FIGURE, page.text.replace(",", ""))
    assert len(shown) > 500
    assert {*shown} - {*figures(audit())} - LEGEND == set()
