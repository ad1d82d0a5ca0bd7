"""Images that a program draws small and that are enlarged when they are asked for."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from dfme.compute.device import derived_seed
from dfme.queries.programs import ProceduralImages
from dfme.spec import ImageSpec

PROGRAMS = ("leaves", "pen", "text", "textured", "gradients")
DRAWN_SIDE = 96
"""Longest side in pixels that is drawn: at 224 these programs take ten times as long."""
CHUNK = 32

StepHeard = Callable[[str, int, int], None]
"""Hears what is done, how much of it, and of how much."""


ImagesAt = Callable[[int, int], Tensor]
"""Images (B, C, H, W) as a teacher is asked them, from the first place to before the second."""


class DrawnImages:
    """``count`` images of a teacher; the same seed draws the same first ones, whatever the
    count.
    """

    def __init__(self, spec: ImageSpec, count: int, seed: int, progress: StepHeard) -> None:
        self._spec = spec
        channels, height, width = spec.shape
        scale = min(1.0, DRAWN_SIDE / max(height, width))
        sides = max(1, round(height * scale)), max(1, round(width * scale))
        small = ImageSpec((channels, *sides))
        drawn = []
        programs = ProceduralImages(small, PROGRAMS)
        for start in range(0, count, CHUNK):
            rng = torch.Generator().manual_seed(derived_seed(seed, f"backbone {start}"))
            drawn.append(programs.draw(CHUNK, rng).mul(255).round().byte())
            progress("drawing images", min(start + CHUNK, count), count)
        self._drawn_NCHW = torch.cat(drawn)[:count]

    def __len__(self) -> int:
        return len(self._drawn_NCHW)

    def __call__(self, start: int, stop: int) -> Tensor:
        """Images (B, C, H, W) as the teacher is asked them: within its bounds, on its levels."""
        x_BCHW = self._drawn_NCHW[start:stop].float() / 255
        if x_BCHW.shape[2:] != self._spec.shape[1:]:
            x_BCHW = interpolate(x_BCHW, self._spec.shape[1:], mode="bicubic").clamp(0, 1)
        low, high = self._spec.bounds
        return self._spec.quantise(x_BCHW * (high - low) + low)
