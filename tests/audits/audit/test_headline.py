"""The words of an audit, from cells made by hand: reached, not reached, by some seeds."""

from dataclasses import replace

import pytest
from audit_runs import JOB, LOW, REACHED, Curve, alarm, bill, findings_of, outcome, stream, watched

from dfme.audits.audit.advice import NOTHING, UNTRIED, advice
from dfme.audits.audit.headline import GATES, commands, headline, what_it_does_not_tell
from dfme.audits.audit.options import limits
from dfme.audits.audit.parts import Twin
from dfme.audits.compare.figures import Outcome
from dfme.audits.compare.plan import Cell, attempt
from dfme.config.sections import QueriesConfig
from dfme.errors import UserError


def test_an_attacker_who_knows_what_the_model_is_for_is_said_to() -> None:
    job = replace(JOB, queries=QueriesConfig(domain="text"))
    result = outcome("frugal_text", "probabilities", 0, REACHED)
    usual = outcome("frugal", "probabilities", 0, LOW)
    first = headline(findings_of(usual, replace(result, cell=replace(result.cell, job=job))), (0,))
    assert (first.attacker, first.knows) == ("frugal_text", "text")
    assert "costs an attacker who knows that it is for text 850 queries" in first.sentences[0]


def test_the_price_of_the_cheapest_copy_and_that_of_labels() -> None:
    strong = [outcome("frugal", "probabilities", seed, REACHED) for seed in (0, 1, 2)]
    weak = [outcome("dfme", "probabilities", seed, LOW) for seed in (0, 1, 2)]
    labels = [outcome("frugal", "label", seed, LOW) for seed in (0, 1, 2)]
    result = headline(
        findings_of(*weak, *strong, *labels, bills=[bill("none", 0.0), bill("label", 0.0413)]),
        (0, 1, 2),
    )
    figures = (result.attacker, result.queries, result.median, result.cost)
    assert figures == ("frugal", [850] * 3, 850, 1.275)
    price, like, hard = result.sentences
    assert like.startswith(
        "The price for somebody with images like yours is not known: no such attack"
    )
    assert price == (
        "A copy that agrees with your model on 90% of 359 held-out images (one constant answer: "
        "10.0%) costs "
        "850 queries (1.27 at your price; 850 in 3 runs)."
    )
    assert (
        "no attack without images made such a copy within 3,000 queries: the best copy agrees on"
        in hard
    )
    assert "would change by 0.04 on average, on a scale from 0 to 2" in hard


def test_labels_that_copy_better_than_scores_count_for_every_form_of_answers() -> None:
    modes = {"probabilities": LOW, "probabilities:2": ((3000, 0.6),), "label": REACHED}
    findings = findings_of(*(outcome("frugal", mode, 0, curve) for mode, curve in modes.items()))
    result = headline(findings, (0,))
    assert (result.mode, result.queries, result.best_agreement.mean) == ("label", [850], 0.94)
    assert "costs 850 queries, by labels alone (1.27" in result.sentences[0]
    best = {switch.name: switch.agreement.mean for switch in findings.switches()}
    assert best == {"none": 0.94, "probabilities:2": 0.94, "label": 0.94}
    assert advice(findings, None)[0].text == NOTHING
    (verdict,) = findings.verdicts({"agreement": 0.8})
    assert (verdict.value, verdict.holds) == (0.94, False)
    unfinished = outcome("frugal", "label", 0, None)
    (verdict,) = findings_of(outcome("frugal", "probabilities", 0, LOW), unfinished).verdicts(
        {"agreement": 0.8}
    )
    assert verdict.holds is None, "labels might have done better"


