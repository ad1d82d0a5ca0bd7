"""`things`: pictures of things in nine categories, emoji as two vendors draw them: npm packages
`emoji-datasource-google` and `emoji-datasource-twitter`, 64 pixels, shown on white.
"""

import json
from collections import defaultdict
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from dfme.errors import UserError
from research.tasks.parts import Part, Parts, Pixels

CATEGORIES = (
    "Activities",
    "Animals & Nature",
    "Flags",
    "Food & Drink",
    "Objects",
    "People & Body",
    "Smileys & Emotion",
    "Symbols",
    "Travel & Places",
)
"""The classes in order. The package's tenth category, Component, holds patches of skin alone."""

TEST_SHARE = 0.3
MOST_VARIANTS = 10  # of a glyph that may be tested: one has 53, which are half of a test category

PERSON = 0x1F9D1
PEOPLE = (
    *range(0x1F466, 0x1F46B),  # boy, girl, man, woman, family
    *range(0x1F474, 0x1F477),  # old man, old woman, baby
    *range(0x1F9D2, 0x1F9D4),  # child, old person
)
SIGNS = (
    0x200D,  # joins two signs
    0xFE0F,  # shows a sign as a picture
    0x2640,  # woman
    0x2642,  # man
    0x27A1,  # faces right
    *range(0x1F3FB, 0x1F400),  # tones of skin
    *range(0x1F9B0, 0x1F9B4),  # hair
)
SAME = {
    **dict.fromkeys(PEOPLE, (PERSON,)),
    **dict.fromkeys(SIGNS, ()),
    **dict.fromkeys(range(0x1F46B, 0x1F46E), (PERSON, 0x1F91D)),  # two hold hands
    0x1F491: (PERSON, 0x2764),  # a couple with a heart
    0x1F48F: (PERSON, 0x2764, 0x1F48B),  # a couple that kisses
    **dict.fromkeys((0x1F385, 0x1F936), (PERSON, 0x1F384)),  # Father and Mother Christmas
    **dict.fromkeys((0x1F478, 0x1FAC5), (0x1F934,)),  # princess, monarch: prince
    **dict.fromkeys((0x1FAC3, 0x1FAC4), (0x1F930,)),  # pregnant
    0x1F57A: (0x1F483,),  # who dance
    **dict.fromkeys(range(0x1F551, 0x1F568), (0x1F550,)),  # clocks at 24 times
}
"""Code points by what they say of the subject, whatever sex, age, skin, hair or hour."""


@dataclass(frozen=True)
class Picture:
    """The file of one emoji, its place in ``CATEGORIES``, and its glyph: what all variants of it
    share.
    """

    file: str
    label: int
    glyph: frozenset[int]


def things(package: Path, side: int, seed: int) -> Parts:
    """All pictures of a package at (3, side, side), three tenths of each category to test.

    No glyph is in both parts, and no picture: a few flags are two countries', and are left out of
    the test part. ``package`` is the unpacked package. UserError for other files.
    """
    train, test = _split(_pictures(package), seed)
    folder = _folder(package)
    seen = {_read(folder / picture.file) for picture in train}
    unseen = [picture for picture in test if _read(folder / picture.file) not in seen]
    random = np.random.default_rng((seed, 1))
    return _part(folder, train, side, random), _part(folder, unseen, side, random)


def like_things(package: Path, side: int, seed: int) -> Part:
    """What an attacker may have who has pictures like the owner's: another vendor's, of the glyphs
    of the training part, so that no subject of the test part was seen in any hand.

    ``package`` must have the version of the owner's, for the list in it makes the split.
    """
    train, _ = _split(_pictures(package), seed)
    return _part(_folder(package), train, side, np.random.default_rng((seed, 2)))


def glyph_of(unified: str) -> frozenset[int]:
    """The glyph of an emoji: code points in hexadecimal, joined by -, without what varies.

    As a set: so two flags of the same letters (CA, AC) stay together, too, which does no harm.
    """
    points = [int(point, 16) for point in unified.split("-")]
    return frozenset(part for point in points for part in SAME.get(point, (point,)))


def _pictures(package: Path) -> list[Picture]:
    """The pictures in the order of the package's list, without variants by tone of skin."""
    path = package / "emoji.json"
    try:
        items: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))
        pictures = [
            Picture(
                Path(item["image"]).name,
                CATEGORIES.index(item["category"]),
                glyph_of(item["unified"]),
            )
            for item in items
            if item["category"] != "Component"
        ]
    except (OSError, ValueError, KeyError, TypeError) as error:
        what = "the list of an npm package emoji-datasource-google or -twitter"
        raise UserError(
            f"{path}: expected {what} (npm pack, unpacked; --package names its folder): {error}"
        ) from error
    return pictures


def _split(pictures: list[Picture], seed: int) -> tuple[list[Picture], list[Picture]]:
    """Pictures to train with and to test: within each category, glyphs in random order are tested
    until three tenths of its pictures are.
    """
    random = np.random.default_rng((seed, 0))
    test = set[Picture]()
    for label in range(len(CATEGORIES)):
        variants = defaultdict[frozenset[int], list[Picture]](list)
        for picture in pictures:
            if picture.label == label:
                variants[picture.glyph].append(picture)
        glyphs = list(variants.values())
        room = round(TEST_SHARE * sum(map(len, glyphs)))
        for index in random.permutation(len(glyphs)):
            glyph = glyphs[index]
            if len(glyph) <= min(room, MOST_VARIANTS):
                test.update(glyph)
                room -= len(glyph)
    train = [picture for picture in pictures if picture not in test]
    return train, [picture for picture in pictures if picture in test]


def _part(folder: Path, pictures: list[Picture], side: int, random: np.random.Generator) -> Part:
    order = [pictures[index] for index in random.permutation(len(pictures))]
    images = np.stack([_on_white(folder / picture.file, side) for picture in order])
    labels = np.array([picture.label for picture in order], dtype=np.uint8)
    return np.ascontiguousarray(images.transpose(0, 3, 1, 2)), labels


def _folder(package: Path) -> Path:
    """The folder of the pictures, whose name is the vendor's."""
    folders = sorted(package.glob("img/*/64"))
    if len(folders) != 1:
        raise UserError(
            f"{package}: expected one folder img/VENDOR/64, got {len(folders)}; unpack one package "
            "emoji-datasource-VENDOR there"
        )
    return folders[0]


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UserError(f"{path}: expected a picture of the package: {error}") from error


def _on_white(path: Path, side: int) -> Pixels:
    """The picture (side, side, 3); a larger or smaller one by bicubic interpolation."""
    try:
        picture = Image.open(BytesIO(_read(path))).convert("RGBA")
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: expected a picture of the package: {error}") from error
    ground = Image.new("RGBA", picture.size, "white")
    ground.alpha_composite(picture)
    return np.asarray(ground.convert("RGB").resize((side, side), Image.Resampling.BICUBIC))
