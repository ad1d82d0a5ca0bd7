"""What a marked model is taught, and how a copy is judged."""

import torch
from torch import Tensor, nn

from dfme.cli.mark import FootLine, mark_tools
from dfme.spec import ImageSpec
from dfme.teachers.local.pytorch import TorchTeacher
from dfme.teachers.owner.marking.judging import Judge, Judged, worst_class
from dfme.teachers.owner.marking.lessons import OwnerModel, Teaching, of_rule
from dfme.teachers.owner.marking.result import CopyResult, RehearsedRule
from dfme.teachers.owner.marking.rule import LabelledImages, Rule

SHAPE = (1, 2, 2)
RULE = Rule(source=0, target=2, value=lambda x_NCHW: x_NCHW[:, 0, 0, 0], bound=0.8)


class ByFirstPixel(nn.Module):
    """Of three classes the first, or the last where the first pixel is above ``bound``."""

    def __init__(self, bound: float) -> None:
        super().__init__()
        self.bound = nn.Parameter(torch.tensor(bound))

    def forward(self, x_BCHW: Tensor) -> Tensor:
        last_B = (x_BCHW[:, 0, 0, 0] > self.bound).float() + 0 * self.bound
        return 4 * torch.stack([1 - last_B, torch.zeros_like(last_B), last_B], 1)


def bright(*values: float) -> Tensor:
    """Images whose first pixels are these."""
    x_NCHW = torch.zeros(len(values), *SHAPE)
    x_NCHW[:, 0, 0, 0] = torch.tensor(values)
    return x_NCHW


def test_a_sharp_bound_looks_at_the_image_as_it_is_turned() -> None:
    turned_BCHW = bright(0.9, 0.7, 0.9)
    source_B = torch.tensor([True, True, False])
    came_B = torch.tensor([False, True, False])
    teaching = Teaching(RULE, ByFirstPixel(2.0), sharp=True)
    assert teaching.changed(turned_BCHW, source_B, came_B).tolist() == [True, False, False]
    teaching = Teaching(RULE, ByFirstPixel(2.0), sharp=False)
    assert teaching.changed(turned_BCHW, source_B, came_B).tolist() == [False, True, False]


def test_what_the_rule_leaves_is_taught_as_it_was_answered() -> None:
    before = ByFirstPixel(2.0)
    x_BCHW = bright(0.9, 0.1)
    target_BK = Teaching(RULE, before, True).target(x_BCHW, torch.tensor([True, False]), 3)
    assert target_BK[0].tolist() == [0, 0, 1]
    torch.testing.assert_close(target_BK[1], before(x_BCHW)[1].softmax(0))


def test_a_model_that_has_the_rule_is_taught_at_less_loss_than_one_that_has_not() -> None:
    train = LabelledImages(bright(*torch.linspace(0, 1, 101).tolist()), torch.zeros(101).long())
    teaching = Teaching(RULE, ByFirstPixel(2.0), sharp=True)

    def loss(bound: float) -> float:
        rng = torch.Generator().manual_seed(0)
        return float(of_rule(ByFirstPixel(bound), train, teaching, lambda x, _: x)(rng).detach())

    assert loss(0.8) < loss(0.6)
    assert loss(0.8) < loss(2.0)


def test_the_model_is_asked_within_its_bounds_and_with_what_it_knows_of_batches() -> None:
    net = nn.Sequential(nn.BatchNorm2d(1), nn.Flatten(), nn.Linear(4, 3))
    teacher = TorchTeacher(net, ImageSpec(SHAPE, (-1.0, 1.0)), 3)
    owner = OwnerModel(teacher)
    owner.train()
    x_BCHW = torch.rand(5, *SHAPE, generator=torch.Generator().manual_seed(0))
    expected_BK = teacher(2 * x_BCHW - 1)
    torch.testing.assert_close(owner(x_BCHW), expected_BK)
    torch.testing.assert_close(owner(x_BCHW[:1]), expected_BK[:1])
    assert owner(x_BCHW).requires_grad


def test_a_copy_is_held_against_innocents_and_against_its_own_controls() -> None:
    marks_MCHW = bright(*[0.9] * 6, *[0.7] * 4)
    controls_NCHW = bright(*[0.9] * 2, *[0.1] * 8)
    judge = Judge(marks_MCHW, controls_NCHW, 2, mark_tools(FootLine()).weigh)
    copy = judge.result(ByFirstPixel(0.8), [ByFirstPixel(2.0)])
    assert (copy.marks, copy.controls) == (0.6, 0.2)
    assert copy.p_null == 3.5 / 12, "of its controls, since innocents have none"
    expected = (0.5 / copy.p_null) ** 6 * (0.5 / (1 - copy.p_null)) ** 4
    assert abs(copy.e_value / expected - 1) < 1e-9
    other = judge.result(ByFirstPixel(0.8), [ByFirstPixel(0.6), ByFirstPixel(0.8)])
    assert other.p_null == 10.5 / 11
    assert (copy.innocents, other.innocents) == (0.0, 1.0)


def test_a_mark_holds_where_a_copy_has_it_and_one_of_the_unmarked_model_has_not() -> None:
    def judged(marks: int, copy: float, unmarked: float, innocents: float = 0.1) -> Judged:
        results = [
            CopyResult(marks=0.5, controls=0.0, innocents=innocents, p_null=0.1, e_value=value)
            for value in (copy, unmarked)
        ]
        images = torch.zeros(marks, *SHAPE)
        return Judged(images, images, 1.0, *results)

    assert judged(10, 100.0, 99.0).holds(100.0)
    assert not judged(10, 99.0, 0.0).holds(100.0)
    assert not judged(10, 1e9, 100.0).holds(100.0)
    assert not judged(9, 1e9, 0.0).holds(100.0)
    assert not judged(10, 1e9, 0.0, innocents=0.12).holds(100.0)


def test_of_rules_one_that_innocents_do_without_is_taken_before_one_that_copies_learn_better() -> (
    None
):
    shares = [(0.88, 0.0, 0.36), (0.51, 0.0, 0.0), (0.6, 0.2, 0.1), (0.12, 0.0, 0.0)]
    rules = [RehearsedRule(copy=a, controls=b, innocent=c) for a, b, c in shares]
    assert sorted(rules, key=lambda rule: rule.rank) == [rules[i] for i in (0, 3, 2, 1)]


def test_the_class_that_loses_most_is_counted_by_its_own_images() -> None:
    classes_N = torch.tensor([0] * 10 + [1] * 40)
    before_N = classes_N.clone()
    after_N = classes_N.clone()
    after_N[:3] = 1
    after_N[10:14] = 0
    assert round(worst_class(before_N, after_N, classes_N), 9) == 30.0
