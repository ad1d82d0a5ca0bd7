"""The ladder of attackers: what each had, in words; what an owner's rate limit does; who was not
tried; and what two decimals take away.
"""

from typing import Any

import pytest
from audit_runs import LOW, REACHED, SUMMARY, Curve, bill, findings_of, outcome

from dfme.audits.audit.advice import advice
from dfme.audits.audit.backbone import public_backbone
from dfme.audits.audit.findings import Findings
from dfme.audits.audit.headline import headline, what_it_does_not_tell
from dfme.audits.audit.ladder import delay, not_tried, parse_rate
from dfme.audits.audit.owasp import fidelity_test
from dfme.errors import UserError

LARGE = SUMMARY | {"teacher": {"shape": [3, 224, 224]}}
UNTRIED = (
    "Somebody with weights that anybody can download, with public pictures or with pictures like "
    "yours was not tried."
)
MODES = ("probabilities", "probabilities:2", "label")


def ladder(**rows: tuple[Curve, ...]) -> Findings:
    """An audit of 224 pixels with a curve of each row's answers as deployed, of two decimals and
    of labels, as far as they are given.
    """
    runs = [
        outcome(row, mode, 0, curve)
        for row, curves in rows.items()
        for mode, curve in zip(MODES, curves, strict=False)
    ]
    bills = [bill("none", 0.0), bill("probabilities:2", 0.004), bill("label", 0.3)]
    return findings_of(*runs, rate="60/min", summary=LARGE, bills=bills)


@pytest.mark.parametrize(
    ("text", "queries", "hours", "words"),
    [
        ("60/min", 3_000, 50 / 60, "50 minutes"),
        ("60/min", 60, 1 / 60, "1 minute"),
        ("1/s", 3_600 * 30, 30, "30 hours"),
        ("1k/day", 5_000, 120, "5 days"),
        ("100/hour", 150, 1.5, "1.5 hours"),
        ("60/min", 64, 64 / 3_600, "1.1 minutes"),
    ],
)
def test_a_delay_is_the_queries_by_the_images_that_a_key_may_ask(
    text: str, queries: int, hours: float, words: str
) -> None:
    result = parse_rate(text).hours(queries)
    assert result == pytest.approx(hours, abs=1e-4)
    assert delay(result) == words


def test_a_rate_that_is_none_is_refused() -> None:
    for text in ("60", "0/min", "60/fortnight", "/min", "1.5/min", "60/"):
        with pytest.raises(UserError, match="expected images/TERM such as 60/min, TERM of second"):
            parse_rate(text)
    assert (parse_rate("60/min").hours(None), delay(None)) == (None, "")


def test_the_price_says_what_the_attacker_had_and_how_long_a_key_holds_it_up() -> None:
    findings = ladder(frugal=(LOW, LOW, LOW), public=(REACHED, LOW, LOW))
    result = headline(findings, (0,))
    weights = "weights that anybody can download (net.safetensors)"
    assert result.has == f"{weights} and images drawn by programs"
    assert result.hours == pytest.approx(850 / 3600, abs=1e-4)
    assert (
        f"costs somebody with {weights} and images drawn by programs 850 queries (1.27 at your "
        "price; 15 minutes at your limit of 60 images a minute; one run)" in result.sentences[0]
    )
    lines = {(line.row, line.mode): line for line in findings.price}
    nothing = lines["frugal", "label"]
    assert (nothing.has, nothing.weights, nothing.pictures) == (
        "images drawn by programs",
        None,
        None,
    )
    assert (nothing.hours_to_90, lines["public", "probabilities"].hours_to_90) == (
        None,
        pytest.approx(850 / 3600, abs=1e-4),
    )


def test_public_pictures_are_no_images_like_the_owners() -> None:
    findings = ladder(public=(LOW,), public_pool=(REACHED,), public_like=(((286, 0.97),),))
    first, like, _ = headline(findings, (0,)).sentences
    assert "costs somebody with weights that anybody can download (net.safetensors) and public" in (
        first
    )
    assert like == (
        "Somebody with 286 images like yours and weights that anybody can download "
        "(net.safetensors) needs 286 queries for such a copy (0.43 at your price; 4.8 minutes at "
        "your limit of 60 images a minute)."
    )
    # a defence is tried on who draws images alone
    assert [line.row for line in findings.without_images] == ["public"]
    missed = ladder(public=(LOW,), public_pool=(LOW,), public_like=(LOW,))
    first = headline(missed, (0,)).sentences[0]
    assert first.startswith("No attack without images like yours made a copy")
    assert first.endswith("failed, not that the model is safe.")
    assert missed.untried == []


@pytest.mark.parametrize(
    ("side", "rows", "sentence"),
    [
        (224, {"frugal": (LOW,)}, UNTRIED),
        (32, {"frugal": (LOW,)}, UNTRIED),
        (31, {"frugal": (LOW,)}, UNTRIED.replace("weights that anybody can download, with ", "")),
        (224, {"frugal": (None,), "public": (None,), "knockoff": (None,)}, UNTRIED),
        (
            224,
            {"public": (LOW,), "knockoff": (LOW,)},
            "Somebody with public pictures was not tried.",
        ),
        (224, {"public_pool": (LOW,), "public_like": (LOW,)}, ""),
    ],
)
def test_who_was_not_tried_is_said_by_what_finished_attackers_had(
    side: int, rows: dict[str, tuple[Curve, ...]], sentence: str
) -> None:
    runs = [outcome(row, "probabilities", 0, curve) for row, (curve,) in rows.items()]
    summary: dict[str, Any] = SUMMARY | {"teacher": {"shape": [3, 8, side]}}
    findings = findings_of(*runs, summary=summary)
    assert findings.not_tried == not_tried(findings.untried) == sentence
    texts = what_it_does_not_tell(findings, 1, True)
    assert (sentence in texts) == bool(sentence)


