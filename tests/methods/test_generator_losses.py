"""What generators without queries descend on, by hand and in the right direction; DisGUIDE's grey
images, which are a channel copied by chance.
"""

import math

import pytest
import torch
from begun import SPEC, begun
from tables import exhaustive_rows
from toys import goes_on_bit_for_bit, make_method, small_net

from dfme.methods import disguide
from dfme.methods.generator_losses import (
    class_diversity,
    pairwise_distance,
    predict,
    students_disagreement,
)
from dfme.spec import ImageSpec


def logs(*probabilities: list[list[float]]) -> torch.Tensor:
    return torch.tensor(probabilities).log()


def test_spread_is_disguides_deviation_by_hand():
    """Two students at .9/.1 and .5/.5: n - 1 deviations of .4 / sqrt 2 in both classes."""
    assert students_disagreement(
        logs([[0.9, 0.1], [0.3, 0.7]], [[0.5, 0.5], [0.3, 0.7]])
    ).item() == pytest.approx(0.4 / math.sqrt(2) / 2, abs=1e-5)


def test_spread_has_a_finite_slope_where_the_students_agree():
    scores_EBK = logs([[0.3, 0.7]], [[0.3, 0.7]]).requires_grad_()
    students_disagreement(scores_EBK).backward()
    assert scores_EBK.grad.isfinite().all()


def test_apart_is_the_mean_over_pairs_by_hand():
    scores_EBK = torch.tensor([[[0.0, 0.0]], [[1.0, 3.0]], [[2.0, 2.0]]])
    assert pairwise_distance(scores_EBK[:2]).item() == 2.0
    assert pairwise_distance(scores_EBK).item() == pytest.approx((2.0 + 2.0 + 1.0) / 3)


def test_diversity_is_least_where_all_classes_are_alike():
    assert class_diversity(logs([[0.5, 0.5], [0.5, 0.5]])).item() == pytest.approx(-math.log(2))
    assert class_diversity(logs([[0.99, 0.01], [0.01, 0.99]])).item() == pytest.approx(-math.log(2))
    assert class_diversity(logs([[0.9, 0.1], [0.7, 0.3]])).item() == pytest.approx(
        0.8 * math.log(0.8) + 0.2 * math.log(0.2)
    )


def test_what_is_seen_is_seen_in_eval_mode_and_the_mode_stays():
    nets = [small_net(SPEC, seed=seed) for seed in (0, 1)]
    x_BCHW = torch.rand(6, 1, 8, 8)
    scores_EBK = predict(nets, x_BCHW)
    assert all(net.training for net in nets)
    with torch.no_grad():
        assert torch.allclose(scores_EBK[1], nets[1].eval()(x_BCHW))


def test_before_tanh_shows_the_students_what_the_squashing_has_not_seen():
    _, parts, method = begun("dual_students", 10**9)
    u_BCHW = 3 * torch.randn(4, 1, 8, 8)
    of_output = make_method("dual_students", parts, before_tanh=True).generator_loss(u_BCHW)
    of_image = method.generator_loss(u_BCHW)
    assert of_output == -pairwise_distance(predict(parts.students.nets, u_BCHW))
    assert of_image == -pairwise_distance(
        predict(parts.students.nets, parts.generator.squash(u_BCHW))
    )
    assert of_output != of_image


@pytest.mark.parametrize(
    ("name", "measure", "options"),
    [
        ("disguide", students_disagreement, {}),
        ("disguide", lambda scores_EBK: -class_diversity(scores_EBK), {"diversity": 100.0}),
        *exhaustive_rows([("dual_students", pairwise_distance, {})]),
    ],
)
def test_the_generator_learns_what_its_loss_asks_for(name, measure, options):
    """With the students held still: images that they differ on, or of all classes; on fresh
    latents.
    """
    _, parts, method = begun(name, 10**9, batch_size=64, generator_lr=3e-2, **options)
    z = torch.randn(256, 8, generator=torch.Generator().manual_seed(5))

    def measured() -> float:
        with torch.no_grad():
            return measure(
                predict(parts.students.nets, parts.generator.squash(parts.generator(z)))
            ).item()

    before = measured()
    for _ in range(8):
        method.generator_step()
    assert measured() > (1.0 if options else 1.1) * before


# DisGUIDE

COLOUR = ImageSpec((3, 8, 8), levels=256)


