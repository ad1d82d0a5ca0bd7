"""Folders as people have them: parts by many names, litter, links, and what can be read in two
ways.
"""

import os
from pathlib import Path

import numpy as np
import pytest
from refusals import refusal

from dfme.data import ImageSet, check_dataset, has_train_part, load_dataset
from dfme.queries.pool import open_pool
from dfme.queries.programs import check_pool
from dfme.spec import ImageSpec

Image = pytest.importorskip("PIL.Image")
GREY = ImageSpec((1, 2, 2))


def paint(root: Path, **greys: int) -> None:
    """Pictures of one grey each; ``__`` in a name is a folder's end."""
    for name, grey in greys.items():
        write(root / f"{name.replace('__', '/')}.png", grey)


def write(path: Path, grey: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("L", (2, 2), grey).save(path)


def read(root: Path, split: str = "test") -> ImageSet:
    return load_dataset(str(root), split, shape=(1, 2, 2))  # type: ignore[arg-type]


def seen(data: ImageSet) -> dict[int, str | None]:
    """The class of each image by its grey."""
    greys = data.images.flatten(1)[:, 0].tolist()
    labels = [None] * len(greys) if data.labels is None else data.labels.tolist()
    return {
        grey: None if at is None else data.class_names[at]
        for grey, at in zip(greys, labels, strict=True)
    }


@pytest.mark.parametrize(
    ("parts", "wanted"),
    [
        (("train", "val"), "val"),
        (("Train", "Test"), "Test"),
        (("TRAINING", "VALIDATION"), "VALIDATION"),
        (("train", "valid", "test"), "test"),
        (("train", "dev"), "dev"),
        (("training_set", "test_set"), "test_set"),
        (("train2017", "val2017"), "val2017"),
        (("seg_train", "seg_test", "seg_pred"), "seg_test"),
        (("valid", "test"), "test"),
    ],
)
def test_parts_are_no_classes(tmp_path: Path, parts: tuple[str, ...], wanted: str) -> None:
    for number, part in enumerate(parts):
        for name, grey in {"cat": 10 * number, "dog": 10 * number + 1}.items():
            write(tmp_path / part / name / "1.png", grey)
    (tmp_path / "notes.txt").write_text("no picture")
    data = read(tmp_path)
    at = parts.index(wanted)
    assert seen(data) == {10 * at: "cat", 10 * at + 1: "dog"}
    assert (
        data.notes[0]
        == f"of the parts {', '.join(sorted({*parts} - {'seg_pred'}))} of {tmp_path.name}, {wanted} is read"
    )
    assert has_train_part(str(tmp_path)) == ("rain" in parts[0] or "RAIN" in parts[0])
    if has_train_part(str(tmp_path)):
        assert seen(read(tmp_path, "train")) == {0: "cat", 1: "dog"}
        pool = open_pool(str(tmp_path), GREY)
        assert pool.size == 2
        assert f"{parts[0]} is read" in pool.notes[0]  # type: ignore[attr-defined]
    else:
        for refuse in (lambda: check_pool(str(tmp_path)), lambda: open_pool(str(tmp_path), GREY)):
            refusal("the parts test, valid and no train part; name the one", refuse)


def test_an_unlabelled_test_part_gives_way_to_a_labelled_one(tmp_path: Path) -> None:
    paint(
        tmp_path,
        train__cat__1=0,
        train__dog__1=1,
        val__cat__1=2,
        val__dog__1=3,
        test__1=4,
        test__2=5,
    )
    assert seen(read(tmp_path)) == {2: "cat", 3: "dog"}


def test_a_lone_folder_in_a_part_is_no_class(tmp_path: Path) -> None:
    paint(tmp_path, train__cat__1=0, train__dog__1=1, test__all__1=4, test__all__2=5)
    data = read(tmp_path)
    assert seen(data) == {4: None, 5: None}
    assert "its images have no labels: they are not in two class folders (all)" in data.notes
    assert read(tmp_path, "train").class_names == ("cat", "dog")


def test_parts_inside_a_lone_folder_are_found(tmp_path: Path) -> None:
    paint(
        tmp_path,
        zip__train__train__cat__1=0,
        zip__train__train__dog__1=1,
        zip__val__cat__1=2,
        zip__val__dog__1=3,
    )
    data = read(tmp_path)
    assert seen(data) == {2: "cat", 3: "dog"}
    assert "its images lie in zip" in data.notes
    assert seen(read(tmp_path, "train")) == {0: "cat", 1: "dog"}


@pytest.mark.parametrize(
    "greys",
    [
        {"train__1": 0, "bus__1": 1},
        {"train__steam__1": 0, "train__electric__1": 10, "bus__double__1": 1, "bus__school__1": 11},
        {"valid__1": 0, "invalid__1": 1},
        {"test__1": 0, "control__1": 1},
        {"crash_test__1": 0, "road_train__1": 1},
    ],
)
def test_classes_that_are_called_like_a_part_stay_classes(
    tmp_path: Path, greys: dict[str, int]
) -> None:
    paint(tmp_path, **greys)
    check_dataset(str(tmp_path))
    assert seen(read(tmp_path)) == {grey: name.partition("__")[0] for name, grey in greys.items()}


@pytest.mark.parametrize(
    ("greys", "says"),
    [
        (
            {"fold1__a__1": 0, "fold1__b__1": 1, "fold2__a__1": 2, "fold2__b__1": 3},
            "fold1, fold2 each hold the folders a, b, so either can be the classes; name the one",
        ),
        (
            {"trn__a__1": 0, "trn__b__1": 1, "tst__a__1": 2, "tst__b__1": 3},
            "trn, tst each hold the folders a, b",
        ),
        (
            {
                "color__a__1": 0,
                "color__b__1": 1,
                "grayscale__a__1": 2,
                "grayscale__b__1": 3,
                "segmented__a__1": 4,
                "segmented__b__1": 5,
            },
            "color, grayscale, segmented each hold the folders a, b",
        ),
        (
            {"cat__images__1": 0, "cat__masks__1": 1, "dog__images__1": 2, "dog__masks__1": 3},
            "cat, dog each hold the folders images, masks, .* put their pictures right into them",
        ),
        (
            {"2019__a__1": 0, "2019__b__1": 1, "2020__a__1": 2, "2020__b__1": 3, "2020__c__1": 4},
            "2019, 2020 each hold the folders a, b",
        ),
        (
            {"train__1": 0, "test__1": 1, "bus__1": 2},
            "test, train can be parts of it, and classes beside bus",
        ),
        (
            {"train__a__1": 0, "train__b__1": 1, "holdout__a__1": 2, "holdout__b__1": 3},
            "train, holdout hold the same",
        ),
        (
            {"val__a__1": 0, "val__b__1": 1, "valid__a__1": 2, "valid__b__1": 3},
            "val, valid can each be its val part",
        ),
        (
            {"train__a__1": 0, "train__b__1": 1},
            "the part train and no test or validation part; name that folder",
        ),
        (
            {"a__train__1": 0, "a__test__1": 1, "b__train__1": 2, "b__test__1": 3},
            "holds the parts test, train",
        ),
    ],
)
def test_what_can_be_read_in_two_ways_is_asked_about(
    tmp_path: Path, greys: dict[str, int], says: str
) -> None:
    paint(tmp_path, **greys)
    refusal(says, read, tmp_path)


def test_litter_is_skipped_everywhere(tmp_path: Path) -> None:
    paint(tmp_path, cat__1=0, cat__deep__2=10, dog__1=200)
    for name in (
        "__MACOSX/cat",
        "@eaDir/cat",
        "cat/.thumbnails",
        "dog/@eaDir",
        "cat/.ipynb_checkpoints",
    ):
        write(tmp_path / name / "x.png", 99)
    for name in ("cat/._1.png", "dog/._1.png", ".DS_Store", "cat/Thumbs.db", "dog/desktop.ini"):
        (tmp_path / name).write_bytes(b"\0\5\26\7")
    data = read(tmp_path)
    assert seen(data) == {0: "cat", 10: "cat", 200: "dog"}
    assert not data.notes
    assert open_pool(str(tmp_path), GREY).size == 3
    assert not has_train_part(str(tmp_path))


def test_folders_without_pictures_are_named(tmp_path: Path) -> None:
    paint(tmp_path, cat__1=0, dog__1=1)
    (tmp_path / "cow").mkdir()
    assert "cow has no picture and counts as a class" in read(tmp_path).notes
    (tmp_path / "annotations").mkdir()
    (tmp_path / "annotations" / "cat.xml").write_text("<a/>")
    data = read(tmp_path)
    assert data.class_names == ("cat", "cow", "dog")
    assert any(
        "annotations has files and no picture, so it is no class" in note for note in data.notes
    )
    (tmp_path / "cow" / "1.HEIC").write_bytes(b"x")
    refusal(r"class folder cow has pictures in \.heic alone, .* convert them", read, tmp_path)
    write(tmp_path / "cow" / "2.jpg", 2)
    assert "pictures in .heic are not read and left out: 1" in read(tmp_path).notes


def test_what_might_not_be_meant_is_said(tmp_path: Path) -> None:
    paint(tmp_path, cat__left__1=0, cat__right__1=1, dog__left__1=2, loose=9)
    notes = read(tmp_path).notes
    assert "pictures in no class folder are left out: 1, such as loose.png" in notes
    paint(tmp_path / "case", Cat__1=0, cat__1=1)
    assert (
        "Cat, cat are classes of their own, although they differ in case alone"
        in read(tmp_path / "case").notes
    )
    paint(tmp_path / "letters", A__1=0, a__1=200)
    assert not read(tmp_path / "letters").notes


@pytest.mark.parametrize(
    ("original", "twin"),
    [
        ("cat/1.png", "cat/1_mask.png"),
        ("cat/b (1).png", "cat/b (1)_mask_1.png"),
        ("cat/1.png", "cat/1_seg.jpg"),
        ("cat/1.png", "cat/1-GT.png"),
        ("cat/1.png", "cat/1 copy_seg.png"),
        ("cat/1.png", "cat/1_label.png"),
        ("cat/1.png", "cat/1_thumb.jpg"),
        ("cat/1.png", "cat/thumbs/1.png"),
        ("cat/1.png", "cat/masks/1_mask.png"),
    ],
)
def test_masks_and_thumbnails_beside_pictures_are_no_pictures_of_the_class(
    tmp_path: Path, original: str, twin: str
) -> None:
    for name in (original, twin, original.replace("cat", "dog"), twin.replace("cat", "dog")):
        write(tmp_path / name, 200)
    for call in (read, lambda root: open_pool(str(root), GREY)):
        refusal("each of its pictures has a mask or a thumbnail", call, tmp_path)
    write(tmp_path / "dog" / "9.png", 200)
    (note,) = read(tmp_path).notes
    assert note.startswith("2 pictures seem to be masks or thumbnails of others")


def test_names_like_those_of_masks_without_another_picture_are_names(tmp_path: Path) -> None:
    for name in ("mask/1_mask.png", "mask/2_mask.png", "label/seg.png", "label/1.png"):
        write(tmp_path / name, 200)
    assert not read(tmp_path).notes


def test_links_are_followed_once_and_dead_ones_are_named(tmp_path: Path) -> None:
    paint(tmp_path / "store", a=0, b=1)
    paint(tmp_path / "set", dog__1=2)
    (tmp_path / "set" / "cat").symlink_to(tmp_path / "store")
    (tmp_path / "set" / "dog" / "back").symlink_to(tmp_path / "set")
    assert seen(read(tmp_path / "set")) == {0: "cat", 1: "cat", 2: "dog"}
    (tmp_path / "set" / "dog" / "3.png").symlink_to(tmp_path / "nowhere")
    refusal(r"3\.png is a link to nothing", read, tmp_path / "set")


@pytest.mark.parametrize(
    ("name", "says"),
    {
        b"caf\xe9": "is not UTF-8",
        b"a\nb": "has a line break or another control character",
        b"a\x1b[31m": "has a line break or another control character",
        "a\u202egnp".encode(): "has a letter that reverses text",
        "a\u2028b".encode(): "has a line break or another control character",
    }.items(),
)
@pytest.mark.parametrize("below", ["", "train", "val"])
def test_names_that_no_page_can_hold_are_refused_before_anything_loads(
    tmp_path: Path, name: bytes, says: str, below: str
) -> None:
    paint(tmp_path, **({"train__cat__1": 0, "val__cat__1": 1} if below else {"cat__1": 0}))
    write(tmp_path / below / os.fsdecode(name) / "1.png", 3)
    for refuse in (lambda: check_dataset(f"{tmp_path}@scored"), lambda: read(tmp_path)):
        caught = refusal(says, refuse)
        str(caught).encode()
        assert str(caught).isprintable()


def test_a_folder_whose_own_name_no_file_can_hold_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / os.fsdecode(b"caf\xe9")
    paint(folder, cat__1=0, dog__1=1)
    for refuse in (check_dataset, check_pool):
        refusal("is not UTF-8", refuse, str(folder))


def test_names_of_other_scripts_are_names(tmp_path: Path) -> None:
    names = ("\u732b", "\u05db\u05dc\u05d1", "\u0642\u0637\u0629", "caf\u00e9", "x" * 200, "a b")
    for number, name in enumerate(names):
        write(tmp_path / name / "1.png", number)
    assert read(tmp_path).class_names == tuple(sorted(names))


def test_halves_are_those_of_the_part_that_is_read(tmp_path: Path) -> None:
    for number in range(8):
        write(tmp_path / "train" / "ab"[number % 2] / f"{number}.png", number)
        write(tmp_path / "val" / "ab"[number % 2] / f"{number}.png", 100 + number)
    halves = [
        load_dataset(f"{tmp_path}{half}", "test", shape=(1, 2, 2)) for half in ("@scored", "@like")
    ]
    assert sorted(grey for half in halves for grey in seen(half)) == list(range(100, 108))
    assert open_pool(f"{tmp_path}@like", GREY).size == 4
    assert np.unique(halves[0].required_labels.numpy()).tolist() == [0, 1]
