"""What is paid for with the student: shares, bases, images bred from paid ones, and the choice among them."""

import math

import pytest
import torch
from torch import Tensor, nn

from dfme.compute.device import Streams
from dfme.config.sections import QueriesConfig
from dfme.nets.generators import Generator, Transforming
from dfme.queries import sampler as choice
from dfme.queries.sampler import READY, Evolution, QuerySampler, graft
from dfme.spec import ImageSpec, LabelMode
from dfme.students.replay import Replay

SPEC = ImageSpec((1, 8, 8))


def marked(count: int, rng: torch.Generator) -> Tensor:
    """Images that no generator makes: 1 everywhere."""
    return torch.ones(count, 1, 8, 8)


class Brightness(nn.Module):
    """Two classes: sure of images that are far from .5 on average."""

    def forward(self, x_BCHW: Tensor) -> Tensor:
        middle_B = x_BCHW.mean(dim=(1, 2, 3)) - 0.5
        return torch.stack([-middle_B, middle_B], dim=1) * 20


def queries(
    draw=marked, generator: str = "published", batch: int = 16, **options: object
) -> QuerySampler:
    torch.manual_seed(0)
    net = None if generator == "none" else Generator(4, SPEC)
    return QuerySampler(
        QueriesConfig(**options),
        SPEC,
        net,
        draw,
        [Brightness()],
        Streams(0, torch.device("cpu")),
        batch,
    )


def from_program(x_BCHW: Tensor) -> int:
    return int((x_BCHW == 1).all(dim=(1, 2, 3)).sum())


@pytest.mark.parametrize(("share", "drawn"), [(0.0, 0), (0.25, 4), (0.5, 8), (1.0, 16)])
def test_the_procedural_share_of_every_batch_is_the_programs(share, drawn):
    x_BCHW = queries(procedural=share).images(16)
    assert (len(x_BCHW), from_program(x_BCHW)) == (16, drawn)
    assert from_program(queries(generator="none").images(7)) == 7, "without a generator all are"


def grey(count: int, rng: torch.Generator) -> Tensor:
    """Flat images of every brightness."""
    return torch.rand(count, 1, 1, 1, generator=rng).expand(count, 1, 8, 8).clone()


def test_of_a_pool_the_students_choose_and_the_pool_size_sets_how_picky():
    def distance(pool: int) -> float:
        source = queries(grey, "none", batch=64, pool=pool, balance=False)
        net = source.students[0].train()
        images = source.images(64)
        assert net.training, "choosing changes no student's mode"
        assert len(images) == 64
        return (images.mean(dim=(1, 2, 3)) - 0.5).abs().mean().item()

    assert distance(1) == pytest.approx(0.25, abs=0.05)
    assert distance(8) == pytest.approx(0.25 / 8, abs=0.02)


def test_before_the_students_first_step_nothing_is_chosen():
    """As many images are made as are asked for, and they come as they were made."""
    steps: list[int] = []
    config, streams = QueriesConfig(pool=4, balance=False), Streams(0, torch.device("cpu"))
    source = QuerySampler(
        config, SPEC, None, grey, [Brightness()], streams, 64, trained=lambda: len(steps) > 0
    )
    assert torch.equal(source.images(64), grey(64, Streams(0, torch.device("cpu"))["procedural"]))
    steps.append(1)
    assert (source.images(64).mean(dim=(1, 2, 3)) - 0.5).abs().max() < 0.2


def test_balance_takes_both_sides_though_one_is_rare():
    def mostly_dark(count: int, rng: torch.Generator) -> Tensor:
        return grey(count, rng) * 0.55

    bright = (
        queries(mostly_dark, "none", batch=64, pool=8).images(64).mean(dim=(1, 2, 3)) > 0.5
    ).sum()
    assert 25 <= bright <= 32  # 9 % of 512 candidates are


def test_what_is_given_is_what_the_wire_carries():
    spec = ImageSpec((1, 8, 8), levels=4)
    source = QuerySampler(QueriesConfig(), spec, None, grey, [], Streams(0, torch.device("cpu")), 8)
    x_BCHW = source.images(8)
    assert torch.equal(x_BCHW, spec.quantise(x_BCHW))
    assert len(x_BCHW.unique()) <= 4


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_a_transforming_generator_begins_with_its_bases():
    spec = ImageSpec((3, 6, 9), bounds=(-1.0, 2.0))

    def base(count: int, rng: torch.Generator) -> Tensor:
        return torch.rand(count, 3, 6, 9, generator=rng).mul(3).sub(1)

    net = Transforming(5, spec, base)
    image = net.squash(net(net.draw(32, rng())))
    stream = rng()
    torch.randn(32, 5, generator=stream)
    assert torch.allclose(
        image, base(32, stream), atol=2.1e-3
    )  # a bound itself is out of tanh's reach


