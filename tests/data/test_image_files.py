"""Data sets of one's own: folders of class folders, and .npz files."""

import re
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from refusals import refusal
from tables import all_hold

from dfme.data import check_dataset, has_train_part, load_dataset
from dfme.data.arrays import handed_over
from dfme.errors import UserError
from dfme.queries.pool import open_pool
from dfme.spec import ImageSpec


def _write_png(
    path: Path, colour: tuple[int, int, int] | int, size: tuple[int, int] = (8, 8)
) -> None:
    image = pytest.importorskip("PIL.Image").new(
        "L" if isinstance(colour, int) else "RGB", size, colour
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    image.save(path)


def test_a_folder_of_class_folders_is_read_in_order(tmp_path: Path) -> None:
    _write_png(tmp_path / "zebra" / "1.png", (255, 0, 0), size=(20, 10))
    _write_png(tmp_path / "ant" / "2.JPG", 100)
    _write_png(tmp_path / "ant" / "1.png", 40)
    _write_png(tmp_path / ".hidden" / "1.png", 0)
    (tmp_path / "ant" / "notes.txt").write_text("no image")
    data = load_dataset(str(tmp_path), "test", shape=(3, 6, 4))
    assert (data.class_names, data.labels.tolist()) == (("ant", "zebra"), [0, 0, 1])
    assert data.images.shape == (3, 3, 6, 4)
    assert data.images[2].amax((1, 2)).tolist() == [255, 0, 0]
    assert data.images[0].unique().tolist() == [40]
    assert load_dataset(str(tmp_path), "test", shape=(1, 8, 8)).images[2].unique().tolist() == [
        76
    ]  # ITU-R 601 luma of pure red: 0.299 * 255
    assert load_dataset(str(tmp_path), "test").shape == (1, 8, 8)  # of the first image
    _write_png(tmp_path / "loose.png", 9)
    assert load_dataset(str(tmp_path), "test").labels.tolist() == [0, 0, 1], (
        "one in no class is left out"
    )
    pixels = np.arange(5 * 3, dtype=np.uint8).reshape(5, 3)  # 5 rows, 3 columns
    pytest.importorskip("PIL.Image").fromarray(pixels).save(tmp_path / "ant" / "1.png")
    data = load_dataset(str(tmp_path), "test", shape=(1, 5, 3))
    assert np.array_equal(data.images[0, 0].numpy(), pixels), "rows and columns are not exchanged"


def test_train_and_test_folders_share_their_class_numbers(tmp_path: Path) -> None:
    for index, path in enumerate(("train/a", "train/b", "train/c", "test/c")):
        _write_png(tmp_path / path / "1.png", index)
    train, test = (load_dataset(str(tmp_path), split) for split in ("train", "test"))
    assert train.labels.tolist() == [0, 1, 2]
    assert (test.labels.tolist(), test.images.unique().tolist()) == ([2], [3])
    assert train.class_names == test.class_names == ("a", "b", "c")


def test_a_folder_that_is_not_split_cannot_be_trained_on(tmp_path: Path) -> None:
    _write_png(tmp_path / "a" / "1.png", 1)
    refusal("expected the folders train and test in it", load_dataset, str(tmp_path), "train")
    np.savez(tmp_path / "x.npz", images=np.zeros((1, 8, 8), np.uint8), labels=np.array([0]))
    refusal("train_images", load_dataset, str(tmp_path / "x.npz"), "train")


def test_folders_that_hold_no_images_are_refused(tmp_path: Path) -> None:
    refusal(
        r"expected images .* one folder per class, found none", load_dataset, str(tmp_path), "test"
    )
    _write_png(tmp_path / "a" / "1.png", 1)
    (tmp_path / "a" / "2.png").write_bytes((tmp_path / "a" / "1.png").read_bytes()[:40])
    refusal(r"2\.png cannot be read as an image", load_dataset, str(tmp_path), "test")
    (tmp_path / "a" / "2.png").write_text("<html>")
    refusal(
        r"2\.png cannot be read as an image", load_dataset, str(tmp_path), "test", shape=(1, 8, 8)
    )
    refusal(
        "1 or 3 channels, but images of 4", load_dataset, str(tmp_path), "test", shape=(4, 8, 8)
    )


@pytest.mark.parametrize(
    ("size", "order"), [((2, 9, 7, 3), (0, 3, 1, 2)), ((2, 3, 9, 7), None), ((2, 9, 7), None)]
)
def test_npz_files_are_read(
    tmp_path: Path, size: tuple[int, ...], order: tuple[int, ...] | None
) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, size, np.uint8)
    np.savez(tmp_path / "x.npz", images=pixels, labels=np.array([4, 0]))
    data = load_dataset(str(tmp_path / "x.npz"), "test")
    assert np.array_equal(
        data.images.numpy().squeeze(), pixels.transpose(order) if order else pixels
    )
    assert data.shape == ((3, 9, 7) if len(size) == 4 else (1, 9, 7))
    assert (data.labels.tolist(), data.num_classes, data.class_names) == ([4, 0], 5, ())


