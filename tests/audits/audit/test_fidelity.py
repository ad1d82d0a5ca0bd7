"""Fidelity and detection: their figures by hand, by brute force and by a second bootstrap."""

import math
import random
from dataclasses import astuple, replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from audit_runs import watched

from dfme.audits.audit.document import joined
from dfme.audits.audit.fidelity import ExaminedCell, calibration, fidelity, figures, kendall_tau
from dfme.audits.audit.parts import CellResult, ClassAgreement, CopyFigures, CurvePoint, WhereWrong
from dfme.spec import LabelMode
from dfme.statistics import auroc, share_at_most

P, LABEL = LabelMode("probabilities"), LabelMode("label")
CELL = ExaminedCell("a", "frugal", "label", 0, Path(), examined_in_full=True)


def test_kendalls_tau_is_that_of_every_pair_counted_one_by_one():
    rng = torch.Generator().manual_seed(0)
    a, b = (torch.randint(0, 6, (40, 7), generator=rng).float() for _ in range(2))  # many ties
    a[0] = 1.0
    for one, other, tau in zip(a.tolist(), b.tolist(), kendall_tau(a, b).tolist(), strict=True):
        agree = untied_one = untied_other = 0
        for i, j in combinations(range(7), 2):
            x, y = np.sign(one[i] - one[j]), np.sign(other[i] - other[j])
            agree, untied_one, untied_other = (
                agree + x * y,
                untied_one + abs(x),
                untied_other + abs(y),
            )
        product = math.sqrt(untied_one * untied_other)
        assert math.isnan(tau) if product == 0 else tau == pytest.approx(agree / product, abs=1e-12)


def test_figures_are_those_of_sums_over_classes_and_images():
    rng = torch.Generator().manual_seed(1)
    scores, other = (torch.randn(50, 6, generator=rng) for _ in range(2))
    p = other.softmax(1)
    result, teacher, copy = (
        figures(p, P, scores),
        p.double().tolist(),
        scores.double().softmax(1).tolist(),
    )
    kl = l1 = equal = top3 = 0.0
    for one, two in zip(teacher, copy, strict=True):
        kl += sum(x * math.log(x / y) for x, y in zip(one, two, strict=True))
        l1 += sum(abs(x - y) for x, y in zip(one, two, strict=True))
        order, own = (sorted(range(6), key=lambda k: -of[k]) for of in (one, two))
        equal, top3 = equal + (order[0] == own[0]), top3 + (set(order[:3]) == set(own[:3]))
    assert result.kl == pytest.approx(kl / 50, rel=1e-6)
    assert result.l1 == pytest.approx(l1 / 50, rel=1e-6)
    assert (result.agreement, result.top3_equal) == (equal / 50, top3 / 50)
    assert 0 < top3 < 50
    by_logits = figures(other, LabelMode("logits"), scores)
    assert astuple(by_logits) == pytest.approx(astuple(result), rel=1e-5)


def test_answers_that_hide_scores_give_none_where_one_is_needed():
    scores, labels = (
        torch.tensor([[2.0, 1.0, 0.0, -1.0], [0.0, 3.0, 1.0, 2.0]]),
        torch.tensor([0, 2]),
    )
    known = CopyFigures(agreement=0.5, agreement_balanced=0.5)
    assert figures(labels, LABEL, scores) == known
    hidden = torch.tensor(
        [[0.9, math.nan, math.nan, math.nan], [math.nan, math.nan, 0.7, math.nan]]
    )
    assert figures(hidden, LabelMode("top_k", k=1), scores) == known
    seen = fidelity(CELL, labels, LABEL, scores, labels)
    assert seen.teacher_ece is None
    assert seen.clone_ece.value > 0
    blind = fidelity(CELL, labels, LABEL, scores, None)
    assert (blind.where_wrong, blind.clone_ece) == (None, None)
    assert figures(torch.full((2, 4), 0.25), P, scores).kendall_tau is None
    rounded = torch.tensor(
        [[1.0, 0.0, 0.0, 0.0], [0.0, 1.0, 0.0, 0.0]]
    )  # any two others may follow
    assert figures(rounded, P, scores).top3_equal == 1.0


