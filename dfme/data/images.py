"""What a data set is to the rest of the project: images and, where they are known, labels and the classes' names."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from dfme.errors import UserError
from dfme.spec import Shape

if TYPE_CHECKING:
    from torch import Tensor

Split = Literal["train", "test"]

HANDED_OVER = "tensors:"
"""What the name of images begins with that were handed over in Python; their digest follows."""


@dataclass(frozen=True)
class DatasetRequest:
    """What a loader is asked for. ``download_flag`` is the flag to name when files are missing.

    ``shape`` is the (C, H, W) wanted; loaders that can make any size heed it, the others answer as they are.
    ``lazy``: pictures may stay in their files until they are looked at.
    """

    name: str
    split: Split
    shape: Shape | None
    root: str
    download: bool
    download_flag: str
    lazy: bool = False


@dataclass(frozen=True)
class ImageSet:
    """Images (N, C, H, W), uint8 or float32 within [0, 1]; ``labels`` (N,) int64, None where nobody knows them.

    ``class_names`` are in the order of the labels; none where labels are mere numbers. ``read``, where there is one,
    gives those at an index each time that they are looked at, and ``images`` say no more than their shape.
    """

    name: str
    images: Tensor
    labels: Tensor | None = None
    class_names: tuple[str, ...] = ()
    read: Callable[[slice | Tensor], Tensor] | None = None

    def __post_init__(self) -> None:
        assert self.images.ndim == 4, f"images must be (N, C, H, W), got {tuple(self.images.shape)}"
        assert self.labels is None or len(self) == len(self.labels), f"{len(self)} images, {len(self.labels)} labels"

    def __len__(self) -> int:
        return len(self.images)

    @property
    def num_classes(self) -> int:
        """How many classes the labels are of, as far as they tell; 0 without labels."""
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
        """The images at a slice or a tensor of indices, as float32 within [0, 1]: 8-bit pixels are divided by 255."""
        images_BCHW = self.images[index] if self.read is None else self.read(index)
        if images_BCHW.is_floating_point():
            return images_BCHW.float()
        return images_BCHW.float().div_(255)

    def subset(self, limit: int) -> ImageSet:
        """``limit`` images spread evenly over the set, so that one sorted by class keeps all; 0 keeps every image."""
        if not 0 < limit < len(self):
            return self
        import torch

        picked = [index * len(self) // limit for index in range(limit)]
        labels = None if self.labels is None else self.labels[picked]
        own, picked_M = self.read, torch.tensor(picked)
        read = None if own is None else lambda index: own(picked_M[index])
        return replace(self, images=self.images[picked], labels=labels, read=read)

    def split(self, count: int) -> Iterator[Tensor]:
        """So many at a time, as ``batch`` gives them."""
        return (self.batch(slice(start, start + count)) for start in range(0, len(self), count))
