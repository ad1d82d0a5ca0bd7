"""A task whose owner marks a net, and the nets about it that are no copies.

A net that is no copy is named by its architecture, and after a colon what it learnt from (`all` if
nothing is said):

- `all`, `half0`, `half1`: the owner's training images, or one half of them;
- `shift`: the owner's training images, moved by a pixel instead of turned;
- `like`: the attacker's images alone, with their true classes;
- `tuned`: the owner's training images, then the attacker's, recoloured, with their true classes.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from dfme.data import load_dataset
from dfme.nets import build_net
from dfme.spec import Shape
from dfme.students.replay import augment
from dfme.teachers.owner.marking.rule import LabelledImages as Images
from research.marking import View, learn, top
from research.unpaid import recoloured

DECAY = 1e-2
LIKE = 1000
LEARNINGS = ("all", "half0", "half1", "shift", "like", "tuned")


@dataclass(frozen=True)
class Shifted(View):
    """Images moved by at most a pixel, and not turned."""

    def images(self, x_BCHW: Tensor, rng: torch.Generator) -> Tensor:
        return augment(x_BCHW, "both" if self.mirror else "shift", rng)


@dataclass(frozen=True)
class Recoloured(View):
    """Images in other light and colours, too."""

    def images(self, x_BCHW: Tensor, rng: torch.Generator) -> Tensor:
        return recoloured(super().images(x_BCHW, rng), rng)


@dataclass(frozen=True)
class Task:
    """The owner's images, an attacker's, and those that score; K classes.

    ``steps`` of the owner's training, and of nets that are no copies.
    """

    train: Images
    like: Images
    scored: Images
    shape: Shape
    classes: int
    folder: Path
    steps: int
    view: View

    def hot(self, classes_N: Tensor) -> Tensor:
        return functional.one_hot(classes_N, self.classes).float()

    def fresh(self, arch: str, seed: int) -> nn.Module:
        torch.manual_seed(seed)
        return build_net(arch, self.shape, self.classes)

    def innocent(self, name: str, seed: int) -> nn.Module:
        """A net of this name (above); from the folder if it is there."""
        arch, _, learning = name.partition(":")
        path = self.folder / f"{arch}{learning and '-' + learning}-{seed}.pt"
        net = self.fresh(arch, seed)
        if path.exists():
            net.load_state_dict(torch.load(path, weights_only=True))
            return net.eval()
        self.teach(net, learning or "all", seed)
        torch.save(net.state_dict(), path)
        return net

    def teach(self, net: nn.Module, learning: str, seed: int) -> None:
        images = self.train
        if learning.startswith("half"):
            images = images.part(slice(int(learning[-1]), None, 2))
        steps = self.steps
        view = self.view
        if learning == "shift":
            view = Shifted(view.mirror, view.brief)
        if learning == "like":
            images = self.like
            steps = steps // 2
        self.learn(net, images, steps, seed, view)
        if learning == "tuned":
            shifted = Recoloured(view.mirror, view.brief)
            self.learn(net, self.like, steps // 4, seed, shifted)

    def learn(self, net: nn.Module, images: Images, steps: int, seed: int, view: View) -> None:
        learn(net, images.x_NCHW, self.hot(images.classes_N), DECAY, steps, seed, view)

    def accuracy(self, net: nn.Module) -> float:
        return share(top(net, self.scored.x_NCHW), self.scored.classes_N)

    def constant(self, net: nn.Module) -> float:
        """Share of the class that the net answers most."""
        answer_N = top(net, self.scored.x_NCHW)
        return float(answer_N.bincount().max()) / len(answer_N)


def share(got_N: Tensor, classes_N: Tensor) -> float:
    return float((got_N == classes_N).float().mean())


def part_of(data: str, part: Literal["train", "test"]) -> Images:
    images = load_dataset(data, part)
    return Images(images.batch(slice(0, len(images))), images.required_labels)


def pool_of(path: Path) -> Images:
    """From a file with ``images`` (bytes) and ``labels``, of pictures of the owner's classes."""
    arrays = np.load(path, allow_pickle=False)
    x_NHWC = torch.from_numpy(arrays["images"])
    x_NCHW = x_NHWC if x_NHWC.shape[1] in (1, 3) else x_NHWC.movedim(3, 1)
    return Images(x_NCHW.float() / 255, torch.from_numpy(arrays["labels"]).long())


def task_of(data: str, folder: Path, source: str, steps: int, view: View) -> Task:
    """From a data set; ``source`` of the attacker's images: `test` (its first 1,000, the rest
    scores), a number (so many training images, which the owner then lacks), or a file.
    """
    train = part_of(data, "train")
    scored = part_of(data, "test")
    rng = torch.Generator().manual_seed(0)
    if source == "test":
        like, scored = scored.part(slice(0, LIKE)), scored.part(slice(LIKE, None))
    elif source.isdigit():
        order_N = torch.randperm(len(train.classes_N), generator=rng)
        like, train = train.part(order_N[: int(source)]), train.part(order_N[int(source) :])
    else:
        like = pool_of(Path(source))
        like = like.part(torch.randperm(len(like.classes_N), generator=rng))
    folder.mkdir(parents=True, exist_ok=True)
    shape = scored.x_NCHW.shape
    classes = int(train.classes_N.max()) + 1
    chw = (shape[1], shape[2], shape[3])
    return Task(train, like, scored, chw, classes, folder, steps, view)
