"""`python -m research.unpaid`: do images that nobody paid for, or mixed answers, help a student? A
plain loop on one teacher, trained as `frugal` trains above 16 pixels a side.

It pays for some images of a source, trains one `cnn_large` on the answers and prints its agreement
with the teacher, the balanced one, and CPU seconds of the training, a start included. Compare ideas
at equal CPU seconds: give the plain row the steps that an idea's time is worth.

- `mixup`, `cutmix`: two paid images are mixed, and their scores (Zhang et al. 2018; Yun et al.
  2019).
- `consistency`: half of each batch are unasked images. The student's moving average answers them,
  turned a little; the student has to answer alike when they are recoloured and partly covered too
  (mean teacher, Tarvainen & Valpola 2017; FixMatch, Sohn et al. 2020, with soft answers).
- `--start-steps`: before, the layers below the last learn which two views are of one unasked image
  (SimCLR, Chen et al. 2020).
- `--statistics`: afterwards the averages of batch normalisation are taken from unasked images (Li
  et al. 2016, AdaBN), in a second row.
"""

import argparse
import copy
import math
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from dfme.data import load_dataset
from dfme.nets import build_net
from dfme.queries.programs import ProceduralImages
from dfme.run.scores import balanced
from dfme.spec import ImageSpec, Teacher
from dfme.students.replay import augment
from dfme.students.trainer import MovingAverage
from research.programs import answers, teacher_of
from research.script import reported

ARCH = "cnn_large"
BATCH = 64
RATE = 2e-3
DECAY = 1.0  # of 5,000 images, as in configs/frugal.yaml above 16 pixels
DECAY_IMAGES = 5000
AVERAGE = 0.99
RAMP = 0.4  # share of the steps, over which the weight of unasked images rises to 1
CONTRAST = 0.4  # most change of contrast; of brightness half, of colourfulness twice as much
TINT = 0.1  # most change of a channel
PROGRAMS = ("leaves", "pen", "text")
DRAWN_UNASKED = 9000
UNASKED_SEED = 1000
PAIRS = 128  # images in a batch of the start
TEMPERATURE = 0.2
PROJECTION = 64
SHARE = 0.01  # of the answers, from which on a class is reached


# Views of an image


def mirrored(x_BCHW: Tensor, rng: torch.Generator) -> Tensor:
    """Half of the images, left to right."""
    turned_B111 = torch.rand(len(x_BCHW), 1, 1, 1, generator=rng) < 0.5
    return torch.where(turned_B111, x_BCHW.flip(3), x_BCHW)


def recoloured(x_BCHW: Tensor, rng: torch.Generator) -> Tensor:
    """Brightness, contrast, colourfulness and tint changed, within 0 and 1."""
    batch, channels = x_BCHW.shape[:2]
    draws_B4 = 2 * torch.rand(batch, 3 + channels, generator=rng) - 1
    contrast_B, light_B, colour_B = draws_B4[:, :3, None, None, None].unbind(1)
    mean_B111 = x_BCHW.mean((1, 2, 3), keepdim=True)
    changed_BCHW = (x_BCHW - mean_B111) * (1 + CONTRAST * contrast_B)
    changed_BCHW = changed_BCHW + mean_B111 + CONTRAST / 2 * light_B
    if channels == 3:
        grey_B1HW = changed_BCHW.mean(1, keepdim=True)
        changed_BCHW = grey_B1HW + (changed_BCHW - grey_B1HW) * (1 + 2 * CONTRAST * colour_B)
        changed_BCHW = changed_BCHW + TINT * draws_B4[:, 3:, None, None]
    seen_BCHW: Tensor = changed_BCHW.clamp(0, 1)
    return seen_BCHW


