"""Where the pictures of a folder lie: parts, class folders, and what belongs to neither. No
torch.
"""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Literal

from dfme.config.messages import safe_name
from dfme.data.class_names import listed, require_names
from dfme.errors import UserError

SUFFIXES = frozenset(
    {
        ".png",
        ".jpg",
        ".jpeg",
        ".jpe",
        ".jfif",
        ".bmp",
        ".gif",
        ".webp",
        ".tif",
        ".tiff",
        ".pgm",
        ".ppm",
        ".pbm",
        ".pnm",
    }
)

OTHER_PICTURES = frozenset(
    {
        ".heic",
        ".heif",
        ".avif",
        ".jp2",
        ".j2k",
        ".jxl",
        ".svg",
        ".psd",
        ".tga",
        ".exr",
        ".hdr",
        ".dcm",
        ".nii",
        ".raw",
        ".dng",
        ".cr2",
        ".nef",
        ".arw",
        ".npy",
        ".mat",
        ".ico",
        ".pcx",
    }
)
"""Endings of pictures that are not read here. Leaving them out in silence would change a figure."""

LITTER = frozenset(
    {
        "__macosx",
        "thumbs.db",
        "ehthumbs.db",
        "desktop.ini",
        "__pycache__",
        "lost+found",
        "@eadir",
        "@tmp",
        "@recycle",
        "#recycle",
        "$recycle.bin",
        "system volume information",
    }
)
"""What operating systems and storage devices leave behind, in lower case; hidden files count, too.
"""

Role = Literal["train", "val", "test"]

PART_NAMES: dict[str, Role] = {
    "train": "train",
    "training": "train",
    "val": "val",
    "valid": "val",
    "validation": "val",
    "dev": "val",
    "eval": "val",
    "evaluation": "val",
    "test": "test",
    "testing": "test",
}

_LIKE_A_PART = re.compile(
    rf"(?:[^\W\d]+[ _-])??({'|'.join(PART_NAMES)})"
    r"(?:[ _-]?(?:set|data|images?|imgs?|pictures|split|part))?[ _-]?\d*"
)
"""Names such as seg_train, test_set and val2017. They count only where the folders inside say so,
too.
"""
DEEPEST = 3  # lone folders, one inside another, that are entered


@dataclass(frozen=True)
class Layout:
    """The folders of a data set that is one folder.

    ``parts``: folders by role, empty where the folder has no parts and is read as a whole.
    ``classes``: the class folders of all parts by name, none where there are fewer than two.
    ``notes``: lines for people.
    """

    folder: Path
    parts: Mapping[Role, list[Path]]
    classes: tuple[str, ...]
    notes: tuple[str, ...] = ()

    @property
    def train(self) -> Path | None:
        """The part to train with; None without one."""
        return self._part("train")

    @property
    def test(self) -> Path:
        """The part to score on: test, else the validation part. UserError if there is a train part
        alone.
        """
        if not self.parts:
            return self.folder
        roles: tuple[Role, ...] = ("test", "val")
        for role in sorted(roles, key=self._is_labelled, reverse=True):
            if (part := self._part(role)) is not None:
                return part
        raise UserError(
            f"data set {self.folder}: it has the part {listed(_names(self.parts))} and no test or "
            "validation "
            "part; name that folder itself if its images are meant"
        )

    @property
    def pool(self) -> Path:
        """What an attacker may ask about: the train part, else the whole folder."""
        if not self.parts:
            return self.folder
        part = self.train
        if part is None:
            named = listed(sorted(_names(self.parts)))
            raise UserError(
                f"data set {self.folder}: it has the parts {named} and no train part; "
                "name the one that is meant"
            )
        return part

    def says(self, part: Path) -> tuple[str, ...]:
        """The notes, with the line that says which part is read."""
        if not self.parts:
            return self.notes
        names = listed(sorted(_names(self.parts)))
        folder = safe_name(self.folder.name)
        return (f"of the parts {names} of {folder}, {safe_name(part.name)} is read", *self.notes)

    def _part(self, role: Role) -> Path | None:
        places = self.parts.get(role, [])
        if len(places) > 1:
            named = listed(place.name for place in places)
            raise UserError(
                f"data set {self.folder}: {named} can each be its {role} part; name the one that "
                "is meant"
            )
        return places[0] if places else None

    def _is_labelled(self, role: Role) -> bool:
        return any(_class_folders(entered(place)) for place in self.parts.get(role, []))


@dataclass
class Listing:
    """The files below a folder: ``pictures`` in the order of their names, and the ``others``."""

    pictures: list[Path] = field(default_factory=list)
    others: list[Path] = field(default_factory=list)


def is_litter(name: str) -> bool:
    """True for hidden files and folders, and for what systems leave behind."""
    return name.startswith(".") or name.casefold() in LITTER


def folders(place: Path) -> list[str]:
    """The names of the folders in a folder that are not litter, sorted."""
    return [entry.name for entry in _entries(place) if entry.is_dir()]


def files_below(folder: Path) -> Listing:
    """Every file below a folder, litter left out; empty without a folder. Links are followed.

    UserError for a folder that cannot be read, and for a picture that is a link to nothing.
    """
    listing = Listing()
    if folder.is_dir():
        for entry in _walk(folder):
            is_picture = Path(entry.name).suffix.lower() in SUFFIXES
            if entry.is_file():
                (listing.pictures if is_picture else listing.others).append(Path(entry.path))
            elif is_picture and entry.is_symlink():
                text = f"{safe_name(entry.path)} is a link to nothing; remove it"
                raise UserError(text, about="data set")
    # by name, so that a run is equal on every file system
    listing.pictures.sort()
    listing.others.sort()
    return listing


