"""Drawn tasks, of any size, from a seed and no file: one figure an image, randomly turned, scaled,
placed, coloured. Shapes are ten coloured ones on a plain or textured ground.

Letters are the 26 capitals in one grey line each. They are there to try recipes on that were made
without them: ``dfme.queries.drawing`` shares no code, no range and no figure with them, and no
option of any recipe was chosen by them. Keep it so.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from dfme.data.images import SMALLEST, DatasetRequest, ImageSet
from dfme.errors import UserError

SUBPIXELS = 4  # per side: an edge takes 17 values of coverage
CHUNK = 1 << 22  # points worked on at once

Inside = Callable[[Tensor, Tensor, Tensor, torch.Generator], Tensor]
"""From labels (N,) and points u, v (N, H, W), in radii from the centre, to whether each lies inside
the figure."""


@dataclass(frozen=True)
class DrawnConfig:
    """Number and size (C, H, W) of the images, C of 1 or 3, and how hard they are to tell apart.

    ``rotation``: largest turn to either side in degrees. ``contrast``: least difference, in the
    channel where it is largest, between figure and ground, above 0 and at most 1. ``texture``:
    amplitude of a random wave added to the ground. ``noise``: standard deviation of the noise added
    to every pixel.
    """

    name: str
    shape: tuple[int, int, int]
    count: int
    rotation: float = 180.0
    contrast: float = 0.3
    texture: float = 0.0
    noise: float = 0.02
    seed: int = 0

    def __post_init__(self) -> None:
        channels, height, width = self.shape
        if channels not in (1, 3) or min(height, width) < SMALLEST:
            raise UserError(
                f"{self.name}: expected 1 or 3 channels and sides of 8 pixels or more, got "
                f"{self.shape}"
            )


def drawn_config(
    request: DatasetRequest, usual: tuple[int, int, int], rotation: float = 180.0
) -> DrawnConfig:
    """Default difficulty at the given size: 20,000 images to train with, 2,000 others held out."""
    count, seed = (20_000, 0) if request.split == "train" else (2_000, 1)
    return DrawnConfig(request.name, request.shape or usual, count, rotation, seed=seed)


def draw(config: DrawnConfig, classes: Sequence[str], inside: Inside) -> ImageSet:
    """``config.count`` images (N, C, H, W) as uint8, each class as often as the others, in random
    order.
    """
    rng = torch.Generator().manual_seed(config.seed)
    labels = torch.arange(config.count).remainder(len(classes))[
        torch.randperm(config.count, generator=rng)
    ]
    chunk = max(1, CHUNK // (math.prod(config.shape[1:]) * SUBPIXELS**2))
    parts = [
        _paint(_coverage(part, inside, config, rng), config, rng) for part in labels.split(chunk)
    ]
    return ImageSet(config.name, torch.cat(parts), labels, tuple(classes))


def _coverage(labels: Tensor, inside: Inside, config: DrawnConfig, rng: torch.Generator) -> Tensor:
    """Share of each pixel the figure covers, (N, 1, H, W) within [0, 1]."""
    count = len(labels)
    (_, height, width) = config.shape
    half_side = min(height, width) / 2
    radius = half_side * (0.65 + 0.3 * torch.rand(count, 1, 1, generator=rng))
    middle_v = height / 2 + (torch.rand(count, 1, 1, generator=rng) * 2 - 1) * (height / 2 - radius)
    middle_u = width / 2 + (torch.rand(count, 1, 1, generator=rng) * 2 - 1) * (width / 2 - radius)
    angle = (torch.rand(count, 1, 1, generator=rng) * 2 - 1) * math.radians(config.rotation)
    rows = (torch.arange(height * SUBPIXELS).add(0.5) / SUBPIXELS).view(1, -1, 1)
    columns = (torch.arange(width * SUBPIXELS).add(0.5) / SUBPIXELS).view(1, 1, -1)
    x = (columns - middle_u) / radius
    y = (rows - middle_v) / radius
    u = x * angle.cos() + y * angle.sin()
    v = y * angle.cos() - x * angle.sin()
    return torch.nn.functional.avg_pool2d(inside(labels, u, v, rng).float().unsqueeze(1), SUBPIXELS)


def _paint(coverage_N1HW: Tensor, config: DrawnConfig, rng: torch.Generator) -> Tensor:
    """Colours: the difference of figure and ground is drawn first, then a ground that leaves room
    for it.
    """
    count = len(coverage_N1HW)
    (channels, height, width) = config.shape
    direction = torch.rand(count, channels, 1, 1, generator=rng) * 2 - 1
    direction = direction / direction.abs().amax(1, keepdim=True).clamp_min(1e-6)
    contrast = config.contrast + (1 - config.contrast) * torch.rand(count, 1, 1, 1, generator=rng)
    difference = direction * contrast
    ground = torch.rand(count, channels, 1, 1, generator=rng) * (1 - difference.abs())
    ground -= difference.clamp_max(0)
    wave = config.texture * _waves(count, height, width, rng) * (1 - coverage_N1HW)
    noise = config.noise * torch.randn(count, channels, height, width, generator=rng)
    image = ground + difference * coverage_N1HW + wave + noise
    return image.clamp_(0, 1).mul_(255).round_().to(torch.uint8)


def _waves(count: int, height: int, width: int, rng: torch.Generator) -> Tensor:
    """Sinusoids of random direction and phase, 2 to 4 periods over the shorter side: (N, 1, H,
    W).
    """
    angle, phase = (2 * math.pi * torch.rand(2, count, 1, 1, 1, generator=rng)).unbind()
    periods = (2 + 2 * torch.rand(count, 1, 1, 1, generator=rng)) / min(height, width)
    rows = torch.arange(height).view(1, 1, -1, 1)
    columns = torch.arange(width).view(1, 1, 1, -1)
    return torch.sin(2 * math.pi * periods * (rows * angle.sin() + columns * angle.cos()) + phase)


TABLE = """
A 06 20 46, 14 34; B 03 33 44 45 36 06 00 30 41 42 33; C 41 30 10 01 05 16 36 45
D 00 06 26 44 42 20 00; E 40 00 06 46, 03 33; F 40 00 06, 03 33; G 41 30 10 01 05 16 36 45 43 23
H 00 06, 40 46, 03 43; I 20 26; J 30 35 26 16 05; K 00 06, 40 03 46; L 00 06 46; M 06 00 23 40 46
N 06 00 46 40; O 10 30 41 45 36 16 05 01 10; P 06 00 30 41 42 33 03
Q 10 30 41 45 36 16 05 01 10, 24 46; R 06 00 30 41 42 33 03, 23 46
S 41 30 10 01 02 13 33 44 45 36 16 05; T 00 40, 20 26; U 00 05 16 36 45 40; V 00 26 40
W 00 16 22 36 40; X 00 46, 40 06; Y 00 23 40, 23 26; Z 00 40 06 46
"""
LINES = dict(entry.split(" ", 1) for entry in TABLE.strip().replace("\n", "; ").split("; "))
"""From a letter to its lines, each a row of points "column row": columns from 0 to 4, rows from 0
at the top to 6."""

# Of a letter and of its lines, in radii; the ranges are heuristic.
HALF_HEIGHT = 0.85
HALF_WIDTHS = (0.45, 0.7)
HALF_LINES = (0.1, 0.2)
SLANTS = (-0.25, 0.25)  # to the left, for each radius of height


def load_letters(request: DatasetRequest) -> ImageSet:
    """20,000 images to train with, 2,000 others held out, at the size asked for."""
    return draw(drawn_config(request, (1, 12, 12), rotation=15.0), tuple(LINES), _in_letters)


def segments(letter: str) -> Iterator[tuple[tuple[float, float], tuple[float, float]]]:
    """The straight parts of a letter's lines, each from one point (u, v) to another, within -1 and
    1.
    """
    for line in LINES[letter].split(","):
        yield from pairwise(
            (int(point[0]) / 2 - 1, int(point[1]) / 3 - 1) for point in line.split()
        )


def _in_letters(labels: Tensor, u: Tensor, v: Tensor, rng: torch.Generator) -> Tensor:
    """True if a point is nearer to one of its letter's lines than half of the line's width."""
    half_width, slant, half_line = (
        low + (high - low) * torch.rand(len(labels), 1, 1, generator=rng)
        for low, high in (HALF_WIDTHS, SLANTS, HALF_LINES)
    )
    inside = torch.zeros_like(u, dtype=torch.bool)
    for index, letter in enumerate(LINES):
        chosen = (labels == index).nonzero().squeeze(1)
        x = u[chosen]
        y = v[chosen]
        width = half_width[chosen]
        lean = HALF_HEIGHT * slant[chosen]
        for (u0, v0), (u1, v1) in segments(letter):
            du = (u1 - u0) * width + (v1 - v0) * lean
            dv = (v1 - v0) * HALF_HEIGHT
            off_u = x - (u0 * width + v0 * lean)
            off_v = y - v0 * HALF_HEIGHT
            along = ((off_u * du + off_v * dv) / (du * du + dv * dv)).clamp_(0, 1)
            squared = (off_u - along * du) ** 2 + (off_v - along * dv) ** 2
            inside[chosen] |= squared < half_line[chosen] ** 2
    return inside


# name -> whether a point (u, v), measured in radii from the centre, lies inside
OUTLINES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "disc": lambda u, v: u.hypot(v) < 0.8,
    "ring": lambda u, v: ((radius := u.hypot(v)) < 1.0) & (radius > 0.55),
    "half disc": lambda u, v: (u.hypot(v + 0.4) < 1.0) & (v > -0.4),
    "square": lambda u, v: (u.abs() < 0.7) & (v.abs() < 0.7),
    "triangle": lambda u, v: (v > -0.5) & (v + math.sqrt(3) * u.abs() < 1.0),
    "bar": lambda u, v: (u.abs() < 0.22) & (v.abs() < 1.0),
    "cross": lambda u, v: torch.minimum(u.abs(), v.abs()) < 0.22,
    "ell": lambda u, v: (
        ((u + 0.4).abs() < 0.22) & (v.abs() < 0.9)
        | ((v + 0.68).abs() < 0.22) & ((u - 0.1).abs() < 0.72)
    ),
    "tee": lambda u, v: (
        (u.abs() < 0.22) & (v.abs() < 0.9) | ((v - 0.68).abs() < 0.22) & (u.abs() < 0.75)
    ),
    "two dots": lambda u, v: u.hypot(v.abs() - 0.6) < 0.4,
}


def load_shapes(request: DatasetRequest) -> ImageSet:
    """20,000 images to train with, 2,000 others held out, at the size asked for."""
    return draw(drawn_config(request, (3, 12, 12)), tuple(OUTLINES), _in_shapes)


def _in_shapes(labels: Tensor, u: Tensor, v: Tensor, rng: torch.Generator) -> Tensor:
    inside = torch.zeros_like(u, dtype=torch.bool)
    for index, outline in enumerate(OUTLINES.values()):
        chosen = (labels == index).nonzero().squeeze(1)
        inside[chosen] = outline(u[chosen], v[chosen]) & (u[chosen].hypot(v[chosen]) < 1.05)
    return inside
