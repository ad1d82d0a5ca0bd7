"""The key of a mark: what it keeps, who may read it, and what damage is said to be."""

import os
import stat
from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from dfme.errors import UserError
from dfme.owner_side import load_marks
from dfme.teachers.owner.marking.key import MarkKey, load_key, save_key

KEY = MarkKey(
    marks_MCHW=torch.rand(5, 1, 4, 4, generator=torch.Generator().manual_seed(0)),
    controls_NCHW=torch.rand(3, 1, 4, 4, generator=torch.Generator().manual_seed(1)),
    source=2,
    target=7,
    classes=10,
    bounds=(0.0, 1.0),
    model_sha256="a" * 64,
    seed=11,
)
FACTS = {
    "schema": "dfme.marks/1",
    "source": "2",
    "target": "7",
    "classes": "10",
    "bounds": "[0.0, 1.0]",
    "seed": "11",
    "model_sha256": "a" * 64,
}


def written(path: Path, **facts: str) -> Path:
    """A file in the form of a key by the library itself, with some facts replaced."""
    images = {"marks": KEY.marks_MCHW, "controls": KEY.controls_NCHW}
    save_file(images, path, FACTS | facts)
    os.chmod(path, 0o600)
    return path


def test_a_key_comes_back_as_it_was(tmp_path: Path) -> None:
    save_key(tmp_path / "marks.key", KEY)
    back = load_marks(str(tmp_path / "marks.key"))
    assert torch.equal(back.marks_MCHW, KEY.marks_MCHW)
    assert torch.equal(back.controls_NCHW, KEY.controls_NCHW)
    assert (back.source, back.target, back.classes) == (2, 7, 10)
    assert (back.bounds, back.model_sha256, back.seed) == ((0.0, 1.0), "a" * 64, 11)
    assert back.digest == KEY.digest


def test_the_library_alone_reads_what_is_written(tmp_path: Path) -> None:
    save_key(tmp_path / "marks.key", KEY)
    tensors = load_file(tmp_path / "marks.key")
    assert torch.equal(tensors["marks"], KEY.marks_MCHW)
    assert load_key(written(tmp_path / "other.key")).digest == KEY.digest


def test_nobody_else_may_read_it_from_its_creation_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    modes: list[int] = []
    replace_file = os.replace

    def looking(source: Path, target: Path) -> None:
        modes.append(stat.S_IMODE(source.stat().st_mode))
        replace_file(source, target)

    monkeypatch.setattr(os, "replace", looking)
    before = os.umask(0)
    try:
        save_key(tmp_path / "marks.key", KEY)
    finally:
        os.umask(before)
    assert modes == [0o600]
    assert stat.S_IMODE((tmp_path / "marks.key").stat().st_mode) == 0o600


def test_one_that_others_may_read_is_read_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = written(tmp_path / "marks.key")
    load_key(path)
    assert caplog.text == ""
    os.chmod(path, 0o640)
    assert load_key(path).source == 2
    assert "others may read it" in caplog.text


def test_the_digest_is_of_images_and_classes() -> None:
    code = sha256(b"dfme.marks/1 2 7")
    code.update(b"(5, 1, 4, 4)" + KEY.marks_MCHW.numpy().tobytes())
    code.update(b"(3, 1, 4, 4)" + KEY.controls_NCHW.numpy().tobytes())
    assert KEY.digest == code.hexdigest()
    others = [
        replace(KEY, source=3),
        replace(KEY, target=3),
        replace(KEY, marks_MCHW=KEY.marks_MCHW.flip(0)),
        replace(KEY, controls_NCHW=KEY.controls_NCHW.flip(0)),
    ]
    assert len({KEY.digest, *(key.digest for key in others)}) == 5
    assert replace(KEY, seed=1, model_sha256="b" * 64).digest == KEY.digest


@pytest.mark.parametrize(
    ("facts", "problem"),
    [
        ({"schema": "dfme.marks/2"}, "expected the key of a mark"),
        ({"source": "10"}, "expected two of 10 classes"),
        ({"target": "2"}, "expected two of 10 classes"),
        ({"target": "-1"}, "its target '-1'"),
        ({"source": "2.5"}, "its source '2.5'"),
        ({"source": '"2"'}, "its source"),
        ({"classes": "1"}, "its classes"),
        ({"bounds": "[1.0, 0.0]"}, "expected bounds in order"),
        ({"bounds": "[0.0]"}, "its bounds"),
        ({"bounds": "[0.0, NaN]"}, "its bounds"),
        ({"bounds": "[0.0, 0.5]"}, "values outside 0 to 0.5"),
        ({"seed": ""}, "its seed"),
        ({"model_sha256": "A" * 64}, "expected model_sha256"),
    ],
)
def test_a_fact_that_cannot_be_is_named(
    facts: dict[str, str], problem: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError) as caught:
        load_key(written(tmp_path / "marks.key", **facts))
    assert problem in str(caught.value)
    assert "\n" not in str(caught.value)


DAMAGES: dict[str, Callable[[dict[str, torch.Tensor]], object]] = {
    "expected the tensors": lambda images: images.pop("controls"),
    "different shapes": lambda images: images.update(controls=torch.rand(3, 1, 4, 5)),
    "as images": lambda images: images.update(marks=torch.rand(5, 16)),
    "of float32": lambda images: images.update(marks=torch.rand(5, 1, 4, 4).double()),
    "got torch.float32 (0, 1, 4, 4)": lambda images: images.update(marks=torch.rand(0, 1, 4, 4)),
    "marks have values outside": lambda images: images["marks"].fill_(torch.nan),
    "controls have values outside": lambda images: images["controls"].fill_(1.5),
    "one image is twice among its marks": lambda images: images["marks"][3].copy_(
        images["marks"][1]
    ),
    "one image is twice among its controls": lambda images: images["controls"].fill_(0.5),
}


@pytest.mark.parametrize("problem", DAMAGES)
def test_images_that_are_none_are_refused(problem: str, tmp_path: Path) -> None:
    images = {"marks": KEY.marks_MCHW.clone(), "controls": KEY.controls_NCHW.clone()}
    DAMAGES[problem](images)
    save_file(images, tmp_path / "marks.key", FACTS)
    with pytest.raises(UserError) as caught:
        load_key(tmp_path / "marks.key")
    assert problem in str(caught.value)


def test_a_file_cut_anywhere_is_one_line(tmp_path: Path) -> None:
    save_key(tmp_path / "whole.key", KEY)
    whole = (tmp_path / "whole.key").read_bytes()
    for size in range(0, len(whole), 37):
        (tmp_path / "cut.key").write_bytes(whole[:size])
        with pytest.raises(UserError) as caught:
            load_key(tmp_path / "cut.key")
        assert "\n" not in str(caught.value)
    with pytest.raises(UserError, match="cannot be read"):
        load_key(tmp_path / "none.key")