def test_npz_files_may_hold_both_parts(tmp_path: Path) -> None:
    black, grey = np.zeros((3, 8, 8), np.uint8), np.full((2, 8, 8), 0.5, np.float64)
    train, test = {"train_images": black, "train_labels": np.arange(3)}, {"test_images": grey}
    np.savez(tmp_path / "x.npz", **train, **test, test_labels=np.arange(2))
    assert len(load_dataset(str(tmp_path / "x.npz"), "train")) == 3
    data = load_dataset(str(tmp_path / "x.npz"), "test")
    assert (len(data), data.batch(slice(None)).unique().tolist()) == (2, [0.5])


@pytest.mark.parametrize("images", ["x", "X"])
def test_npz_files_with_the_names_of_other_libraries_are_read(tmp_path: Path, images: str) -> None:
    dark, bright = np.full((3, 8, 8), 90, np.uint8), np.full((2, 8, 8), 200, np.uint8)
    np.savez(
        tmp_path / "keras.npz",
        **{f"{images}_train": dark, f"{images}_test": bright},
        y_train=np.arange(3),
        y_test=np.array([2, 1]),
    )
    name = str(tmp_path / "keras.npz")
    test = load_dataset(name, "test")
    assert (test.images.unique().tolist(), test.labels.tolist()) == ([200], [2, 1])
    parts = f"{images}_test, {images}_train"
    assert test.notes == [f"of the arrays {parts}, {images}_test is read"]
    assert load_dataset(name, "train").labels.tolist() == [0, 1, 2]
    assert has_train_part(name)
    assert open_pool(name, ImageSpec((1, 8, 8))).size == 3
    np.savez(tmp_path / "xy.npz", **{images: bright}, y=np.array([1, 0]))
    assert load_dataset(str(tmp_path / "xy.npz"), "test").labels.tolist() == [1, 0]
    assert not has_train_part(str(tmp_path / "xy.npz"))
    assert open_pool(str(tmp_path / "xy.npz"), ImageSpec((1, 8, 8))).size == 2


@pytest.mark.parametrize("kind", [np.int64, np.int32, np.uint32, np.dtype(">i4")])
def test_whole_numbers_of_the_usual_types_are_pixels(tmp_path: Path, kind: Any) -> None:
    pixels = np.arange(2 * 64).reshape(2, 8, 8) * 2  # to 254
    np.savez(tmp_path / "x.npz", images=pixels.astype(kind), labels=TWO)
    data = load_dataset(str(tmp_path / "x.npz"), "test")
    assert data.images.dtype == torch.uint8
    assert np.array_equal(data.images[:, 0].numpy(), pixels)
    for wrong in (pixels - 1, pixels + 2, pixels > 9):
        np.savez(tmp_path / "x.npz", images=wrong.astype(np.int32), labels=TWO)
        refusal(
            r"whole numbers from 0 to 255 or .* got int32",
            load_dataset,
            str(tmp_path / "x.npz"),
            "test",
        )


PIXELS = np.zeros((2, 8, 8), np.uint8)
TWO = np.zeros(2, int)


@pytest.mark.parametrize(
    ("arrays", "says"),
    [
        ({"labels": TWO}, r"expected arrays images and labels .* got labels$"),
        ({"images": PIXELS[:0]}, r"expected images .* got uint8 \(0, 1, 8, 8\)$"),
        ({"images": PIXELS, "labels": np.zeros(3, int)}, "expected 2 labels, whole numbers from 0"),
        (
            {"images": PIXELS, "labels": np.array([-1, 0])},
            "expected 2 labels, whole numbers from 0",
        ),
        ({"images": PIXELS + 2.0, "labels": TWO}, "floating-point pixels within 0 and 1"),
        ({"images": PIXELS + np.nan, "labels": TWO}, "floating-point pixels within 0 and 1"),
        ({"images": np.zeros((2, 64)), "labels": TWO}, r"expected images \(N, H, W\)"),
        (
            {"images": np.array([{}, {}]), "labels": TWO},
            r"cannot be read as \.npz: images\.npy: holds Python",
        ),
    ],
)
def test_npz_files_that_do_not_fit_are_refused(
    tmp_path: Path, arrays: dict[str, np.ndarray], says: str
) -> None:
    np.savez(tmp_path / "x.npz", **arrays)
    refusal(says, load_dataset, str(tmp_path / "x.npz"), "test")


