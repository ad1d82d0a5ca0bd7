"""DisGUIDE's own: the published defaults, and the grey images, which are a channel copied by
chance.
"""

import pytest
import torch
from toys import LinearTeacher, goes_on_bit_for_bit, make_method, make_parts

from dfme.methods import disguide
from dfme.methods.generator_losses import class_diversity, predict, students_disagreement
from dfme.spec import ImageSpec

COLOUR = ImageSpec((3, 8, 8), levels=256)


def begun(spec=COLOUR, seed=0, budget=10**9, **options):
    parts = make_parts(LinearTeacher(spec), budget, seed=seed, count=2, replay_steps=1)
    return parts, make_method("disguide", parts, **{"batch_size": 24, **options})


def copies(x_CHW):
    """The three grey images that one of colour can become."""
    return [channel_HW.expand(3, -1, -1) for channel_HW in x_CHW]


def test_every_eighth_image_that_is_paid_for_is_a_copied_channel_and_the_others_are_as_they_were():
    _, coloured = begun(grey_every=0)
    _, method = begun()
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
    _, method = begun(grey_every=1)
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
    parts, method = begun()
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
    parts, method = begun(ImageSpec((channels, 8, 8)))
    _, without = begun(ImageSpec((channels, 8, 8)), grey_every=0)
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
    goes_on_bit_for_bit(lambda seed: begun(seed=seed)[1])
