"""Recorded queries: bit for bit what was sent, cut to a checkpoint, and files that are damaged."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from dfme.data.recorded_queries import QueryForm, QueryRecord, RecordedQueries
from dfme.errors import RunError
from dfme.spec import ImageSpec

SHAPE = (2, 3, 4)


def form(levels: int | None = None, distance: bool = True) -> QueryForm:
    return QueryForm(SHAPE, (-1.0, 2.0), levels, 5, distance)


def sent(count: int, levels: int | None) -> tuple[Tensor, Tensor, Tensor]:
    """Images as an oracle sends them, probabilities and distances."""
    rng = torch.Generator().manual_seed(count)
    x_BCHW = torch.rand(count, *SHAPE, generator=rng) * 3 - 1
    p_BK = torch.rand(count, 5, generator=rng).double().softmax(1)
    spec = ImageSpec(SHAPE, (-1.0, 2.0), levels)
    return spec.quantise(x_BCHW), p_BK, torch.rand(count, generator=rng).double()


def written(folder: Path, levels: int | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """A record of seven images, appended in two parts."""
    x_BCHW, p_BK, distance_B = sent(7, levels)
    record = QueryRecord(folder, form(levels))
    for part in (slice(0, 3), slice(3, 7)):
        record.append(x_BCHW[part], p_BK[part], distance_B[part])
    record.close()
    return x_BCHW, p_BK, distance_B


@pytest.mark.parametrize(
    ("levels", "number"), [(None, 4), (256, 1), (17, 1), (257, 4)], ids=lambda value: str(value)
)
def test_what_is_read_is_bit_for_bit_what_was_sent(
    levels: int | None, number: int, tmp_path: Path
) -> None:
    x_BCHW, p_BK, distance_B = written(tmp_path / "queries", levels)
    read = RecordedQueries(tmp_path / "queries")
    assert len(read) == 7
    assert (tmp_path / "queries" / "images.bin").stat().st_size == 7 * 24 * number
    for start, stop, step in ((0, 7, 1), (2, 5, 1), (1, 7, 3), (7, 7, 1), (0, 99, 5)):
        part = slice(start, stop, step)
        images = read.images(start, stop, step)
        assert images.dtype == torch.float32
        assert torch.equal(images, x_BCHW[part])
        assert torch.equal(read.scores(start, stop, step), p_BK[part])
        distances = read.distances(start, stop, step)
        assert distances is not None
        assert torch.equal(distances, distance_B[part])


def test_a_record_without_distances_has_no_file_of_them(tmp_path: Path) -> None:
    x_BCHW, p_BK, _ = sent(4, None)
    record = QueryRecord(tmp_path, form(distance=False))
    record.append(x_BCHW, p_BK, None)
    record.close()
    assert not (tmp_path / "distances.f64").exists()
    assert RecordedQueries(tmp_path).distances(0, 4) is None


def test_a_resumed_record_is_cut_to_its_checkpoint_and_ends_in_the_same_bytes(
    tmp_path: Path,
) -> None:
    x_BCHW, p_BK, distance_B = written(tmp_path / "whole")
    written(tmp_path / "killed")
    with (tmp_path / "killed" / "images.bin").open("ab") as file:
        file.write(b"torn")  # by a kill, within an image
    record = QueryRecord(tmp_path / "killed", form())
    record.cut(2)
    record.append(x_BCHW[2:], p_BK[2:], distance_B[2:])
    record.close()
    for name in ("form.json", "images.bin", "scores.f64", "distances.f64"):
        whole, killed = ((tmp_path / run / name).read_bytes() for run in ("whole", "killed"))
        assert whole == killed
    with pytest.raises(RunError, match=r"images.bin: expected 8 recorded queries.*start a new run"):
        QueryRecord(tmp_path / "killed", form()).cut(8)


def test_queries_of_another_teacher_are_refused(tmp_path: Path) -> None:
    written(tmp_path)
    with pytest.raises(RunError, match="of another form; remove it"):
        QueryRecord(tmp_path, form(256))


FORM = {
    "schema": "dfme.queries/1",
    "shape": [2, 3, 4],
    "bounds": [-1.0, 2.0],
    "levels": None,
    "classes": 5,
    "distance": True,
}


@pytest.mark.parametrize(
    "wrong",
    [
        {"schema": "dfme.queries/2"},
        {"shape": [2, 3]},
        {"shape": [2, 3, "4"]},
        {"shape": [2, 3, True]},
        {"shape": [10**9, 10**9, 10**9]},
        {"shape": [2, 3, -4]},
        {"bounds": ["a", 1]},
        {"bounds": [float("nan"), 1]},
        {"bounds": [2, -1]},
        {"levels": 1},
        {"levels": 2.5},
        {"classes": 1},
        {"classes": 10**12},
        {"classes": None},
        {"distance": 1},
    ],
    ids=str,
)
def test_a_form_that_no_run_writes_is_one_line(wrong: dict[str, Any], tmp_path: Path) -> None:
    written(tmp_path)
    (tmp_path / "form.json").write_text(json.dumps(FORM | wrong))
    with pytest.raises(RunError, match=r"form.json: expected the form of recorded") as caught:
        RecordedQueries(tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["", "[]", "[" * 9_000, '{"schema": "dfme.queries/1"}', "\xff"])
def test_a_form_that_is_no_form_is_one_line(text: str, tmp_path: Path) -> None:
    written(tmp_path)
    (tmp_path / "form.json").write_bytes(text.encode("latin1"))
    with pytest.raises(RunError, match=r"form.json: expected the form of recorded queries"):
        RecordedQueries(tmp_path)


@pytest.mark.parametrize("name", ["form.json", "images.bin", "scores.f64", "distances.f64"])
@pytest.mark.parametrize("how", ["gone", "pipe", "folder"])
def test_a_file_that_is_none_is_one_line_at_once(name: str, how: str, tmp_path: Path) -> None:
    written(tmp_path)
    (tmp_path / name).unlink()
    if how == "pipe":
        os.mkfifo(tmp_path / name)
    elif how == "folder":
        (tmp_path / name).mkdir()
    with pytest.raises(RunError, match=f"{name}: expected"):
        RecordedQueries(tmp_path)


@pytest.mark.parametrize(("name", "size"), [("images.bin", 96), ("scores.f64", 40)])
def test_files_of_other_lengths_are_refused(name: str, size: int, tmp_path: Path) -> None:
    written(tmp_path)
    content = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(content[:-size])
    with pytest.raises(RunError, match=f"as many images in all files.*6 in {name}"):
        RecordedQueries(tmp_path)
    (tmp_path / name).write_bytes(content[:-1])
    with pytest.raises(RunError, match=f"{name}: expected entries of {size} bytes"):
        RecordedQueries(tmp_path)


def test_numbers_that_were_not_sent_are_refused_as_they_are_read(tmp_path: Path) -> None:
    written(tmp_path)
    read = RecordedQueries(tmp_path)
    for name, asked in (
        ("images.bin", read.images),
        ("scores.f64", read.scores),
        ("distances.f64", read.distances),
    ):
        path = tmp_path / name
        path.write_bytes(b"\xff" * path.stat().st_size)  # NaN
        with pytest.raises(RunError, match=f"{name}: expected recorded queries, got other numbers"):
            asked(0, 7)
    written(tmp_path / "levels", 17)
    path = tmp_path / "levels" / "images.bin"
    path.write_bytes(bytes([17]) * path.stat().st_size)
    with pytest.raises(RunError, match=r"images.bin: expected recorded queries"):
        RecordedQueries(tmp_path / "levels").images(0, 1)


def test_a_file_cut_while_it_is_read_is_one_line(tmp_path: Path) -> None:
    written(tmp_path)
    read = RecordedQueries(tmp_path)
    os.truncate(tmp_path / "scores.f64", 50)
    with pytest.raises(RunError, match=r"scores.f64: expected recorded queries"):
        read.scores(0, 7)
