"""Embedded digits: 1,797 real handwritten digits, 8x8 grey pixels; digits.md has the source."""

from pathlib import Path

import numpy as np
import torch

from dfme.data.images import DatasetRequest, ImageSet

FILE = Path(__file__).with_name("digits.npz")
FULL = 16  # a pixel counts the inked ones among 4x4 of the original bitmap


def load(request: DatasetRequest) -> ImageSet:
    """One part of the fixed split stored with the images (1,438 to train with, 359 held out), in
    [0, 1].
    """
    with np.load(FILE, allow_pickle=False) as arrays:
        wanted = arrays["held_out"] if request.split == "test" else ~arrays["held_out"]
        pixels = arrays["images"][wanted]
        labels = arrays["labels"][wanted]
    images = torch.from_numpy(pixels).unsqueeze(1).float().div_(FULL)
    return ImageSet("digits", images, torch.from_numpy(labels).long(), tuple("0123456789"))