def test_one_copy_by_hand():
    teacher = torch.tensor([0, 0, 1, 1, 2, 2])
    copy = torch.tensor([0, 1, 1, 1, 2, 0])
    labels = torch.tensor(
        [0, 1, 1, 0, 0, 0]
    )  # the teacher is wrong on the last three and on the second
    result = fidelity(CELL, teacher, LABEL, 5 * torch.eye(3)[copy], labels, ("a", "b", "c"))
    assert (result.images, result.agreement) == (6, 4 / 6)
    assert result.table == [[1, 1, 0], [0, 2, 0], [1, 0, 1]]
    assert result.per_class == [
        ClassAgreement(0, "a", 2, 0.5),
        ClassAgreement(1, "b", 2, 1.0),
        ClassAgreement(2, "c", 2, 0.5),
    ]
    assert (result.where_wrong.images, result.where_wrong.same) == (4, 2)
    assert result.where_wrong.interval == pytest.approx((0.150, 0.850), abs=1e-3)
    assert result.interval == pytest.approx((0.300, 0.903), abs=1e-3)  # and of 4 of 6
    never_wrong = fidelity(CELL, teacher, LABEL, torch.eye(3)[copy], teacher)
    assert never_wrong.where_wrong == WhereWrong(0, 0, None)


def test_the_interval_of_a_calibration_error_is_that_of_the_binomial_it_is_drawn_from():
    """All scores .8 and 120 of 200 right: the error of a draw is |Binomial(200, .6) / 200 - .8|."""
    p = torch.tensor([[0.8, 0.2]], dtype=torch.float64).repeat(200, 1)
    labels = torch.tensor([0] * 120 + [1] * 80)
    result = calibration(p, labels)
    drawn = np.abs(np.random.default_rng(0).binomial(200, 0.6, 200_000) / 200 - 0.8)
    assert result.value == pytest.approx(0.2)
    assert result.interval == pytest.approx(tuple(np.quantile(drawn, [0.025, 0.975])), abs=0.0101)
    assert calibration(p, labels) == result


def brute(attacks: list[float], benign: list[float]) -> float:
    pairs = [1.0 if a > b else 0.5 if a == b else 0.0 for a in attacks for b in benign]
    return sum(pairs) / len(pairs)


def test_auroc_is_that_of_brute_force_and_half_for_equal_scores() -> None:
    rng = random.Random(3)
    for _ in range(20):
        attacks, benign = (
            [float(rng.randrange(6)) for _ in range(rng.randrange(1, 21))] for _ in range(2)
        )
        assert auroc({0: attacks}, benign)[0] == pytest.approx(brute(attacks, benign))
        by_seed = {each: attacks[each::3] for each in range(min(3, len(attacks)))}
        assert auroc(by_seed, benign)[0] == pytest.approx(brute(attacks, benign))
    assert auroc({0: [1.0] * 4}, [1.0] * 7) == (0.5, [0.5, 0.5])
    assert auroc({0: [math.inf, 2.0]}, [1.0])[0] == 1.0


def test_the_interval_is_a_bootstrap_over_sessions_and_seeds() -> None:
    rng = random.Random(5)
    benign = [rng.gauss(0, 1) for _ in range(30)]
    single = {seed: [rng.gauss(1, 1)] for seed in range(12)}
    result = auroc(single, benign)[1]
    again = []
    for _ in range(1_000):  # by another generator, one session after the other
        attacks = [single[rng.randrange(12)][0] for _ in range(12)]
        again.append(brute(attacks, [rng.choice(benign) for _ in range(30)]))
    again.sort()
    assert result == pytest.approx([again[25], again[974]], abs=0.02)
    assert result == auroc(single, benign)[1]
    # four cells of one seed are one unit: they tell no more than one of them
    assert auroc({seed: own * 4 for seed, own in single.items()}, benign)[1] == pytest.approx(
        result
    )


