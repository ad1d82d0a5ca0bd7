"""What figures are evidence for, and how long a quota and a rate limit hold a copy up."""

from pathlib import Path
from typing import Any

import pytest
from audit_pages import Curves, audit, controls_of, curved, page_of, quota_of

from dfme.audits.audit.headline import TAXONOMY
from dfme.audits.audit.ladder import delay
from dfme.audits.audit.result import document
from dfme.audits.audit.sheets import TERMS

CURVES: Curves = {"a": [(100, 0.5), (200, 0.9)]}


def figures(content: dict[str, Any]) -> dict[str, str | None]:
    return {row["control"]: row["figure"] for row in controls_of(content)}


@pytest.mark.parametrize("per", TERMS)
def test_a_quota_says_how_long_the_cheapest_copy_takes_one_account_and_many(per: str) -> None:
    """The sample's cheapest copy takes 2,000 queries, the median over seeds; the quota is 100."""
    quota = curved(CURVES, per)["quota"]
    hours = 2_000 / 100 * TERMS[per] / 3_600
    assert [(entry["accounts"], entry["hours"]) for entry in quota["delays"]] == [
        (accounts, pytest.approx(hours / accounts, abs=1e-6)) for accounts in (1, 5, 25, 125, 1_250)
    ]
    sentence = quota["text"][2]
    assert sentence.startswith("Under this quota the cheapest copy (2,000 queries by frugal)")
    # 20 accounts may ask 2,000 images in the first term
    assert (
        f"one account {delay(hours)}, 5 accounts {delay(hours / 5)}, 25 accounts or more no longer "
        f"than the first {per}. A limit of all keys together does not divide so" in sentence
    )


def test_a_quota_without_a_copy_or_that_does_not_hold_promises_no_delay() -> None:
    content = curved(CURVES)
    for line in content["price"]:
        line["queries_to"]["0.9"] = [None] * 3
    quota = quota_of(content, None)
    assert quota is not None
    assert quota["delays"] == []
    assert "is not known, since no attack made one" in quota["text"][2]
    broken = curved(CURVES, checked=0.9)["quota"]
    assert (broken["delays"], broken["lines"]) == ([], {})
    assert "Under this quota" not in " ".join(broken["text"])


def test_each_new_row_has_the_figure_of_the_json() -> None:
    rows = figures(audit())
    assert rows["11.2.2, for all together"] == (
        "The cheapest copy, by frugal, needs 2,000 images of all its accounts together, however "
        "many they are."
    )
    assert rows["11.3.2"] == (
        "The best copies agree on 94.2% from your own answers (probabilities), 74.2% from labels."
    )
    price = " ".join(audit()["headline"]["sentences"][:-1])
    assert rows["model exfiltration"] == rows["public scope"] == price
    content = audit()
    content["price"][0]["has"] = "images like yours"
    named = figures(content)["11.2.2, for all together"]
    assert named is not None
    assert named.startswith("The cheapest copy, by somebody with images like yours, needs 2,000")
    content = audit()
    content["options"]["rate"] = "1k/day"
    assert figures(content)["rate limit"] == (
        "The cheapest copy (2,000 queries, by frugal) takes 48 hours at your limit of 1,000 images a day."
    ).replace("48 hours", "2 days")
    both = curved(CURVES, "hour")
    both["options"]["rate"] = "60/min"
    assert figures(both)["rate limit"] == (
        "The cheapest copy (2,000 queries, by frugal) takes 34 minutes at your limit of 60 images a minute; "
        "one account 20 hours, 5 accounts 4 hours, 25 accounts or more no longer than the first "
        "hour, at 100 images per hour for each."
    )


def test_what_was_not_measured_has_no_figure() -> None:
    content = audit()
    for line in content["price"]:
        line["queries_to"]["0.9"] = [None] * 3
    content["options"]["rate"] = "60/min"
    rows = figures(content)
    assert rows["rate limit"] is None
    assert rows["11.2.2, for all together"] == (
        "No attack made a copy within 3,000 images of all its accounts together."
    )
    content["price"] = content["price"][:1]
    content["detection"] = None
    rows = figures(content)
    assert (rows["11.3.1"], rows["11.3.2"], rows["11.3.4"]) == (None, None, None)
    content["price"][0]["mode"] = content["target"]["label_mode"] = "probabilities:2"
    content["headline"]["mode"] = "probabilities:2"
    assert figures(content)["11.3.2"] == (
        "The best copies agree on 94.2% from your own answers (probabilities:2)."
    )


def test_the_catalogues_test_has_its_own_figure() -> None:
    content = audit()
    for rating, words in (("warning", ": warning."), (None, ": it tells nothing, being not above")):
        content["fidelity_test"] = {
            "test": "OWASP AITG-APP-09",
            "queries": 3_000,
            "attacker": "frugal",
            "mode": "probabilities",
            "has": "images",
            "fidelity": 0.8,
            "rating": rating,
            "text": "It asks.",
        }
        figure = figures(content)["AITG-APP-09"]
        assert figure is not None
        assert figure.startswith("The copy agrees on 80.0% after at most 3,000 queries")
        assert words in figure


def test_names_of_opencre_stand_with_the_catalogue_that_has_them() -> None:
    assert [(part["id"], part["source"]) for part in document(TAXONOMY)["opencre"]] == [
        (number, "OWASP AI Exchange") for number in ("141-385", "187-083", "637-021")
    ]


@pytest.mark.usefixtures("undrawn")
def test_time_at_the_owners_limit_stands_beside_money(tmp_path: Path) -> None:
    content = audit()
    content["options"]["rate"] = "60/min"
    content["price"][0]["hours_to_90"] = 25.5
    page = page_of(content, tmp_path).behind
    for start in ("Agreement after all", "Queries until an agreement"):
        times = {tuple(row[:2]): row[-1].replace("\xa0", " ") for row in page.table(start)}
        assert times["frugal", "probabilities"] == "26 hours"
        assert times["dfme", "label"] == "-"


def test_attacks_of_the_defences_table_are_not_counted_beside_those_of_the_prices() -> None:
    """SARIF and the table of first alarms count the latter alone."""
    content = audit()
    attacks = content["detection"]["attacks"]
    before = figures(content)
    content["detection"]["attacks"] = [*attacks, attacks[0] | {"cell": "frugal-kl"}]
    after = figures(content)
    for control in ("12.2.4", "11.3.1"):
        assert after[control] == before[control]
        assert "attacks" in (after[control] or "")
