"""torchvision's data sets, from small files in their real formats."""

import pickle
import struct
import sys
from pathlib import Path
from types import ModuleType
from urllib.error import URLError

import numpy as np
import pytest
import torch
from refusals import refusal

from dfme.data import DATASETS, DRAWN, check_dataset, load_dataset
from dfme.errors import Ref, UserError


def _torchvision() -> ModuleType:
    module: ModuleType = pytest.importorskip("torchvision", exc_type=(ImportError, RuntimeError))
    return module


def _write_idx(path: Path, values: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    header = struct.pack(f">BBBB{values.ndim}I", 0, 0, 8, values.ndim, *values.shape)
    path.write_bytes(header + values.tobytes())


def _write_mnist(root: Path, folder: str) -> np.ndarray:
    pixels = np.arange(3 * 28 * 28, dtype=np.uint32).reshape(3, 28, 28).astype(np.uint8)
    for part, images in (("train", pixels), ("t10k", pixels[:2])):
        labels = np.arange(len(images), dtype=np.uint8) + 7
        _write_idx(root / folder / "raw" / f"{part}-images-idx3-ubyte", images)
        _write_idx(root / folder / "raw" / f"{part}-labels-idx1-ubyte", labels)
    return pixels


@pytest.mark.parametrize(
    ("name", "folder"), [("mnist", "MNIST"), ("fashion_mnist", "FashionMNIST")]
)
def test_mnist_files_are_read(tmp_path: Path, name: str, folder: str) -> None:
    _torchvision()
    pixels = _write_mnist(tmp_path, folder)
    train = load_dataset(name, "train", root=str(tmp_path), shape=(1, 28, 28))
    test = load_dataset(name, "test", root=str(tmp_path))
    assert train.images.dtype == torch.uint8
    assert np.array_equal(train.images[:, 0].numpy(), pixels)
    assert train.labels.tolist() == [7, 8, 9]
    assert (len(test), len(test.class_names)) == (2, 10)
    refusal(
        f"{name}: its images are 1x28x28, but 1x32x32",
        load_dataset,
        name,
        "test",
        root=str(tmp_path),
        shape=(1, 32, 32),
    )


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
    monkeypatch.setattr(
        datasets.cifar, "check_integrity", lambda path, md5=None: Path(path).is_file()
    )
    if name == "cifar10":
        folder, key, parts = tmp_path / "cifar-10-batches-py", "labels", 5
        _write_cifar(folder, {**{f"data_batch_{n}": n for n in range(1, 6)}, "test_batch": 9}, key)
        (folder / "batches.meta").write_bytes(pickle.dumps({"label_names": list("abcdefghij")}))
    else:
        folder, key, parts = tmp_path / "cifar-100-python", "fine_labels", 1
        _write_cifar(folder, {"train": 1, "test": 9}, key)
        (folder / "meta").write_bytes(
            pickle.dumps({"fine_label_names": [f"class {n}" for n in range(100)]})
        )
    train = load_dataset(name, "train", root=str(tmp_path), shape=(3, 32, 32))
    test = load_dataset(name, "test", root=str(tmp_path))
    assert (len(train), train.labels[:2].tolist()) == (2 * parts, [1, 1])
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
    refusal(
        r"cifar10: could not read it in .*corrupted.*remove its files",
        load_dataset,
        "cifar10",
        "test",
        root=str(tmp_path),
    )


def _fake_svhn(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        _torchvision().datasets.svhn, "check_integrity", lambda path, md5=None: Path(path).is_file()
    )
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
    refusal(
        r"svhn: .* needs scipy; .*pip install scipy",
        load_dataset,
        "svhn",
        "test",
        root=str(tmp_path),
    )


@pytest.mark.parametrize("name", [name for name in DATASETS if name not in ("digits", *DRAWN)])
def test_missing_files_name_folder_files_and_flag(tmp_path: Path, name: str) -> None:
    files = {"svhn": "test_32x32.mat", "cifar10": "data_batch_1", "cifar100": "meta"}
    file = files.get(name, "t10k-images-idx3")
    with pytest.raises(UserError) as raised:
        load_dataset(name, "test", root=str(tmp_path), download_option=Ref("data.download", True))
    message = str(raised.value)
    assert all(part in message for part in (name, str(tmp_path), file, "--data.download true"))
    assert "\n" not in message
    assert not list(tmp_path.iterdir())
    check_dataset(name, str(tmp_path), download=True)


def test_a_failed_download_is_a_users_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise URLError("no network")

    monkeypatch.setattr(_torchvision().datasets.cifar, "download_and_extract_archive", fail)
    refusal(
        r"cifar10: could not fetch .*no network.*check the network",
        load_dataset,
        "cifar10",
        "test",
        root=str(tmp_path),
        download=True,
    )
