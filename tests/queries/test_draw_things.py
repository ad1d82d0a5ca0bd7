"""Things on a ground: areas by geometry, symmetry, light from above, colours, exposure, focus."""

import math

import pytest
import torch
from torch import Tensor

from dfme.queries import silhouettes, things
from dfme.queries.drawing import pixel_grid
from dfme.spec import ImageSpec

SIDE = 200
PIXEL = (2 / SIDE) ** 2  # its area, in squares of half of the shorter side


def places(count: int) -> tuple[Tensor, Tensor]:
    """x and y (B, H, W) of the pixels of a square image."""
    x_1W, y_H1 = pixel_grid(ImageSpec((1, SIDE, SIDE)), torch.device("cpu"))
    shape = (count, SIDE, SIDE)
    return x_1W.expand(shape), y_H1.expand(shape)


def number(value: float) -> Tensor:
    return torch.full((1, 1, 1), value)


def test_a_limb_has_the_area_and_the_depth_of_geometry() -> None:
    start = (number(-0.3), number(-0.2))
    end = (number(0.3), number(0.2))
    widths = (number(0.2), number(0.2))
    depth_BHW = silhouettes._limb(*places(1), start, end, widths)
    area = 2 * 0.2 * math.hypot(0.6, 0.4) + math.pi * 0.2**2
    assert float((depth_BHW > 0).sum() * PIXEL) == pytest.approx(area, rel=0.01)
    assert float(depth_BHW.max()) == pytest.approx(0.2, abs=0.01)
    tapered_BHW = silhouettes._limb(*places(1), start, end, (number(0.3), number(0.1)))
    left, right = (tapered_BHW > 0).split(SIDE // 2, 2)
    assert float(left.sum()) > 1.5 * float(right.sum())


@pytest.mark.parametrize("rounded", [0.0, 0.1, 0.2])
def test_a_box_has_the_area_of_geometry(rounded: float) -> None:
    middle = (number(0.1), number(-0.2))
    halves = (number(0.5), number(0.2))
    depth_BHW = silhouettes._box(*places(1), middle, halves, number(rounded))
    area = 4 * 0.5 * 0.2 - (4 - math.pi) * rounded**2
    assert float((depth_BHW > 0).sum() * PIXEL) == pytest.approx(area, rel=0.02)
    assert float(depth_BHW.max()) == pytest.approx(0.2, abs=0.01), "the distance to the edge"


@pytest.mark.parametrize("shape", silhouettes.SHAPES)
def test_a_shape_lies_within_the_image_and_no_two_are_alike(shape: silhouettes.Silhouette) -> None:
    depth_BPHW = shape(*places(40), torch.Generator().manual_seed(0))
    assert depth_BPHW.shape[1] <= silhouettes.MAX_PARTS
    inside_BHW = (depth_BPHW > 0).any(1)
    share_B = inside_BHW.float().mean((1, 2))
    assert float(share_B.min()) > 0.05
    assert float(share_B.max()) < 0.95
    assert len(inside_BHW.flatten(1).unique(dim=0)) == 40


def test_a_face_is_alike_on_both_sides_and_a_body_is_not() -> None:
    rng = torch.Generator().manual_seed(0)
    face_BPHW = silhouettes.faces(*places(20), rng)
    torch.testing.assert_close(face_BPHW, face_BPHW.flip(3), atol=1e-4, rtol=0)
    body_BPHW = silhouettes.bodies(*places(20), rng)
    assert float((body_BPHW - body_BPHW.flip(3)).abs().mean()) > 0.1


def test_a_ball_is_lighter_above_and_flat_things_have_their_own_colour(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(things, "CONTRAST", (0.5, 0.5))
    x_BHW, y_BHW = places(30)
    ball_B1HW = (0.8 - x_BHW.hypot(y_BHW)).unsqueeze(1)
    pixels = torch.full((30, 1, 1, 1), SIDE / 2)
    light_B1HW = things._lit(ball_B1HW, pixels, torch.Generator().manual_seed(0))
    middle = SIDE // 2
    above_B = light_B1HW[:, 0, 25:40, middle].mean(1)
    below_B = light_B1HW[:, 0, -40:-25, middle].mean(1)
    assert bool((above_B > below_B + 0.2).all())
    torch.testing.assert_close(light_B1HW[:, 0, middle, middle], torch.ones(30))


def test_colours_are_as_of_photographs() -> None:
    rng = torch.Generator().manual_seed(0)
    colours_NC = things.palettes(2000, 3, 3, rng).view(-1, 3)
    spread_C = torch.linalg.eigvalsh(torch.cov(colours_NC.T)).sqrt().flip(0)
    assert spread_C[0] > 1.4 * spread_C[1], "grey, then blue and yellow"
    assert spread_C[1] > 1.4 * spread_C[2]
    axis_C = torch.linalg.eigh(torch.cov(colours_NC.T)).eigenvectors[:, 2].abs()
    torch.testing.assert_close(axis_C, torch.full((3,), 3**-0.5), atol=0.1, rtol=0)
    grey_NC = things.palettes(2000, 3, 1, rng)
    assert grey_NC.shape == (2000, 3, 1, 1, 1)
    assert float(grey_NC.mean()) == pytest.approx(0.5, abs=0.02)


def test_exposure_gives_greys_the_spread_that_is_said_and_leaves_grey_images_grey() -> None:
    rng = torch.Generator().manual_seed(0)
    grey_BCHW = 0.5 + 0.1 * torch.randn(300, 1, 16, 16, generator=rng).expand(-1, 3, -1, -1)
    seen_BCHW = things.exposed(grey_BCHW, rng)
    assert float((seen_BCHW[:, 0] - seen_BCHW[:, 2]).abs().max()) < 1e-5
    spread_B = seen_BCHW[:, 0].flatten(1).std(1)
    low, high = things.SPREADS
    assert low * 0.98 < float(spread_B.min()) < low * 1.1
    assert high * 0.9 < float(spread_B.max()) < high * 1.02
    mean_B = seen_BCHW.mean((1, 2, 3))
    assert float(mean_B.min()) > things.MEANS[0] - 1e-4
    assert float(mean_B.max()) < things.MEANS[1] + 1e-4


def test_a_point_out_of_focus_is_a_gaussian() -> None:
    point_BCHW = torch.zeros(2, 3, 41, 41)
    point_BCHW[:, :, 20, 20] = 1
    blur_BCHW = things.blurred(point_BCHW, torch.tensor([1.5, 3.0]), 12)
    torch.testing.assert_close(blur_BCHW.sum((2, 3)), torch.ones(2, 3))
    row_BW = blur_BCHW.sum(2)[:, 1]
    variance_B = (row_BW * (torch.arange(41) - 20).square()).sum(1)
    torch.testing.assert_close(variance_B, torch.tensor([2.25, 9.0]), rtol=0.01, atol=0)
    plain_BCHW = torch.full((1, 1, 5, 3), 0.7)
    torch.testing.assert_close(things.blurred(plain_BCHW, torch.tensor([2.0]), 6), plain_BCHW)


def test_most_images_have_one_thing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each thing adds 1 to an image of 0, so an image is the number of its things."""
    spec = ImageSpec((1, 2, 2), bounds=(0.0, 10.0))
    monkeypatch.setattr(things, "CUT_OUTS", 0.0)
    monkeypatch.setattr(things, "_grounds", lambda count, *_: torch.zeros(count, 1, 2, 2))
    monkeypatch.setattr(things, "_with_a_thing", lambda image_BCHW, *_: image_BCHW + 0.1)
    monkeypatch.setattr(things, "_photographed", lambda image_BCHW, *_: image_BCHW)
    image_BCHW = things.draw_things(3000, spec, torch.Generator().manual_seed(0))
    number_B = image_BCHW[:, 0, 0, 0].round().long()
    share_N = number_B.bincount() / 3000
    rest = (1 - things.SINGLE) / 2
    assert share_N.tolist() == pytest.approx([0, things.SINGLE, rest, rest], abs=0.03)


def test_some_things_stand_on_white_and_no_camera_saw_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(things, "_photographed", lambda image_BCHW, *_: 0 * image_BCHW)
    image_BCHW = things.draw_things(900, ImageSpec((3, 24, 24)), torch.Generator().manual_seed(0))
    cut_out_B = image_BCHW.amax((1, 2, 3)) > 0
    assert float(cut_out_B.float().mean()) == pytest.approx(things.CUT_OUTS, abs=0.04)
    white_B = (image_BCHW == 1).all(1).float().mean((1, 2))[cut_out_B]
    assert float((white_B > 0.02).float().mean()) > 0.7, "the others are larger than the image"
