"""A rule's marks and controls: where they lie along its direction and along others."""

import pytest
import torch
from torch import Tensor

from dfme.teachers.owner.marking import rule as rules
from dfme.teachers.owner.marking.rule import LabelledImages, Style, StyleRule, bound_of, style_rule

SHAPE = (1, 8, 8)


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.fixture
def train() -> LabelledImages:
    """Four classes of 200 dim images each, that nothing clips."""
    x_NCHW = 0.5 + 0.05 * torch.randn(800, *SHAPE, generator=rng())
    return LabelledImages(x_NCHW, torch.arange(800) % 4)


@pytest.fixture
def rule(train: LabelledImages) -> StyleRule:
    return style_rule(train, 0.02, 4, rng(1))


def test_marks_are_the_most_extreme_two_deviations_further_and_beyond_the_bound(
    train: LabelledImages, rule: StyleRule
) -> None:
    value_S = rule.value(train.x_NCHW[train.classes_N == rule.source])
    assert int((value_S > rule.bound).sum()) == 16
    marks_MCHW = rule.secret_marks(train, 40)
    extreme_M = value_S.sort(descending=True).values[:40]
    expected_M = torch.maximum(extreme_M + 2, torch.full((40,), rule.bound + 2))
    torch.testing.assert_close(rule.value(marks_MCHW), expected_M, atol=0.1, rtol=0)
    assert torch.equal((marks_MCHW * 255).round() / 255, marks_MCHW)


def test_controls_are_other_images_that_the_rule_leaves_half_of_them_far_out_another_way(
    train: LabelledImages, rule: StyleRule
) -> None:
    controls_NCHW = rule.controls(train, 40, rng(2))
    assert controls_NCHW.shape == (40, *SHAPE)
    assert float(rule.value(controls_NCHW).max()) < rule.bound
    source_SD = train.x_NCHW[train.classes_N == rule.source].flatten(1)
    distance_N = torch.cdist(controls_NCHW.flatten(1), source_SD).min(1).values
    assert float(distance_N[20:].max()) < 0.02, "as they are, but for the 8 bits"
    assert float(distance_N[:20].min()) > 0.05

    def furthest(x_NCHW: Tensor) -> Tensor:
        """Distance from the class's mean in its space, in deviations."""
        space = rule.space
        offset_ND = x_NCHW.flatten(1) - space.mean_D
        return ((offset_ND.double() @ space.axes_DV) / space.deviation_V).norm(dim=1)

    marks = furthest(rule.secret_marks(train, 40))
    assert float(furthest(controls_NCHW[:20]).mean()) == pytest.approx(float(marks.mean()), rel=0.2)
    assert float(furthest(controls_NCHW[20:]).mean()) < 0.8 * float(marks.mean())


def test_another_share_keeps_the_direction(train: LabelledImages, rule: StyleRule) -> None:
    smaller = rule.of_share(train, 0.01)
    assert int(smaller.changed(train).sum()) == 8
    assert bool((rule.changed(train) | ~smaller.changed(train)).all())
    assert smaller.bound > rule.bound


def test_no_more_than_a_quarter_of_a_class_is_extreme() -> None:
    value_S = torch.arange(100.0)
    assert bound_of(value_S, 0.9, 1000) == 74.0
    assert bound_of(value_S, 0.01, 1000) == 89.0


def test_large_images_have_the_same_components(
    train: LabelledImages, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = Style.of(train.x_NCHW)
    monkeypatch.setattr(rules, "MAX_DIRECT", 1)
    other = Style.of(train.x_NCHW)
    torch.testing.assert_close(other.axes_DV, whole.axes_DV, atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(other.deviation_V, whole.deviation_V)


def test_an_image_that_repeats_one_of_its_class_counts_once(train: LabelledImages) -> None:
    assert train.distinct is train
    again = LabelledImages(
        torch.cat([train.x_NCHW, train.x_NCHW[40:48]]),
        torch.cat([train.classes_N, train.classes_N[40:44], train.classes_N[44:48].flip(0)]),
    )
    kept = torch.cat([torch.arange(800), torch.arange(804, 808)])
    assert torch.equal(again.distinct.x_NCHW, again.x_NCHW[kept]), "one of two classes is two"
    assert torch.equal(again.distinct.classes_N, again.classes_N[kept])
