"""The statistic of ``run.py verify --marks`` by other means: exact likelihood ratios, and how often
a model that is no copy is called one.
"""

from fractions import Fraction
from math import comb

import pytest
from marked import CONTROLS, MARKS, NONE, ratio

from dfme.audits.verify.evidence import MarkEvidence


@pytest.mark.parametrize(
    ("repeated", "controls", "usual", "sure"),
    [
        (40, 0, Fraction(3, 104), True),
        (10, 0, Fraction(3, 104), False),  # 11 of 50 are the fewest
        (11, 0, Fraction(3, 104), True),
        (0, 0, Fraction(3, 104), False),  # an innocent
        (50, 50, Fraction(103, 104), False),  # one answer to everything
        (40, 5, Fraction(13, 104), True),
        (25, 20, Fraction(43, 104), False),  # it calls much of that class so
    ],
)
def test_the_evidence_is_arithmetic(
    repeated: int, controls: int, usual: Fraction, sure: bool
) -> None:
    seen = MarkEvidence(MARKS, repeated, CONTROLS, controls, float(NONE))
    assert seen.p_null == pytest.approx(float(usual))
    assert seen.told["e_value"] == pytest.approx(float(ratio(repeated, usual)))
    assert (seen.told["sure"], ratio(repeated, usual) >= 100) == (sure, sure)


def test_the_references_count_where_they_repeat_more_than_the_suspect_s_controls() -> None:
    reference = Fraction(21, 102)
    seen = MarkEvidence(MARKS, 30, CONTROLS, 3, float(reference))
    assert seen.p_null == pytest.approx(float(reference))
    assert seen.evidence.e_value == pytest.approx(float(ratio(30, reference)))


def test_who_answers_marks_and_controls_alike_is_accused_in_one_of_a_hundred_at_most() -> None:
    fewest = []
    for controls in range(CONTROLS + 1):
        counts = range(MARKS + 1)
        rows = [MarkEvidence(MARKS, count, CONTROLS, controls, float(NONE)) for count in counts]
        fewest.append(next((row.repeated for row in rows if row.evidence.sure), MARKS + 1))
    assert fewest[:3] == [11, 13, 14]

    def chance(rate: float, count: int) -> float:
        return comb(MARKS, count) * rate**count * (1 - rate) ** (MARKS - count)

    accused = [
        sum(
            chance(rate, controls) * sum(chance(rate, n) for n in range(least, MARKS + 1))
            for controls, least in enumerate(fewest)
        )
        for rate in (step / 50 for step in range(1, 50))
    ]
    assert 0.008 < max(accused) < 0.009, "docs/verify.md says .85 %"


@pytest.mark.parametrize("controls", [0, 1, 5, 20])
def test_controls_that_were_given_no_class_count_as_answered_so(controls: int) -> None:
    constant = MarkEvidence(MARKS, MARKS, controls, controls, float(NONE))
    assert constant.p_null == MarkEvidence(MARKS, MARKS, CONTROLS, CONTROLS, float(NONE)).p_null
    assert not constant.evidence.sure, "one answer to everything, with most controls refused"
    few = MarkEvidence(MARKS, 40, controls, 0, float(NONE))
    hidden = MarkEvidence(MARKS, 40, CONTROLS, CONTROLS - controls, float(NONE))
    assert few.evidence.e_value == hidden.evidence.e_value
    refused_alike = MarkEvidence(controls, 0, CONTROLS, 0, float(NONE))
    assert refused_alike.p_null == MarkEvidence(MARKS, 0, CONTROLS, 0, float(NONE)).p_null
