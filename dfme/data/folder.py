"""A folder of pictures, in class folders or not; .npz files are read by ``arrays``."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from dfme.data import arrays
from dfme.data.class_names import listed
from dfme.data.images import DatasetRequest, ImageSet
from dfme.data.layout import (
    OTHER_PICTURES,
    PART_NAMES,
    SUFFIXES,
    Layout,
    Listing,
    entered,
    files_below,
    layout_of,
)
from dfme.data.pictures import PictureReader, shape_of
from dfme.data.twins import twin_notes
from dfme.data.whites import picture_notes
from dfme.errors import UserError
from dfme.spec import Shape


def load(request: DatasetRequest) -> ImageSet:
    """One part of a folder or an .npz file, its test part with labels or without.

    A folder of two folders or more has one per class, numbered in the order of their names;
    pictures that lie in it, or below a lone folder, have no labels. Where a folder has parts
    (``layout``), or a file has arrays ``train_images`` and so on, each part is its own; otherwise
    all images are the test part, and there is nothing to train with. A folder's images are resized
    (bilinear) to the shape asked for, or to the size of the first; those of a file are taken as
    they are, channels first or last. Links are followed. UserError for a layout, a picture or an
    array that is none of these, or that can be read in two ways, named.
    """
    path = Path(request.name).expanduser()
    return arrays.load(path, request) if path.suffix == ".npz" else _from_folder(path, request)


def read_images(path: Path, shape: Shape) -> ImageSet:
    """Images without labels for a pool: every picture under a folder, or the array of an .npz file.

    Of several parts it is the one to train with. A folder's pictures are resized to ``shape``; an
    array is taken as it is. UserError for a folder without pictures, or what is no picture or array
    of them.
    """
    if path.suffix == ".npz":
        return arrays.pool_of(path, shape)
    layout = layout_of(path)
    part = layout.pool
    files = files_below(part)
    notes = [*layout.says(part), *_unread(files)]
    if not files.pictures:
        raise UserError(f"data set {part}: expected images ({_endings()}) in it, found none")
    read = _reader(files.pictures, shape, notes, part)
    return ImageSet(path.name, read(slice(None)), notes=notes)


def _reader(files: list[Path], shape: Shape, notes: list[str], part: Path) -> PictureReader:
    """What reads the pictures of a part, after notes on masks among them and on dark pixels."""
    read = PictureReader(files, shape, notes)
    notes += twin_notes(files, f"data set {part}")
    notes += picture_notes(files, f"data set {part}")
    return read


def _from_folder(path: Path, request: DatasetRequest) -> ImageSet:
    layout = layout_of(path)
    part = layout.train if request.split == "train" else layout.test
    if part is None:
        raise UserError(
            f"data set {path}: expected the folders train and test in it, each with a folder per "
            "class"
        )
    notes = list(layout.says(part))
    files, labels, classes = _labelled(part, layout, notes)
    if request.split == "test" and not files:
        below = files_below(part)
        files = below.pictures
        classes = ()
        if folders := sorted(
            {file.relative_to(part).parts[0] for file in files if file.parent != part}
        ):
            notes.append(
                f"its images have no labels: they are not in two class folders ({listed(folders)})"
            )
        notes += _unread(below)
    if not files:
        wanted = f"expected images ({_endings()}), labelled ones in one folder per class"
        raise UserError(f"data set {part}: {wanted}, found none")
    shape = request.shape or shape_of(files[0])
    read = _reader(files, shape, notes, part)
    hollow = torch.empty(len(files), *shape, dtype=torch.uint8, device="meta")
    numbers: Tensor | None = torch.tensor(labels) if classes else None
    data = ImageSet(path.name, hollow, numbers, classes, read, notes)
    return data if request.lazy else replace(data, images=read(slice(None)), read=None)


def _labelled(
    part: Path, layout: Layout, notes: list[str]
) -> tuple[list[Path], list[int], tuple[str, ...]]:
    """Pictures in class folders, the numbers of their classes, and the names of these; none without
    two.
    """
    place = entered(part)
    below = {name: files_below(place / name) for name in layout.classes}
    if not layout.parts:
        below = _without_papers(below, notes)
    if len(below) < 2 or not any(listing.pictures for listing in below.values()):
        return [], [], ()
    _require_classes(place, below)
    empty = [name for name, listing in below.items() if not listing.pictures]
    if empty and not layout.parts:
        notes.append(f"{listed(empty)} has no picture and counts as a class")
    notes += _remarks(place, below)
    files = [file for listing in below.values() for file in listing.pictures]
    counts = [len(listing.pictures) for listing in below.values()]
    labels = [number for number, count in enumerate(counts) for _ in range(count)]
    return files, labels, tuple(below)


def _without_papers(below: dict[str, Listing], notes: list[str]) -> dict[str, Listing]:
    """The class folders without those that hold files but no picture, which a note names."""
    papers = [name for name, listing in below.items() if listing.others and not listing.pictures]
    if papers and len(papers) < len(below):
        unread = [name for name in papers if _pictures_unread(below[name])]
        if unread:
            kinds = listed(
                sorted({file.suffix.lower() for file in _pictures_unread(below[unread[0]])})
            )
            raise UserError(
                f"the class folder {listed(unread)} has pictures in {kinds} alone, which are not "
                f"read here; convert them to one of {_endings()}",
                about="data set",
            )
        notes.append(
            f"{listed(papers)} has files and no picture, so it is no class folder and is left out"
        )
        return {name: listing for name, listing in below.items() if name not in papers}
    return below


def _require_classes(part: Path, below: dict[str, Listing]) -> None:
    """UserError where each class folder holds the same folders: these may be parts or classes,
    and would be scored on together.
    """
    inside = [_folders_in(part, listing) for listing in below.values() if listing.pictures]
    common = set.intersection(*inside) if inside else set()
    if len(common) > 1 and all(name.casefold() in PART_NAMES for name in common):
        raise UserError(
            f"data set {part}: each of its class folders holds the parts {listed(sorted(common))}; "
            "put the "
            "class folders into folders of the parts, and name the one that is meant"
        )
    if len(common) > 1:
        raise UserError(
            f"data set {part}: its folders {listed(below)} each hold the folders "
            f"{listed(sorted(common))}, so either can be the classes; name the one of the "
            "former that is meant, or, if these are the classes, put their pictures right into them"
        )


def _remarks(place: Path, below: dict[str, Listing]) -> list[str]:
    """Lines about what might not be as meant."""
    lines = []
    spelled = Counter(name.casefold() for name in below if len(name) > 1)
    if twice := [name for name in below if spelled[name.casefold()] > 1]:
        lines.append(
            f"{listed(twice)} are classes of their own, although they differ in case alone"
        )
    loose = [file for file in place.iterdir() if file.suffix.lower() in SUFFIXES and file.is_file()]
    if loose := [file for file in loose if not file.name.startswith(".")]:
        lines.append(
            f"pictures in no class folder are left out: {len(loose):,}, such as {loose[0].name}"
        )
    every = Listing([], [file for listing in below.values() for file in listing.others])
    return [*lines, *_unread(every)]


def _folders_in(place: Path, listing: Listing) -> set[str]:
    """Folders inside a class folder that pictures lie in."""
    paths = (file.relative_to(place).parts for file in listing.pictures)
    return {parts[1] for parts in paths if len(parts) > 2}


def _pictures_unread(listing: Listing) -> list[Path]:
    return [file for file in listing.others if file.suffix.lower() in OTHER_PICTURES]


def _unread(listing: Listing) -> list[str]:
    """A line about pictures in formats that are not read, if there are any."""
    unread = _pictures_unread(listing)
    kinds = listed(sorted({file.suffix.lower() for file in unread}))
    return [f"pictures in {kinds} are not read and left out: {len(unread):,}"] if unread else []


def _endings() -> str:
    return ", ".join(sorted(SUFFIXES))
