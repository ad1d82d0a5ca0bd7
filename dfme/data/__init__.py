"""Images by name or folder, to score students on and to train teachers with. Nothing heavy loads
here.
"""

import os
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from pkgutil import resolve_name

from dfme.config.messages import did_you_mean
from dfme.data.class_names import require_names
from dfme.data.images import HANDED_OVER, DatasetRequest, ImageSet, Split
from dfme.data.layout import layout_of
from dfme.errors import Ref, UserError
from dfme.spec import Shape

__all__ = ["DATASETS", "DRAWN", "HALVES", "ImageSet", "check_dataset", "load_dataset", "whole_name"]

TORCHVISION = "dfme.data.torchvision_sets:load"

# name -> "module:loader"; a loader takes a DatasetRequest. Any other name is that of a folder or an
# .npz file.
DATASETS: dict[str, str] = {
    "digits": "dfme.data.digits:load",
    "shapes": "dfme.data.drawn:load_shapes",
    "letters": "dfme.data.drawn:load_letters",
    "mnist": TORCHVISION,
    "fashion_mnist": TORCHVISION,
    "cifar10": TORCHVISION,
    "cifar100": TORCHVISION,
    "svhn": TORCHVISION,
}
DRAWN = ("shapes", "letters")  # by a program, at any size
FROM_DISK = "dfme.data.folder:load"
DOWNLOAD = Ref("evaluation.download", True)
HALVES = ("@scored", "@like")
"""Endings of a name: halves of its test part; an audit scores on one, an attacker has the other."""


def whole_name(name: str) -> str:
    """The name without the ending of a half."""
    return next((name.removesuffix(half) for half in HALVES if name.endswith(half)), name)


def has_train_part(name: str) -> bool:
    """True unless a folder or an .npz file has no labelled part to train with; opens no image."""
    path = Path(os.path.expanduser(name))
    if path.suffix == ".npz":
        from dfme.data.array_names import has_train_arrays

        with suppress(OSError, zipfile.BadZipFile), zipfile.ZipFile(path) as archive:
            return has_train_arrays([name.removesuffix(".npy") for name in archive.namelist()])
    if name in DATASETS or not path.is_dir():
        return name in DATASETS

    layout = layout_of(path)
    return layout.train is not None and bool(layout.classes)


def check_dataset(
    name: str, root: str = "datasets", *, download: bool = True, download_option: Ref = DOWNLOAD
) -> None:
    """Raise a UserError, without importing torch, for what ``load_dataset`` could never load.

    With ``download=False`` that is also a torchvision set whose files are not under ``root``.
    """
    name = whole_name(name)
    if name in DATASETS:
        if not download and DATASETS[name] == TORCHVISION:
            from dfme.data.torchvision_sets import check_files

            check_files(name, root, download_option)
        return
    path = Path(os.path.expanduser(name))
    if name.startswith(HANDED_OVER):
        return  # the caller has them
    require_names([name], "data set")
    if name and os.path.isdir(path) and path.suffix != ".npz":
        from dfme.data.layout import layout_of

        layout_of(path)  # which refuses what can be read in two ways
        return
    if path.suffix == ".npz" and os.path.isfile(path):
        return
    if os.path.isfile(path):
        archive = (
            "; unpack it" if path.suffix in (".zip", ".tar", ".gz", ".tgz", ".7z", ".rar") else ""
        )
        raise UserError(
            f"data set {name}: expected a folder of images or an .npz file, got another "
            f"file{archive}"
        )
    if len(path.parts) > 1 or path.suffix == ".npz":
        raise UserError(f"data set {name}: no such folder or file (looked in {Path.cwd()})")
    raise UserError(
        f"unknown name {name!r}{did_you_mean(name, DATASETS)}; expected {', '.join(DATASETS)}, a "
        "folder of images (one folder per class), or an .npz file of images and labels",
        about="data set",
    )


def load_dataset(
    name: str,
    split: Split,
    *,
    shape: Shape | None = None,
    root: str = "datasets",
    download: bool = False,
    download_option: Ref = DOWNLOAD,
    handed_over: ImageSet | None = None,
    lazy: bool = False,
) -> ImageSet:
    """One part of a data set, or an object in its place. ``shape`` (C, H, W): required images.

    Drawn ones are made at that size and a folder's images are resized to it; UserError for another
    set whose own size differs, and for missing or unreadable files. ``lazy``: a folder's pictures
    are read, and checked, when they are used (``ImageSet.batch``). A half is that of the test part.
    """
    half = name.removeprefix(whole_name(name))
    name = whole_name(name)
    check_dataset(name, root, download=download, download_option=download_option)
    if name.startswith(HANDED_OVER) and handed_over is None:
        raise UserError(
            "these images were handed over in Python: hand them over again, or name a data set"
        )
    loader: Callable[[DatasetRequest], ImageSet] = resolve_name(DATASETS.get(name, FROM_DISK))
    images = handed_over or loader(
        DatasetRequest(name, split, shape, root, download, download_option, lazy)
    )
    if shape is not None and images.shape != tuple(shape):
        size, wanted = ("x".join(map(str, sizes)) for sizes in (images.shape, shape))
        raise UserError(f"data set {name}: its images are {size}, but {wanted} was asked for")
    return images.half(half == HALVES[1], half) if half and split == "test" else images
