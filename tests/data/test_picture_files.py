"""Pictures and arrays as pixels: each by its own scale, upright, in 8 bits; other scales are refused or said."""

import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from refusals import refusal

from dfme.data import ImageSet, load_dataset
from dfme.data.arrays import handed_over
from dfme.queries.pool import open_pool
from dfme.spec import ImageSpec

Image = pytest.importorskip("PIL.Image")

RAMP = np.arange(6, dtype=np.uint8).reshape(2, 3) * 50  # 0 50 100 / 150 200 250
RED = (200, 10, 30)


def read(folder: Path, channels: int = 1) -> ImageSet:
    return load_dataset(str(folder), "test", shape=(channels, 2, 3))


def only(folder: Path, channels: int = 1) -> np.ndarray:
    return read(folder, channels).images[0].numpy()


def sixteen_bit_png(values: np.ndarray) -> bytes:
    """A grey PNG of 16 bits, written by the format's own description."""
    height, width = values.shape
    header = struct.pack(">IIBBBBB", width, height, 16, 0, 0, 0, 0)
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in values)

    def chunk(kind: bytes, body: bytes) -> bytes:
        return (
            struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        )

    parts = chunk(b"IHDR", header), chunk(b"IDAT", zlib.compress(rows)), chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def test_sixteen_bits_are_scaled_and_not_cut(tmp_path: Path) -> None:
    deep = RAMP.astype(np.uint16) * 257
    kinds: dict[str, Callable[[Path], Any]] = {
        "png": lambda path: (path / "x.png").write_bytes(sixteen_bit_png(deep)),
        "tiff": lambda path: Image.fromarray(deep).save(path / "x.tif"),
        "pgm": lambda path: (path / "x.pgm").write_bytes(
            b"P5 3 2 65535\n" + deep.astype(">u2").tobytes()
        ),
        "big": lambda path: Image.frombytes("I;16B", (3, 2), deep.astype(">u2").tobytes()).save(
            path / "x.tif"
        ),
    }
    for name, write in kinds.items():
        (tmp_path / name).mkdir()
        write(tmp_path / name)
        data = read(tmp_path / name)
        assert np.array_equal(data.images[0, 0].numpy(), RAMP), name
        assert [
            note for note in data.notes if "16-bit pictures are scaled from 0..65535" in note
        ], name
        assert load_dataset(str(tmp_path / name), "test").shape == (1, 2, 3)


def tiff(values: np.ndarray, photometric: int, orientation: int = 1) -> bytes:
    """A grey TIFF of 8 or 16 bits, written by the format's own description."""
    height, width = values.shape
    pixels = values.astype(values.dtype.newbyteorder("<")).tobytes()
    tags = {
        256: width,
        257: height,
        258: 8 * values.dtype.itemsize,
        259: 1,
        262: photometric,
        273: 8,
        274: orientation,
        277: 1,
        278: height,
        279: len(pixels),
    }
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in tags.items())
    start = 8 + len(pixels)
    directory = struct.pack("<H", len(tags)) + entries + struct.pack("<I", 0)
    return b"II*\0" + struct.pack("<I", start) + pixels + directory


