"""The catalogue's test as a limit of an owner's: above 90 % it fails, above 75 % it warns."""

from xml.etree import ElementTree

import pytest
from audit_pages import sample
from audit_runs import SUMMARY, Curve, findings_of, outcome

from dfme.audits.audit.junit import junit
from dfme.audits.audit.options import limits
from dfme.audits.audit.result import audit_result
from dfme.audits.audit.sarif import sarif
from dfme.errors import UserError

DETECTED = "vulnerability detected"


@pytest.mark.parametrize(
    ("texts", "budget", "words"),
    [
        (["aitg"], 999, "aitg cannot be decided by attacks of 999 images, fewer than 1,000"),
        (["aitg=1"], 3_000, "expected aitg, got 'aitg=1'"),
        (["aitg="], 3_000, "expected aitg, got 'aitg='"),
        (["aitg", "aitg"], 3_000, "expected each limit once, got aitg twice"),
        (["atig"], 3_000, "did you mean aitg?"),
    ],
)
def test_a_limit_that_cannot_be_decided_is_refused_before_anybody_is_asked(
    texts: list[str], budget: int, words: str
) -> None:
    with pytest.raises(UserError) as caught:
        limits(texts, budget)
    assert words in str(caught.value)


def test_it_stands_beside_other_limits() -> None:
    assert limits(["aitg", "queries_to_90=2k"], 3_000) == {"aitg": 0.9, "queries_to_90": 2_000}
    assert limits(["aitg"], 1_000) == {"aitg": 0.9}


@pytest.mark.parametrize(
    ("curves", "value", "holds", "rating"),
    [
        # strictly above, at the last evaluation from 1,000 to 5,000 queries
        ([((1000, 0.9001),)], 0.9001, False, DETECTED),
        ([((1000, 0.9),)], 0.9, True, "warning"),
        ([((1000, 0.75),)], 0.75, True, "low"),
        ([((5000, 0.8), (5001, 0.99))], 0.8, True, "warning"),
        ([((1000, 0.95), (4000, 0.7))], 0.7, True, "low"),
        # the strongest seed, not the mean
        ([((3000, 0.7),), ((3000, 0.92),)], 0.92, False, DETECTED),
        # who has few images is held to the last copy; who was not scored in time is not known
        ([((179, 0.97),)], 0.97, False, DETECTED),
        ([((999, 0.6), (6000, 0.99))], None, None, None),
        # a failed attack may have done better, but does not take back what another did
        ([((3000, 0.6),), None], 0.6, None, None),
        ([((3000, 0.96),), None], 0.96, False, DETECTED),
        # no more than one constant answer, which has 10 % of 359 images
        ([((3000, 0.11),)], 0.11, None, None),
        ([None], None, None, None),
    ],
)
def test_the_verdict_is_that_of_the_strongest_copy(
    curves: list[Curve], value: float | None, holds: bool | None, rating: str | None
) -> None:
    runs = [outcome("frugal", "probabilities", seed, curve) for seed, curve in enumerate(curves)]
    (verdict,) = findings_of(*runs).verdicts({"aitg": 0.9})
    assert (verdict.value, verdict.holds, verdict.rating) == (value, holds, rating)
    assert (verdict.stated, verdict.wanted) == ("aitg", 0.9)
    assert (rating or "not known" if value != 0.11 else "tells nothing") in verdict.text


def test_a_copy_from_labels_counts_and_one_from_two_decimals_does_not() -> None:
    modes = {"probabilities": 0.6, "probabilities:2": 0.99, "label": 0.8}
    runs = [outcome("frugal", mode, 0, ((3000, share),)) for mode, share in modes.items()]
    (verdict,) = findings_of(*runs).verdicts({"aitg": 0.9})
    assert (verdict.value, verdict.rating) == (0.8, "warning")
    large = SUMMARY | {"baselines": {"constant_agreement": 0.93, "chance": 0.5}}
    copy = outcome("frugal", "probabilities", 0, ((3000, 0.94),))
    (nothing,) = findings_of(copy, summary=large).verdicts({"aitg": 0.9})
    assert nothing.holds is None
    assert "not above one constant answer's 93.0% and tells nothing" in nothing.text


def judged(holds: bool | None, rating: str | None) -> dict[str, object]:
    text = "You want it."
    return {
        "limit": "aitg",
        "wanted": 0.9,
        "value": None,
        "pass": holds,
        "text": text,
        "rating": rating,
    }


def test_junit_judges_each_seed_and_a_pass_says_its_word() -> None:
    content = sample(verdicts=[judged(False, DETECTED)], not_run=[])
    cells = {cell["name"]: cell for cell in content["cells"]}
    shares = (0.93, 0.88, 0.6)
    for seed, share in enumerate(shares):
        for row, mode in (("frugal", "probabilities"), ("frugal", "label"), ("dfme", "label")):
            cells[f"{row}-{mode}-3k-seed{seed}"]["curve"] = [[1000, share], [3000, share]]
        cells[f"dfme-probabilities-3k-seed{seed}"]["curve"] = [[3000, 0.5]]
    root = ElementTree.fromstring(junit(audit_result(content)))
    cases = [case for case in root.iter("testcase") if case.get("classname") == "dfme.audit.aitg"]
    assert [case.get("name") for case in cases] == [f"aitg, seed {seed}" for seed in range(3)]
    failure = cases[0].find("failure")
    assert failure is not None
    assert failure.get("message") == f"{DETECTED}: the best copy agrees on 93.0%"
    assert [case.findtext("system-out") for case in cases[1:]] == [
        "warning: the best copy agrees on 88.0%.",
        "low: the best copy agrees on 60.0%.",
    ]
    cells["dfme-label-3k-seed2"] |= {"state": "failed", "reason": "it broke", "curve": []}
    root = ElementTree.fromstring(junit(audit_result(content)))
    (last,) = [case for case in root.iter("testcase") if case.get("name") == "aitg, seed 2"]
    assert last.find("skipped") is not None


@pytest.mark.parametrize(
    ("holds", "rating", "level"),
    [(False, DETECTED, "error"), (True, "warning", "warning"), (True, "low", "note")],
)
def test_sarif_has_the_level_of_the_word(holds: bool, rating: str, level: str) -> None:
    content = sample(verdicts=[judged(holds, rating)], advice=[])
    first, *others = sarif(audit_result(content))["runs"][0]["results"]
    assert (first["ruleId"], first["level"]) == ("copy-90", level)
    assert first["properties"]["limits"][0]["rating"] == rating
    assert {result["level"] for result in others} == {"note"}
