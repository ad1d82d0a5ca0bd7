"""Free augmentation: small images by hand, and every image one of those that it may become."""

import pytest
import torch
import torch.nn.functional as F  # noqa: N812

from dfme.students.replay import augment


def rng(seed=0):
    return torch.Generator().manual_seed(seed)


def shifted(image_CHW, down, right):
    """Content moved down and right with repeated edges: a window of the padded image."""
    height, width = image_CHW.shape[1:]
    return F.pad(image_CHW[None], (1, 1, 1, 1), mode="replicate")[0][
        :, 1 - down : 1 - down + height, 1 - right : 1 - right + width
    ]


def test_none_is_the_same_tensor_and_draws_nothing():
    x_BCHW, chance = torch.rand(2, 1, 3, 3), rng()
    before = chance.get_state()
    assert augment(x_BCHW, "none", chance) is x_BCHW
    assert torch.equal(chance.get_state(), before)


def test_shifts_by_hand_repeat_the_edge():
    x_BCHW = torch.tensor([[1, 2, 3], [4, 5, 6], [7, 8, 9]]).expand(200, 1, 3, 3)
    outcomes = {tuple(image.flatten().tolist()) for image in augment(x_BCHW, "shift", rng())}
    assert len(outcomes) == 9
    assert (1, 2, 3, 4, 5, 6, 7, 8, 9) in outcomes
    assert (1, 1, 2, 1, 1, 2, 4, 4, 5) in outcomes  # down and right
    assert (2, 3, 3, 5, 6, 6, 8, 9, 9) in outcomes  # left
    assert (4, 5, 6, 7, 8, 9, 7, 8, 9) in outcomes  # up


@pytest.mark.parametrize(("how", "possible"), [("flip", 2), ("shift", 9), ("both", 18)])
@pytest.mark.parametrize("shape", [(3, 5, 4), (1, 8, 8)])
def test_all_it_may_become_happens_equally_often_and_nothing_else(how, possible, shape):
    count = 100 * possible
    image_CHW = torch.rand(shape, generator=rng(1))
    moves = (
        [(down, right) for down in (-1, 0, 1) for right in (-1, 0, 1)]
        if how != "flip"
        else [(0, 0)]
    )
    expected = [shifted(image_CHW, *move) for move in moves]
    if how != "shift":
        expected += [image_CHW.flip(2)] if how == "flip" else [image.flip(2) for image in expected]
    out_BCHW = augment(image_CHW.expand(count, *shape), how, rng())
    times = [int((out_BCHW == image).flatten(1).all(1).sum()) for image in expected]
    assert len(expected) == possible
    assert sum(times) == count
    assert min(times) > 60
    assert max(times) < 150


@pytest.mark.parametrize("how", ["flip", "shift", "both", "affine"])
def test_the_same_for_the_same_chance_and_the_input_stays(how):
    x_BCHW = torch.randint(256, (20, 1, 4, 4), generator=rng(1), dtype=torch.uint8)
    before = x_BCHW.clone()
    assert torch.equal(augment(x_BCHW, how, rng(3)), augment(x_BCHW, how, rng(3)))
    assert not torch.equal(augment(x_BCHW, how, rng(3)), augment(x_BCHW, how, rng(4)))
    assert augment(x_BCHW, how, rng(3)).dtype == torch.uint8
    assert torch.equal(x_BCHW, before)


def test_affine_maps_stay_within_their_bounds_in_pixels():
    """Channels hold each pixel's place, so a least-squares fit to the result is the map."""
    height, width = 24, 48
    places = torch.meshgrid(torch.arange(height) + 0.5, torch.arange(width) + 0.5, indexing="ij")
    x_1CHW = torch.stack([places[0], places[1], torch.ones(height, width)])[None] / 100
    out_BCHW = 100 * augment(x_1CHW.expand(300, -1, -1, -1), "affine", rng())
    centre = (
        slice(None),
        slice(None),
        slice(9, 15),
        slice(18, 30),
    )  # nothing moves in from outside there
    here_N3 = torch.stack(
        [plane[centre[2:]].flatten() for plane in (*places, torch.ones(height, width))], 1
    )
    middle = torch.tensor([height / 2, width / 2])
    found_B32 = torch.linalg.lstsq(
        here_N3.expand(300, -1, -1), out_BCHW[centre][:, :2].flatten(2).mT
    ).solution
    down_B, right_B = ((middle @ found_B32[:, :2]) + found_B32[:, 2] - middle).unbind(1)
    stretches_B2 = found_B32[:, :2].norm(dim=2)
    assert down_B.abs().max() <= 0.075 * height + 1e-3
    assert right_B.abs().max() <= 0.075 * width + 1e-3
    assert down_B.abs().max() > 0.06 * height
    assert right_B.abs().max() > 0.06 * width
    turn_B = torch.atan2(
        found_B32[:, 1, 0], found_B32[:, 1, 1]
    )  # of the horizontal axis, without the shear
    assert 0.15 < turn_B.abs().max() <= 0.2 + 1e-3
    assert 0.8 < stretches_B2[:, 1].min() < stretches_B2[:, 1].max() <= 1.15 + 1e-3
