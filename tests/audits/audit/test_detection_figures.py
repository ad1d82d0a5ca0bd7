"""The figures of detection: against brute force, arithmetic, and a second bootstrap."""

import math
import random
from dataclasses import replace
from typing import Any

import pytest
from audit_runs import watched

from dfme.audits.audit.document import joined
from dfme.audits.audit.parts import CellResult, CurvePoint
from dfme.statistics import auroc, share_at_most


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


BENIGN = {"random order": [0.1, 0.4, 0.2], "corrupted": [0.5, 0.5, 0.5]}
MEASURED = watched(largest={"pairs": BENIGN})
WORTH = [(None, None), (1, 0.11), (255, 0.11), (256, 0.3), (1_023, 0.3), (1_024, 0.5), (9_999, 0.8)]


@pytest.mark.parametrize(("first", "worth"), WORTH)
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
    told = (first.row, first.detector, first.images, first.largest_600)
    assert told == ("dfme", "pairs", 3_000, 0.5)
    plain, corrupted = result.auroc
    assert (plain.row, plain.detector, plain.stream) == ("dfme", "pairs", "random order")
    assert plain.auroc == pytest.approx(brute([0.5, 0.3], [0.1, 0.4, 0.2])) == pytest.approx(5 / 6)
    # no session of cell c was long enough
    assert (plain.attack_sessions, plain.benign_sessions) == (2, 3)
    assert plain.interval.low <= plain.auroc <= plain.interval.high
    assert corrupted.auroc == 0.25