def grey(spec=COLOUR, seed=0, **options):
    student = {"replay_steps": 1}
    return begun(
        "disguide", 10**9, spec=spec, seed=seed, student=student, batch_size=24, **options
    )[1:]


def copies(x_CHW):
    """The three grey images that one of colour can become."""
    return [channel_HW.expand(3, -1, -1) for channel_HW in x_CHW]


def test_every_eighth_image_that_is_paid_for_is_a_copied_channel_and_the_others_are_as_they_were():
    _, coloured = grey(grey_every=0)
    _, method = grey()
    plain_BCHW, x_BCHW = coloured.query_images(24), method.query_images(24)
    for number, (plain_CHW, x_CHW) in enumerate(zip(plain_BCHW, x_BCHW, strict=True)):
        may_be = copies(plain_CHW) if number % 8 == 0 else [plain_CHW]
        assert sum(torch.equal(x_CHW, image_CHW) for image_CHW in may_be) == 1, number
    assert torch.equal(x_BCHW, COLOUR.quantise(x_BCHW))

    method.pay_in_batches(24)
    paid_BCHW, _ = method.recent
    same_B = (paid_BCHW == paid_BCHW[:, :1]).flatten(1).all(dim=1)
    assert same_B.nonzero().flatten().tolist() == [0, 8, 16]


def test_each_channel_is_as_likely_and_drawn_for_each_image():
    _, method = grey(grey_every=1)
    x_BCHW = torch.tensor([0.1, 0.2, 0.3]).view(1, 3, 1, 1).expand(6_000, 3, 2, 2).contiguous()
    grey_BCHW = method.with_grey(x_BCHW)
    assert torch.equal(grey_BCHW, grey_BCHW[:, :1, :1, :1].expand_as(grey_BCHW))
    values, counts = grey_BCHW[:, 0, 0, 0].unique(return_counts=True)
    assert torch.equal(values, torch.tensor([0.1, 0.2, 0.3]))
    # Chi-square of two degrees of freedom: above 13.8 once in a thousand.
    assert ((counts - 2_000).square() / 2_000).sum() < 13.8
    assert x_BCHW[0, :, 0, 0].tolist() == pytest.approx([0.1, 0.2, 0.3]), (
        "what was given stays as it is"
    )


def test_the_generators_loss_and_its_slope_are_those_of_the_grey_images():
    parts, method = grey()
    chosen = set()
    for attempt in range(12):
        gen_op = torch.randn(
            8, 3, 8, 8, generator=torch.Generator().manual_seed(attempt), requires_grad=True
        )
        loss = method.generator_loss(gen_op)
        (grad_BCHW,) = torch.autograd.grad(loss, gen_op)
        x_BCHW = parts.generator.squash(gen_op.detach())
        by_hand = []
        for grey_CHW in copies(x_BCHW[0]):
            scores_EBK = predict(parts.students.nets, torch.cat([grey_CHW[None], x_BCHW[1:]]))
            by_hand.append(
                (0.2 * class_diversity(scores_EBK) - students_disagreement(scores_EBK)).item()
            )
        channel = min(range(3), key=lambda number: abs(by_hand[number] - loss.item()))
        assert by_hand[channel] == pytest.approx(loss.item(), rel=1e-5)
        assert (grad_BCHW != 0).flatten(2).any(dim=2).tolist() == [
            [number == channel for number in range(3)],
            *[[True] * 3] * 7,
        ]
        chosen.add(channel)
    assert chosen == {0, 1, 2}


@pytest.mark.parametrize("channels", [1, 2, 4])
def test_images_that_are_not_of_three_colours_stay_and_cost_no_draw(channels):
    parts, method = grey(ImageSpec((channels, 8, 8)))
    _, without = grey(ImageSpec((channels, 8, 8)), grey_every=0)
    for _ in range(2):
        method.step()
        without.step()
    assert "grey" not in parts.rng.state_dict()["streams"]
    for mine, theirs in zip(
        method.generator.parameters(), without.generator.parameters(), strict=True
    ):
        assert torch.equal(mine, theirs)


def test_in_colour_a_run_taken_up_again_is_bit_for_bit_the_whole_one(monkeypatch):
    monkeypatch.setattr(disguide, "SETTLING", 3)
    goes_on_bit_for_bit(lambda seed: grey(seed=seed)[1])