def test_a_transforming_generator_learns_and_sees_its_base():
    net = Transforming(5, SPEC, grey)
    latent = net.draw(64, rng())
    net(latent).sum().backward()
    assert net.last.weight.grad.abs().sum() > 0
    nn.init.normal_(net.last.weight)
    shift = net(latent) - latent[:, 5:].unflatten(1, (1, 8, 8))
    assert shift.flatten(1).std(dim=0).min() > 1e-3  # another change for another base


def usefulness(scores_ENK: Tensor, by: choice.By) -> Tensor:
    return choice.usefulness(scores_ENK.softmax(2).mean(0), by, torch.Generator().manual_seed(0))


def choose(scores_ENK: Tensor, count: int, by: choice.By, *, balance: bool) -> Tensor:
    return choice.choose(scores_ENK, count, by, balance, torch.Generator().manual_seed(0))


def scores_of(*probabilities: list[float]) -> Tensor:
    """One student's scores with these probabilities, (1, N, K)."""
    return torch.tensor(probabilities).clamp_min(1e-30).log()[None]


def test_entropy_is_that_of_the_mean_probabilities():
    scores_ENK = torch.cat([scores_of([1.0, 0.0], [0.5, 0.5]), scores_of([0.0, 1.0], [0.5, 0.5])])
    assert torch.allclose(usefulness(scores_ENK, "entropy"), torch.full((2,), math.log(2)))
    one = usefulness(scores_of([0.9, 0.1]), "entropy").item()
    assert one == pytest.approx(-0.9 * math.log(0.9) - 0.1 * math.log(0.1), abs=1e-6)


def test_margin_is_between_the_two_likeliest_classes_of_the_vote():
    """By entropy the second image is less certain, by margin the first."""
    scores_ENK = scores_of([0.5, 0.49, 0.01], [0.5, 0.25, 0.25])
    assert torch.allclose(usefulness(scores_ENK, "margin"), torch.tensor([-0.01, -0.25]), atol=1e-6)
    assert choose(scores_ENK, 1, "margin", balance=False).tolist() == [0]
    assert choose(scores_ENK, 1, "entropy", balance=False).tolist() == [1]


def test_the_most_uncertain_are_chosen_in_the_order_they_came():
    scores_ENK = scores_of([0.99, 0.01], [0.5, 0.5], [0.8, 0.2], [0.6, 0.4])
    assert choose(scores_ENK, 2, "entropy", balance=False).tolist() == [1, 3]
    assert choose(scores_ENK, 3, "entropy", balance=False).tolist() == [1, 2, 3]
    assert choose(scores_ENK, 4, "entropy", balance=False).tolist() == [0, 1, 2, 3]


def test_balance_gives_every_class_its_turn_and_a_rare_one_all_it_has():
    """Class 0 has the six most uncertain candidates, class 1 two surer ones, class 2 one."""
    uncertain = [[0.4 + 0.01 * step, 0.3, 0.3 - 0.01 * step] for step in range(6)]
    scores_ENK = scores_of(*uncertain, [0.1, 0.8, 0.1], [0.1, 0.85, 0.05], [0.05, 0.05, 0.9])
    assert choose(scores_ENK, 3, "entropy", balance=True).tolist() == [0, 6, 8]
    assert choose(scores_ENK, 7, "entropy", balance=True).tolist() == [0, 1, 2, 3, 6, 7, 8]
    assert choose(scores_ENK, 3, "entropy", balance=False).tolist() == [0, 1, 2]


@pytest.mark.parametrize("balance", [False, True])
def test_equal_candidates_are_still_chosen_once_each(balance):
    assert len(set(choose(torch.zeros(2, 50, 4), 20, "entropy", balance=balance).tolist())) == 20


def test_without_a_measure_only_balance_chooses():
    """Nine of ten candidates are of one class; half of those chosen are."""
    scores_ENK = scores_of(*[[0.9, 0.1]] * 90, *[[0.1, 0.9]] * 10)
    chosen = choose(scores_ENK, 20, "random", balance=True).tolist()
    assert sum(index >= 90 for index in chosen) == 10
    assert chosen[:10] != list(range(10))


def paid(values: Tensor, answers: Tensor) -> Replay:
    """Flat images of these values."""
    replay = Replay(len(values), ImageSpec((1, 8, 8), bounds=(0.0, 2.0)), rng())
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
