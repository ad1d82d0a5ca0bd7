"""Pictures, class names and answers of a service in Hugging Face's style, without the service."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from clients import answer_or_unusable
from hypothesis import given, settings
from hypothesis import strategies as st

from dfme.spec import ImageSpec, LabelMode
from dfme.teachers.remote.class_names import ClassNames, read_class_names
from dfme.teachers.remote.hf_api import HfApiAdapter, estimated_time
from dfme.teachers.remote.pictures import eight_bit, png

Image = pytest.importorskip("PIL.Image", reason="the independent reader of pictures")

NAMES = ("tench", "great white shark", "dörrobst", "d")
SHAPE = (3, 5, 4)


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
    image = np.random.default_rng(channels).integers(256, size=(height, width, channels), dtype=np.uint8)
    picture = Image.open(io.BytesIO(png(image)))
    assert picture.mode == {1: "L", 2: "LA", 3: "RGB", 4: "RGBA"}[channels]
    assert np.array_equal(np.asarray(picture).reshape(image.shape), image)
    Image.open(io.BytesIO(png(image))).verify()


@pytest.mark.parametrize("bounds", [(0.0, 1.0), (-1.0, 1.0), (0.0, 255.0), (-2.1179, 2.64)])
def test_every_level_of_the_lattice_is_its_byte(bounds: tuple[float, float]) -> None:
    spec = ImageSpec((1, 16, 16), bounds, 256)
    low, high = bounds
    x = spec.quantise(torch.linspace(low, high, 256).view(1, 1, 16, 16))
    assert eight_bit(x, bounds).reshape(-1).tolist() == list(range(256))


@pytest.mark.parametrize(
    "text", ["[]", "{", '{"estimated_time": -1}', '{"estimated_time": NaN}', '{"estimated_time": true}']
)
def test_no_other_text_is_taken_for_a_time(text: str) -> None:
    assert estimated_time(text.encode()) is None


ADAPTER = HfApiAdapter(ClassNames(NAMES), ImageSpec(SHAPE, levels=256), LabelMode("top_k", k=1), 0)
scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
labels = st.sampled_from(NAMES) | scalars
entries = st.lists(st.fixed_dictionaries({"label": labels, "score": scalars}) | scalars, max_size=5)


@pytest.mark.exhaustive
@given(st.binary(max_size=200) | entries.map(lambda value: json.dumps(value).encode()))
@settings(max_examples=300, deadline=None)
def test_whatever_comes_is_an_answer_or_unusable(body: bytes) -> None:
    answer = answer_or_unusable(ADAPTER, body, 1)
    if answer is not None:
        assert (answer.shape, answer.dtype) == ((1, 4), torch.float32)
        assert int((~answer.isnan()).sum()) == 1
