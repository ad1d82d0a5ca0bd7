"""What a data set is to the rest of the project: images, labels and the classes' names."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from dfme.spec import Shape

if TYPE_CHECKING:
    from torch import Tensor

Split = Literal["train", "test"]


@dataclass(frozen=True)
class DatasetRequest:
    """What a loader is asked for. ``download_flag`` is the flag to name when files are missing.

    ``shape`` is the (C, H, W) wanted; loaders that can make any size heed it, the others answer as they are.
    """

    name: str
    split: Split
    shape: Shape | None
    root: str
    download: bool
    download_flag: str


@dataclass(frozen=True)
class LabelledImages:
    """Images (N, C, H, W), uint8 or float32 within [0, 1], with labels (N,) int64 into ``class_names``."""

    name: str
    images: Tensor
    labels: Tensor
    class_names: tuple[str, ...]

    def __post_init__(self) -> None:
        assert self.images.ndim == 4, f"images must be (N, C, H, W), got {tuple(self.images.shape)}"
        assert len(self.images) == len(self.labels), f"{len(self.images)} images, {len(self.labels)} labels"

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def shape(self) -> Shape:
        """(C, H, W) of every image."""
        channels, height, width = self.images.shape[1:]
        return channels, height, width

    def batch(self, index: slice | Tensor) -> Tensor:
        """The images at a slice or a tensor of indices, as float32 within [0, 1]: 8-bit pixels are divided by 255."""
        images_BCHW = self.images[index]
        if images_BCHW.is_floating_point():
            return images_BCHW.float()
        return images_BCHW.float().div_(255)

    def subset(self, limit: int) -> LabelledImages:
        """``limit`` images spread evenly over the set, so that one sorted by class keeps all; 0 keeps every image."""
        if not 0 < limit < len(self):
            return self
        picked = [index * len(self) // limit for index in range(limit)]
        return replace(self, images=self.images[picked], labels=self.labels[picked])
