"""The data sets: the embedded ones against arithmetic, the others against files the tests write themselves."""

from __future__ import annotations

import gzip
import math
import pickle
import struct
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from urllib.error import URLError

import numpy as np
import pytest
import torch

from dfme.data import DATASETS, LabelledImages, check_dataset, load_dataset
from dfme.data.shapes import OUTLINES, ShapesConfig, generate
from dfme.errors import UserError


def _torchvision() -> ModuleType:
    module: ModuleType = pytest.importorskip("torchvision", exc_type=(ImportError, RuntimeError))
    return module


# LabelledImages


def test_batches_are_floats_from_zero_to_one() -> None:
    pixels = torch.tensor([0, 51, 255], dtype=torch.uint8).view(3, 1, 1, 1)
    data = LabelledImages("x", pixels, torch.arange(3), ("a", "b", "c"))
    assert data.batch(slice(1, 3)).flatten().tolist() == [pytest.approx(0.2), 1.0]
    assert data.batch(torch.tensor([2, 0])).flatten().tolist() == [1.0, 0.0]
    assert data.images.flatten().tolist() == [0, 51, 255]  # left as they were
    assert data.batch(slice(0, 1)).dtype == torch.float32


def test_a_subset_of_a_sorted_set_keeps_every_class() -> None:
    labels = torch.arange(100) // 10
    data = LabelledImages("x", labels.view(-1, 1, 1, 1).float() / 10, labels, tuple("0123456789"))
    part = data.subset(20)
    assert part.labels.bincount().tolist() == [2] * 10
    torch.testing.assert_close(part.images.flatten() * 10, part.labels.float())
    assert len(data.subset(0)) == len(data.subset(500)) == 100


# names


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("cifar11", "unknown name 'cifar11'; did you mean cifar10"),
        ("digit", "did you mean digits"),
        ("here/nowhere", "no such folder or file"),
        ("nowhere.npz", "no such folder or file"),
    ],
)
def test_unknown_names_are_refused(name: str, says: str) -> None:
    with pytest.raises(UserError, match=says):
        check_dataset(name)
    with pytest.raises(UserError, match=says):
        load_dataset(name, "test")


