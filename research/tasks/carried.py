"""`python -m research.tasks.carried DATA OUT`: the teacher that `research/gpu_day.sh` carries.

A ResNet-34-8x whose last stages are narrow, trained on one CPU thread, so that no time of a GPU is
spent on training one. As it begins, a net of that depth does not learn plates in the minutes there
are. So it grows (Chen et al. 2016, arXiv 1511.05641): one block of each stage learns first, then
the others join, whose last normalisation is zero, so that at first they change nothing.

The weights are written in half precision, with the accuracy that they have so. The course is kept
beside them (``OUT.part``) every minute or so, and gone on with when the command is given again.
"""

import argparse
import json
import math
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dfme.compute.device import derived_seed
from dfme.data import ImageSet, load_dataset
from dfme.nets import build_net
from dfme.nets.architectures import NARROW_WIDTHS, BasicBlock, ResNet8x
from dfme.nets.files import save_module
from dfme.spec import ImageSpec
from dfme.teachers.local.pytorch import Normalise, TorchTeacher
from dfme.teachers.local.weights import Card
from dfme.teachers.owner.training.train import channel_statistics
from research.script import reported

ARCH = "resnet34_8x_narrow"
BATCH = 64
DECAY = 0.05
RISE = 0.1  # share of a stage's steps in which the rate rises from nothing
SAVED_EVERY = 50  # steps
SAID_EVERY = 10


@dataclass(frozen=True)
class Stage:
    """Blocks of each stage of the net, images that it learns from, and the greatest rate."""

    blocks: tuple[int, int, int, int]
    images: int
    rate: float


STAGES = (Stage((1, 1, 1, 1), 20_000, 2e-3), Stage((3, 4, 6, 3), 1_280, 5e-4))


@dataclass
class Place:
    """How far a training is: the stage, its steps, CPU seconds of all, and the seed."""

    seed: int
    stage: int = 0
    step: int = 0
    seconds: float = 0.0


def net_of(stage: Stage, train: ImageSet) -> nn.Module:
    """A net with this many blocks, as it begins."""
    sizes = (train.shape[0], train.num_classes)
    return ResNet8x(BasicBlock, stage.blocks, *sizes, widths=NARROW_WIDTHS)


def grown(shallow: nn.Module, deep: nn.Module) -> nn.Module:
    """``deep`` with the blocks of ``shallow``; its other blocks change nothing as they begin.

    What enters them is rectified, so that what leaves them is the same: x = relu(x + 0).
    """
    known = shallow.state_dict()
    for name, block in deep.named_modules():
        if isinstance(block, BasicBlock) and f"{name}.conv1.weight" not in known:
            nn.init.zeros_(block.bn2.weight)
    deep.load_state_dict(known, strict=False)
    return deep


def rate_at(share: float) -> float:
    """The rate at a share of a stage's steps, of the greatest: a rise, then a line to nothing."""
    return share / RISE if share < RISE else (1 - share) / (1 - RISE)


class Training:
    """One stage: a net, its optimiser and the order of its images."""

    def __init__(self, stage: Stage, train: ImageSet, net: nn.Module, seed: int) -> None:
        self.train = train
        self.stage = stage
        self.net = net.to(memory_format=torch.channels_last).train()
        self.normalise = Normalise(*channel_statistics(train), train.shape[0], torch.device("cpu"))
        self.optimizer = torch.optim.AdamW(net.parameters(), stage.rate, weight_decay=DECAY)
        rng = torch.Generator().manual_seed(derived_seed(seed, f"order {stage.blocks}"))
        passes = math.ceil(stage.images / len(train))
        orders = [torch.randperm(len(train), generator=rng) for _ in range(passes)]
        self.batches = torch.cat(orders)[: stage.images].split(BATCH)

    def steps(self, first: int) -> Iterator[float]:
        """Train from this step on; the share of each batch that was right."""
        for number in range(first, len(self.batches)):
            index = self.batches[number]
            x_BCHW = self.normalise(self.train.batch(index))
            yield self._step(x_BCHW, self.train.required_labels[index], number)

    def _step(self, x_BCHW: Tensor, labels_B: Tensor, number: int) -> float:
        for group in self.optimizer.param_groups:
            group["lr"] = self.stage.rate * rate_at((number + 1) / (len(self.batches) + 1))
        with torch.autocast("cpu", torch.bfloat16):
            scores_BK = self.net(x_BCHW.contiguous(memory_format=torch.channels_last))
        loss = nn.functional.cross_entropy(scores_BK.float(), labels_B)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return float((scores_BK.argmax(1) == labels_B).float().mean())


