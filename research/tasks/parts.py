"""What a task is made of: images (N, C, H, W) and labels (N,), both uint8, to train with and to
test.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Pixels = NDArray[np.uint8]
Part = tuple[Pixels, Pixels]
Parts = tuple[Part, Part]


def drawn(
    count: int, seed: tuple[int, int], draw: Callable[[np.random.Generator, int], Pixels]
) -> Part:
    """So many images of ten classes, as many of each, in random order; ``draw`` gives one (H, W,
    C).
    """
    random = np.random.default_rng(seed)
    labels = random.permutation(np.arange(count) % 10).astype(np.uint8)
    images = np.stack([draw(random, int(label)) for label in labels])
    return np.ascontiguousarray(images.transpose(0, 3, 1, 2)), labels
