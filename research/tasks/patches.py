"""`patches`: which of ten photographs a patch of 32x32 is from, which its colours tell; left halves
to train, right halves to test.
"""

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from PIL import Image

from dfme.errors import UserError
from research.tasks.parts import Parts, Pixels, drawn

SIDE = 32
LARGEST = 96  # pixels of a photograph that become the 32 of a patch, at most
PHOTOGRAPHS = (
    *(
        "skimage/data/astronaut.png",
        "skimage/data/chelsea.png",
        "sklearn/datasets/images/china.jpg",
    ),
    *(
        "skimage/data/coffee.png",
        "sklearn/datasets/images/flower.jpg",
        "skimage/data/hubble_deep_field.jpg",
    ),
    *("skimage/data/ihc.png", "skimage/data/motorcycle_left.png", "skimage/data/retina.jpg"),
    "skimage/data/rocket.jpg",
)


def patches(photographs: Sequence[Image.Image], train: int, test: int, seed: int) -> Parts:
    """So many patches of each part, as many of each photograph, drawn by the seed."""
    left = [each.crop((0, 0, each.width // 2, each.height)) for each in photographs]
    right = [
        each.crop((each.width // 2, 0, each.width // 2 * 2, each.height)) for each in photographs
    ]
    return (
        drawn(train, (seed, 0), lambda random, label: patch(random, left[label])),
        drawn(test, (seed, 1), lambda random, label: patch(random, right[label])),
    )


def photographs() -> list[Image.Image]:
    """Ten colour photographs that scikit-image and scikit-learn bring; UserError without them."""
    found = []
    for name in PHOTOGRAPHS:
        package, _, rest = name.partition("/")
        spec = find_spec(package)
        path = Path(spec.origin).parent / rest if spec and spec.origin else None
        if path is None or not path.is_file():
            raise UserError(f"{name} is missing: pip install scikit-image scikit-learn")
        found.append(Image.open(path).convert("RGB"))
    return found


def patch(random: np.random.Generator, photograph: Image.Image) -> Pixels:
    """A square (32, 32, 3) of 32 to 96 pixels of the photograph, made smaller, mirrored half the
    time.
    """
    side = int(random.integers(SIDE, LARGEST + 1))
    left = int(random.integers(0, photograph.width - side + 1))
    top = int(random.integers(0, photograph.height - side + 1))
    box = (left, top, left + side, top + side)
    pixels = np.asarray(photograph.resize((SIDE, SIDE), Image.Resampling.BILINEAR, box))
    return pixels[:, ::-1] if random.random() < 0.5 else pixels
