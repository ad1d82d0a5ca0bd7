"""`python -m research.programs`: what each program's images are worth alone, by a plain loop on one
teacher.

It draws images once, asks the teacher once, trains one small network on the answers and prints its
agreement with the teacher on the test images of a data set. Images of several programs, `a+b`, are
mixed evenly. A data set's name or file in place of a program is an upper bound: as many of its
training images.

Beside the agreement stand the balanced one (`dfme.run.scores.balanced`), the number of classes with
at least 1 % of the paid answers, and the entropy of these answers as a share of log K.
"""

import argparse
import math
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from dfme.config.settings import Augmentation, TeacherConfig
from dfme.data import DATASETS, load_dataset
from dfme.nets import build_net
from dfme.queries.programs import ProceduralImages
from dfme.run.scores import balanced
from dfme.spec import ImageSpec, Shape, Teacher
from dfme.students.replay import augment
from dfme.teachers.build import make_teacher
from research.script import reported

BATCH = 64
DECAY = 1e-2
FRUGAL_DECAY = 1.0  # of 5,000 images, as in configs/frugal.yaml above 16 pixels
DECAY_IMAGES = 5000
SHARE = 0.01  # of the answers, from which on a class is reached


@dataclass(frozen=True)
class Copy:
    """A student, and how often each of K classes was answered to its images."""

    net: nn.Module
    answers_K: Tensor

    @property
    def reached(self) -> int:
        """Number of classes with at least 1 % of the answers."""
        return int((self.answers_K >= SHARE * self.answers_K.sum()).sum())

    @property
    def entropy(self) -> float:
        """Entropy of the answered classes, as a share of log K."""
        entropy = torch.distributions.Categorical(self.answers_K.double()).entropy()
        return float(entropy) / math.log(len(self.answers_K))


def small_net(shape: Shape, classes: int) -> nn.Module:
    """Two convolutions with batch normalisation and two linear layers; no finer than 8x8 within."""
    stride = 2 if min(shape[1:]) > 16 else 1
    layers = [
        nn.Conv2d(shape[0], 32, 3, stride, 1), nn.BatchNorm2d(32), nn.ReLU(),
        nn.Conv2d(32, 64, 3, 2, 1), nn.BatchNorm2d(64), nn.ReLU(),
        nn.Flatten(), nn.LazyLinear(128), nn.ReLU(), nn.Linear(128, classes),
    ]  # fmt: skip
    net = nn.Sequential(*layers)
    net(torch.zeros(2, *shape))  # the lazy layer takes its size
    return net


def train(net: nn.Module, x_NCHW: Tensor, target: Tensor, steps: int, frugal: bool) -> None:
    """AdamW with a cosine schedule; ``target``: probabilities (N, K), or labels (N,).

    ``frugal``: with the decay, the augmentation and the bf16 arithmetic of the recipe `frugal`
    above 16 pixels.
    """
    how: Augmentation = "affine" if frugal else "none"
    decay = FRUGAL_DECAY * math.sqrt(DECAY_IMAGES / len(x_NCHW)) if frugal else DECAY
    optimizer = torch.optim.AdamW(net.parameters(), 2e-3, weight_decay=decay)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, steps, pct_start=0.05)
    for _ in range(steps):
        index = torch.randint(len(x_NCHW), (BATCH,))
        batch_BCHW = augment(x_NCHW[index], how, torch.default_generator)
        with torch.autocast("cpu", torch.bfloat16, enabled=frugal):
            scores_BK = net(batch_BCHW).float()
        loss = functional.cross_entropy(scores_BK, target[index])  # KL but for a constant
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    net.eval()


def images_of(name: str, spec: ImageSpec, count: int, rng: torch.Generator) -> Tensor:
    """Images of programs, ``a+b``, or the training images of a data set, any of them."""
    if name not in DATASETS and not name.endswith(".npz"):
        return ProceduralImages(spec, name.split("+")).draw(count, rng)
    images = load_dataset(name, "train", shape=spec.shape)
    low, high = spec.bounds
    return images.batch(torch.randperm(len(images), generator=rng)[:count]) * (high - low) + low


