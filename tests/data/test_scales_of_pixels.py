"""Pixels on another scale than 0 to white: refused where that is sure, else said."""

from pathlib import Path

import numpy as np
import pytest
from refusals import refusal

from dfme.data import load_dataset
from dfme.data.arrays import handed_over
from dfme.queries.pool import open_pool
from dfme.spec import ImageSpec

Image = pytest.importorskip("PIL.Image")

GREYS = np.linspace(0, 1, 2 * 64).reshape(2, 8, 8)
TWO = np.arange(2)
GREY = ImageSpec((1, 8, 8))


def eight(white: int) -> np.ndarray:
    return np.round(GREYS * white).astype(np.uint8)


def write(folder: Path, pictures: np.ndarray, ending: str = "png") -> None:
    for number, pixels in enumerate(pictures):
        place = folder / f"class{number}"
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(place / f"x.{ending}")


@pytest.mark.parametrize(
    ("images", "says"),
    [
        (eight(16), r"its greatest pixel is 16, and 255 is white, .* scale the pixels to 0\.\.255"),
        (eight(4), "its greatest pixel is 4, and 255 is white"),
        ((GREYS / 255).astype(np.float32), r"its greatest pixel is 0\.003922, and 1 is white"),
        ((GREYS / 255).astype(np.float16), r"its greatest pixel is 0\.00392\d, and 1 is white"),
        (GREYS / 255, r"its greatest pixel is 0\.003922, and 1 is white"),
    ],
)
def test_arrays_that_are_surely_on_another_scale_are_refused(
    tmp_path: Path, images: np.ndarray, says: str
) -> None:
    np.savez(tmp_path / "x.npz", images=images, labels=TWO)
    refusal(says, load_dataset, str(tmp_path / "x.npz"), "test")
    refusal(says, open_pool, str(tmp_path / "x.npz"), GREY)
    refusal(says, handed_over, images, TWO)


@pytest.mark.parametrize(
    ("images", "says"),
    [
        (eight(100), "no pixel of its images is above 100, and 255 is white"),
        ((GREYS * 0.39).astype(np.float32), "no pixel of its images is above 0.39, and 1 is white"),
        (eight(17), "no pixel of its images is above 17, and 255"),
    ],
)
def test_arrays_that_are_dark_are_said_to_be(tmp_path: Path, images: np.ndarray, says: str) -> None:
    np.savez(tmp_path / "x.npz", images=images, labels=TWO)
    (note,) = load_dataset(str(tmp_path / "x.npz"), "test").notes
    assert says in note
    (note,) = open_pool(str(tmp_path / "x.npz"), GREY).notes  # type: ignore[attr-defined]
    assert says in note


@pytest.mark.parametrize("images", [eight(255), eight(128), GREYS, GREYS * 0.51, eight(0)])
def test_arrays_with_something_bright_or_nothing_at_all_need_no_line(
    tmp_path: Path, images: np.ndarray
) -> None:
    np.savez(tmp_path / "x.npz", images=images, labels=TWO)
    assert not load_dataset(str(tmp_path / "x.npz"), "test").notes


@pytest.mark.parametrize("ending", ["png", "tif"])
@pytest.mark.parametrize(
    ("white", "says"),
    [
        (4095, "of all is 4095, as of 12 bits, while 65535 is white; multiply the pixels by 16"),
        (1023, "of all is 1023, as of 12 bits"),
        (16383, "of all is 16383, as of 14 bits, while 65535 is white; multiply the pixels by 4"),
    ],
)
@pytest.mark.parametrize("lazy", [False, True])
def test_twelve_and_fourteen_bits_in_sixteen_are_asked_about(
    tmp_path: Path, white: int, says: str, ending: str, lazy: bool
) -> None:
    write(tmp_path, np.round((1 + GREYS) / 2 * white).astype(np.uint16), ending)
    refusal(says, load_dataset, str(tmp_path), "test", lazy=lazy)
    refusal(says, open_pool, str(tmp_path), GREY)


def test_one_bright_picture_of_sixteen_bits_shows_the_scale(tmp_path: Path) -> None:
    deep = np.round((1 + GREYS) / 2 * 4095).astype(np.uint16)
    deep[1, 0, 0] = 65535
    write(tmp_path, deep)
    (note,) = load_dataset(str(tmp_path), "test").notes
    assert note.startswith("16-bit pictures are scaled from 0..65535")


@pytest.mark.parametrize(("white", "dark"), [(16, True), (127, True), (128, False), (255, False)])
def test_pictures_that_are_all_dark_are_said_to_be(tmp_path: Path, white: int, dark: bool) -> None:
    write(tmp_path, eight(white))
    notes = load_dataset(str(tmp_path), "test", lazy=True).notes
    assert bool(notes) is dark
    if dark:
        assert f"no pixel of its images is above {white}, and 255 is white" in notes[0]
