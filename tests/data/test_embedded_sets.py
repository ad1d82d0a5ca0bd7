"""Sets that need no download, and the halves of a test part."""

import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from refusals import refusal

from dfme.config.settings import EvaluationConfig
from dfme.data import (
    DRAWN,
    HALVES,
    ImageSet,
    check_dataset,
    has_train_part,
    load_dataset,
)
from dfme.data import drawn as drawn_module
from dfme.data.drawn import HALF_LINES, LINES, OUTLINES, DrawnConfig, draw
from dfme.queries.pool import open_pool
from dfme.run.scores import evaluation_images
from dfme.spec import ImageSpec


def test_batches_are_floats_from_zero_to_one() -> None:
    pixels = torch.tensor([0, 51, 255], dtype=torch.uint8).view(3, 1, 1, 1)
    data = ImageSet("x", pixels, torch.arange(3), ("a", "b", "c"))
    assert data.batch(slice(1, 3)).flatten().tolist() == [pytest.approx(0.2), 1.0]
    assert data.batch(torch.tensor([2, 0])).flatten().tolist() == [1.0, 0.0]
    assert data.images.flatten().tolist() == [0, 51, 255]  # left as they were
    assert data.batch(slice(0, 1)).dtype == torch.float32


def test_a_subset_of_a_sorted_set_keeps_every_class() -> None:
    labels = torch.arange(100) // 10
    data = ImageSet("x", labels.view(-1, 1, 1, 1).float() / 10, labels, tuple("0123456789"))
    part = data.subset(20)
    assert part.labels.bincount().tolist() == [2] * 10
    torch.testing.assert_close(part.images.flatten() * 10, part.labels.float())
    assert len(data.subset(0)) == len(data.subset(500)) == 100


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("cifar11", "unknown name 'cifar11'; did you mean cifar10"),
        ("digit", "did you mean digits"),
        ("leters", "did you mean letters"),
        ("here/nowhere", "no such folder or file"),
        ("nowhere.npz", "no such folder or file"),
    ],
)
def test_unknown_names_are_refused(name: str, says: str) -> None:
    refusal(says, check_dataset, name)
    refusal(says, load_dataset, name, "test")


@pytest.mark.integration
def test_names_are_checked_without_torch() -> None:
    """Those of data sets, pools, programs and networks."""
    code = (
        "import sys; from dfme.data import check_dataset; from dfme.nets import auto_net, "
        "check_net\nfrom "
        "dfme.queries.programs import check_pool, check_programs\ncheck_dataset('digits'); "
        "check_dataset('cifar10')\ncheck_programs(['leaves']); check_pool('digits'); "
        "check_pool('procedural'); check_pool('.')\nauto_net((3, 32, 32)); "
        "check_net('resnet34_8x')\nfor "
        "check, wrong in ((check_net, 'resnet34_8z'), (check_dataset, 'cifar11')):\n    try: "
        "check(wrong)\n    except Exception as error: print(type(error).__name__)\nprint({'torch', "
        "'torchvision', 'numpy'} & set(sys.modules))"
    )
    process = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert process.stdout.split() == ["UserError", "UserError", "set()"]


def test_another_size_than_the_sets_own_is_refused() -> None:
    refusal(
        "digits: its images are 1x8x8, but 3x32x32 was asked for",
        load_dataset,
        "digits",
        "test",
        shape=(3, 32, 32),
    )


def test_digits_are_split_once_and_for_all() -> None:
    train, test = load_dataset("digits", "train"), load_dataset("digits", "test", shape=(1, 8, 8))
    assert (len(train), len(test)) == (1438, 359)
    assert train.images.shape == (1438, 1, 8, 8)
    assert test.labels.bincount().min() >= 35
    torch.testing.assert_close(
        torch.cat([train.images, test.images]).unique(), torch.arange(17) / 16
    )
    # The digit 0 has an empty middle and the digit 1 an inked one: labels belong to their images.
    middle = train.images[:, 0, 3:5, 3:5].mean((1, 2))
    assert middle[train.labels == 0].mean() < 0.2 < 0.6 < middle[train.labels == 1].mean()


@pytest.mark.parametrize(
    ("name", "area"),
    [
        ("disc", 0.64 * math.pi),
        ("ring", (1 - 0.55**2) * math.pi),
        ("square", 1.4**2),
        ("triangle", 3 * math.sqrt(3) / 4),
        ("bar", 0.44 * 2),
        ("two dots", 2 * 0.16 * math.pi),
    ],
)
def test_outlines_have_the_area_of_geometry(name: str, area: float) -> None:
    side = (torch.arange(1000) + 0.5) / 1000 * 2.4 - 1.2
    v, u = torch.meshgrid(side, side, indexing="ij")
    assert OUTLINES[name](u, v).float().mean().item() * 2.4**2 == pytest.approx(area, rel=0.005)


