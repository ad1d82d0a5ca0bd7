"""Images bred from paid ones: where their pixels come from, and how often a seldom answered class has children."""

import pytest
import torch
from torch import Tensor

from dfme.queries.evolution import READY, Evolution, graft
from dfme.spec import ImageSpec, LabelMode
from dfme.students.replay import Replay

SPEC = ImageSpec((1, 8, 8), bounds=(0.0, 2.0))


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def paid(values: Tensor, answers: Tensor) -> Replay:
    """Flat images of these values."""
    replay = Replay(len(values), SPEC, rng())
    replay.add(values.view(-1, 1, 1, 1).expand(-1, 1, 8, 8).clone(), answers)
    return replay


def test_a_graft_is_a_rectangle_of_the_other_image_and_the_rest_is_untouched():
    x, other = torch.zeros(500, 3, 9, 14), torch.ones(500, 3, 9, 14)
    child = graft(x, other, rng())
    inside = child[:, 0]
    assert torch.equal(child, inside[:, None].expand_as(child)), "all channels alike"
    for image in inside:
        box = torch.outer(image.amax(1), image.amax(0))
        assert torch.equal(image, box), "rows times columns"
    shares = inside.mean(dim=(1, 2))
    assert 0.1 < shares.mean() < 0.5
    assert shares.min() >= 0
    assert shares.std() > 0.05


@pytest.mark.parametrize("kind", ["label", "probabilities"])
def test_a_class_of_one_in_a_hundred_has_half_of_the_parents(kind):
    labels = (torch.arange(4_000) % 100 == 0).long()
    answers = labels if kind == "label" else torch.nn.functional.one_hot(labels, 2).float()
    children = Evolution(paid(labels.float(), answers), LabelMode(kind), 2).draw(4_000, rng())
    corner = children[:, 0, 0, 0]  # the first parent's, or now and then the second's, which is drawn alike
    assert corner.mean() == pytest.approx(0.5, abs=0.06)


def test_a_sure_answer_counts_by_its_square():
    """Two classes, as often answered: of probabilities .9 and .6 the parents come as .81 to .36."""
    first = torch.arange(4_000) % 2 == 0
    surer, other = torch.tensor([0.9, 0.1, 0.0, 0.0]), torch.tensor([0.4, 0.6, 0.0, 0.0])
    answers = torch.where(first[:, None], surer, other)
    children = Evolution(paid(first.float(), answers), LabelMode("probabilities"), 4).draw(8_000, rng())
    assert children[:, 0, 0, 0].mean() == pytest.approx(0.81 / 1.17, abs=0.05)


def test_children_are_made_of_their_parents_pixels_within_the_bounds():
    values = torch.rand(READY) * 2
    children = Evolution(paid(values, torch.zeros(READY, dtype=torch.long)), LabelMode("label"), 3).draw(75, rng())
    assert children.shape == (56, 1, 8, 8)
    assert torch.isin(children, values).all()
    assert (torch.tensor([len(child.unique()) for child in children]) <= 2).all()


@pytest.mark.parametrize(("answered", "classes", "children"), [(1, 10, 90), (5, 10, 50), (10, 10, 0), (2, 26, 92)])
def test_as_much_is_bred_as_classes_are_missing(answered, classes, children):
    """So many classes alike are answered: the others' share of all classes is bred; of labels three in four."""
    labels, values = torch.arange(4_000) % answered, torch.rand(4_000)
    scores = torch.nn.functional.one_hot(labels, classes).float()
    assert len(Evolution(paid(values, scores), LabelMode("probabilities"), classes).draw(100, rng())) == children
    assert len(Evolution(paid(values, labels), LabelMode("label"), classes).draw(100, rng())) == 75


def test_there_are_children_once_enough_is_paid_for():
    few = paid(torch.rand(READY - 1), torch.zeros(READY - 1, dtype=torch.long))
    enough = paid(torch.rand(READY), torch.zeros(READY, dtype=torch.long))
    assert [Evolution(each, LabelMode("label"), 3).ready for each in (few, enough)] == [False, True]


@pytest.mark.parametrize(("answered", "classes", "children"), [(1, 10, 90), (5, 10, 50), (10, 10, 0), (2, 26, 92)])
def test_on_an_accelerator_as_many_children_take_the_place_of_the_last_images(answered, classes, children):
    """Parents are brighter than what they replace, so that a child is known by any of its pixels."""
    labels = torch.arange(4_000) % answered
    scores = torch.nn.functional.one_hot(labels, classes).float()
    evolution = Evolution(paid(torch.rand(4_000) + 1, scores), LabelMode("probabilities"), classes)
    x = torch.rand(120, 1, 8, 8)
    mixed = evolution.replace(x, 100, rng())
    bred = mixed.amin(dim=(1, 2, 3)) >= 1
    assert bred.sum() == children
    assert bred[120 - children :].all()
    assert torch.equal(mixed[~bred], x[: 120 - children])
    assert len(mixed[bred].flatten(1).unique(dim=0)) == children
