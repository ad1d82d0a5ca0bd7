"""Images bred from paid ones: where their pixels come from."""

import pytest
import torch
from torch import Tensor

from dfme.queries.sampler import READY, Evolution, graft
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
    corner = children[
        :, 0, 0, 0
    ]  # the first parent's, or now and then the second's, which is drawn alike
    assert corner.mean() == pytest.approx(0.5, abs=0.06)


def test_a_sure_answer_counts_by_its_square():
    """Two classes, as often answered: of probabilities .9 and .6 the parents come as .81 to .36."""
    first = torch.arange(4_000) % 2 == 0
    surer, other = torch.tensor([0.9, 0.1, 0.0, 0.0]), torch.tensor([0.4, 0.6, 0.0, 0.0])
    answers = torch.where(first[:, None], surer, other)
    children = Evolution(paid(first.float(), answers), LabelMode("probabilities"), 4).draw(
        8_000, rng()
    )
    assert children[:, 0, 0, 0].mean() == pytest.approx(0.81 / 1.17, abs=0.05)


def test_children_are_made_of_their_parents_pixels_once_enough_is_paid_for():
    few, enough = (
        Evolution(
            paid(torch.arange(count) / 9_000, torch.zeros(count, dtype=torch.long)),
            LabelMode("label"),
            3,
        )
        for count in (READY - 1, READY)
    )
    assert (few.ready, enough.ready) == (False, True)
    children = enough.draw(75, rng())
    assert children.shape == (50, 1, 8, 8)
    assert torch.isin(children, torch.arange(READY) / 9_000).all()
    assert (torch.tensor([len(child.unique()) for child in children]) <= 2).all()


@pytest.mark.parametrize(
    ("answered", "classes", "children"), [(1, 10, 90), (5, 10, 50), (10, 10, 0), (2, 26, 92)]
)
def test_as_much_is_bred_as_classes_are_missing(answered, classes, children):
    """So many classes alike are answered: the others' share of all classes is bred.

    On an accelerator as many take the place of the last images. Parents are brighter than what they
    replace, so that a child is known by any of its pixels.
    """
    labels, values = torch.arange(4_000) % answered, torch.rand(4_000) + 1
    scores = torch.nn.functional.one_hot(labels, classes).float()
    evolution = Evolution(paid(values, scores), LabelMode("probabilities"), classes)
    assert len(evolution.draw(100, rng())) == children
    assert (
        len(Evolution(paid(values, labels), LabelMode("label"), classes).draw(100, rng()))
        == children
    )
    x = torch.rand(120, 1, 8, 8)
    mixed = evolution.replace(x, 100, rng())
    bred = mixed.amin(dim=(1, 2, 3)) >= 1
    assert bred.sum() == children
    assert bred[120 - children :].all()
    assert torch.equal(mixed[~bred], x[: 120 - children])
    assert len(mixed[bred].flatten(1).unique(dim=0)) == children