def holds_pictures(folder: Path) -> bool:
    """True if there is a picture anywhere below a folder."""
    return any(Path(entry.name).suffix.lower() in SUFFIXES for entry in _walk(folder))


def layout_of(path: Path) -> Layout:
    """How a folder of pictures is laid out. UserError where that can be read in two ways, with the
    folders.

    A folder that holds nothing but another one with class folders or parts is entered. Parts are
    folders of the names in ``PART_NAMES``, in any case, and of names like these whose class folders
    are the same.
    """
    folder = entered(path)
    notes = (
        [f"its images lie in {safe_name(str(folder.relative_to(path)))}"] if folder != path else []
    )
    names = folders(folder)
    parts = _parts(folder, names)
    if not parts:
        classes = names
    else:
        of_parts = [folders(entered(place)) for place in chain.from_iterable(parts.values())]
        common = {name for inside in of_parts if len(inside) > 1 for name in inside}
        # a lone folder in a part is a class only if another part has it, too
        classes = sorted(
            {
                name
                for inside in of_parts
                if len(inside) > 1 or common & {*inside}
                for name in inside
            }
        )
        beside = [
            name for name in names if name not in _names(parts) and holds_pictures(folder / name)
        ]
        notes += [f"{listed(beside)} beside its parts is left out"] if beside else []
    require_names(classes, f"data set {safe_name(str(path))}, class folders")
    return Layout(folder, parts, tuple(classes) if len(classes) > 1 else (), tuple(notes))


def entered(folder: Path) -> Path:
    """The folder, or that inside it which is all that it holds, where that one has class folders or
    parts.
    """
    for _ in range(DEEPEST):
        names = folders(folder)
        if len(names) != 1 or _has_loose(folder) or _is_part(names[0], folder):
            return folder
        inside = folder / names[0]
        within = folders(inside)
        if not within or _has_loose(inside):
            return folder
        if len(within) == 1 and not _is_part(within[0], inside) and entered(inside) == inside:
            return folder
        folder = inside
    return folder


def _is_part(name: str, parent: Path) -> bool:
    """True if a folder inside another one has the name of a part, unless both have the same
    name.
    """
    return name.casefold() in PART_NAMES and name.casefold() != parent.name.casefold()


def _parts(folder: Path, names: Sequence[str]) -> dict[Role, list[Path]]:
    """Folders by role; empty where the names are those of classes. UserError where both can be
    meant.
    """
    named = [name for name in names if name.casefold() in PART_NAMES]
    others = [name for name in names if name not in named and holds_pictures(folder / name)]
    inside = {name: {*_class_folders(entered(folder / name))} for name in names if _role_of(name)}
    if len(named) > 1 or (named and not others):
        if others and not any(inside[name] for name in named):
            raise UserError(
                f"data set {folder}: {listed(named)} can be parts of it, and classes beside "
                f"{listed(others)}; name the folder of the part that is meant, or rename the "
                "classes"
            )
        return _by_role(folder, named)
    like = [name for name, classes in inside.items() if classes and _shares(name, inside)]
    if len(like) > 1:
        return _by_role(folder, like)
    for name in (name for name, classes in inside.items() if len(classes) > 1):
        rest = {other: {*_class_folders(entered(folder / other))} for other in names}
        twins = [other for other in rest if other != name and len(rest[other] & inside[name]) > 1]
        if twins:
            raise UserError(
                f"data set {folder}: {listed([name, *twins])} hold the same folders "
                f"({listed(sorted(inside[name]))}), so they are parts and no classes; "
                "name the one that is meant"
            )
    return {}


def _by_role(folder: Path, names: Sequence[str]) -> dict[Role, list[Path]]:
    parts: dict[Role, list[Path]] = {}
    for name in names:
        role = _role_of(name)
        assert role is not None, "these names are those of parts"
        parts.setdefault(role, []).append(folder / name)
    return parts


def _names(parts: Mapping[Role, list[Path]]) -> set[str]:
    return {place.name for place in chain.from_iterable(parts.values())}


def _role_of(name: str) -> Role | None:
    match = _LIKE_A_PART.fullmatch(name.casefold())
    return None if match is None else PART_NAMES[match[1]]


def _shares(name: str, inside: Mapping[str, set[str]]) -> bool:
    """True if another folder holds at least half of the folders that this one does."""
    classes_here = inside[name]
    return any(
        2 * len(classes_here & classes) >= len(classes_here)
        for other, classes in inside.items()
        if other != name
    )


def _class_folders(folder: Path) -> list[str]:
    """Folders with pictures in a folder that has none of its own beside them."""
    if _has_loose(folder):
        return []
    return [name for name in folders(folder) if holds_pictures(folder / name)]


def _has_loose(folder: Path) -> bool:
    return any(
        Path(entry.name).suffix.lower() in SUFFIXES and not entry.is_dir()
        for entry in _entries(folder)
    )


def _entries(place: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(place) as entries:
            plain = [entry for entry in entries if not is_litter(entry.name)]
    except OSError as error:
        raise UserError(
            f"cannot read the folder {safe_name(str(place))}: {error.strerror}", about="data set"
        ) from error
    return sorted(plain, key=lambda entry: entry.name)


def _walk(folder: Path) -> Iterator[os.DirEntry[str]]:
    """Entries below a folder that are no folders. A folder is entered once, and none above it
    is.
    """
    pending = [folder]
    entered_before = {str(above) for above in Path(os.path.realpath(folder)).parents}
    while pending:
        place = pending.pop()
        real = os.path.realpath(place)
        if real in entered_before:
            continue
        entered_before.add(real)
        for entry in _entries(place):
            if entry.is_dir():
                pending.append(Path(entry.path))
            else:
                yield entry
