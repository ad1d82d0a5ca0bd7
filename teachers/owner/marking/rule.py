"""The rule of a mark: the images of one class that are extreme along a secret direction are
answered as another class.

Whoever copies a model from its answers on images of the task buys some that the rule changes, and
learns it along with the task (docs/results/marks.md).
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

VARIATIONS = 5
MAX_DIRECT = 1024
"""Numbers of an image up to which its class's covariance is taken; of larger ones that of the
images, which has the same components."""
MAX_SPANNING = 2000  # images of a class of large images whose components are taken


@dataclass(frozen=True)
class Images:
    """Images (N, C, H, W) within 0 and 1, and classes (N,)."""

    x_NCHW: Tensor
    classes_N: Tensor

    def __len__(self) -> int:
        return len(self.classes_N)

    def part(self, index: Tensor | slice) -> "Images":
        return Images(self.x_NCHW[index], self.classes_N[index])


@dataclass(frozen=True)
class Rule:
    """Images of ``source`` with a value (``value`` of images) above ``bound`` become ``target``."""

    source: int
    target: int
    value: Callable[[Tensor], Tensor]
    bound: float
    push_CHW: Tensor | None = None
    """What raises an image's value by 1 if it is added, before pixels are clipped."""

    def changed(self, images: Images) -> Tensor:
        """Which images (N,) the rule changes."""
        extreme_N = self.value(images.x_NCHW) > self.bound
        changed_N: Tensor = extreme_N & (images.classes_N == self.source)
        return changed_N

    def taught(self, images: Images) -> Tensor:
        """The classes (N,) that the rule gives."""
        return torch.where(self.changed(images), self.target, images.classes_N)

    def marks(self, images: Images, count: int, pushed: float = 0.0) -> Images:
        """The most extreme of the images that the rule changes, made still more extreme."""
        value_N = self.value(images.x_NCHW).masked_fill(~self.changed(images), -torch.inf)
        most = min(count, int(self.changed(images).sum()))
        x_MCHW = images.x_NCHW[value_N.topk(most).indices]
        if self.push_CHW is not None:
            x_MCHW = (x_MCHW + pushed * self.push_CHW).clamp(0, 1)
        return Images(x_MCHW, torch.full((most,), self.target))

    def ordinary(self, images: Images) -> Images:
        """The images of the class that the rule leaves, with the class that marks have."""
        left_N = ~self.changed(images) & (images.classes_N == self.source)
        return Images(images.x_NCHW[left_N], torch.full((int(left_N.sum()),), self.target))


@dataclass(frozen=True)
class Style:
    """The space of the greatest variations of one class's images: principal components of equal
    weight.
    """

    mean_D: Tensor
    axes_DV: Tensor
    deviation_V: Tensor
    shape: torch.Size

    @classmethod
    def of(cls, x_NCHW: Tensor) -> "Style":
        mean_D = x_NCHW.flatten(1).mean(0)
        variance_D, axes_DD = _components(x_NCHW.flatten(1).double())
        deviation_V = variance_D[-VARIATIONS:].clamp(min=1e-12).sqrt()
        axes_DV = axes_DD[:, -VARIATIONS:]
        axes_DV = axes_DV * axes_DV.sum(0).sign()  # eigenvectors have no sign of their own
        return cls(mean_D, axes_DV, deviation_V, x_NCHW.shape[1:])

    def direction(self, rng: torch.Generator) -> Tensor:
        """A random direction (V,) of length 1."""
        return functional.normalize(torch.randn(len(self.deviation_V), generator=rng), dim=0)

    def value(self, direction_V: Tensor) -> Callable[[Tensor], Tensor]:
        """Place of images (N,) along a direction: of this class with mean 0 and deviation 1."""
        direction_D = (self.axes_DV @ (direction_V / self.deviation_V)).float()

        def value(x_NCHW: Tensor) -> Tensor:
            value_N: Tensor = (x_NCHW.flatten(1) - self.mean_D) @ direction_D
            return value_N

        return value

    def push(self, direction_V: Tensor) -> Tensor:
        """What raises an image's place along a direction by 1 if it is added."""
        push_D = (self.axes_DV @ (direction_V * self.deviation_V)).float()
        return push_D.view(self.shape)


def style(x_NCHW: Tensor, rng: torch.Generator) -> tuple[Callable[[Tensor], Tensor], Tensor]:
    """Place of images along a random direction of the space of these images' greatest variations;
    and what raises it by 1.
    """
    space = Style.of(x_NCHW)
    direction_V = space.direction(rng)
    return space.value(direction_V), space.push(direction_V)


def style_rule(train: Images, share: float, classes: int, rng: torch.Generator) -> Rule:
    """A random rule that changes this share of the training images."""
    source, target = torch.randperm(classes, generator=rng)[:2].tolist()
    x_SCHW = train.x_NCHW[train.classes_N == source]
    value, push_CHW = style(x_SCHW, rng)
    return Rule(source, target, value, bound_of(value(x_SCHW), share, len(train)), push_CHW)


def bound_of(value_S: Tensor, share: float, images: int) -> float:
    """The value above which lies this share of all the images, of which these are one class's."""
    count = round(share * images)
    return float(value_S.sort(descending=True).values[count])


def _components(x_ND: Tensor) -> tuple[Tensor, Tensor]:
    """Variances in rising order and the principal axes (columns) of images as rows."""
    if x_ND.shape[1] <= MAX_DIRECT:
        variance_D, axes_DD = torch.linalg.eigh(x_ND.T.cov())
        return variance_D, axes_DD
    x_ND = x_ND[:MAX_SPANNING]
    x_ND = x_ND - x_ND.mean(0)
    variance_N, weights_NN = torch.linalg.eigh(x_ND @ x_ND.T / (len(x_ND) - 1))
    axes_DN = x_ND.T @ weights_NN[:, -VARIATIONS:]
    return variance_N[-VARIATIONS:], functional.normalize(axes_DN, dim=0)
