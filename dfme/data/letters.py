"""Letters: a procedural task of the 26 capitals in one grey line each, of any size, from a seed and
no file.

It is there to try recipes on that were made without it: ``dfme.queries.drawing`` shares no
code, no range and no figure with it, and no option of any recipe was chosen by it. Keep it so.
"""

from collections.abc import Iterator
from itertools import pairwise

import torch
from torch import Tensor

from dfme.data.drawn import draw, drawn_config
from dfme.data.images import DatasetRequest, ImageSet

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


def load(request: DatasetRequest) -> ImageSet:
    """20,000 images to train with, 2,000 others held out, at the size asked for."""
    return draw(drawn_config(request, (1, 12, 12), rotation=15.0), tuple(LINES), _inside)


def segments(letter: str) -> Iterator[tuple[tuple[float, float], tuple[float, float]]]:
    """The straight parts of a letter's lines, each from one point (u, v) to another, within -1 and
    1.
    """
    for line in LINES[letter].split(","):
        yield from pairwise(
            (int(point[0]) / 2 - 1, int(point[1]) / 3 - 1) for point in line.split()
        )


def _inside(labels: Tensor, u: Tensor, v: Tensor, rng: torch.Generator) -> Tensor:
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