@pytest.mark.parametrize("orientation", [1, 3])
@pytest.mark.parametrize("kind", [np.uint8, np.uint16])
def test_a_tiff_whose_least_value_is_white_is_read_as_it_looks(
    tmp_path: Path, kind: type[np.unsignedinteger[Any]], orientation: int
) -> None:
    white = np.iinfo(kind).max
    stored = RAMP.astype(kind) * kind(white // 255)
    upright = RAMP if orientation == 1 else RAMP[::-1, ::-1]
    (tmp_path / "x.tif").write_bytes(tiff(stored, 1, orientation))
    assert np.array_equal(only(tmp_path)[0], upright)
    (tmp_path / "x.tif").write_bytes(tiff(white - stored, 0, orientation))
    assert np.array_equal(only(tmp_path)[0], upright)


def test_depths_of_which_nothing_says_what_is_white_are_refused(tmp_path: Path) -> None:
    kinds = {
        "float": (
            RAMP.astype(np.float32) / 255,
            "floating-point, and nothing says which value is white",
        ),
        "long": (RAMP.astype(np.int32) * 1000, "32-bit, and nothing says which value is white"),
        "shallow": (RAMP.astype(np.uint16), "16 bits a pixel and none is above 250"),
    }
    for name, (pixels, says) in kinds.items():
        (tmp_path / name).mkdir()
        Image.fromarray(pixels).save(tmp_path / name / "x.tif")
        assert "x.tif" in str(refusal(says, read, tmp_path / name))
    (tmp_path / "black").mkdir()
    Image.fromarray(np.zeros((2, 3), np.uint16)).save(tmp_path / "black" / "x.tif")
    assert only(tmp_path / "black").max() == 0


def test_modes_of_eight_bits_and_fewer(tmp_path: Path) -> None:
    palette = Image.new("P", (3, 2), 1)
    palette.putpalette([0, 0, 0, *RED])
    clear = palette.copy()
    clear.info["transparency"] = 1
    cases = {
        "1": (Image.fromarray(RAMP > 100), (RAMP > 100) * 255),
        "LA": (Image.merge("LA", [Image.fromarray(RAMP), Image.new("L", (3, 2), 7)]), RAMP),
        "P": (palette, np.array(RED)),
        "clear": (clear, np.array(RED)),
        "RGBA": (Image.new("RGBA", (3, 2), (*RED, 0)), np.array(RED)),
        "CMYK": (Image.new("CMYK", (3, 2), (55, 245, 225, 0)), np.array(RED)),
    }
    for name, (picture, wanted) in cases.items():
        (tmp_path / name).mkdir()
        picture.save(tmp_path / name / ("x.tif" if name == "CMYK" else "x.png"))
        pixels = only(tmp_path / name, channels=3)
        assert np.array_equal(
            pixels,
            np.broadcast_to(wanted[:, None, None] if wanted.ndim == 1 else wanted[None], (3, 2, 3)),
        ), name
        noted = any("transparent pixels" in note for note in read(tmp_path / name, 3).notes)
        assert noted == (name in ("LA", "clear", "RGBA")), name


@pytest.mark.parametrize("kind", ["gif", "tif", "png", "webp"])
def test_of_several_frames_the_first_is_read_and_said(tmp_path: Path, kind: str) -> None:
    frames = [Image.new("L", (3, 2), grey) for grey in (255, 0)]
    how = {"lossless": True} if kind == "webp" else {}
    frames[0].save(tmp_path / f"x.{kind}", save_all=True, append_images=frames[1:], **how)
    data = read(tmp_path)
    assert data.images.unique().tolist() == [255]
    assert [note for note in data.notes if "several frames the first" in note]


@pytest.mark.parametrize("kind", ["jpg", "png", "webp", "tif"])
def test_pictures_are_turned_as_browsers_turn_them_and_it_is_said_once(
    tmp_path: Path, kind: str
) -> None:
    """Orientation 6: the first row of what is stored is shown on the right, from top to bottom."""
    stored = np.zeros((24, 16), np.uint8)
    stored[:8] = 255  # white above, so white on the right of what is shown
    exif = Image.Exif()
    exif[0x0112] = 6
    for number in range(3):
        Image.fromarray(stored).save(tmp_path / f"{number}.{kind}", exif=exif, quality=100)
    data = load_dataset(str(tmp_path), "test", lazy=True)
    assert data.shape[1:] == (16, 24)
    seen = data.batch(slice(None))[:, 0]
    assert seen[:, :, 18:].min() > 0.9
    assert seen[:, :, :14].max() < 0.1
    said = (
        f"pictures are turned as their EXIF data say, as browsers do (0.{kind} is the "
        "first of them)"
    )
    assert data.notes == [said]


def test_an_orientation_that_is_none_turns_nothing(tmp_path: Path) -> None:
    exif = Image.Exif()
    for number, value in enumerate((1, 0, 9, 77)):
        exif[0x0112] = value
        Image.fromarray(RAMP).save(tmp_path / f"{number}.png", exif=exif)
    (tmp_path / "4.jpg").write_bytes(b"")
    Image.new("L", (3, 2)).save(tmp_path / "4.jpg", exif=b"Exif\0\0" + b"\xff" * 40)
    data = read(tmp_path)
    assert all(np.array_equal(image[0].numpy(), RAMP) for image in data.images[:4])
    assert not data.notes


@pytest.mark.parametrize("kind", ["png", "jpg", "gif", "bmp", "tif", "webp", "ppm"])
def test_a_picture_that_is_cut_short_is_named(tmp_path: Path, kind: str) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (40, 40, 3), np.uint8)
    Image.fromarray(noise).save(tmp_path / f"x.{kind}")
    whole = (tmp_path / f"x.{kind}").read_bytes()
    for length in (0, 20, len(whole) // 2):
        (tmp_path / f"x.{kind}").write_bytes(whole[:length])
        refusal(rf"x\.{kind} cannot be read as an image", read, tmp_path)


def test_a_pool_says_what_was_done_to_its_pictures(tmp_path: Path) -> None:
    (tmp_path / "x.png").write_bytes(sixteen_bit_png(RAMP.astype(np.uint16) * 257))
    pool = open_pool(str(tmp_path), ImageSpec((1, 2, 3)))
    drawn = pool.draw(1, torch.Generator().manual_seed(0))
    assert np.allclose(drawn[0, 0].numpy() * 255, RAMP)
    assert pool.notes == ("16-bit pictures are scaled from 0..65535 (x.png is the first of them)",)


GREYS = np.linspace(0, 1, 2 * 64).reshape(2, 8, 8)
TWO = np.arange(2)
GREY = ImageSpec((1, 8, 8))


def eight(white: int) -> np.ndarray:
    return np.round(GREYS * white).astype(np.uint8)


def write_pictures(folder: Path, pictures: np.ndarray, ending: str = "png") -> None:
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
    write_pictures(tmp_path, np.round((1 + GREYS) / 2 * white).astype(np.uint16), ending)
    refusal(says, load_dataset, str(tmp_path), "test", lazy=lazy)
    refusal(says, open_pool, str(tmp_path), GREY)


def test_one_bright_picture_of_sixteen_bits_shows_the_scale(tmp_path: Path) -> None:
    deep = np.round((1 + GREYS) / 2 * 4095).astype(np.uint16)
    deep[1, 0, 0] = 65535
    write_pictures(tmp_path, deep)
    (note,) = load_dataset(str(tmp_path), "test").notes
    assert note.startswith("16-bit pictures are scaled from 0..65535")


@pytest.mark.parametrize(("white", "dark"), [(16, True), (127, True), (128, False), (255, False)])
def test_pictures_that_are_all_dark_are_said_to_be(tmp_path: Path, white: int, dark: bool) -> None:
    write_pictures(tmp_path, eight(white))
    notes = load_dataset(str(tmp_path), "test", lazy=True).notes
    assert bool(notes) is dark
    if dark:
        assert f"no pixel of its images is above {white}, and 255 is white" in notes[0]