def drawn(name: str, **settings: Any) -> ImageSet:
    if name == "shapes":
        return draw(DrawnConfig(name, **settings), tuple(OUTLINES), drawn_module._in_shapes)
    return draw(
        DrawnConfig(name, rotation=15.0, **settings), tuple(LINES), drawn_module._in_letters
    )


@pytest.mark.parametrize(("name", "classes"), [("shapes", 10), ("letters", 26)])
@pytest.mark.parametrize("shape", [(3, 12, 12), (1, 8, 8), (3, 16, 24), (1, 32, 20)])
def test_drawn_tasks_come_in_any_size_from_a_seed(
    shape: tuple[int, int, int], name: str, classes: int
) -> None:
    first, again = (drawn(name, shape=shape, count=5 * classes, seed=4) for _ in range(2))
    other = drawn(name, shape=shape, count=5 * classes, seed=5)
    assert first.images.shape == (5 * classes, *shape)
    assert first.images.dtype == torch.uint8
    assert first.labels.bincount().tolist() == [5] * classes
    assert torch.equal(first.images, again.images)
    assert torch.equal(first.labels, again.labels)
    assert not torch.equal(first.images, other.images)


@pytest.mark.exhaustive
@pytest.mark.parametrize(("name", "shape"), [("shapes", (3, 12, 12)), ("letters", (1, 12, 12))])
def test_images_to_train_with_are_not_those_held_out(
    name: str, shape: tuple[int, int, int]
) -> None:
    train, test = load_dataset(name, "train"), load_dataset(name, "test", shape=shape)
    assert (len(train), len(test)) == (20_000, 2_000)
    seen = {image.numpy().tobytes() for image in train.images}
    assert not any(image.numpy().tobytes() in seen for image in test.images)


@pytest.mark.parametrize("name", DRAWN)
def test_figures_differ_from_their_ground_by_the_contrast(name: str) -> None:
    images = drawn(name, shape=(3, 48, 48), count=300, contrast=0.4, noise=0).batch(slice(None))
    spread = (images.amax((2, 3)) - images.amin((2, 3))).amax(
        1
    )  # of the channel where it is largest
    assert 0.4 - 1 / 255 <= spread.min() < 0.45
    assert spread.max() > 0.9


def test_noise_and_texture_have_the_size_they_say() -> None:
    clean, noisy, wavy = (
        drawn("shapes", shape=(3, 24, 24), count=200, noise=noise, texture=texture).batch(
            slice(None)
        )
        for noise, texture in ((0.0, 0.0), (0.05, 0.0), (0.0, 0.1))
    )
    middling = (clean > 0.3) & (clean < 0.7)  # where nothing is clipped
    assert (noisy - clean)[middling].std().item() == pytest.approx(0.05, rel=0.03)
    assert (wavy - clean).abs().max().item() == pytest.approx(0.1, abs=0.01)


def test_unturned_bars_stand_upright() -> None:
    data = drawn("shapes", shape=(1, 32, 32), count=200, rotation=0, noise=0)
    bars = data.batch(data.labels == data.class_names.index("bar"))[:, 0]
    covered = (bars - bars[:, :1, :1]).abs() > 0.1  # the shape never reaches a corner
    assert (covered.any(2).sum(1) > 3 * covered.any(1).sum(1)).all()


@pytest.mark.parametrize("shape", [(2, 12, 12), (3, 4, 12)])
def test_shapes_that_cannot_be_are_refused(shape: tuple[int, int, int]) -> None:
    refusal("shapes: ", load_dataset, "shapes", "test", shape=shape)


def test_drawn_letters_have_the_holes_of_the_alphabet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        drawn_module, "HALF_LINES", (0.08, HALF_LINES[0])
    )  # thick ones may close the top of an A
    data = drawn("letters", shape=(1, 64, 64), count=26, contrast=1, noise=0, seed=3)
    assert data.class_names == tuple("ABCDEFGHIJKLMNOPQRSTUVWXYZ")
    ink = torch.stack(
        [(image - image[0, 0]).abs() > 0.5 for image in data.batch(slice(None))[:, 0]]
    )
    for image, label in zip(ink, data.labels.tolist(), strict=True):
        letter = data.class_names[label]
        assert parts(image) == 1, f"{letter} is in one piece"
        assert parts(~image) - 1 == {"B": 2}.get(letter, int(letter in "ADOPQR")), (
            f"holes of {letter}"
        )


def parts(image_HW: torch.Tensor) -> int:
    """How many connected parts the pixels that are true make, counted by flooding one after the
    other.
    """
    remaining, count = {(row, column) for row, column in image_HW.nonzero().tolist()}, 0
    while remaining:
        count, edge = count + 1, [remaining.pop()]
        while edge:
            row, column = edge.pop()
            near = {
                (row + 1, column),
                (row - 1, column),
                (row, column + 1),
                (row, column - 1),
            } & remaining
            remaining -= near
            edge += near
    return count


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
    once = np.random.default_rng(0).integers(0, 256, (50, 8, 8), dtype=np.uint8)
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