def trained(train: ImageSet, part: Path, seed: int) -> tuple[nn.Module, Place]:
    """All stages, from where ``part`` ends if it is there."""
    kept: dict[str, Any] = torch.load(part, weights_only=True) if part.exists() else {}
    place = Place(**kept["place"]) if kept else Place(seed)
    torch.manual_seed(derived_seed(place.seed, f"weights {place.stage}"))
    net = net_of(STAGES[place.stage], train)
    while True:
        stage = STAGES[place.stage]
        training = Training(stage, train, net, place.seed)
        if kept:
            net.load_state_dict(kept["net"])
            training.optimizer.load_state_dict(kept["optimizer"])
            kept = {}
        _run(training, place, part)
        if stage is STAGES[-1]:
            return net, place
        place.stage += 1
        place.step = 0
        torch.manual_seed(derived_seed(place.seed, f"weights {place.stage}"))
        net = grown(net, net_of(STAGES[place.stage], train))


def _run(training: Training, place: Place, part: Path) -> None:
    """The rest of a stage; how far it is, is said and kept."""
    began = time.process_time() - place.seconds
    right = 0.0
    for share in training.steps(place.step):
        place.step += 1
        place.seconds = time.process_time() - began
        right += share
        if place.step % SAID_EVERY == 0:
            said = f"{place.step} of {len(training.batches)} steps"
            print(
                f"stage {place.stage + 1}: {said}, {100 * right / SAID_EVERY:.0f} % right, "
                f"{place.seconds:.0f} CPU seconds",
                flush=True,
            )
            right = 0.0
        if place.step % SAVED_EVERY == 0:
            _keep(training, place, part)
    _keep(training, place, part)


def _keep(training: Training, place: Place, part: Path) -> None:
    state = {
        "place": asdict(place),
        "net": training.net.state_dict(),
        "optimizer": training.optimizer.state_dict(),
    }
    torch.save(state, new := part.with_suffix(".new"))
    new.replace(part)


def halved(net: nn.Module) -> nn.Module:
    """The net in half precision."""
    return net.to(torch.float16)


def accuracy(net: nn.Module, train: ImageSet, test: ImageSet) -> float:
    """The share of the test part that is right, by the weights as they are stored."""
    stored = build_net(ARCH, train.shape, train.num_classes)
    stored.load_state_dict(net.state_dict())  # which makes them floats of 32 bits
    mean, std = channel_statistics(train)
    teacher = TorchTeacher(stored, ImageSpec(train.shape), train.num_classes, mean, std)
    labels_N = torch.cat([teacher(test.batch(slice(n, n + 250))).argmax(1) for n in _starts(test)])
    return float((labels_N == test.required_labels).float().mean())


def _starts(test: ImageSet) -> range:
    return range(0, len(test), 250)


def save(path: Path, net: nn.Module, data: str, place: Place) -> float:
    """Write the net in half precision; its accuracy."""
    load = partial(load_dataset, data)
    train = load("train")
    test = load("test")
    share = accuracy(halved(net), train, test)
    mean, std = channel_statistics(train)
    card = Card(
        arch=ARCH,
        shape=train.shape,
        num_classes=train.num_classes,
        mean=mean,
        std=std,
        bounds=(0.0, 1.0),
        dataset=Path(data).name,
        accuracy=round(share, 6),
        test_images=len(test),
        recipe=json.loads(json.dumps({"by": "research.tasks.carried", **asdict(place)})),
    )
    save_module(path, net, card.to_metadata())
    return share


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m research.tasks.carried", description=__doc__)
    parser.add_argument("data", help="images of a task of 32x32, such as runs/tasks/plates.npz")
    parser.add_argument("out", type=Path, help="weights to write, as safetensors")
    parser.add_argument("--seed", type=int, default=0)
    of = parser.parse_args()
    train = load_dataset(of.data, "train")
    net, place = trained(train, of.out.with_suffix(".part"), of.seed)
    share = save(of.out, net, of.data, place)
    print(f"{of.out}: accuracy {100 * share:.2f} %, {place.seconds:.0f} CPU seconds of training")


if __name__ == "__main__":
    sys.exit(reported("tasks.carried", main))
