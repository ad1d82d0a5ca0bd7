"""Fidelity by hand, and its statistics by brute force."""

import math
from dataclasses import astuple
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
import torch

from dfme.audits.audit.fidelity import ExaminedCell, calibration, fidelity, figures, kendall_tau
from dfme.audits.audit.parts import ClassAgreement, CopyFigures, WhereWrong
from dfme.spec import LabelMode

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
    assert seen.clone_ece
    assert seen.clone_ece.value > 0
    blind = fidelity(CELL, labels, LABEL, scores, None)
    assert (blind.where_wrong, blind.clone_ece) == (None, None)
    constant = torch.full((2, 4), 0.25)
    assert figures(constant, P, scores).kendall_tau is None
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
    assert result.where_wrong
    assert (result.where_wrong.images, result.where_wrong.same) == (4, 2)
    wilson_of_2_of_4 = pytest.approx((0.150, 0.850), abs=1e-3)
    assert result.where_wrong.interval == wilson_of_2_of_4
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
    quantiles = tuple(np.quantile(drawn, [0.025, 0.975]))
    assert result.interval == pytest.approx(quantiles, abs=0.0101)
    assert calibration(p, labels) == result