@pytest.mark.parametrize(
    ("curves", "median", "words"),
    [
        (
            [REACHED, ((2000, 0.9),), LOW],
            2000,
            "costs 2,000 queries (3.00 at your price; 2 of 3 runs made one)",
        ),
        (
            [REACHED, LOW, LOW],
            None,
            "Only 1 of 3 runs made a copy that agrees with your model on 90%",
        ),
        (
            [LOW, LOW, LOW],
            None,
            "within 3,000 queries: the best copies (frugal) agree on 75.0%. This",
        ),
        (
            [REACHED, None, None],
            850,
            "costs 850 queries (1.27 at your price; one run; 2 more failed)",
        ),
        ([REACHED], 850, "costs 850 queries (1.27 at your price; one run)"),
        ([None], None, "What a copy costs is not known"),
    ],
)
def test_seeds_that_get_there_and_seeds_that_do_not(
    curves: list[Curve], median: float | None, words: str
) -> None:
    findings = findings_of(
        *(outcome("frugal", "probabilities", seed, curve) for seed, curve in enumerate(curves))
    )
    result = headline(findings, range(len(curves)))
    assert result.median == median
    assert words in result.sentences[0]
    assert len(result.sentences) == 3


def test_somebody_with_images_stands_beside_who_has_none_and_is_no_measure_of_a_switch() -> None:
    rows = {"frugal": (REACHED, LOW), "knockoff": (((179, 0.97),), ((60, 0.5), (179, 0.83)))}
    runs = [
        outcome(row, mode, 0, curve)
        for row, curves in rows.items()
        for mode, curve in zip(("probabilities", "label"), curves, strict=True)
    ]
    findings = findings_of(*runs, bills=[bill("none", 0.0), bill("label", 0.04)])
    result = headline(findings, (0,))
    assert (result.attacker, result.median, result.labels.best_agreement.mean) == (
        "frugal",
        850,
        0.75,
    )
    assert [(price.mode, price.attacker, price.median) for price in result.like] == [
        ("probabilities", "knockoff", 179),
        ("label", "knockoff", None),
    ]
    assert result.sentences[1] == (
        "Somebody with 179 images like yours needs 179 queries for such a copy (0.27 at your "
        "price). If your "
        "model answered labels alone, this attacker would make a copy that agrees on 83.0% after "
        "179 queries."
    )
    (line,) = advice(findings, None)
    assert "the best copy then agrees on 75.0% (94.0% before)." in line.text
    assert "somebody with images like yours agrees on 83.0% (97.0% before)." in line.text
    assert [point.agreement for point in findings.pareto()] == [0.94, 0.75]


def test_a_copy_that_was_not_made_is_never_called_safe() -> None:
    fail = outcome("frugal", "probabilities", 0, ((3000, 0.115),))
    first, like, _ = headline(
        findings_of(fail, outcome("knockoff", "probabilities", 0, ((179, 0.83),))), (0,)
    ).sentences
    assert first == (
        "No attack without images copied your model: after 3,000 queries the best copy agrees on "
        "11.5% of 359 held-out images; one constant answer agrees on 10.0%. This shows that these "
        "attacks "
        "failed, not that the model is safe. Somebody with public pictures was not tried."
    )
    assert like == (
        "Somebody with 179 images like yours makes a copy that agrees on 83.0% after 179 queries."
    )
    better = headline(
        findings_of(outcome("frugal", "probabilities", 0, ((3000, 0.15),))), (0,)
    ).sentences[0]
    assert better.startswith("No attack without images made a copy"), "Wilson: 0.117 to 0.191"
    assert better.endswith(
        "not that the model is safe. Somebody with public pictures or with pictures like yours "
        "was not tried."
    )