def test_a_file_that_is_no_npz_is_refused(tmp_path: Path) -> None:
    for number, contents in enumerate((b"not a zip file", b"", b"PK\x03\x04 cut short")):
        (tmp_path / f"{number}.npz").write_bytes(contents)
        refusal(r"cannot be read as \.npz", load_dataset, str(tmp_path / f"{number}.npz"), "test")
    with (tmp_path / "one.npz").open("wb") as file:
        np.save(file, np.zeros(3))  # one array, no archive of them
    refusal(r"cannot be read as \.npz", load_dataset, str(tmp_path / "one.npz"), "test")
    (tmp_path / "x.txt").write_text("words")
    refusal(
        r"expected a folder of images or an .npz file, got another file",
        check_dataset,
        str(tmp_path / "x.txt"),
    )


@pytest.mark.parametrize(
    "places", [("2.png", "1.png"), ("all/2.png", "all/1.png"), ("a/b/2.png", "a/1.png")]
)
def test_pictures_that_lie_in_no_class_folder_have_no_labels(
    tmp_path: Path, places: tuple[str, str]
) -> None:
    for place in places:
        _write_png(tmp_path / place, int(Path(place).stem))
    _write_png(tmp_path / ".thumbnails" / "3.png", 3)
    data = load_dataset(str(tmp_path), "test", shape=(1, 8, 8))
    assert (data.labels, data.class_names, data.num_classes) == (None, (), 0)
    assert sorted(data.images.unique().tolist()) == [1, 2]
    assert data.subset(1).labels is None
    with pytest.raises(UserError, match="expected a label for each image, found none"):
        data.required_labels  # noqa: B018


@pytest.mark.parametrize("name", ["images", "test_images"])
def test_an_npz_file_without_labels_has_images_alone(tmp_path: Path, name: str) -> None:
    np.savez(tmp_path / "x.npz", **{name: np.zeros((2, 8, 8), np.uint8)})
    data = load_dataset(str(tmp_path / "x.npz"), "test")
    assert (len(data), data.labels, data.num_classes) == (2, None, 0)


@pytest.mark.filterwarnings("ignore")  # Pillow warns first
def test_images_that_unfold_to_too_much_are_refused_in_one_line(tmp_path: Path) -> None:
    """A few bytes that would take gigabytes, labels that no classifier has, and tensors without
    values.
    """
    pillow = pytest.importorskip("PIL.Image")
    pixels, labels = (
        np.random.default_rng(0).integers(0, 256, (60, 8, 8), np.uint8),
        np.arange(60) % 10,
    )
    np.savez_compressed(tmp_path / "blank.npz", images=np.zeros((400_000, 8, 8), np.uint8))
    np.savez(tmp_path / "huge.npz", images=pixels, labels=np.full(60, 2**64 - 1, np.uint64))
    np.savez(tmp_path / "many.npz", images=pixels, labels=np.where(labels == 3, 2**40, labels))
    np.savez(tmp_path / "none.npz", images=np.zeros((60, 0, 0), np.uint8), labels=labels)
    np.savez_compressed(tmp_path / "plain.npz", images=pixels, labels=labels)
    (tmp_path / "one").mkdir()
    pillow.new("1", (12_000, 12_000)).save(tmp_path / "one" / "x.png")
    says = {
        "blank.npz": "its arrays are over 100 times the file; save them by np.savez",
        "huge.npz": "expected 60 labels, whole numbers from 0 to below 100,000, got uint64",
        "many.npz": "expected 60 labels, whole numbers from 0 to below 100,000",
        "none.npz": "expected images",
        "one": "expected at most 67,108,864 pixels, got 12000 x 12000",
    }

    def holds(name: str) -> None:
        tracemalloc.start()
        refusal(re.escape(says[name]), load_dataset, str(tmp_path / name), "test")
        assert tracemalloc.get_traced_memory()[1] < 10**7
        tracemalloc.stop()

    all_hold(holds, ((name,) for name in says))
    assert len(load_dataset(str(tmp_path / "plain.npz"), "test")) == 60
    for images, ours in (
        (torch.zeros(4, 1, 8, 8, device="meta"), None),
        (torch.zeros(4, 1, 8, 8), "meta"),
    ):
        refusal(
            r"evaluation: expected tensors or arrays .*meta",
            handed_over,
            images,
            None if ours is None else torch.zeros(4, device=ours),
        )