def covered(x_BCHW: Tensor, rng: torch.Generator) -> Tensor:
    """A square of half the side, which may reach over the edge, becomes the image's mean (cutout,
    DeVries & Taylor 2017).
    """
    batch, _, height, width = x_BCHW.shape
    side = height // 2
    top_B, left_B = (
        torch.randint(-side // 2, most - side // 2, (batch, 1, 1, 1), generator=rng)
        for most in (height, width)
    )
    row_H1 = torch.arange(height)[:, None]
    column_W = torch.arange(width)
    high_BHW = (row_H1 >= top_B) & (row_H1 < top_B + side)
    wide_BHW = (column_W >= left_B) & (column_W < left_B + side)
    return torch.where(high_BHW & wide_BHW, x_BCHW.mean((1, 2, 3), keepdim=True), x_BCHW)


def cropped(x_BCHW: Tensor, rng: torch.Generator) -> Tensor:
    """A part of .3 to 1 of the area, enlarged to the whole, mirrored half of the time."""
    batch = len(x_BCHW)
    size_B = (0.3 + 0.7 * torch.rand(batch, generator=rng)).sqrt()
    right_B, down_B = (1 - size_B) * (2 * torch.rand(2, batch, generator=rng) - 1)
    sign_B = torch.where(torch.rand(batch, generator=rng) < 0.5, -1.0, 1.0)
    zero_B = torch.zeros(batch)
    rows = [size_B * sign_B, zero_B, right_B, zero_B, size_B, down_B]
    grid_BHW2 = functional.affine_grid(
        torch.stack(rows, 1).view(-1, 2, 3), list(x_BCHW.shape), align_corners=False
    )
    part_BCHW: Tensor = functional.grid_sample(
        x_BCHW, grid_BHW2, padding_mode="border", align_corners=False
    )
    return part_BCHW


def mixed(
    x_BCHW: Tensor, target_BK: Tensor, idea: str, rng: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Each image with another of the batch, by one share for all, evenly drawn; targets alike."""
    other_B = torch.randperm(len(x_BCHW), generator=rng)
    share = float(torch.rand((), generator=rng))
    if idea == "mixup":
        mixed_BCHW = share * x_BCHW + (1 - share) * x_BCHW[other_B]
    else:
        high, wide = (int(side * math.sqrt(1 - share)) for side in x_BCHW.shape[2:])
        top = int(torch.randint(x_BCHW.shape[2] - high + 1, (), generator=rng))
        left = int(torch.randint(x_BCHW.shape[3] - wide + 1, (), generator=rng))
        mixed_BCHW = x_BCHW.clone()
        part = (..., slice(top, top + high), slice(left, left + wide))
        mixed_BCHW[part] = x_BCHW[other_B][part]
        share = 1 - high * wide / x_BCHW[0, 0].numel()
    return mixed_BCHW, share * target_BK + (1 - share) * target_BK[other_B]


# Training


@dataclass
class Loop:
    """One training on paid images and scores (N, K), with unasked images beside; [0, 1], uint8."""

    idea: str
    mirror: bool
    colour: bool
    paid_NCHW: Tensor
    scores_NK: Tensor
    unasked_NCHW: Tensor
    rng: torch.Generator

    def batch(self, images_NCHW: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """Any images, and their numbers."""
        index_B = torch.randint(len(images_NCHW), (count,), generator=self.rng)
        return images_NCHW[index_B].float() / 255, index_B

    def view(self, x_BCHW: Tensor) -> Tensor:
        x_BCHW = augment(x_BCHW, "affine", self.rng)
        return mirrored(x_BCHW, self.rng) if self.mirror else x_BCHW

    def paid_view(self, x_BCHW: Tensor) -> Tensor:
        x_BCHW = self.view(x_BCHW)
        return recoloured(x_BCHW, self.rng) if self.colour else x_BCHW

    def start(self, net: nn.Module, steps: int) -> None:
        """The layers below the last learn which two views are of one unasked image."""
        last = net.linear
        assert isinstance(last, nn.Linear)
        net.linear = nn.Identity()
        head = nn.Sequential(
            nn.Linear(last.in_features, 256), nn.ReLU(), nn.Linear(256, PROJECTION)
        )
        both = nn.Sequential(net, head)
        pair_B = torch.arange(2 * PAIRS).roll(PAIRS)
        for optimizer, _ in cosine(both, DECAY / 10, steps):
            x_BCHW, _ = self.batch(self.unasked_NCHW, PAIRS)
            views = [recoloured(cropped(x_BCHW, self.rng), self.rng) for _ in range(2)]
            place_BP = functional.normalize(scores_of(both, torch.cat(views)), dim=1)
            alike_BB = (place_BP @ place_BP.T / TEMPERATURE).fill_diagonal_(-1e9)
            step(optimizer, functional.cross_entropy(alike_BB, pair_B))
        net.linear = last

    def train(self, net: nn.Module, steps: int) -> None:
        decay = DECAY * math.sqrt(DECAY_IMAGES / len(self.paid_NCHW))
        consistent = self.idea == "consistency"
        average = MovingAverage(net, AVERAGE) if consistent else None
        paid = BATCH // 2 if consistent else BATCH
        for optimizer, progress in cosine(net, decay, steps):
            x_BCHW, index_B = self.batch(self.paid_NCHW, paid)
            x_BCHW = self.paid_view(x_BCHW)
            target_BK = self.scores_NK[index_B]
            if self.idea in ("mixup", "cutmix"):
                x_BCHW, target_BK = mixed(x_BCHW, target_BK, self.idea, self.rng)
            if average is None:
                step(optimizer, divergence(scores_of(net, x_BCHW), target_BK))
                continue
            other_BCHW, _ = self.batch(self.unasked_NCHW, BATCH - paid)
            with torch.no_grad():
                answer_BK = scores_of(average.eval(), self.view(other_BCHW)).softmax(1)
            strong_BCHW = covered(recoloured(self.view(other_BCHW), self.rng), self.rng)
            scores_BK = scores_of(net, torch.cat([x_BCHW, strong_BCHW]))
            loss = min(1.0, progress / RAMP) * divergence(scores_BK[paid:], answer_BK)
            step(optimizer, divergence(scores_BK[:paid], target_BK) + loss)
            average.update_parameters(net)


def cosine(
    net: nn.Module, decay: float, steps: int
) -> Iterator[tuple[torch.optim.Optimizer, float]]:
    """AdamW at a cosine rate, before each step, and the share of the steps that is done."""
    optimizer = torch.optim.AdamW(net.parameters(), RATE, weight_decay=decay, fused=True)
    net.train()
    for number in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = RATE * 0.5 * (1 + math.cos(math.pi * number / steps))
        yield optimizer, number / steps


def step(optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def scores_of(net: nn.Module, x_BCHW: Tensor) -> Tensor:
    """Scores (B, K) in fp32, computed in bf16 as on a CPU of today."""
    with torch.autocast("cpu", torch.bfloat16):
        scores_BK: Tensor = net(x_BCHW)
    return scores_BK.float()


def divergence(scores_BK: Tensor, target_BK: Tensor) -> Tensor:
    """Kullback-Leibler divergence of the student's softmax from the target, in nats."""
    return functional.kl_div(scores_BK.log_softmax(1), target_BK, reduction="batchmean")


def with_statistics(net: nn.Module, images_NCHW: Tensor, rng: torch.Generator) -> nn.Module:
    """A copy whose batch normalisation has the averages of 2,000 of these images."""
    other = copy.deepcopy(net).train()
    for module in other.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.reset_running_stats()
            module.momentum = None  # the plain mean over batches
    with torch.no_grad():
        for part in images_NCHW[torch.randperm(len(images_NCHW), generator=rng)[:2000]].split(500):
            other(part.float() / 255)
    return other.eval()


# Images and the report


def bytes_of(name: str, spec: ImageSpec, count: int, rng: torch.Generator) -> Tensor:
    """Images, uint8: ``drawn``, or the training images of a data set, any of them."""
    if name == "drawn":
        x_NCHW = ProceduralImages(spec, PROGRAMS).draw(count, rng)
    else:
        images = load_dataset(name, "train", shape=spec.shape)
        x_NCHW = images.batch(torch.randperm(len(images), generator=rng)[:count])
    return (x_NCHW * 255).round().to(torch.uint8)


def sources(of: argparse.Namespace, spec: ImageSpec, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    """The paid images and those that nobody asks: of one data set the rest."""
    if of.paid == of.unasked != "drawn":
        both_NCHW = bytes_of(of.paid, spec, 10**9, rng)
        return both_NCHW[: of.count], both_NCHW[of.count :]
    paid_NCHW = bytes_of(of.paid, spec, of.count, rng)
    if of.idea != "consistency" and not of.start_steps and not of.statistics:
        return paid_NCHW, paid_NCHW[:0]  # nothing is drawn or read in vain
    other = torch.Generator().manual_seed(UNASKED_SEED)
    return paid_NCHW, bytes_of(of.unasked, spec, of.most or DRAWN_UNASKED, other)


def row(name: str, got_N: Tensor, labels_N: Tensor, end: str) -> str:
    same_N = got_N == labels_N
    reached = int((got_N.bincount() >= SHARE * len(got_N)).sum())
    agreement = 100 * float(same_N.float().mean())
    even = 100 * balanced(same_N, labels_N)
    return f"{name:40} {agreement:5.1f}  balanced {even:5.1f}  classes answered {reached}{end}"


def run(of: argparse.Namespace, teacher: Teacher, seed: int) -> Iterator[tuple[nn.Module, str]]:
    """Students to score, each with what its row says besides."""
    torch.manual_seed(seed)
    rng = torch.Generator().manual_seed(seed)
    paid_NCHW, unasked_NCHW = sources(of, teacher.spec, rng)
    scores_NK = torch.cat([teacher(part.float() / 255) for part in paid_NCHW.split(500)])
    top_N = scores_NK.argmax(1)
    if of.labels:
        scores_NK = functional.one_hot(top_N, teacher.num_classes).float()
    net = build_net(ARCH, teacher.spec.shape, teacher.num_classes)
    loop = Loop(of.idea, of.mirror, of.colour, paid_NCHW, scores_NK, unasked_NCHW, rng)
    began = time.process_time()
    if of.start_steps:
        loop.start(net, of.start_steps)
    loop.train(net, of.steps)
    spent = time.process_time() - began
    share_K = top_N.bincount(minlength=teacher.num_classes) / len(top_N)
    entropy = float(torch.special.entr(share_K).sum()) / math.log(len(share_K))
    paid = f"  paid: classes {int((share_K >= SHARE).sum())}, entropy {entropy:.2f}"
    yield net.eval(), f"{paid}  {spent:.0f} CPU s"
    if of.statistics:
        yield with_statistics(net, unasked_NCHW, rng), "  statistics of unasked images"


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m research.unpaid",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "teacher", type=Path, help="weights as of run.py train-teacher, or a .pt2 program"
    )
    parser.add_argument("data", help="test images: the name of a data set, or an .npz file")
    parser.add_argument("-p", "--paid", default="drawn", help="drawn, or a data set")
    parser.add_argument("-u", "--unasked", default="drawn", help="drawn, or a data set")
    parser.add_argument("--most", type=int, default=0, help="most unasked images of another source")
    parser.add_argument(
        "-i", "--idea", default="plain", choices=["plain", "mixup", "cutmix", "consistency"]
    )
    parser.add_argument(
        "-m", "--mirror", action="store_true", help="paid images are mirrored as well"
    )
    parser.add_argument(
        "-c", "--colour", action="store_true", help="paid images are recoloured as well"
    )
    parser.add_argument("-b", "--start-steps", type=int, default=0)
    parser.add_argument("-a", "--statistics", action="store_true")
    parser.add_argument("-n", "--count", type=int, default=1000, help="paid images")
    parser.add_argument("-s", "--steps", type=int, default=1000)
    parser.add_argument("--seeds", type=int, nargs="+", default=[10, 11])
    parser.add_argument("--labels", action="store_true", help="learn from labels alone")
    parser.add_argument("-t", "--trust", action="store_true", help="run the code of a .pt2 program")
    of = parser.parse_args()
    teacher = teacher_of(of.teacher, of.trust)
    if tuple(teacher.spec.bounds) != (0, 1):
        parser.error(f"expected a teacher of pixels within 0 and 1, got {teacher.spec.bounds}")
    test_NCHW = load_dataset(of.data, "test", shape=teacher.spec.shape).batch(slice(0, 2000))
    labels_N = answers(teacher, test_NCHW).argmax(1)
    constant_N = labels_N.mode().values.expand(len(labels_N))
    print(row("constant answer", constant_N, labels_N, ""), flush=True)
    for seed in of.seeds:
        for net, end in run(of, teacher, seed):
            got_N = answers(net, test_NCHW).argmax(1)
            print(row(f"{of.idea}, {of.paid}, seed {seed}", got_N, labels_N, end), flush=True)


if __name__ == "__main__":
    sys.exit(reported("unpaid", main))
