"""Characters by a pen, against the bounding boxes of their ink."""

import numpy as np
import pytest
import torch

from dfme.queries import writing
from dfme.spec import ImageSpec


@pytest.mark.parametrize(
    ("shape", "boxes"),
    [
        ((1, 40, 40), writing.BOXES),
        ((1, 40, 90), writing.BOXES),
        ((1, 90, 40), writing.BOXES),
        ((1, 16, 16), writing.TIGHT_BOXES),
    ],
    ids=str,
)
def test_a_character_is_in_the_middle_and_fills_its_box(
    shape: tuple[int, int, int], boxes: tuple[float, float]
) -> None:
    """Edges are a pixel wide, so the middle is known to half a pixel and a side to one."""
    rng = torch.Generator().manual_seed(0)
    images_BHW = writing.draw_character(200, ImageSpec(shape), rng).squeeze(1).numpy()
    shares = []
    for image_HW in images_BHW:
        ink_HW = np.abs(image_HW - image_HW[0, 0]) > 0.3  # a corner is ground
        rows = np.flatnonzero(ink_HW.any(1))
        columns = np.flatnonzero(ink_HW.any(0))
        assert rows[0] + rows[-1] == pytest.approx(shape[1] - 1, abs=2)
        assert columns[0] + columns[-1] == pytest.approx(shape[2] - 1, abs=2)
        sides = (rows[-1] - rows[0] + 1) / shape[1], (columns[-1] - columns[0] + 1) / shape[2]
        shares.append(max(sides))
    assert min(shares) > boxes[0] - 0.06
    assert np.mean(shares) == pytest.approx(np.mean(boxes), abs=0.05)


def test_what_is_not_drawn_is_not_measured_and_a_shape_is_kept() -> None:
    """A 2x1 rectangle's corners and a curve far away that is gone, in a room of 3x3 and of 3x1."""
    corners = torch.tensor([[5.0, 5.0], [7.0, 5.0], [7.0, 6.0], [5.0, 6.0]])
    far = torch.full((4, 2), -8.0)
    points_SBM2 = torch.stack([corners, far], 1).unsqueeze(1).expand(-1, 2, -1, -1)
    gone_BM11 = torch.tensor([False, True]).expand(2, -1).view(2, 2, 1, 1)
    room_B2 = torch.tensor([[3.0, 3.0], [3.0, 1.0]])
    got = writing.fitted(points_SBM2, gone_BM11, room_B2)[:, :, 0]
    unit = torch.tensor([[-1.0, -0.5], [1.0, -0.5], [1.0, 0.5], [-1.0, 0.5]])
    torch.testing.assert_close(got, torch.stack([3 * unit, 2 * unit], 1))