def copied(teacher: Teacher, name: str, seed: int, of: argparse.Namespace) -> Copy:
    """A student of the teacher's answers to these images."""
    torch.manual_seed(seed)
    rng = torch.Generator().manual_seed(seed)
    x_NCHW = teacher.spec.quantise(images_of(name, teacher.spec, of.count, rng))
    scores_NK = answers(teacher, x_NCHW)
    top_N = scores_NK.argmax(1)
    sizes = (teacher.spec.shape, teacher.num_classes)
    net = build_net(of.arch, *sizes) if of.arch else small_net(*sizes)
    train(net, x_NCHW, top_N if of.labels else scores_NK, of.steps, of.frugal)
    return Copy(net, top_N.bincount(minlength=teacher.num_classes))


def answers(model: Callable[[Tensor], Tensor], x_NCHW: Tensor) -> Tensor:
    """Answers of a teacher or a student (N, K)."""
    with torch.no_grad():
        return torch.cat([model(part) for part in x_NCHW.split(500)])


def teacher_of(path: Path, trust: bool) -> Teacher:
    """A checkpoint of `run.py train-teacher`, or an exported program."""
    if path.suffix != ".pt2":
        return make_teacher(TeacherConfig(), {"checkpoint": str(path)}, torch.device("cpu"))
    options = {"program": str(path), "trust": trust}
    return make_teacher(TeacherConfig(kind="pt2"), options, torch.device("cpu"))


def line(name: str, shares: list[tuple[float, float]], copies: list[Copy], seconds: float) -> str:
    """One row: agreement, balanced agreement, classes, entropy, each seed's agreement, seconds."""
    agreement = 100 * statistics.mean(share for share, _ in shares)
    even = 100 * statistics.mean(share for _, share in shares)
    reached = statistics.mean(copy.reached for copy in copies)
    entropy = statistics.mean(copy.entropy for copy in copies)
    seeds = ", ".join(f"{100 * share:.1f}" for share, _ in shares)
    return (
        f"{name:32} {agreement:5.1f}  balanced {even:5.1f}  classes {reached:4.1f}"
        f"  entropy {entropy:4.2f}  ({seeds}; {seconds:.0f} s each)"
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m research.programs", description=__doc__)
    parser.add_argument(
        "teacher", type=Path, help="weights as of run.py train-teacher, or a .pt2 program"
    )
    parser.add_argument("data", help="test images: the name of a data set, or an .npz file")
    parser.add_argument("programs", nargs="+", help="program, or several as a+b; or a data set")
    parser.add_argument("-n", "--count", type=int, default=2000)
    parser.add_argument(
        "-a", "--arch", default="", help="a network of dfme.nets in place of the small one"
    )
    parser.add_argument("-s", "--steps", type=int, default=600)
    parser.add_argument("--seeds", type=int, nargs="+", default=[10, 11])
    parser.add_argument("--labels", action="store_true", help="learn from labels alone")
    parser.add_argument(
        "-f", "--frugal", action="store_true", help="train with frugal's augmentation and decay"
    )
    parser.add_argument("-t", "--trust", action="store_true", help="run the code of a .pt2 program")
    of = parser.parse_args()
    teacher = teacher_of(of.teacher, of.trust)
    images = load_dataset(of.data, "test", shape=teacher.spec.shape)
    low, high = teacher.spec.bounds
    test_NCHW = images.batch(slice(0, 2000)) * (high - low) + low
    labels_N = answers(teacher, test_NCHW).argmax(1)
    images_K = labels_N.bincount()
    constant = 100 * int(images_K.max()) / len(labels_N)
    print(
        f"{'constant answer':32} {constant:5.1f}  balanced {100 / int((images_K > 0).sum()):5.1f}",
        flush=True,
    )
    for name in of.programs:
        start = time.process_time()
        copies = [copied(teacher, name, seed, of) for seed in of.seeds]
        same = [answers(copy.net, test_NCHW).argmax(1) == labels_N for copy in copies]
        shares = [(float(same_N.float().mean()), balanced(same_N, labels_N)) for same_N in same]
        spent = (time.process_time() - start) / len(copies)
        print(line(name, shares, copies, spent), flush=True)


if __name__ == "__main__":
    sys.exit(reported("programs", main))
