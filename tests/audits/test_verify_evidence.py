"""The statistic of ``run.py verify`` by other means: likelihood ratios, references, probes."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from tables import exhaustive

from dfme.audits.verify.evidence import follow
from dfme.audits.verify.probes import Mistakes, choose, left_out, p_reference


@pytest.mark.parametrize(("share", "copy"), [(0.06, 0.5), (0.3, 0.5), (0.43, 0.53), (0.9, 0.95)])
def test_the_evidence_is_the_product_of_likelihood_ratios(share: float, copy: float) -> None:
    reference, held = Fraction(share), Fraction(copy)
    product = (held / reference) ** 17 * ((1 - held) / (1 - reference)) ** 13
    seen = follow([[True] * 7, [False] * 13, [True] * 10], share)
    assert (seen.asked, seen.matches, seen.p_copy) == (30, 17, pytest.approx(copy))
    assert (seen.e_value, seen.sure) == (pytest.approx(float(product)), product >= 100)
    needed = math.ceil(math.log(100) / math.log(copy / share) / 10) * 10
    assert follow([[True] * 10] * 30, share).asked == max(50, needed)


@pytest.mark.parametrize("share", [0.06, *exhaustive(0.3, 0.9)])
def test_an_innocent_is_accused_in_one_of_a_hundred_runs_at_most(share: float) -> None:
    runs = np.random.default_rng(0).random((3_000, 30, 10)) < share
    seen = [follow(batches, share) for batches in runs.tolist()]
    assert sum(each.sure for each in seen) <= 30
    assert all(each.asked == 300 for each in seen if not each.sure)


def mistakes(rows: list[list[bool]]) -> Mistakes:
    """Errors of classes in turn; where its row says so, a reference gives the owner's answer."""
    expected_N = torch.arange(len(rows[0])) % 10
    answers = [torch.where(torch.tensor(row), expected_N, (expected_N + 1) % 10) for row in rows]
    return Mistakes(torch.zeros(len(rows[0]), 1, 1, 1), expected_N, torch.stack(answers))


def test_a_reference_is_judged_on_probes_that_it_did_not_choose() -> None:
    never = [False] * 400
    of = mistakes([[at % 4 == 0 for at in range(400)], never, never, never, never])
    at = choose(of, 100, torch.Generator().manual_seed(0))
    assert not (of.answers_RN[:, at] == of.expected_N[at]).any(), (
        "chosen where all references differ"
    )
    largest = p_reference(of, 400, torch.Generator())
    assert largest == pytest.approx(100.5 / 401), "(matches + .5) / (probes + 1)"
    first, *others = left_out(of, 400, torch.Generator())
    assert first.p_reference == pytest.approx(40.5 / 401), "one answer to everything"
    assert first.matches / first.asked == pytest.approx(0.25, abs=0.1)
    assert {each.p_reference for each in others} == {largest}


def test_one_answer_to_everything_matches_no_more_than_a_fifth() -> None:
    of = mistakes([[False] * 5_000] * 5)
    of = of._replace(expected_N=of.expected_N.where(torch.arange(5_000) % 10 < 5, torch.tensor(8)))
    assert of.expected_N[choose(of, 300, torch.Generator())].bincount().max() == 60
