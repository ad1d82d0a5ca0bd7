"""Silhouettes of things: lumps and polygons, bodies with limbs, hulls with wheels, faces.

Each function gives how deep a place lies within each part of a thing, (B, P, H, W), in sizes of the
thing; outside it is negative. x and y (B, H, W) are the place, from the middle, y downwards; the
last part is before the others.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from dfme.queries.drawing import uniform

MAX_PARTS = 8  # of a thing, at most
NOWHERE = -9.0  # depth of a part that is not there


Both = tuple[Tensor, Tensor]
Silhouette = Callable[[Tensor, Tensor, torch.Generator], Tensor]


def lumps(x_BHW: Tensor, y_BHW: Tensor, rng: torch.Generator) -> Tensor:
    """One part: an outline of six random waves, a polygon of any sharpness, or a star."""
    one = (len(x_BHW), 1, 1)
    radius_BHW = x_BHW.hypot(y_BHW)
    angle_BHW = torch.atan2(y_BHW, x_BHW)
    waves_BHW = torch.zeros_like(angle_BHW)
    for wave in range(1, 7):
        phase = uniform(one, 0, 2 * math.pi, rng)
        waves_BHW += uniform(one, -0.35, 0.35, rng) / wave * (wave * angle_BHW + phase).cos()
    corners = torch.randint(3, 9, one, generator=rng, device=rng.device).float()
    half = math.pi / corners
    side = half.cos() / (angle_BHW.remainder(2 * half) - half).cos()
    polygon_BHW = 0.9 * side ** uniform(one, 0, 1.2, rng)
    dent = uniform(one, 0.15, 0.45, rng)
    star_BHW = 1 - dent + dent * (corners * angle_BHW).cos()
    kind = uniform(one, 0, 1, rng)
    straight_BHW = torch.where(kind < 0.85, polygon_BHW, star_BHW)
    edge_BHW = torch.where(kind < 0.55, 0.8 * waves_BHW.exp(), straight_BHW)
    return (edge_BHW - radius_BHW).unsqueeze(1)


def bodies(x_BHW: Tensor, y_BHW: Tensor, rng: torch.Generator) -> Tensor:
    """A trunk, a neck, a head, up to four limbs and a tail: all of them thick lines."""
    one = (len(x_BHW), 1, 1)

    def between(low: float, high: float) -> Tensor:
        return uniform(one, low, high, rng)

    reach = between(0.2, 0.55)
    tilt = between(-0.25, 0.25)
    thick = between(0.14, 0.34)
    head = (reach + between(-0.1, 0.4), tilt - between(0.05, 0.6))
    skull = between(0.1, 0.25)
    parts = [
        _limb(x_BHW, y_BHW, (-reach, -tilt), (reach, tilt), (thick, thick * between(0.6, 1.2))),
        _limb(x_BHW, y_BHW, (reach, tilt), head, (thick * between(0.4, 0.8), 0.7 * skull)),
    ]
    muzzle = (head[0] + between(-0.2, 0.35), head[1] + between(-0.1, 0.2))
    parts.append(_limb(x_BHW, y_BHW, head, muzzle, (skull, skull * between(0.4, 1))))
    length = between(0.25, 0.7)
    thin = between(0.04, 0.1)
    slant = between(-0.2, 0.2)
    for place in (-1.0, -0.6, 0.6, 1.0):
        hip = (place * reach + between(-0.05, 0.05), tilt * place)
        foot = (hip[0] + slant + between(-0.12, 0.12), hip[1] + length)
        leg_BHW = _limb(x_BHW, y_BHW, hip, foot, (1.4 * thin, thin))
        parts.append(_unless(leg_BHW, 0.25, rng))
    end = (-reach - between(0.1, 0.6), between(-0.5, 0.4) - tilt)
    widths = (between(0.03, 0.12), between(0.02, 0.15))
    tail_BHW = _limb(x_BHW, y_BHW, (-reach, -tilt), end, widths)
    parts.append(_unless(tail_BHW, 0.4, rng))
    return torch.stack(parts, 1)


def hulls(x_BHW: Tensor, y_BHW: Tensor, rng: torch.Generator) -> Tensor:
    """A hull, a cabin with a window, two wheels, a mast or a wing, and a band."""
    one = (len(x_BHW), 1, 1)

    def between(low: float, high: float) -> Tensor:
        return uniform(one, low, high, rng)

    wide = between(0.5, 0.95)
    high = between(0.12, 0.4)
    nought = torch.zeros_like(wide)
    tapered_BHW = x_BHW * (1 + between(-0.5, 0.5) * y_BHW)
    round_hull = torch.minimum(between(0.02, 0.15), high)
    parts = [_box(tapered_BHW, y_BHW, (nought, nought), (wide, high), round_hull)]
    cabin = (wide * between(0.25, 0.8), between(0.12, 0.35))
    middle = (wide * between(-0.4, 0.4), -high - 0.8 * cabin[1])
    slanted_BHW = x_BHW + between(-0.6, 0.6) * (y_BHW + high)
    cabin_BHW = _box(slanted_BHW, y_BHW, middle, cabin, between(0.01, 0.1))
    pane = (cabin[0] * between(0.5, 0.85), cabin[1] * between(0.4, 0.7))
    window = (middle[0] + between(-0.1, 0.1), middle[1])
    pane_BHW = _box(slanted_BHW, y_BHW, window, pane, between(0.01, 0.05))
    parts += [_unless(cabin_BHW, 0.2, rng), _unless(pane_BHW, 0.3, rng)]
    wheel = between(0.1, 0.24)
    spread = wide * between(0.4, 0.85)
    wheels_BHW = wheel - (x_BHW.abs() - spread).hypot(y_BHW - high)
    parts.append(_unless(wheels_BHW, 0.35, rng))
    top = (between(-0.9, 0.9), between(-0.9, 0.9))
    widths = (between(0.03, 0.1), between(0.02, 0.08))
    wing_BHW = _limb(x_BHW, y_BHW, (between(-0.5, 0.5), nought), top, widths)
    parts.append(_unless(wing_BHW, 0.5, rng))
    band = (wide * between(0.7, 1), high * between(0.1, 0.35))
    band_BHW = _box(x_BHW, y_BHW, (nought, between(-0.1, 0.1)), band, between(0, 0.03))
    parts.append(_unless(band_BHW, 0.5, rng))
    return torch.stack(parts, 1)


def faces(x_BHW: Tensor, y_BHW: Tensor, rng: torch.Generator) -> Tensor:
    """A thing seen from the front, alike on both sides: a head or a front of anything from a box to
    a disc, ears or a roof, eyes or lamps, a mouth or a grille, a brow or a pane, feet or wheels.
    """
    one = (len(x_BHW), 1, 1)
    aside_BHW = x_BHW.abs()

    def between(low: float, high: float) -> Tensor:
        return uniform(one, low, high, rng)

    wide = between(0.45, 0.9)
    high = between(0.4, 0.8)
    nought = torch.zeros_like(wide)
    root = (wide * between(0.2, 0.9), -0.7 * high)
    tip = (root[0] + between(-0.15, 0.25), root[1] - between(0.1, 0.5))
    ears_BHW = _limb(aside_BHW, y_BHW, root, tip, (between(0.08, 0.3), between(0.02, 0.2)))
    stand = (wide * between(0.5, 0.9), high * between(0.8, 1.1))
    feet_BHW = _box(aside_BHW, y_BHW, stand, (between(0.06, 0.2), between(0.08, 0.3)), nought)
    corner = torch.minimum(wide, high) * between(0.1, 1)
    parts = [
        _unless(feet_BHW, 0.5, rng),
        _unless(ears_BHW, 0.3, rng),
        _box(x_BHW, y_BHW, (nought, nought), (wide, high), corner),
    ]
    pane = (wide * between(0.5, 0.9), high * between(0.15, 0.35))
    pane_BHW = _box(x_BHW, y_BHW, (nought, -high * between(0.2, 0.6)), pane, between(0.01, 0.1))
    mouth = (wide * between(0.15, 0.6), high * between(0.08, 0.4))
    round_mouth = torch.minimum(*mouth) * between(0, 1)
    mouth_BHW = _box(x_BHW, y_BHW, (nought, high * between(0.1, 0.7)), mouth, round_mouth)
    eye = (wide * between(0.3, 0.75), high * between(-0.4, 0.4))
    eyes_BHW = between(0.05, 0.16) - (aside_BHW - eye[0]).hypot(y_BHW - eye[1])
    nose = (nought, eye[1] + high * between(0.2, 0.5))
    nose_BHW = between(0.04, 0.12) - x_BHW.hypot(y_BHW - nose[1])
    parts += [_unless(pane_BHW, 0.5, rng), _unless(mouth_BHW, 0.3, rng)]
    parts += [_unless(eyes_BHW, 0.15, rng), _unless(nose_BHW, 0.5, rng)]
    return torch.stack(parts, 1)


def _unless(depth: Tensor, share: float, rng: torch.Generator) -> Tensor:
    """The part, but for this share of the images."""
    one = (len(depth), *[1] * (depth.dim() - 1))
    return depth.masked_fill(uniform(one, 0, 1, rng) < share, NOWHERE)


def _limb(x_BHW: Tensor, y_BHW: Tensor, start: Both, end: Both, widths: Both) -> Tensor:
    """A line from one place to another, half as wide as said at both ends, which are round."""
    along_x = end[0] - start[0]
    along_y = end[1] - start[1]
    squared = (along_x.square() + along_y.square()).clamp_min(1e-9)
    from_x = x_BHW - start[0]
    from_y = y_BHW - start[1]
    share_BHW = ((from_x * along_x + from_y * along_y) / squared).clamp(0, 1)
    off_BHW = (from_x - share_BHW * along_x).hypot(from_y - share_BHW * along_y)
    return torch.lerp(widths[0], widths[1], share_BHW) - off_BHW


def _box(x_BHW: Tensor, y_BHW: Tensor, middle: Both, halves: Both, rounded: Tensor) -> Tensor:
    """A box with rounded corners: the distance to the nearest point of its edge."""
    off_x = (x_BHW - middle[0]).abs() - halves[0] + rounded
    off_y = (y_BHW - middle[1]).abs() - halves[1] + rounded
    outside = off_x.clamp_min(0).hypot(off_y.clamp_min(0))
    return rounded - outside - torch.maximum(off_x, off_y).clamp_max(0)


SHAPES: tuple[Silhouette, ...] = (lumps, bodies, hulls, faces)
