"""Honest accounts: which images they are made of, and how."""

import pytest
import torch
from torch import Tensor

from dfme.data import ImageSet
from dfme.spec import ImageSpec
from dfme.teachers.owner.watch.detector import BATCH, SESSION, STREAMS, halves, session

SPEC = ImageSpec((1, 5, 5))
LABELS = torch.arange(90) % 9


def numbered(count: int = 90) -> ImageSet:
    """Images whose centre says which one it is, black elsewhere."""
    x = torch.zeros(count, 1, 5, 5)
    x[:, 0, 2, 2] = (torch.arange(count) + 1) / (count + 1)
    return ImageSet("toy", x, LABELS[:count])


def drawn(stream: str, seed: int = 0) -> Tensor:
    parts = [*session(stream, numbered(), torch.arange(90), torch.Generator().manual_seed(seed))]
    assert [len(part) for part in parts] == [BATCH] * (SESSION // BATCH)
    return torch.cat(parts)


def number(x_BCHW: Tensor) -> Tensor:
    return (x_BCHW.amax((1, 2, 3)) * 91).round().long() - 1


@pytest.mark.parametrize("count", [0, 1, 2, 359, 360])
def test_halves_are_two_that_share_no_image(count: int) -> None:
    calibration, measuring = halves(count)
    assert sorted([*calibration.tolist(), *measuring.tolist()]) == [*range(count)]
    assert 0 <= len(calibration) - len(measuring) <= 1
    assert all(map(torch.equal, halves(count), halves(count)))
    assert count < 300 or not torch.equal(halves(count)[0], halves(count, 1)[0])


def test_a_skewed_customer_has_few_classes_and_all_images_of_each() -> None:
    draws = (number(drawn("skewed", seed)) for seed in range(200))
    share_SK = torch.stack(
        [LABELS[each].bincount(minlength=9) / SESSION for each in draws]
    ).double()
    assert share_SK.mean(0).tolist() == pytest.approx([1 / 9] * 9, abs=0.06)
    # of Dirichlet(a, ..., a): the sum of squared shares has mean (a + 1) / (K a + 1)
    expected = 1.3 / (9 * 0.3 + 1)
    assert share_SK.square().sum(1).mean().item() == pytest.approx(expected, rel=0.1)
    top = int(share_SK[0].argmax())
    assert set(number(drawn("skewed", 0)).tolist()) >= {
        *(top == LABELS).nonzero().flatten().tolist()
    }


def test_a_tenth_of_repeats_is_the_image_before_exactly_or_moved_by_a_pixel() -> None:
    exact = moved = 0
    for seed in range(20):
        x = drawn("repeats", seed)
        at = x.flatten(1).argmax(1)
        places = {tuple(divmod(place, 5)) for place in at.tolist()}
        assert places == {(2, 2), (1, 2), (3, 2), (2, 1), (2, 3)}
        off = at != 12
        assert not off[0]
        again = number(x)[1:] == number(x)[:-1]
        assert again[off[1:]].all()  # what is moved is the image before
        moved += int(off.sum())
        exact += int((again & ~off[1:]).sum())
    images = 20 * SESSION
    assert moved / images == pytest.approx(0.05, abs=0.008)
    # one in 90 draws is the same by chance
    assert exact / images == pytest.approx(0.05 + 0.95 / 90, abs=0.012)


def test_no_image_comes_but_from_its_places_and_within_0_and_1() -> None:
    places = torch.arange(10, 40)
    for stream in STREAMS:
        parts = [*session(stream, numbered(), places, torch.Generator().manual_seed(1))]
        assert all(0 <= float(part.min()) <= float(part.max()) <= 1 for part in parts)
        if stream != "corrupted":
            assert {*number(torch.cat(parts)).tolist()} <= {*places.tolist()}
