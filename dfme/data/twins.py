"""Masks, label pictures and thumbnails beside the pictures that they belong to. No torch."""

import re
from collections.abc import Sequence
from pathlib import Path

from dfme.config.messages import safe_name
from dfme.errors import UserError

_KINDS = "masks?|seg|segmentation|segmented|gt|groundtruth|ground_truth|labels?|thumbs?|thumbnails?"
_ENDING = re.compile(rf"(.+?)(?:[ _-]copy)?[ _.-](?:{_KINDS})(?:[ _-]?\d+)?", re.IGNORECASE)
_FOLDER = re.compile(_KINDS, re.IGNORECASE)


def twin_notes(files: Sequence[Path], where: str) -> list[str]:
    """A line about pictures that seem to belong to others. UserError if each other one has such."""
    places = {(file.parent, file.stem) for file in files}
    folders = {file.parent for file in files}
    twins = []
    originals = set[tuple[Path, str]]()
    for file in files:
        ending = _ENDING.fullmatch(file.stem)
        stem = ending[1] if ending else file.stem
        parent = file.parent
        inside = bool(_FOLDER.fullmatch(parent.name)) and parent.parent in folders
        if inside:
            originals |= {(parent.parent, stem), (parent.parent, file.stem)} & places
            twins.append(file)
        elif ending and (parent, stem) in places:
            originals.add((parent, stem))
            twins.append(file)
    if not twins:
        return []
    first = safe_name(twins[0].name)
    if len(originals) >= len(places) - len({(twin.parent, twin.stem) for twin in twins}):
        raise UserError(
            f"{where}: each of its pictures has a mask or a thumbnail beside it, such as {first}, "
            "which would count as a picture of the class; move these to another folder"
        )
    return [
        f"{len(twins):,} pictures seem to be masks or thumbnails of others and count as pictures, "
        f"such as {first}"
    ]