def test_advice_is_ordered_by_effect_and_its_price_breaks_a_tie() -> None:
    bare, labels = (
        outcome("frugal", "probabilities", 0, REACHED),
        outcome("frugal", "label", 0, LOW),
    )
    tried = [
        outcome("frugal", "probabilities", 0, REACHED),
        outcome("frugal", "probabilities", 0, ((3000, 0.5),), "mad"),
        outcome("frugal", "probabilities", 0, ((3000, 0.75),), "grad2"),
        outcome(
            "frugal", "probabilities", 0, ((3000, 0.93),), "lattice"
        ),  # within what images can tell
        outcome("frugal", "probabilities", 0, REACHED, "quota:images=800"),
    ]
    paid = {"none": 0.0, "mad": 1.0, "grad2": 0.9, "lattice": 0.1, "label": 0.04}
    bills = [bill(*pair) for pair in paid.items()]
    findings = findings_of(bare, labels, defended=tried, bills=bills)
    lines = advice(findings, None)
    assert [line.place for line in lines] == ["defences.1", "price.1", "defences.2"]
    assert [line.effect.split()[0] for line in lines] == ["44.0", "19.0", "19.0"]
    assert "Switch on mad" in lines[0].text
    assert "50.0% (94.0% before). Your users' answers change by 1.00 on average" in lines[0].text
    names = ["none", "mad", "grad2", "lattice", "quota:images=800", "label"]
    assert [point.name for point in findings.pareto()] == names
    assert [point.name for point in findings.pareto() if point.dominated] == ["grad2", "lattice"]


@pytest.mark.parametrize("detector", ["mmd", "coverage"])
def test_only_a_detector_that_names_accounts_is_advised(detector: str) -> None:
    """One of all traffic may be the best of all: nobody can be blocked for its alarms."""
    bare = outcome("frugal", "probabilities", 0, REACHED)
    findings = findings_of(bare, defended=[bare], bills=[bill("none", 0.0)])
    detection = watched([stream(detector, "random order", 0)], [alarm(detector, 128, 0.1)])
    texts = " ".join(line.text for line in advice(findings, detection))
    assert (f"Switch on the detector {detector}" in texts) == (detector == "coverage")


def test_nothing_helps_where_no_switch_gains_more_than_chance() -> None:
    same = outcome("frugal", "probabilities", 0, ((3000, 0.93),), "lattice")
    labels = outcome("frugal", "label", 0, ((3000, 0.92),))
    bare = outcome("frugal", "probabilities", 0, REACHED)
    result = advice(findings_of(bare, labels, defended=[bare, same]), None)
    assert [line.text for line in result] == [NOTHING]
    spread = [
        ((3000, 0.99),),
        ((3000, 0.70),),
        ((3000, 0.98),),
    ]  # seeds differ by more than the switch takes
    bare_seeds = [
        outcome("frugal", "probabilities", seed, curve) for seed, curve in enumerate(spread)
    ]
    label_seeds = [outcome("frugal", "label", seed, ((3000, 0.80),)) for seed in range(3)]
    assert advice(findings_of(*bare_seeds, *label_seeds), None)[0].text == NOTHING
    assert advice(findings_of(bare), None)[0].text == UNTRIED, (
        "a service, whose switches nobody could try"
    )


def test_the_command_is_what_makes_an_audit_again() -> None:
    first = ("python", "run.py", "audit", "--teacher.authorised-by", "Jane Doe", "--out", "a")
    command = commands("", first)
    assert command == "python run.py audit --teacher.authorised-by 'Jane Doe' --out a"
    assert commands(command, ("python", "run.py", "audit", "--resume", "--out", "a")) == command
    assert (
        commands(command, ("python", "run.py", "audit", "--resume", "--out=a", "--budget", "6k"))
        == f"{command} && python run.py audit --resume --out=a --budget 6k"
    )


def test_an_attacker_that_cannot_learn_from_labels_has_a_line_and_no_cells() -> None:
    cell = Cell("dfme", "label", 3000, 0, JOB, attempt("none", "auto", "label"))
    _, line = findings_of(
        outcome("frugal", "label", 0, LOW), Outcome(cell, "not applicable", "it needs")
    ).price
    result = (line.state, line.cells, line.mean, line.reason)
    assert result == ("not applicable", [], None, "it needs")


def test_a_gate_is_advised_only_where_an_attacker_with_data_met_it() -> None:
    gate = "misinform:key_env=DFME_KEY"
    for row, texts in (
        ("frugal", [NOTHING]),
        ("knockoff", []),
    ):  # alone, so that it meets the defences
        bare = outcome(row, "probabilities", 0, REACHED)
        findings = findings_of(bare, defended=[bare, outcome(row, "probabilities", 0, LOW, gate)])
        (line,) = advice(findings, None)
        assert ([line.text] == texts) if texts else line.text.startswith(f"Switch on {gate}")
        assert (GATES in what_it_does_not_tell(findings, 1, True)) == (row == "frugal")