LABELS = [0, 2, 1, 2]
SAME_LABELS = {
    "column": np.array(LABELS, np.uint8)[:, None],
    "float": np.array(LABELS, np.float32),
    "one-hot": np.eye(3)[LABELS],
    "one-hot whole": np.eye(3, dtype=np.uint8)[LABELS],
    "unsigned": np.array(LABELS, np.uint64),
}


@pytest.mark.parametrize("labels", SAME_LABELS.values(), ids=SAME_LABELS)
def test_labels_of_other_forms_that_mean_one_thing_are_read(
    tmp_path: Path, labels: np.ndarray
) -> None:
    np.savez(tmp_path / "x.npz", images=np.zeros((4, 8, 8), np.uint8), labels=labels)
    assert load_dataset(str(tmp_path / "x.npz"), "test").required_labels.tolist() == LABELS


NO_LABELS = {
    "half": np.array([0, 0.5, 1, 2]),
    "nan": np.array([0, np.nan, 1, 2]),
    "two hot": np.array([[1, 1], [0, 1], [1, 0], [1, 0]]),
    "scores": np.full((4, 2), 0.5),
    "names": np.array(["a", "b", "a", "b"]),
    "below zero": np.array([-1.0, 0, 1, 2]),
    "endless": np.array([0, np.inf, 1, 2]),
}


@pytest.mark.parametrize("labels", NO_LABELS.values(), ids=NO_LABELS)
def test_labels_that_are_none_are_refused(tmp_path: Path, labels: np.ndarray) -> None:
    np.savez(tmp_path / "x.npz", images=np.zeros((4, 8, 8), np.uint8), labels=labels)
    refusal(
        "expected 4 labels, whole numbers from 0", load_dataset, str(tmp_path / "x.npz"), "test"
    )


@pytest.mark.parametrize(
    ("images", "says"),
    [
        (np.zeros((2, 3, 3, 3), np.uint8), "channels of (2, 3, 3, 3) may be first or last"),
        (np.zeros((2, 3, 5, 1), np.uint8), "channels of (2, 3, 5, 1) may be first or last"),
        (np.zeros((28, 28, 3), np.uint8), "may be one image with its channels last"),
        (np.zeros((2, 8, 8, 4), np.uint8), "seems to have 4 channels last"),
        (np.eye(8, dtype=np.uint8)[None], "uint8, so 255 is white, and none is above 1"),
        (np.zeros((2, 8, 8), np.uint16), "got uint16"),
        (np.full((2, 8, 8), 200.0), "floating-point pixels within 0 and 1"),
    ],
)
def test_pixels_that_can_be_read_in_two_ways_are_asked_about(
    tmp_path: Path, images: np.ndarray, says: str
) -> None:
    np.savez(tmp_path / "x.npz", images=images)
    refusal(re.escape(says), load_dataset, str(tmp_path / "x.npz"), "test")
    refusal(re.escape(says), open_pool, str(tmp_path / "x.npz"), ImageSpec((1, 8, 8)))


def test_the_shape_that_is_wanted_says_where_the_channels_are(tmp_path: Path) -> None:
    pixels = np.arange(2 * 3 * 5, dtype=np.uint8).reshape(2, 3, 5, 1)
    np.savez(tmp_path / "x.npz", images=pixels)
    last = load_dataset(str(tmp_path / "x.npz"), "test", shape=(1, 3, 5)).images
    assert np.array_equal(last[:, 0].numpy(), pixels[..., 0])
    first = load_dataset(str(tmp_path / "x.npz"), "test", shape=(3, 5, 1)).images
    assert np.array_equal(first.numpy(), pixels)


def test_parts_and_labels_by_other_names_are_said(tmp_path: Path) -> None:
    black, grey = np.zeros((3, 8, 8), np.uint8), np.full((2, 8, 8), 200, np.uint8)
    np.savez(
        tmp_path / "x.npz",
        train_images=black,
        train_labels=np.arange(3),
        val_images=grey,
        val_labels=TWO,
    )
    data = load_dataset(str(tmp_path / "x.npz"), "test")
    assert (len(data), data.images.unique().tolist()) == (2, [200])
    assert data.notes == ["of the arrays train_images, val_images, val_images is read"]
    pool = open_pool(str(tmp_path / "x.npz"), ImageSpec((1, 8, 8)))
    assert (pool.size, pool.notes) == (
        3,
        ("of the arrays train_images, val_images, train_images is read",),
    )  # type: ignore[attr-defined]
    np.savez(tmp_path / "y.npz", images=grey, label=TWO)
    (note,) = load_dataset(str(tmp_path / "y.npz"), "test").notes
    assert note == "its images have no labels: these are not read from label, but labels"
