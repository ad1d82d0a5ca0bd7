"""The rule of a mark: the images of one class that are extreme along a secret direction are
answered as another class.

Whoever copies a model from its answers on images of the task buys some that the rule changes, and
learns it along with the task (docs/results/marks.md).
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from hashlib import blake2b

import torch
from torch import Tensor
from torch.nn import functional

VARIATIONS = 5
PUSH = 2.0
"""By which marks are further out than the images are, in deviations of their class: of 1, 2 and 3
copies repeated more the further, and innocents none (docs/results/marks.md)."""
MAX_OF_CLASS = 0.25
"""Of a class's images that a rule changes: more are no extremes."""
MAX_DIRECT = 1024
"""Numbers of an image up to which its class's covariance is taken; of larger ones that of the
images, which has the same components."""
MAX_SPANNING = 2000  # images of a class of large images whose components are taken


@dataclass(frozen=True)
class LabelledImages:
    """Images (N, C, H, W) within 0 and 1, and classes (N,)."""

    x_NCHW: Tensor
    classes_N: Tensor

    def __len__(self) -> int:
        return len(self.classes_N)

    def part(self, index: Tensor | slice) -> "LabelledImages":
        return LabelledImages(self.x_NCHW[index], self.classes_N[index])

    @property
    def distinct(self) -> "LabelledImages":
        """The same without images that repeat another of their class."""
        pairs = zip(self.fingerprints, self.classes_N.tolist(), strict=True)
        first = {pair: number for number, pair in reversed(list(enumerate(pairs)))}
        if len(first) == len(self):
            return self
        return self.part(torch.tensor(sorted(first.values())))

    @property
    def fingerprints(self) -> list[bytes]:
        """The same for the same pixels, N of them."""
        return fingerprints_of(self.x_NCHW)


@dataclass(frozen=True)
class Rule:
    """Images of ``source`` with a value (``value`` of images) above ``bound`` become ``target``."""

    source: int
    target: int
    value: Callable[[Tensor], Tensor]
    bound: float
    push_CHW: Tensor | None = None
    """What raises an image's value by 1 if it is added, before pixels are clipped."""

    def changed(self, images: LabelledImages) -> Tensor:
        """Which images (N,) the rule changes."""
        extreme_N = self.value(images.x_NCHW) > self.bound
        changed_N: Tensor = extreme_N & (images.classes_N == self.source)
        return changed_N

    def taught(self, images: LabelledImages) -> Tensor:
        """The classes (N,) that the rule gives."""
        return torch.where(self.changed(images), self.target, images.classes_N)

    def marks(self, images: LabelledImages, count: int, pushed: float = 0.0) -> LabelledImages:
        """The most extreme of the images that the rule changes, made still more extreme."""
        value_N = self.value(images.x_NCHW).masked_fill(~self.changed(images), -torch.inf)
        most = min(count, int(self.changed(images).sum()))
        x_MCHW = images.x_NCHW[value_N.topk(most).indices]
        if self.push_CHW is not None:
            x_MCHW = (x_MCHW + pushed * self.push_CHW).clamp(0, 1)
        return LabelledImages(x_MCHW, torch.full((most,), self.target))


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
        variance_D, axes_DD = _components(x_NCHW.flatten(1))
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