def test_a_rate_is_bounded_by_the_independent_units_behind_it() -> None:
    assert share_at_most(0, 36_000, 180) == pytest.approx(
        3 / 180
    )  # "fewer than 167 per 10,000", never 0
    assert share_at_most(0, 10, 2) == 1.0
    # Wilson's upper end solves (p - r)^2 = z^2 p (1 - p) / n; of 100 of 1,000 with 180 units behind
    # them:
    upper = share_at_most(100, 1_000, 180)
    assert (upper - 0.1) ** 2 == pytest.approx(1.959964**2 * upper * (1 - upper) / 180)
    assert upper > 0.1
    assert share_at_most(600, 600, 180) == 1.0
    rates = [share_at_most(each, 12_000, 180) for each in range(0, 12_001, 100)]
    assert rates == sorted(rates)


CURVE = [CurvePoint(256, 0.3), CurvePoint(1_024, 0.5), CurvePoint(3_000, 0.8)]


def cell(name: str, seed: int, curve: list[CurvePoint]) -> CellResult:
    return CellResult(
        name=name,
        row="dfme",
        mode="label",
        defence="none",
        seed=seed,
        answers="auto",
        budget=3_000,
        state="finished",
        reason="",
        spent=3_000,
        agreement=None,
        dir=f"cells/{name}",
        interval=None,
        curve=curve,
        alarms={},
        config_hash=None,
        requests=None,
        steps_seconds=None,
        cost=None,
    )


def watch(first: int | None, largest_600: float | None) -> dict[str, Any]:
    """``watch`` in a run's summary."""
    statistics = {"first_alarm": first, "alarms": 3, "largest": 9.0, "largest_600": largest_600}
    return {"images": 3_000, "on_alarm": "log", "detectors": {"pairs": statistics}}


MEASURED = watched(
    largest={"pairs": {"random order": [0.1, 0.4, 0.2], "corrupted": [0.5, 0.5, 0.5]}}
)


@pytest.mark.parametrize(
    ("first", "worth"),
    [(None, None), (1, 0.11), (204, 0.11), (205, 0.3), (819, 0.3), (820, 0.5), (9_999, 0.8)],
)
def test_what_the_copy_was_worth_is_read_off_its_curve(
    first: int | None, worth: float | None
) -> None:
    watches = {"a": watch(first, 0.5)}
    (attack,) = joined(MEASURED, [cell("a", 0, CURVE)], watches, 0.11).attacks
    assert attack.agreement_at_alarm == worth
    (unscored,) = joined(MEASURED, [cell("a", 0, [])], watches, None).attacks
    assert unscored.agreement_at_alarm is None


def test_cells_and_streams_are_joined() -> None:
    watches = {"a": watch(255, 0.5), "b": watch(1_500, 0.3), "c": watch(None, None)}
    cells = [cell(name, seed, CURVE) for seed, name in enumerate("abcd")]
    result = joined(MEASURED, cells, watches, 0.11)
    assert replace(result, attacks=(), auroc=()) == MEASURED
    assert [attack.cell for attack in result.attacks] == ["a", "b", "c"]
    first = result.attacks[0]
    facts = (first.row, first.detector, first.images, first.largest_600)
    assert facts == ("dfme", "pairs", 3_000, 0.5)
    plain, corrupted = result.auroc
    assert (plain.row, plain.detector, plain.stream) == ("dfme", "pairs", "random order")
    assert plain.auroc == pytest.approx(brute([0.5, 0.3], [0.1, 0.4, 0.2])) == pytest.approx(5 / 6)
    # no session of cell c was long enough
    assert (plain.attack_sessions, plain.benign_sessions) == (2, 3)
    assert plain.interval.low <= plain.auroc <= plain.interval.high
    assert corrupted.auroc == 0.25
