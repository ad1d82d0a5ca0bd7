"""`python -m research.fast_student`: what students' nets learn from the same answers in as many
steps.

For each teacher and seed it draws images once (or takes those of ``--pool``), asks the teacher
once, and trains each net for each number of steps, everything on one device and in bf16. It prints
the agreement with the teacher on the test images, beside the seconds of the steps, which on an
accelerator are read when all of them have ended, and images a second.
"""

import argparse
import math
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from dfme.compute.device import choose_device
from dfme.data import load_dataset
from dfme.nets import build_net
from dfme.nets.whitened import WhitenedCnn
from dfme.queries.pool import open_pool
from dfme.spec import Shape, Teacher
from dfme.students.replay import augment
from research.nets import BATCH, DECAY_IMAGES, RATE, Answered, Course, drawn, measured
from research.nets import scores as scores_of
from research.programs import answers, teacher_of
from research.script import reported
from research.whitened_net import NARROW, PrincipalNet

VARIANTS: dict[str, Callable[[int, int], nn.Module]] = {
    "narrow": partial(WhitenedCnn, NARROW),
    "principal": PrincipalNet,
    "principal_narrow": partial(PrincipalNet, widths=NARROW),
}
NETS = ("cnn_large", "resnet18_8x", "cnn_whitened", *VARIANTS)
LOOPS = ("adamw", "sgd")

# of the loop `sgd`, as published for 1,024 images: the rate of a sum over so many images, what
# biases of normalisations take of it, and the decay
MOMENTUM = 0.85
SUM_RATE = 11.5
BIAS_FACTOR = 64.0
SUM_DECAY = 0.0153
IMAGES = 1024 * (1 + 1 / (1 - MOMENTUM))
RISE = 0.23  # share of the steps in which the rate rises, from FIRST of the greatest
FIRST = 0.2
LAST = 0.07


def student(name: str, shape: Shape, classes: int) -> nn.Module:
    """A net of this name as it begins."""
    if name in VARIANTS:
        return VARIANTS[name](shape[0], classes)
    return build_net(name, shape, classes)


def multiplications(name: str, shape: Shape, classes: int) -> int:
    """Of one image on its way through the net, in millions."""
    net = student(name, shape, classes).eval()
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        net(torch.zeros(1, *shape))
    return round(int(counter.get_total_flops()) / 2e6)


def triangle(share: float) -> float:
    """The rate at a share of the steps, of the greatest."""
    if share < RISE:
        return FIRST + (1 - FIRST) * share / RISE
    return 1 - (1 - LAST) * (share - RISE) / (1 - RISE)


def cosine(share: float) -> float:
    """The rate at a share of the steps, of the first."""
    return (1 + math.cos(math.pi * share)) / 2


@dataclass(frozen=True)
class Descent:
    """An optimiser, the greatest rate of each of its groups, and their course."""

    optimizer: torch.optim.Optimizer
    rates: tuple[float, ...]
    factor: Callable[[float], float]

    def step(self, share: float) -> None:
        """One step at the rate of this share of all."""
        for group, rate in zip(self.optimizer.param_groups, self.rates, strict=True):
            group["lr"] = rate * self.factor(share)
        self.optimizer.step()
        self.optimizer.zero_grad()


def descent(loop: str, net: nn.Module, images: int, batch: int) -> Descent:
    """``adamw``: as `frugal` has it. ``sgd``: as airbench94 has it, but for a mean over images."""
    learning = [(name, value) for name, value in net.named_parameters() if value.requires_grad]
    if loop == "adamw":
        decay = math.sqrt(DECAY_IMAGES / images)
        values = [value for _, value in learning]
        return Descent(
            torch.optim.AdamW(values, RATE, weight_decay=decay, fused=True), (RATE,), cosine
        )
    rate = SUM_RATE * batch / IMAGES
    decay = SUM_DECAY * batch / IMAGES
    biases = [value for name, value in learning if value.ndim == 1 and name.endswith(".bias")]
    others = [value for name, value in learning if value.ndim > 1 or not name.endswith(".bias")]
    groups = [
        {"params": biases, "weight_decay": decay / (rate * BIAS_FACTOR)},
        {"params": others, "weight_decay": decay / rate},
    ]
    optimizer = torch.optim.SGD(groups, rate, momentum=MOMENTUM, nesterov=True, fused=True)
    return Descent(optimizer, (rate * BIAS_FACTOR, rate), triangle)


class DeviceLoop:
    """Training of a net on paid answers with everything on one device: no step waits for it.

    Images are normalised by their channels' mean and deviation, as a part of the net; what is drawn
    is drawn on the device, the order of the images before the first step.
    """

    def __init__(
        self, net: nn.Module, loop: str, paid: Answered, course: Course, batch: int
    ) -> None:
        self.device = paid.x_NCHW.device
        self.rng = torch.Generator(self.device).manual_seed(course.seed)
        self.net = nn.Sequential(Normalised(paid.x_NCHW), net).to(self.device)
        self.net.to(memory_format=torch.channels_last)
        if isinstance(net, PrincipalNet):
            net.whiten(self.net[0](paid.x_NCHW))
        self.x_NCHW = paid.x_NCHW.contiguous(memory_format=torch.channels_last)
        self.target = course.target(paid)
        self.course = course
        self.batch = batch
        self.descent = descent(loop, net, len(paid.x_NCHW), batch)
        self.taken = 0
        self.order = self._order()

    def _order(self) -> Tensor:
        """Each image once in each pass, for all steps."""
        images = len(self.x_NCHW)
        passes = math.ceil(self.course.steps * self.batch / images)
        orders = [
            torch.randperm(images, generator=self.rng, device=self.device) for _ in range(passes)
        ]
        return torch.cat(orders)

    def step(self) -> Tensor:
        """One step; its loss, which lies on the device."""
        start = self.taken * self.batch
        index_B = self.order[start : start + self.batch]
        x_BCHW = augment(self.x_NCHW[index_B], "affine", self.rng)
        half = self.course.precision == "bf16"
        with torch.autocast(self.device.type, torch.bfloat16, enabled=half):
            scores_BK = self.net(x_BCHW.contiguous(memory_format=torch.channels_last))
        loss = self.course.loss(scores_BK.float(), self.target[index_B])
        loss.backward()
        self.descent.step(self.taken / self.course.steps)
        self.taken += 1
        return loss.detach()

    def run(self) -> nn.Module:
        """All steps; the net."""
        for _ in range(self.course.steps):
            self.step()
        return self.net