def test_nothing_is_not_reached_or_within_a_limit_without_that_sentence() -> None:
    findings = ladder(frugal=(LOW, LOW, LOW))
    assert UNTRIED in headline(findings, (0,)).sentences[0]
    for limit in ({"queries_to_90": 3000}, {"agreement": 0.8}):
        (verdict,) = findings.verdicts(limit)
        assert verdict.holds
        assert verdict.text.endswith(UNTRIED)
    (failing,) = findings.verdicts({"agreement": 0.7})
    assert (failing.holds, UNTRIED in failing.text) == (False, False)
    by_labels = headline(ladder(frugal=(REACHED, LOW, LOW)), (0,)).sentences
    assert UNTRIED not in by_labels[0], "a copy was made"
    assert by_labels[-1].endswith(UNTRIED)


@pytest.mark.parametrize(
    ("curve", "fidelity", "rating"),
    [
        (((3000, 0.95),), 0.95, "vulnerability detected"),
        (((3000, 0.9),), 0.9, "warning"),
        (((3000, 0.75),), 0.75, "low"),
        (((5000, 0.8), (5001, 0.99)), 0.8, "warning"),
        (((3000, 0.11),), 0.11, None),
    ],
)
def test_the_catalogues_test_is_of_the_strongest_copy_after_5000_queries(
    curve: Curve, fidelity: float, rating: str | None
) -> None:
    findings = ladder(frugal=(((3000, 0.105),),), public=(curve,))
    result = fidelity_test(findings, findings.cells())
    assert (result.fidelity, result.rating, result.attacker) == (fidelity, rating, "public")
    assert "(net.safetensors) and images drawn by programs" in result.text
    assert (findings.not_tried in result.text) == (rating != "vulnerability detected")
    assert ("tells nothing" in result.text) == (rating is None)


def test_labels_that_copy_better_than_scores_count_in_the_catalogues_test_too() -> None:
    findings = ladder(frugal=(LOW, LOW, REACHED))
    result = fidelity_test(findings, findings.cells())
    assert (result.mode, result.fidelity) == ("label", 0.94)
    assert "by labels alone, agrees on 94.0%: vulnerability detected" in result.text
    nothing = ladder(frugal=(None,))
    assert fidelity_test(nothing, nothing.cells()) is None


def test_two_decimals_are_advised_by_the_audits_own_figures_with_what_users_pay() -> None:
    exact = ((1500, 1.0), (3000, 1.0))
    findings = ladder(
        public=(exact, ((3000, 0.63),), ((3000, 0.52),)),
        public_pool=(exact, ((3000, 0.7),)),
        public_like=(exact, ((286, 0.79),)),
    )
    labels, decimals = advice(findings, None)
    assert labels.text.startswith("Answer labels alone")
    assert decimals.text == (
        "Answer with two decimals (probabilities:2): the best copy then agrees on 63.0% (100.0% "
        "before). Your users' answers change by 0.00 on average, on a scale from 0 to 2; their "
        "accuracy does not change. The copy of somebody with public pictures agrees on 70.0% "
        "(100.0% before). The copy of somebody with images like yours agrees on 79.0% (100.0% "
        "before)."
    )
    same = ladder(public=(exact, ((3000, 0.98),)))
    assert "decimals" not in " ".join(line.text for line in advice(same, None)), "by chance"


def test_two_decimals_are_not_left_out_for_stronger_switches_that_cost_users_more() -> None:
    runs = [
        outcome("public", mode, 0, ((3000, share),))
        for mode, share in zip(MODES, (1.0, 0.8, 0.5), strict=True)
    ]
    defended = [outcome("public", "probabilities", 0, ((3000, 1.0),))]
    defended += [
        outcome("public", "probabilities", 0, ((3000, 0.6 + place / 100),), name)
        for place, name in enumerate(("mad", "grad2", "lattice"))
    ]
    lines = advice(findings_of(*runs, defended=defended), None)
    assert [line.text.split(" (")[0].split(":")[0] for line in lines] == [
        "Answer labels alone",
        "Switch on mad",
        "Answer with two decimals",
    ]


@pytest.mark.parametrize(
    ("mode", "row", "residual", "words"),
    [
        (
            "probabilities",
            "public",
            4e-7,
            "Your model is net.safetensors with a last layer of its own. Whoever has these weights "
            "works this layer out by linear equations after 1,500 queries, from full answers",
        ),
        ("probabilities", "public", 0.53, "they leave 53% of its answers unexplained"),
        ("probabilities:2", "public", 4e-7, ""),
        ("probabilities", "frugal", 4e-7, ""),
        ("probabilities", "public", None, ""),
    ],
)
def test_a_solve_from_the_answers_as_deployed_says_whether_the_backbone_is_public(
    mode: str, row: str, residual: float | None, words: str
) -> None:
    stages = [{"name": "solve", "images": 3000, "taken": True, "residual": residual}]
    summary = LARGE | {"student_stages": [*stages, {"name": "head", "residual": None}]}
    curve = ((600, 0.4), (1500, 0.99), (3000, 1.0))
    result = public_backbone(findings_of(outcome(row, mode, 0, curve), summary=summary), 0.03)
    if not words:
        assert result is None
        return
    assert words in result.text
    assert (result.is_head, result.queries) == ((True, 1500) if residual < 0.03 else (False, None))