def test_a_watch_counts_by_its_worst_attack_and_by_its_false_alarms() -> None:
    findings = findings_of(outcome("frugal", "probabilities", 0, REACHED))
    benign = [
        *[stream(name, "random order", 0) for name in ("pairs", "labels", "prada")],
        stream("sprt", "random order", 3),
        stream("labels", "corrupted", 7),
    ]
    benign.append(stream("pairs", "corrupted", 0))
    attacks = [
        alarm("pairs", 120, 0.31),
        alarm("pairs", 400, 0.52),
        alarm("labels", 48, 0.1),
        alarm("sprt", 3, 0.1),
        alarm("prada", None, None),
        alarm("prada", 9, 0.1),
    ]
    (line,) = advice(findings, watched(benign, attacks))
    assert line.place == "detection.attacks.1"
    assert line.effect.startswith("42.0 points")
    worst = "after 400 queries, when the copy agreed on 52.0%"
    assert f"{worst} (with a quarter more at most; in the end on 94.0%)." in line.text
    assert "false alarm: none of 40; at most 168 alarms in 10,000 queries," in line.text
    (line,) = advice(findings, watched(benign, attacks[2:]))
    assert "false alarm: 7 of 20 (corrupted); at most 175" in line.text
    other = [alarm("pairs", 5, 0.1, defence="mad"), alarm("pairs", 5, 0.1, mode="label")]
    assert advice(findings, watched(benign, other))[0].text == NOTHING


def test_a_limit_is_held_against_the_worst_attack() -> None:
    runs = [
        outcome("frugal", "probabilities", 0, REACHED),
        outcome("dfme", "probabilities", 0, LOW),
        outcome("frugal", "probabilities", 1, ((700, 0.9), (3000, 0.96))),
    ]
    findings = findings_of(*runs)
    allowed = limits(
        ["queries_to_90=800", "queries_to_95=3k", "queries_to_80=700", "agreement=.95"], 3000
    )
    result = {
        verdict.limit: (verdict.value, verdict.holds) for verdict in findings.verdicts(allowed)
    }
    assert result.pop("agreement") == (0.96, False)
    assert [*result.values()] == [(700, False), (3000, True), (700, True)]
    (never,) = findings_of(outcome("dfme", "probabilities", 0, LOW)).verdicts(
        {"queries_to_90": 3000}
    )
    assert (never.value, never.holds) == (None, True)
    (unknown,) = findings_of(outcome("dfme", "probabilities", 0, None)).verdicts(
        {"queries_to_90": 3000}
    )
    assert (unknown.holds, "no attack has finished; the outcome of dfme" in unknown.text) == (
        None,
        True,
    )
    failed = [
        outcome("frugal", "probabilities", 0, LOW),
        outcome("frugal", "probabilities", 1, None),
    ]
    holds, fails = findings_of(*failed).verdicts({"queries_to_90": 3000, "agreement": 0.5})
    assert (holds.holds, fails.holds) == (
        None,
        False,
    )  # a failed attack may have been a better one
    assert holds.text.endswith(
        "these failed; the outcome of frugal-probabilities-3k-seed1 is not known."
    )
    with pytest.raises(UserError, match="cannot be decided"):
        limits(["queries_to_90=3001"], 3000)


def test_games_hold_a_copy_between_one_answer_and_a_twin() -> None:
    findings = findings_of(
        *(
            outcome("frugal", "probabilities", at, curve)
            for at, curve in enumerate((((3000, 0.939),), None))
        )
    )
    (line,) = findings.games(Twin(0.969, None, "twin")).advantage
    assert line.values == [pytest.approx((0.939 - 0.1) / (0.969 - 0.1)), None]
    assert findings.games(None).advantage == []
