"""Pictures as Pillow reads them, and class names from lists, texts and files."""

import io
from pathlib import Path

import numpy as np
import pytest

from dfme.data.class_names import read_names
from dfme.teachers.remote.pictures import png


def test_class_names_come_from_a_list_a_text_or_a_file(tmp_path: Path) -> None:
    file = tmp_path / "labels.txt"
    file.write_text("\ufefftench, Tinca tinca\r\nshark\r\n\r\n", encoding="utf-8")
    assert read_names(str(file), "--teacher.classes") == ("tench, Tinca tinca", "shark")
    assert read_names("a, b,c", "--teacher.classes") == ("a", "b", "c")
    assert read_names(["a", "b"], "--teacher.classes") == ("a", "b")
    long = ",".join(f"class {number}" for number in range(1000))
    assert len(read_names(long, "--teacher.classes")) == 1000


@pytest.mark.parametrize("channels", [1, 2, 3, 4])
@pytest.mark.parametrize(("height", "width"), [(1, 1), (7, 3), (32, 32)])
def test_pillow_reads_our_pngs(channels: int, height: int, width: int) -> None:
    pillow = pytest.importorskip("PIL.Image", reason="the independent reader of pictures")
    image = np.random.default_rng(channels).integers(256, size=(height, width, channels), dtype=np.uint8)
    picture = pillow.open(io.BytesIO(png(image)))
    assert picture.mode == {1: "L", 2: "LA", 3: "RGB", 4: "RGBA"}[channels]
    assert np.array_equal(np.asarray(picture).reshape(image.shape), image)
    pillow.open(io.BytesIO(png(image))).verify()