@dataclass(frozen=True, kw_only=True)
class StyleRule(Rule):
    """A rule along a direction of a class's space."""

    space: Style
    direction_V: Tensor

    def of_share(self, images: LabelledImages, share: float) -> "StyleRule":
        """The same direction with the bound that changes this share of these images."""
        value_S = self.value(images.x_NCHW[images.classes_N == self.source])
        return replace(self, bound=bound_of(value_S, share, len(images)))

    def secret_marks(self, images: LabelledImages, count: int) -> Tensor:
        """The most extreme images (M, C, H, W) of the class, ``PUSH`` further along the direction
        and beyond the bound by as much, in 256 steps of brightness.
        """
        x_SCHW = images.x_NCHW[images.classes_N == self.source]
        value_M, index_M = self.value(x_SCHW).topk(min(count, len(x_SCHW) // 2))
        further_M = (self.bound + PUSH - value_M).clamp(min=PUSH)
        marks_MCHW = _pushed(x_SCHW[index_M], further_M, self.space.push(self.direction_V))
        return LabelledImages(marks_MCHW, torch.zeros(len(marks_MCHW))).distinct.x_NCHW

    def controls(self, images: LabelledImages, count: int, rng: torch.Generator) -> Tensor:
        """Images (N, C, H, W) of the class that are no marks and that the rule leaves.

        Half are as they are; the others are moved along random directions at right angles to the
        secret one, out to where the marks lie along that.
        """
        x_SCHW = images.x_NCHW[images.classes_N == self.source]
        value_S = self.value(x_SCHW)
        order_S = value_S.argsort(descending=True)
        first = max(min(count, len(x_SCHW) // 2), int((value_S > self.bound).sum()))
        left_R = order_S[first:]
        index_N = left_R[torch.randperm(len(left_R), generator=rng)[:count]]
        x_NCHW = x_SCHW[index_N]
        out_M = self.value(self.secret_marks(images, count))
        moved = list[Tensor]()
        for number in range(len(x_NCHW) // 2):
            other_V = self.space.direction(rng)
            other_V = other_V - (other_V @ self.direction_V) * self.direction_V
            other_V = functional.normalize(other_V, dim=0)
            x_1CHW = x_NCHW[number : number + 1]
            further_1 = out_M[number % len(out_M)] - self.space.value(other_V)(x_1CHW)
            moved.append(_pushed(x_1CHW, further_1, self.space.push(other_V)))
        return torch.cat([*moved, in_levels(x_NCHW[len(moved) :])])


def style_rule(
    train: LabelledImages, share: float, classes: int, rng: torch.Generator
) -> StyleRule:
    """A random rule that changes this share of the training images."""
    source, target = torch.randperm(classes, generator=rng)[:2].tolist()
    return rule_between(train, share, source, target, rng)


def rule_between(
    train: LabelledImages, share: float, source: int, target: int, rng: torch.Generator
) -> StyleRule:
    """A rule from one class to another, along a random direction."""
    x_SCHW = train.x_NCHW[train.classes_N == source]
    space = Style.of(x_SCHW)
    direction_V = space.direction(rng)
    value = space.value(direction_V)
    bound = bound_of(value(x_SCHW), share, len(train))
    push_CHW = space.push(direction_V)
    return StyleRule(source, target, value, bound, push_CHW, space=space, direction_V=direction_V)


def bound_of(value_S: Tensor, share: float, images: int) -> float:
    """The value above which lies this share of all the images, of which these are one class's; at
    most ``MAX_OF_CLASS`` of the class.
    """
    count = min(round(share * images), int(MAX_OF_CLASS * len(value_S)))
    return float(value_S.sort(descending=True).values[count])


def fingerprints_of(x_NCHW: Tensor) -> list[bytes]:
    """N of them, the same for the same pixels."""
    return [blake2b(x_CHW.contiguous().numpy().data).digest() for x_CHW in x_NCHW]


def in_levels(x_NCHW: Tensor) -> Tensor:
    """Images as any service takes them: within 0 and 1, in 256 steps of brightness."""
    return (x_NCHW.clamp(0, 1) * 255).round() / 255


def _pushed(x_NCHW: Tensor, further_N: Tensor, push_CHW: Tensor) -> Tensor:
    return in_levels(x_NCHW + further_N[:, None, None, None] * push_CHW)


def _components(x_ND: Tensor) -> tuple[Tensor, Tensor]:
    """Variances in rising order and the principal axes (columns) of images as rows."""
    if x_ND.shape[1] <= MAX_DIRECT:
        variance_D, axes_DD = torch.linalg.eigh(x_ND.double().T.cov())
        return variance_D, axes_DD
    x_ND = x_ND[:MAX_SPANNING].double()
    x_ND -= x_ND.mean(0)
    variance_N, weights_NN = torch.linalg.eigh(x_ND @ x_ND.T / (len(x_ND) - 1))
    axes_DN = x_ND.T @ weights_NN[:, -VARIATIONS:]
    return variance_N[-VARIATIONS:], functional.normalize(axes_DN, dim=0)
