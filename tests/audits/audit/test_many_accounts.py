"""Attacks from many accounts on an audit's page: counted by hand, in their form, on six sheets."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from audit_pages import audit, page_of

from dfme.audits.audit.accounts import many_accounts, recording
from dfme.audits.audit.page_accounts import MAX_DETECTORS
from dfme.audits.audit.result import audit_result, document
from dfme.measured import ACCOUNTS, SplitAttack

CELL = "frugal-probabilities-3k-seed0"
FIRST = {"labels": (161, 400, 900, None, None), "pairs": (None,) * 5, "mmd": (700,) * 5}
"""Images of all accounts until a detector's first alarm, by the number of accounts."""


def rows(first: dict[str, tuple[int | None, ...]] = FIRST, cell: str = CELL) -> list[SplitAttack]:
    return [
        SplitAttack(
            cell=cell,
            detector=name,
            accounts=accounts,
            images=3_000,
            most=-(-3_000 // accounts),
            alarmed=None if name == "mmd" else int(images is not None),
            first_alarm=images,
        )
        for name, alarms in first.items()
        for accounts, images in zip(ACCOUNTS, alarms, strict=True)
    ]


def with_accounts(content: dict[str, Any], split: list[SplitAttack]) -> dict[str, Any]:
    part = many_accounts(audit_result(content), split)
    return content | {"accounts": document(part) if part else None}


def test_an_alarm_is_worth_what_the_copy_was_by_then() -> None:
    alarms = with_accounts(audit(), rows())["accounts"]["alarms"]
    worth = {
        (alarm["detector"], alarm["accounts"]): alarm["agreement_at_alarm"] for alarm in alarms
    }
    # the curve: .5933 after 250 queries, .7549 after 500, .8691 after 1,000; a constant answer .1058
    assert worth["labels", 1] == 0.1058, "201 queries are a quarter more than 161"
    assert worth["labels", 5] == 0.7549
    assert worth["labels", 25] == 0.8691
    assert worth["labels", 125] is None
    assert {worth["mmd", accounts] for accounts in ACCOUNTS} == {0.7549}


def test_limits_see_each_accounts_share_and_all_of_them_everything() -> None:
    content = audit()
    content["options"]["rate"] = "60/min"
    part = with_accounts(content, rows())["accounts"]
    # the copy takes 1,000 to 2,000 queries, by the seed; the median counts
    queries = sorted(content["price"][0]["queries_to"]["0.9"])[1]
    assert (part["attacker"], part["queries"], part["copied"]) == ("frugal", queries, True)
    for share in part["shares"]:
        assert share["most"] == -(-queries // share["accounts"])
        assert share["hours"] == pytest.approx(queries / (share["accounts"] * 60) / 60, abs=1e-6)
        assert share["within_quota"] is None
    most = part["shares"][-1]["most"]
    assert (
        f"Of the {queries:,} queries that its copy takes, a limit on each key counts {most}"
        in (part["text"])
    )
    assert f"a limit on all keys together counts {queries:,}, however many share" in part["text"]
    assert part["text"].startswith(
        "Of 3 detectors 2 raised an alarm at the queries of frugal from one account, 1 from 1,250. "
    )
    assert "; at your limit they take" in part["text"]


@pytest.mark.parametrize("rate", ["1/day", "60/min"])
def test_accounts_that_may_ask_their_share_at_once_do_not_wait(rate: str) -> None:
    """A day's image each does not hold up accounts that have one image each."""
    content = audit()
    content["options"]["rate"] = rate
    part = many_accounts(audit_result(content), rows())
    assert part is not None
    term = {"1/day": "day", "60/min": "minute"}[rate]
    free = part.shares[-1].most <= int(rate.partition("/")[0])
    words = f"no longer than the first {term} from 1,250 accounts"
    assert (words in part.text) == free
    assert "from one account" in part.text


def test_a_quota_lets_pass_whoever_has_fewer_queries() -> None:
    result = audit_result(audit())
    content = audit()
    content["quota"] = {
        "keep_below": 0.8,
        "per": "day",
        "images": 250,
        "best": 0.6,
        "attacker": "frugal",
        "cell": CELL,
        "open": False,
        "checked": None,
        "lines": {},
        "text": [],
    }
    part = many_accounts(audit_result(content), rows())
    assert part is not None
    passing = [share.accounts for share in part.shares if share.within_quota]
    assert passing == [accounts for accounts in ACCOUNTS if -(-part.queries // accounts) <= 250]
    assert f"your quota of 250 for a key does not stop {passing[0]} accounts" in part.text
    assert many_accounts(result, []) is None
    assert many_accounts(result, rows(cell="gone")) is None


@pytest.mark.usefixtures("undrawn")
def test_the_page_has_the_detectors_that_hold_longest_and_the_appendix_all(tmp_path: Path) -> None:
    content = audit()
    content["options"]["rate"] = "60/min"
    content["detection"]["benign"] = [
        content["detection"]["benign"][0]
        | {"detector": "labels", "stream": stream, "sessions": 3, "first_alarms": first}
        for stream, first in (("corrupted", [24, 25, 600]), ("skewed", [121, 120, None]))
    ]
    page = page_of(with_accounts(content, rows()), tmp_path)
    (table,) = (lines for caption, lines in page.tables.items() if caption.startswith("Split"))
    assert table[0] == ["Detector", *(f"{n:,} x {-(-3_000 // n):,}" for n in ACCOUNTS)]
    assert [line[0] for line in table[1:]] == ["mmd", "labels"]
    assert table[2][1:] == ["161 (11%)", "400 (75%)", "900 (87%)", "never", "never"]
    (whole,) = (lines for caption, lines in page.behind.tables.items() if "come in turn" in caption)
    assert [line[2] for line in whole[1:]] == [*FIRST]
    heads, *lines = next(
        lines for caption, lines in page.behind.tables.items() if caption.startswith("Honest")
    )
    assert heads == ["Detector", "600", "120", "24", "3"]
    texts = [f"{n} of 6 corrupted: {most} of 3" for n, most in ((5, 3), (3, 2), (1, 1))]
    assert lines[0] == ["labels", *texts, "0 of 6"]
    many = {f"detector {at}": FIRST["labels"] for at in range(10)}
    crowded = page_of(with_accounts(content, rows(many)), tmp_path)
    (table,) = (lines for caption, lines in crowded.tables.items() if caption.startswith("Split"))
    assert len(table) == 1 + MAX_DETECTORS


def test_attacks_on_the_models_own_answers_record_their_queries(monkeypatch: Any) -> None:
    from dfme.cli.audit import plan_of

    monkeypatch.setenv("DFME_KEY", "x")
    words = "--seeds 0,1 --attackers frugal,knockoff --out none".split()
    plan = plan_of(words)
    recorded = {cell.name for cell in plan.first.cells if cell.job.config.record_queries}
    assert recorded == {
        cell.name for cell in plan.first.cells if (cell.mode, cell.seed) == ("probabilities", 0)
    }
    assert len(recorded) == 2
    assert not plan.job.config.record_queries
    assert plan.second is not None
    defended = plan.second("frugal", ["lattice:n=10"])
    assert not any(cell.job.config.record_queries for cell in defended.cells)
    none = plan_of([*words, "--record-queries", "false"])
    assert not any(cell.job.config.record_queries for cell in none.first.cells)
    assert "--record-queries false" in [part.why for part in none.not_run]

    monkeypatch.setattr("dfme.audits.audit.accounts.MAX_RECORD", 1_000)
    large, left_out = recording(plan.first, plan.config, (1, 8, 8), False)
    assert [part.why for part in left_out] == [
        "an attack's queries take 0.0 GB on disk; add --record-queries true"
    ]
    stated = replace(plan.config, seeds=(7,))
    assert recording(large, stated, (1, 8, 8), False)[1] == []
