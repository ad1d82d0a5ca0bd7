"""Pictures as Pillow reads them, and class names from lists, texts and files."""

import io
from pathlib import Path

import numpy as np
import pytest
import torch

from dfme.spec import ImageSpec
from dfme.teachers.remote.class_names import read_class_names
from dfme.teachers.remote.pictures import eight_bit, png


def test_class_names_come_from_a_list_a_text_or_a_file(tmp_path: Path) -> None:
    file = tmp_path / "labels.txt"
    file.write_text("\ufefftench, Tinca tinca\r\nshark\r\n\r\n", encoding="utf-8")
    assert read_class_names(str(file), "--teacher.classes").names == ("tench, Tinca tinca", "shark")
    assert read_class_names("a, b,c", "--teacher.classes").names == ("a", "b", "c")
    assert read_class_names(["a", "b"], "--teacher.classes").names == ("a", "b")
    long = ",".join(f"class {number}" for number in range(1000))
    assert len(read_class_names(long, "--teacher.classes")) == 1000


@pytest.mark.parametrize("channels", [1, 2, 3, 4])
@pytest.mark.parametrize(("height", "width"), [(1, 1), (7, 3), (32, 32)])
def test_pillow_reads_our_pngs(channels: int, height: int, width: int) -> None:
    pillow = pytest.importorskip("PIL.Image", reason="the independent reader of pictures")
    image = np.random.default_rng(channels).integers(256, size=(height, width, channels), dtype=np.uint8)
    picture = pillow.open(io.BytesIO(png(image)))
    assert picture.mode == {1: "L", 2: "LA", 3: "RGB", 4: "RGBA"}[channels]
    assert np.array_equal(np.asarray(picture).reshape(image.shape), image)
    pillow.open(io.BytesIO(png(image))).verify()


@pytest.mark.parametrize("bounds", [(0.0, 1.0), (-1.0, 1.0), (0.0, 255.0), (-2.1179, 2.64)])
def test_every_level_of_the_lattice_is_its_byte(bounds: tuple[float, float]) -> None:
    x = ImageSpec((1, 16, 16), bounds, 256).quantise(torch.linspace(*bounds, 256).view(1, 1, 16, 16))
    assert eight_bit(x, bounds).reshape(-1).tolist() == list(range(256))
