"""The halves of a data set: disjoint, of each class by half, the same for whoever names them."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from dfme.config.settings import EvaluationConfig
from dfme.data import HALVES, check_dataset, has_train_part, load_dataset
from dfme.queries.pool import open_pool
from dfme.run.evaluation_images import evaluation_images
from dfme.spec import ImageSpec


def pixels(images: torch.Tensor) -> list[bytes]:
    return [image.numpy().tobytes() for image in images]


def test_no_image_is_in_both_and_each_class_is_divided_in_two() -> None:
    whole = load_dataset("digits", "test")
    scored, like = (load_dataset(f"digits{half}", "test") for half in HALVES)
    assert not {*pixels(scored.images)} & {*pixels(like.images)}
    assert sorted([*pixels(scored.images), *pixels(like.images)]) == sorted(pixels(whole.images))
    assert (scored.name, like.name) == ("digits@scored", "digits@like")
    counts = torch.stack([half.required_labels.bincount() for half in (scored, like)])
    assert int((counts[0] - counts[1]).abs().max()) <= 1
    assert not torch.equal(whole.images[1::2], like.images)  # drawn, not counted off
    assert pixels(load_dataset("digits@like", "test").images) == pixels(like.images)


def test_an_image_that_stands_twice_is_in_one_half(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    once = rng.integers(0, 256, (50, 8, 8), dtype=np.uint8)
    np.savez(file := tmp_path / "a.npz", images=np.concatenate([once, once, once[:9]]))
    scored, like = ({*pixels(load_dataset(f"{file}{half}", "test").images)} for half in HALVES)
    assert not scored & like
    assert (len(scored), len(like)) == (25, 25)
    assert not has_train_part(str(file))
    np.savez(
        file,
        train_images=once,
        train_labels=np.arange(50),
        test_images=once,
        test_labels=np.arange(50),
    )
    assert has_train_part(str(file)) and has_train_part("digits")  # noqa: PT018


@pytest.mark.parametrize("labelled", [True, False])
def test_evaluation_and_pool_of_a_folder_are_the_two_halves(tmp_path: Path, labelled: bool) -> None:
    for number in range(24):
        place = tmp_path / ("b" if number % 3 else "a") if labelled else tmp_path
        place.mkdir(exist_ok=True)
        Image.fromarray(np.full((8, 8), number * 10, np.uint8)).save(place / f"{number:02}.png")
    spec = ImageSpec((1, 8, 8), (0.0, 1.0), 256)
    check_dataset(f"{tmp_path}@scored")
    data = evaluation_images(EvaluationConfig(f"{tmp_path}@scored"), spec, 2, ("b", "a"))
    pool = open_pool(f"{tmp_path}@like", spec)
    assert data is not None and pool.size == 12  # noqa: PT018
    drawn = pool.draw(12, torch.Generator().manual_seed(0))
    both = [float(image.mean()) for image in (*data.images, *drawn)]
    assert sorted(both) == pytest.approx([number * 10 / 255 for number in range(24)])
    if labelled:  # in the teacher's order
        assert data.required_labels.tolist() == [1] * 4 + [0] * 8
    assert not has_train_part(str(tmp_path))