def test_names_are_checked_without_torch() -> None:
    code = (
        "import sys; from dfme.data import check_dataset; from dfme.errors import UserError\n"
        "check_dataset('digits'); check_dataset('cifar10')\n"
        "try: check_dataset('cifar10', 'nowhere', download=False)\n"
        "except UserError: print({'torch', 'torchvision', 'numpy'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_another_size_than_the_sets_own_is_refused() -> None:
    with pytest.raises(UserError, match="digits: its images are 1x8x8, but 3x32x32 was asked for"):
        load_dataset("digits", "test", shape=(3, 32, 32))


# digits


def test_digits_are_split_once_and_for_all() -> None:
    train, test = load_dataset("digits", "train"), load_dataset("digits", "test", shape=(1, 8, 8))
    assert (len(train), len(test)) == (1438, 359)
    assert train.images.shape == (1438, 1, 8, 8)
    assert test.labels.bincount().min() >= 35
    values = torch.cat([train.images, test.images]).unique()
    torch.testing.assert_close(values, torch.arange(17) / 16)
    # The digit 0 has an empty middle and the digit 1 an inked one: labels belong to their images.
    middle = train.images[:, 0, 3:5, 3:5].mean((1, 2))
    assert middle[train.labels == 0].mean() < 0.2 < 0.6 < middle[train.labels == 1].mean()


def test_digits_are_scikit_learns() -> None:
    source = pytest.importorskip("sklearn.datasets").load_digits()
    theirs = sorted((image.tobytes(), label) for image, label in zip(source.images, source.target, strict=True))
    parts = [load_dataset("digits", "train"), load_dataset("digits", "test")]
    ours = sorted(
        (image.mul(16).double().numpy().tobytes(), label)
        for part in parts
        for image, label in zip(part.images, part.labels.tolist(), strict=True)
    )
    assert ours == theirs


# shapes


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


@pytest.mark.parametrize("shape", [(3, 12, 12), (1, 8, 8), (3, 16, 24), (1, 32, 20)])
def test_shapes_come_in_any_size_from_a_seed(shape: tuple[int, int, int]) -> None:
    first, again = (generate(ShapesConfig(shape=shape, count=50, seed=4)) for _ in range(2))
    other = generate(ShapesConfig(shape=shape, count=50, seed=5))
    assert first.images.shape == (50, *shape)
    assert first.images.dtype == torch.uint8
    assert first.labels.bincount().tolist() == [5] * 10
    assert torch.equal(first.images, again.images)
    assert torch.equal(first.labels, again.labels)
    assert not torch.equal(first.images, other.images)


def test_shapes_to_train_with_are_not_those_held_out() -> None:
    train, test = load_dataset("shapes", "train"), load_dataset("shapes", "test", shape=(3, 12, 12))
    assert (len(train), len(test)) == (20_000, 2_000)
    seen = {image.numpy().tobytes() for image in train.images}
    assert not any(image.numpy().tobytes() in seen for image in test.images)


def test_shapes_differ_from_their_ground_by_the_contrast() -> None:
    images = generate(ShapesConfig(shape=(3, 48, 48), count=300, contrast=0.4, noise=0)).batch(slice(None))
    spread = (images.amax((2, 3)) - images.amin((2, 3))).amax(1)  # of the channel where it is largest
    assert 0.4 - 1 / 255 <= spread.min() < 0.45
    assert spread.max() > 0.9


def test_noise_and_texture_have_the_size_they_say() -> None:
    clean, noisy, wavy = (
        generate(ShapesConfig(shape=(3, 24, 24), count=200, noise=noise, texture=texture)).batch(slice(None))
        for noise, texture in ((0.0, 0.0), (0.05, 0.0), (0.0, 0.1))
    )
    middling = (clean > 0.3) & (clean < 0.7)  # where nothing is clipped
    assert (noisy - clean)[middling].std().item() == pytest.approx(0.05, rel=0.03)
    assert (wavy - clean).abs().max().item() == pytest.approx(0.1, abs=0.01)


def test_unturned_bars_stand_upright() -> None:
    data = generate(ShapesConfig(shape=(1, 32, 32), count=200, rotation=0, noise=0))
    bars = data.batch(data.labels == data.class_names.index("bar"))[:, 0]
    covered = (bars - bars[:, :1, :1]).abs() > 0.1  # the shape never reaches a corner
    assert (covered.any(2).sum(1) > 3 * covered.any(1).sum(1)).all()


@pytest.mark.parametrize("wrong", [{"shape": (2, 12, 12)}, {"shape": (3, 4, 12)}, {"contrast": 0.0}, {"count": 0}])
def test_shapes_that_cannot_be_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(UserError, match="shapes: "):
        ShapesConfig(**wrong)  # type: ignore[arg-type]


# torchvision's sets, from small files in their real formats


def _write_idx(path: Path, values: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    header = struct.pack(f">BBBB{values.ndim}I", 0, 0, 8, values.ndim, *values.shape)
    path.write_bytes(header + values.tobytes())


def _write_mnist(root: Path, folder: str) -> np.ndarray:
    pixels = np.arange(3 * 28 * 28, dtype=np.uint32).reshape(3, 28, 28).astype(np.uint8)
    for part, images in (("train", pixels), ("t10k", pixels[:2])):
        _write_idx(root / folder / "raw" / f"{part}-images-idx3-ubyte", images)
        _write_idx(root / folder / "raw" / f"{part}-labels-idx1-ubyte", np.arange(len(images), dtype=np.uint8) + 7)
    return pixels


@pytest.mark.parametrize(("name", "folder"), [("mnist", "MNIST"), ("fashion_mnist", "FashionMNIST")])
def test_mnist_files_are_read(tmp_path: Path, name: str, folder: str) -> None:
    _torchvision()
    pixels = _write_mnist(tmp_path, folder)
    train = load_dataset(name, "train", root=str(tmp_path), shape=(1, 28, 28))
    test = load_dataset(name, "test", root=str(tmp_path))
    assert train.images.dtype == torch.uint8
    assert np.array_equal(train.images[:, 0].numpy(), pixels)
    assert train.labels.tolist() == [7, 8, 9]
    assert (len(test), len(test.class_names)) == (2, 10)
    with pytest.raises(UserError, match=f"{name}: its images are 1x28x28, but 1x32x32"):
        load_dataset(name, "test", root=str(tmp_path), shape=(1, 32, 32))


def test_damaged_mnist_files_are_named(tmp_path: Path) -> None:
    _torchvision()
    _write_mnist(tmp_path, "MNIST")
    (tmp_path / "MNIST/raw/t10k-images-idx3-ubyte").write_bytes(gzip.compress(b"not an image"))
    with pytest.raises(UserError, match=r"mnist: could not read it in .*--data\.download true"):
        load_dataset("mnist", "test", root=str(tmp_path), download_flag="--data.download true")


def _write_cifar(folder: Path, files: dict[str, int], key: str) -> None:
    folder.mkdir(parents=True)
    for file, value in files.items():
        pixels = np.zeros((2, 3, 32, 32), np.uint8)
        pixels[:, 1, :, 0] = value  # the green channel's first column
        (folder / file).write_bytes(pickle.dumps({"data": pixels.reshape(2, -1), key: [value, 1]}))


@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
def test_cifar_files_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    datasets = _torchvision().datasets
    # Only the checksums are not those of the real files; the reading is torchvision's own.
    monkeypatch.setattr(datasets.cifar, "check_integrity", lambda path, md5=None: Path(path).is_file())
    if name == "cifar10":
        folder, key, parts = tmp_path / "cifar-10-batches-py", "labels", 5
        _write_cifar(folder, {**{f"data_batch_{n}": n for n in range(1, 6)}, "test_batch": 9}, key)
        (folder / "batches.meta").write_bytes(pickle.dumps({"label_names": list("abcdefghij")}))
    else:
        folder, key, parts = tmp_path / "cifar-100-python", "fine_labels", 1
        _write_cifar(folder, {"train": 1, "test": 9}, key)
        (folder / "meta").write_bytes(pickle.dumps({"fine_label_names": [f"class {n}" for n in range(100)]}))
    train = load_dataset(name, "train", root=str(tmp_path), shape=(3, 32, 32))
    test = load_dataset(name, "test", root=str(tmp_path))
    assert len(train) == 2 * parts
    assert train.labels[:2].tolist() == [1, 1]
    assert test.labels.tolist() == [9, 1]
    assert test.images.is_contiguous()
    assert test.images[0, 1, :, 0].tolist() == [9] * 32
    assert test.images.sum().item() == 2 * 32 * 9
    assert len(test.class_names) == (10 if name == "cifar10" else 100)


def test_files_that_are_not_the_published_ones_are_not_unpickled(tmp_path: Path) -> None:
    _torchvision()
    names = [*(f"data_batch_{n}" for n in range(1, 6)), "test_batch"]
    _write_cifar(tmp_path / "cifar-10-batches-py", dict.fromkeys(names, 1), "labels")
    (tmp_path / "cifar-10-batches-py" / "batches.meta").write_bytes(pickle.dumps({}))
    with pytest.raises(UserError, match=r"cifar10: could not read it in .*corrupted.*remove its files"):
        load_dataset("cifar10", "test", root=str(tmp_path))


def _fake_svhn(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = _torchvision().datasets
    monkeypatch.setattr(datasets.svhn, "check_integrity", lambda path, md5=None: Path(path).is_file())
    for part in ("train", "test"):
        (root / f"{part}_32x32.mat").touch()


def test_svhn_files_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    io = pytest.importorskip("scipy.io")
    _fake_svhn(tmp_path, monkeypatch)
    pixels = np.zeros((32, 32, 3, 2), np.uint8)
    pixels[5, 7, 2, 1] = 200  # row 5, column 7, blue, of the second image
    io.savemat(tmp_path / "test_32x32.mat", {"X": pixels, "y": np.array([[10], [3]], np.uint8)})
    test = load_dataset("svhn", "test", root=str(tmp_path), shape=(3, 32, 32))
    assert test.labels.tolist() == [0, 3]  # the files write the digit 0 as 10
    assert test.images.nonzero().tolist() == [[1, 2, 5, 7]]


def test_svhn_without_scipy_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _fake_svhn(tmp_path, monkeypatch)
    monkeypatch.setitem(sys.modules, "scipy.io", None)
    monkeypatch.setitem(sys.modules, "scipy", None)
    with pytest.raises(UserError, match=r"svhn: reading its files needs scipy; install it \(pip install scipy\)"):
        load_dataset("svhn", "test", root=str(tmp_path))


@pytest.mark.parametrize("name", [name for name in DATASETS if name not in ("digits", "shapes")])
def test_missing_files_name_folder_files_and_flag(tmp_path: Path, name: str) -> None:
    file = {"svhn": "test_32x32.mat", "cifar10": "data_batch_1", "cifar100": "meta"}.get(name, "t10k-images-idx3")
    with pytest.raises(UserError) as raised:
        load_dataset(name, "test", root=str(tmp_path), download_flag="--data.download true")
    message = str(raised.value)
    assert all(part in message for part in (name, str(tmp_path), file, "--data.download true"))
    assert "\n" not in message
    assert not list(tmp_path.iterdir())
    check_dataset(name, str(tmp_path), download=True)


def test_a_failed_download_is_a_users_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise URLError("no network")

    monkeypatch.setattr(_torchvision().datasets.cifar, "download_and_extract_archive", fail)
    with pytest.raises(UserError, match=r"cifar10: could not fetch or read it in .*no network.*check the network"):
        load_dataset("cifar10", "test", root=str(tmp_path), download=True)


# folders and .npz files


def _write_png(path: Path, colour: tuple[int, int, int] | int, size: tuple[int, int] = (8, 8)) -> None:
    image = pytest.importorskip("PIL.Image").new("L" if isinstance(colour, int) else "RGB", size, colour)
    path.parent.mkdir(parents=True, exist_ok=True)
    image.save(path)


def test_a_folder_of_class_folders_is_read_in_order(tmp_path: Path) -> None:
    _write_png(tmp_path / "zebra" / "1.png", (255, 0, 0), size=(20, 10))
    _write_png(tmp_path / "ant" / "2.JPG", 100)
    _write_png(tmp_path / "ant" / "1.png", 40)
    _write_png(tmp_path / ".hidden" / "1.png", 0)
    (tmp_path / "ant" / "notes.txt").write_text("no image")
    data = load_dataset(str(tmp_path), "test", shape=(3, 6, 4))
    assert data.class_names == ("ant", "zebra")
    assert data.labels.tolist() == [0, 0, 1]
    assert data.images.shape == (3, 3, 6, 4)
    assert data.images[2].amax((1, 2)).tolist() == [255, 0, 0]
    assert data.images[0].unique().tolist() == [40]
    grey = load_dataset(str(tmp_path), "test", shape=(1, 8, 8))
    assert grey.images[2].unique().tolist() == [76]  # ITU-R 601 luma of pure red: 0.299 * 255
    assert load_dataset(str(tmp_path), "test").shape == (1, 8, 8)  # of the first image


def test_rows_and_columns_are_not_exchanged(tmp_path: Path) -> None:
    pixels = np.arange(5 * 3, dtype=np.uint8).reshape(5, 3)  # 5 rows, 3 columns
    (tmp_path / "a").mkdir()
    pytest.importorskip("PIL.Image").fromarray(pixels).save(tmp_path / "a" / "1.png")
    data = load_dataset(str(tmp_path), "test", shape=(1, 5, 3))
    assert np.array_equal(data.images[0, 0].numpy(), pixels)


def test_train_and_test_folders_share_their_class_numbers(tmp_path: Path) -> None:
    for index, path in enumerate(("train/a", "train/b", "train/c", "test/c")):
        _write_png(tmp_path / path / "1.png", index)
    train, test = (load_dataset(str(tmp_path), split) for split in ("train", "test"))
    assert train.labels.tolist() == [0, 1, 2]
    assert test.labels.tolist() == [2]
    assert test.images.unique().tolist() == [3]
    assert train.class_names == test.class_names == ("a", "b", "c")


def test_a_folder_that_is_not_split_cannot_be_trained_on(tmp_path: Path) -> None:
    _write_png(tmp_path / "a" / "1.png", 1)
    with pytest.raises(UserError, match="expected the folders train and test in it"):
        load_dataset(str(tmp_path), "train")
    np.savez(tmp_path / "x.npz", images=np.zeros((1, 8, 8), np.uint8), labels=np.array([0]))
    with pytest.raises(UserError, match="train_images"):
        load_dataset(str(tmp_path / "x.npz"), "train")


def test_folders_that_hold_no_images_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="expected one folder of images"):
        load_dataset(str(tmp_path), "test")
    _write_png(tmp_path / "a" / "1.png", 1)
    (tmp_path / "a" / "2.png").write_bytes((tmp_path / "a" / "1.png").read_bytes()[:40])
    with pytest.raises(UserError, match=r"2\.png cannot be read as an image"):
        load_dataset(str(tmp_path), "test")
    (tmp_path / "a" / "2.png").write_text("<html>")
    with pytest.raises(UserError, match=r"2\.png cannot be read as an image"):
        load_dataset(str(tmp_path), "test", shape=(1, 8, 8))
    with pytest.raises(UserError, match="1 or 3 channels, but images of 4"):
        load_dataset(str(tmp_path), "test", shape=(4, 8, 8))


@pytest.mark.parametrize(("size", "order"), [((2, 9, 7, 3), (0, 3, 1, 2)), ((2, 3, 9, 7), None), ((2, 9, 7), None)])
def test_npz_files_are_read(tmp_path: Path, size: tuple[int, ...], order: tuple[int, ...] | None) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, size, np.uint8)
    np.savez(tmp_path / "x.npz", images=pixels, labels=np.array([4, 0]))
    data = load_dataset(str(tmp_path / "x.npz"), "test")
    assert np.array_equal(data.images.numpy().squeeze(), pixels.transpose(order) if order else pixels)
    assert data.shape == ((3, 9, 7) if len(size) == 4 else (1, 9, 7))
    assert data.labels.tolist() == [4, 0]
    assert len(data.class_names) == 5


def test_npz_files_may_hold_both_parts(tmp_path: Path) -> None:
    black, grey = np.zeros((3, 8, 8), np.uint8), np.full((2, 8, 8), 0.5, np.float64)
    arrays = {"train_images": black, "train_labels": np.arange(3), "test_images": grey, "test_labels": np.arange(2)}
    np.savez(tmp_path / "x.npz", **arrays)
    train, test = (load_dataset(str(tmp_path / "x.npz"), split) for split in ("train", "test"))
    assert (len(train), len(test)) == (3, 2)
    assert test.batch(slice(None)).unique().tolist() == [0.5]


@pytest.mark.parametrize(
    ("arrays", "says"),
    [
        ({"images": np.zeros((2, 8, 8), np.uint8)}, r"expected arrays images and labels .* got images$"),
        (
            {"images": np.zeros((2, 8, 8), np.uint8), "labels": np.zeros(3, int)},
            "expected 2 labels, whole numbers from 0",
        ),
        (
            {"images": np.zeros((2, 8, 8), np.uint8), "labels": np.array([-1, 0])},
            "expected 2 labels, whole numbers from 0",
        ),
        ({"images": np.full((2, 8, 8), 2.0), "labels": np.zeros(2, int)}, "floating-point pixels within 0 and 1"),
        ({"images": np.full((2, 8, 8), np.nan), "labels": np.zeros(2, int)}, "floating-point pixels within 0 and 1"),
        ({"images": np.zeros((2, 64)), "labels": np.zeros(2, int)}, r"expected images \(N, H, W\)"),
        (
            {"images": np.array([{}, {}]), "labels": np.zeros(2, int)},
            r"cannot be read as \.npz: images\.npy: holds Python objects",
        ),
    ],
)
def test_npz_files_that_do_not_fit_are_refused(tmp_path: Path, arrays: dict[str, np.ndarray], says: str) -> None:
    np.savez(tmp_path / "x.npz", **arrays)
    with pytest.raises(UserError, match=says):
        load_dataset(str(tmp_path / "x.npz"), "test")


def test_a_file_that_is_no_npz_is_refused(tmp_path: Path) -> None:
    for number, contents in enumerate((b"not a zip file", b"", b"PK\x03\x04 cut short")):
        (tmp_path / f"{number}.npz").write_bytes(contents)
        with pytest.raises(UserError, match=r"cannot be read as \.npz"):
            load_dataset(str(tmp_path / f"{number}.npz"), "test")
    with (tmp_path / "one.npz").open("wb") as file:
        np.save(file, np.zeros(3))  # one array, no archive of them
    with pytest.raises(UserError, match=r"cannot be read as \.npz"):
        load_dataset(str(tmp_path / "one.npz"), "test")
    (tmp_path / "x.txt").write_text("words")
    with pytest.raises(UserError, match=r"expected a folder of class folders or an .npz file, got another file"):
        check_dataset(str(tmp_path / "x.txt"))
