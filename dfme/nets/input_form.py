"""Images as a backbone sees them: size, scaling, and the sizes that a net can take. No torch."""

from dataclasses import dataclass
from typing import Any, Literal

from dfme.spec import ImageSpec

Size = tuple[int, int]

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)

USUAL_SIDE = 224
"""Pixels of the side of a square image, where nothing states another."""

MIN_SIDE = 128
"""Pixels of the shorter side, below which a convolutional backbone sees an enlarged image.

Its last features have a cell for each 32 pixels: of a 32x32 image a single one is left.
"""


@dataclass(frozen=True)
class InputForm:
    """Images as a backbone takes them: height and width, and what unit-range RGB is scaled by."""

    size: Size
    mean: tuple[float, ...] = IMAGENET_MEAN
    std: tuple[float, ...] = IMAGENET_STD


@dataclass(frozen=True)
class Sizes:
    """Sizes that a net takes: any, multiples of a patch, or one alone."""

    kind: Literal["any", "patches", "one"]
    patch: Size = (1, 1)


def seen_size(spec: ImageSpec, published: Size, sizes: Sizes) -> Size:
    """Height and width at which a backbone sees the images of a spec.

    Convolutions take any size: the image's own, enlarged where its shorter side has fewer than
    ``MIN_SIDE`` pixels, since a backbone that halves five times leaves less than 4x4 cells of it.
    A net of patches has an embedding of each place, which can be interpolated for whole patches
    down to half of the published size; below, and for nets of one size, the image is brought to
    that size (of patches to 224 pixels, where more were published: the cost grows as the square).
    """
    height, width = spec.shape[1:]
    shorter = min(height, width)
    if sizes.kind == "any":
        factor = max(1.0, MIN_SIDE / shorter)
        return round(height * factor), round(width * factor)
    if sizes.kind == "one":
        return published
    tall, wide = (
        USUAL_SIDE if side > USUAL_SIDE and USUAL_SIDE % patch == 0 else side
        for side, patch in zip(published, sizes.patch, strict=True)
    )
    whole = height % sizes.patch[0] == 0 and width % sizes.patch[1] == 0
    return (height, width) if whole and 2 * height >= tall and 2 * width >= wide else (tall, wide)


@dataclass(frozen=True)
class Origin:
    """Which public weights a student started from: fields of ``PublicWeights``."""

    arch: str
    name: str
    digest: str
    config: str = ""


def published_facts(net: object) -> dict[str, Any] | None:
    """What a record says of the public weights that a net started from; None of another net."""
    origin = getattr(net, "origin", None)
    form = getattr(net, "form", None)
    if not isinstance(origin, Origin) or not isinstance(form, InputForm):
        return None
    said = {name: value for name, value in vars(origin).items() if name != "config"}
    return said | {name: list(value) for name, value in vars(form).items()}