class Normalised(nn.Module):
    """Images less the mean of each channel, by its deviation."""

    mean_C11: Tensor
    std_C11: Tensor

    def __init__(self, x_NCHW: Tensor) -> None:
        super().__init__()
        std_C, mean_C = torch.std_mean(x_NCHW, (0, 2, 3))
        self.register_buffer("mean_C11", mean_C[:, None, None])
        self.register_buffer("std_C11", std_C.clamp_min(1e-3)[:, None, None])

    def forward(self, x_BCHW: Tensor) -> Tensor:
        """(B, C, H, W) to the same."""
        normalised_BCHW: Tensor = (x_BCHW - self.mean_C11) / self.std_C11
        return normalised_BCHW


def ended(device: torch.device) -> float:
    """The clock once the device has done everything: on a CPU that of the processor's time."""
    if device.type == "cpu":
        return time.process_time()
    torch.cuda.synchronize(device)
    return time.perf_counter()


def measure(
    name: str, loop: str, paid: Answered, test: Answered, course: Course, batch: int
) -> str:
    """One row of the table."""
    torch.manual_seed(course.seed)
    shape = (int(paid.x_NCHW.shape[1]), int(paid.x_NCHW.shape[2]), int(paid.x_NCHW.shape[3]))
    classes = paid.scores_NK.shape[1]
    training = DeviceLoop(student(name, shape, classes), loop, paid, course, batch)
    start = ended(training.device)
    net = training.run()
    seconds = ended(training.device) - start
    agreement, even = measured(test, scores_of(net, test.x_NCHW))
    return (
        f"| {name} | {loop} | {course.seed} | {course.steps} | {agreement:.1f} | {even:.1f} | "
        f"{multiplications(name, shape, classes)} | {seconds:.1f} | "
        f"{course.steps * batch / seconds:,.0f} |"
    )


def asked(teacher: Teacher, x_NCHW: Tensor, device: torch.device) -> Answered:
    return Answered(x_NCHW.to(device), answers(teacher, x_NCHW).to(device))


def task(teacher: Teacher, data: str, of: argparse.Namespace, device: torch.device) -> None:
    """All nets on one teacher."""
    images = load_dataset(data, "test", shape=teacher.spec.shape)
    low, high = teacher.spec.bounds
    test = asked(teacher, images.batch(slice(0, of.evaluated)) * (high - low) + low, device)
    for seed in of.seeds:
        if of.pool:
            rng = torch.Generator().manual_seed(seed)
            x_NCHW = open_pool(of.pool, teacher.spec).draw(of.count, rng)
        else:
            x_NCHW = drawn(teacher.spec, seed, of.count)
        paid = asked(teacher, x_NCHW, device)
        for steps in of.steps:
            course = Course(steps, of.labels, seed, of.precision)
            for said in of.nets:
                name, _, loop = said.partition("+")
                print(measure(name, loop or "adamw", paid, test, course, of.batch), flush=True)


def options() -> argparse.ArgumentParser:
    """What the command line takes."""
    parser = argparse.ArgumentParser(prog="python -m research.fast_student", description=__doc__)
    parser.add_argument(
        "--task", nargs=2, action="append", required=True, metavar=("TEACHER", "DATA"),
        help="weights as of run.py train-teacher, or a .pt2 program; test images",
    )  # fmt: skip
    choices = [name + loop for name in NETS for loop in ("", *(f"+{loop}" for loop in LOOPS))]
    parser.add_argument(
        "--nets",
        nargs="+",
        default=list(NETS[:3]),
        choices=choices,
        metavar="NET+LOOP",
    )
    parser.add_argument("--pool", default="", help="images to ask of in place of drawn ones")
    parser.add_argument("-n", "--count", type=int, default=3000)
    parser.add_argument("-s", "--steps", type=int, nargs="+", default=[300])
    parser.add_argument("--seeds", type=int, nargs="+", default=[10, 11])
    parser.add_argument("--batch", type=int, default=BATCH)
    parser.add_argument("--labels", action="store_true", help="learn from labels alone")
    parser.add_argument("-t", "--trust", action="store_true", help="run the code of a .pt2 program")
    parser.add_argument("--evaluated", type=int, default=2000, help="test images")
    parser.add_argument("--precision", choices=["bf16", "fp32"], default="bf16")
    parser.add_argument("--device", default="cpu", help="auto, cpu, cuda or cuda:N")
    return parser


def main() -> None:
    of = options().parse_args()
    device = choose_device(of.device)
    for path, data in of.task:
        by = "labels" if of.labels else "scores"
        print(f"\n{path}, {of.count} {by}, {of.batch} images a step, {device}\n")
        print("| case | loop | seed | steps | agreement | balanced | M mult. | s | images/s |")
        print("| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |", flush=True)
        task(teacher_of(Path(path), of.trust), data, of, device)


if __name__ == "__main__":
    sys.exit(reported("fast_student", main))
