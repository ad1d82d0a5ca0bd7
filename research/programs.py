"""`python -m research.programs`: what each program's images are worth alone, by a plain loop on one
teacher.

It draws images once, asks the teacher once, trains one small network on the answers and prints its
agreement with the teacher on the test images of a data set. Images of several programs, `a+b`, are
mixed evenly.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from dfme.config.settings import TeacherConfig
from dfme.data import load_dataset
from dfme.nets import build_net
from dfme.queries.programs import ProceduralImages
from dfme.spec import Shape, Teacher
from dfme.teachers.build import make_teacher

BATCH = 64


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


def train(net: nn.Module, x_NCHW: Tensor, target: Tensor, steps: int) -> None:
    """AdamW with a cosine schedule; ``target``: probabilities (N, K), or labels (N,)."""
    optimizer = torch.optim.AdamW(net.parameters(), 2e-3, weight_decay=1e-2)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, steps, pct_start=0.05)
    for _ in range(steps):
        index = torch.randint(len(x_NCHW), (BATCH,))
        loss = functional.cross_entropy(net(x_NCHW[index]), target[index])  # KL but for a constant
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    net.eval()


def copied(teacher: Teacher, programs: list[str], seed: int, of: argparse.Namespace) -> nn.Module:
    """A student of the teacher's answers to images of these programs."""
    torch.manual_seed(seed)
    x_NCHW = ProceduralImages(teacher.spec, programs).draw(
        of.count, torch.Generator().manual_seed(seed)
    )
    x_NCHW = teacher.spec.quantise(x_NCHW)
    scores_NK = answers(teacher, x_NCHW)
    sizes = (teacher.spec.shape, teacher.num_classes)
    net = build_net(of.arch, *sizes) if of.arch else small_net(*sizes)
    train(net, x_NCHW, scores_NK.argmax(1) if of.labels else scores_NK, of.steps)
    return net


def answers(model: Callable[[Tensor], Tensor], x_NCHW: Tensor) -> Tensor:
    with torch.no_grad():
        return torch.cat([model(part) for part in x_NCHW.split(500)])


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m research.programs", description=__doc__)
    parser.add_argument("teacher", type=Path, help="weights as of run.py train-teacher")
    parser.add_argument("data", help="test images: the name of a data set, or an .npz file")
    parser.add_argument("programs", nargs="+", help="program, or several as a+b")
    parser.add_argument("-n", "--count", type=int, default=2000)
    parser.add_argument(
        "-a", "--arch", default="", help="a network of dfme.nets in place of the small one"
    )
    parser.add_argument("-s", "--steps", type=int, default=600)
    parser.add_argument("--seeds", type=int, nargs="+", default=[10, 11])
    parser.add_argument("--labels", action="store_true", help="learn from labels alone")
    of = parser.parse_args()
    teacher = make_teacher(TeacherConfig(), {"checkpoint": str(of.teacher)}, torch.device("cpu"))
    images = load_dataset(of.data, "test", shape=teacher.spec.shape)
    low, high = teacher.spec.bounds
    test_NCHW = images.batch(slice(0, 2000)) * (high - low) + low
    labels_N = answers(teacher, test_NCHW).argmax(1)
    print(
        f"{'constant answer':24} {100 * int(labels_N.bincount().max()) / len(labels_N):5.1f}",
        flush=True,
    )
    for mixture in of.programs:
        start = time.process_time()
        students = [copied(teacher, mixture.split("+"), seed, of) for seed in of.seeds]
        same = [answers(net, test_NCHW).argmax(1) == labels_N for net in students]
        found = [100 * float(each.float().mean()) for each in same]
        spent = (time.process_time() - start) / len(found)
        each = ", ".join(f"{share:.1f}" for share in found)
        print(
            f"{mixture:24} {statistics.mean(found):5.1f}  ({each}; {spent:.0f} s each)", flush=True
        )


if __name__ == "__main__":
    main()
