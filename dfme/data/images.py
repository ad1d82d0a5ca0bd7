"""A data set for the rest of the project: images and, if known, labels and class names."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from hashlib import blake2b, sha256
from typing import TYPE_CHECKING, Literal

from dfme.errors import Ref, UserError
from dfme.spec import ImageSpec, Shape

if TYPE_CHECKING:
    from torch import Tensor

Split = Literal["train", "test"]

SMALLEST = 8  # pixels of a side of a drawn image

HANDED_OVER = "tensors:"
"""What the name of images begins with that were handed over in Python; their digest follows."""


@dataclass(frozen=True)
class DatasetRequest:
    """Request to a loader. ``download_option`` is named where files are missing.

    ``shape`` is the (C, H, W) wanted; loaders that can make any size heed it, the others answer as
    they are. ``lazy``: pictures may stay in their files until they are used.
    """

    name: str
    split: Split
    shape: Shape | None
    root: str
    download: bool
    download_option: Ref
    lazy: bool = False


@dataclass(frozen=True)
class ImageSet:
    """Images (N, C, H, W), uint8 or float32 within [0, 1]; ``labels`` (N,) int64 or None.

    ``class_names`` are in the order of the labels; empty where labels are mere numbers. ``read``,
    if there is one, reads the images at an index each time they are used, and ``images`` then has
    their shape alone. ``notes`` are lines for people about how the images were read; pictures that
    are still in their files add to them when they are used. ``digest``: SHA-256 of images and
    labels, after ``digested``.
    """

    name: str
    images: Tensor
    labels: Tensor | None = None
    class_names: tuple[str, ...] = ()
    read: Callable[[slice | Tensor], Tensor] | None = None
    notes: list[str] = field(default_factory=list, compare=False)
    digest: str = ""

    def __len__(self) -> int:
        return len(self.images)

    @property
    def num_classes(self) -> int:
        """Number of classes that the labels show; 0 without labels."""
        return len(self.class_names) or (0 if self.labels is None else int(self.labels.max()) + 1)

    @property
    def required_labels(self) -> Tensor:
        """The labels; UserError where there are none."""
        if self.labels is None:
            raise UserError(f"data set {self.name}: expected a label for each image, found none")
        return self.labels

    @property
    def shape(self) -> Shape:
        """(C, H, W) of every image."""
        channels, height, width = self.images.shape[1:]
        return channels, height, width

    def batch(self, index: slice | Tensor) -> Tensor:
        """Images at a slice or index tensor, float32 within [0, 1]: 8-bit pixels are divided by
        255.
        """
        images_BCHW = self.images[index] if self.read is None else self.read(index)
        if images_BCHW.is_floating_point():
            return images_BCHW.float()
        return images_BCHW.float().div_(255)

    def digested(self) -> ImageSet:
        """The same with a digest of images, labels and class names; every image is read once."""
        code = sha256(repr((len(self), self.shape)).encode())
        for x_BCHW in self.split(ImageSpec(self.shape).at_once(CHUNK)):
            code.update(x_BCHW.contiguous().numpy().data)
        if self.labels is not None:
            code.update(self.labels.contiguous().numpy().data)
        code.update(repr(self.class_names).encode())
        return replace(self, digest=code.hexdigest())

    def subset(self, limit: int) -> ImageSet:
        """``limit`` images spread evenly over the set, which may be sorted by class; 0: every
        image.
        """
        if not 0 < limit < len(self):
            return self
        return self.at([index * len(self) // limit for index in range(limit)])

    def half(self, second: bool, ending: str = "") -> ImageSet:
        """One of two halves without a common image, drawn by a fixed seed, of each class by half.

        Images of equal pixels count as one, except pictures that are still in their files.
        ``ending``: of its name.
        """
        import torch

        order_N = torch.randperm(len(self), generator=torch.Generator().manual_seed(0))
        if self.labels is not None:
            order_N = order_N[self.labels[order_N].argsort(stable=True)]
        places = range(len(self))
        read = self.read is not None
        pixels = [
            at if read else blake2b(self.images[at].numpy().tobytes()).digest() for at in places
        ]
        second_half = {*list(dict.fromkeys(pixels[at] for at in order_N.tolist()))[1::2]}
        half = self.at([at for at in places if (pixels[at] in second_half) == second])
        return replace(half, name=f"{self.name}{ending}")

    def at(self, picked: list[int]) -> ImageSet:
        """The images at these places."""
        import torch

        labels = None if self.labels is None else self.labels[picked]
        read_file = self.read
        picked_M = torch.tensor(picked, dtype=torch.int64)
        read = None if read_file is None else lambda index: read_file(picked_M[index])
        return replace(self, images=self.images[picked], labels=labels, read=read)

    def split(self, count: int) -> Iterator[Tensor]:
        """So many at a time, as ``batch`` gives them."""
        return (self.batch(slice(start, start + count)) for start in range(0, len(self), count))


LUMA = (0.299, 0.587, 0.114)
"""What red, green and blue weigh in a grey: ITU-R BT.601, as pictures read from files are turned
grey.
"""

CHUNK = 1024  # images turned to floats at once, fewer of large ones


def fitted(images_NCHW: Tensor, shape: tuple[int, int, int]) -> Tensor:
    """Images (N, C, H, W), uint8 or float32 within [0, 1], in another shape and the same type.

    Grey becomes colour by repetition, colour grey by its luma; sizes change bilinearly, smoothed
    when they shrink. UserError for other numbers of channels that differ.
    """
    if tuple(images_NCHW.shape[1:]) == tuple(shape):
        return images_NCHW
    from torch.nn.functional import interpolate

    result = images_NCHW.new_empty(len(images_NCHW), *shape)
    channels, height, width = images_NCHW.shape[1:]
    chunk = min(ImageSpec(size).at_once(CHUNK) for size in ((channels, height, width), shape))
    for source, target in zip(images_NCHW.split(chunk), result.split(chunk), strict=True):
        floats = _recoloured(source.float(), shape[0])
        if floats.shape[2:] != shape[1:]:
            floats = interpolate(floats, shape[1:], mode="bilinear", antialias=True)
        target.copy_(floats if target.is_floating_point() else floats.round_())
    return result


def _recoloured(images_NCHW: Tensor, channels: int) -> Tensor:
    have = images_NCHW.shape[1]
    if have == channels:
        return images_NCHW
    if have == 1:
        return images_NCHW.repeat(1, channels, 1, 1)
    if (have, channels) != (3, 1):
        raise UserError(
            f"images of {have} channels cannot become images of {channels}: only 1 and 3 are "
            "converted"
        )
    weights_311 = images_NCHW.new_tensor(LUMA).view(3, 1, 1)
    return (images_NCHW * weights_311).sum(1, keepdim=True)
