"""MNIST, Fashion-MNIST, CIFAR-10, CIFAR-100, SVHN, by torchvision, imported when needed."""

from http.client import HTTPException
from pathlib import Path
from typing import Any, NamedTuple

from dfme.data.images import DatasetRequest, ImageSet
from dfme.errors import Ref, UserError, say

IDX_FILES = (
    "raw/train-images-idx3-ubyte",
    "raw/train-labels-idx1-ubyte",
    "raw/t10k-images-idx3-ubyte",
    "raw/t10k-labels-idx1-ubyte",
)
CIFAR10_FILES = (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch", "batches.meta")


class TorchvisionSource(NamedTuple):
    """A set's class in ``torchvision.datasets``, its folder below the root, and its files."""

    reader: str
    folder: str
    files: tuple[str, ...]


SOURCES: dict[str, TorchvisionSource] = {
    "mnist": TorchvisionSource("MNIST", "MNIST", IDX_FILES),
    "fashion_mnist": TorchvisionSource("FashionMNIST", "FashionMNIST", IDX_FILES),
    "cifar10": TorchvisionSource("CIFAR10", "cifar-10-batches-py", CIFAR10_FILES),
    "cifar100": TorchvisionSource("CIFAR100", "cifar-100-python", ("train", "test", "meta")),
    "svhn": TorchvisionSource("SVHN", ".", ("train_32x32.mat", "test_32x32.mat")),
}


def check_files(name: str, root: str, download_option: Ref) -> None:
    """Raise a UserError with folder, files and option if files of a set are missing below root."""
    source = SOURCES[name]
    folder = Path(root).expanduser() / source.folder
    missing = [file for file in source.files if not (folder / file).is_file()]
    if missing:
        raise UserError(
            say(
                "data set {}: {} of {} files are missing in {}: {}; put them there, or fetch them "
                "with {}",
                name,
                len(missing),
                len(source.files),
                folder,
                ", ".join(missing),
                download_option,
            )
        )


def load(request: DatasetRequest) -> ImageSet:
    """Read one part, its pixels kept as uint8; fetch it first only if the request says so."""
    import torch

    dataset = _read(request, Path(request.root).expanduser())
    images = torch.as_tensor(dataset.data)
    if request.name == "svhn":
        labels = dataset.labels
        class_names = tuple(str(digit) for digit in range(10))
    else:
        images = images.unsqueeze(1) if images.ndim == 3 else images.permute(0, 3, 1, 2)
        labels = dataset.targets
        class_names = tuple(dataset.classes)
    return ImageSet(request.name, images.contiguous(), torch.as_tensor(labels).long(), class_names)


def _read(request: DatasetRequest, root: Path) -> Any:
    """torchvision's data set object, or a UserError that says what could not be read or fetched."""
    from dfme.nets.torchvision_nets import import_torchvision

    reader = getattr(import_torchvision("datasets"), SOURCES[request.name].reader)
    part = (
        {"split": request.split} if request.name == "svhn" else {"train": request.split == "train"}
    )
    try:
        return reader(str(root), download=request.download, **part)
    except ModuleNotFoundError as error:
        package = (error.name or str(error)).partition(".")[0]
        raise UserError(
            f"data set {request.name}: reading its files needs {package}; install it (pip install "
            f"{package})"
        ) from error
    except (
        OSError,
        HTTPException,
        RuntimeError,
        ValueError,
        TypeError,
        EOFError,
        AssertionError,
    ) as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        doing = "read it"
        remedy = say("remove its files there and fetch them again with {}", request.download_option)
        if request.download:
            doing = "fetch or read it"
            remedy = say("check the network and the disk, or put its files there by hand")
        raise UserError(
            say(
                "data set {}: could not {} in {}: {}; {}", request.name, doing, root, reason, remedy
            )
        ) from error
