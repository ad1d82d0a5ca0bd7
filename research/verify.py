"""`python -m research.verify`: do wrong answers, or answers on the boundary, tell copies from
twins?

For each twin in turn: five of the others are references, it is an innocent suspect, and all copies
are guilty ones. Printed: AUROC of the share of matches, copies against the twin, for mistakes (E),
boundary images (B) and half of each, over all twins and seeds; a copy learnt from labels where its
run says so.
"""

import argparse
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from dfme.audits.verify.probes import Mistakes, choose, find_mistakes
from dfme.config.settings import TeacherConfig
from dfme.data import load_dataset
from dfme.report.markdown import table
from dfme.run.student_file import load_student
from dfme.spec import Teacher
from dfme.teachers.build import make_teacher
from research.programs import answers

ASKED = (50, 100, 200, 300)
PAIRS = 3_000  # of held-out images, between which boundary images are looked for
STEPS = 13  # on the way from one image of a pair to the other
REFERENCES = 5


class Copy(NamedTuple):
    """A student: its run's name, its agreement, whether it learnt from labels, and its top
    classes.
    """

    name: str
    agreement: float
    labels: bool
    net: torch.nn.Module


def boundary(owner: Teacher, x_NCHW: Tensor, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    """Images on the way from one to another, through a soft random mask, where the margin is
    least.
    """
    first_N, second_N = torch.randint(len(x_NCHW), (2, PAIRS), generator=rng)
    class_N = answers(owner, x_NCHW).argmax(1)
    apart_N = class_N[first_N] != class_N[second_N]
    one, other = x_NCHW[first_N[apart_N]], x_NCHW[second_N[apart_N]]
    coarse = torch.rand(len(one), 1, 4, 4, generator=rng)
    mask = functional.interpolate(
        coarse, list(x_NCHW.shape[2:]), mode="bicubic", align_corners=False
    )
    best, least = one, torch.full((len(one),), 2.0)
    for step in range(STEPS):
        share = torch.sigmoid(8 * (mask - 1 + step / (STEPS - 1)))
        mixed = owner.spec.quantise(one.lerp(other, share))
        two = answers(owner, mixed).topk(2, dim=1).values
        nearer = two[:, 0] - two[:, 1] < least
        least = torch.where(nearer, two[:, 0] - two[:, 1], least)
        best = torch.where(nearer[:, None, None, None], mixed, best)
    return best, answers(owner, best).argmax(1)


def teacher_of(path: Path) -> Teacher:
    return make_teacher(TeacherConfig(), {"checkpoint": str(path)}, torch.device("cpu"))


def copies_in(folder: Path) -> list[Copy]:
    found = []
    for path in sorted(folder.glob("*/summary.json")):
        summary = json.loads(path.read_text())
        labels = summary["label_mode"] == "label"
        found.append(
            Copy(path.parent.name, summary["agreement"], labels, load_student(path.parent))
        )
    return found


def auroc(copies: list[float], twins: list[float]) -> float:
    """Probability that a copy's share is above a twin's, ties counted half; pairs are those of one
    split.
    """
    won = [0.5 * ((copy > twin) + (copy >= twin)) for copy, twin in zip(copies, twins, strict=True)]
    return sum(won) / max(1, len(won))


def share(found: list[Tensor], pools: list[Mistakes], at: list[Tensor]) -> float:
    """Share of the images at these places of the pools on which the answer found is the owner's."""
    same = [
        one[own] == pool.expected_N[own] for one, own, pool in zip(found, at, pools, strict=True)
    ]
    return float(torch.cat(same).float().mean())


def top(net: Callable[[Tensor], Tensor], x_NCHW: Tensor) -> Tensor:
    return answers(net, x_NCHW).argmax(1)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m research.verify", description=__doc__)
    parser.add_argument("teacher", type=Path, help="weights of the owner's model")
    parser.add_argument("data", help="its held-out images")
    parser.add_argument("twins", type=Path, help="folder of independent models' weights")
    parser.add_argument("copies", type=Path, help="folder of runs")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    of = parser.parse_args()
    owner = teacher_of(of.teacher)
    data = load_dataset(of.data, "test", shape=owner.spec.shape)
    twins = [teacher_of(path) for path in sorted(of.twins.glob("*.safetensors"))]
    copies = copies_in(of.copies)
    won: dict[tuple[str, int, bool], tuple[list[float], list[float]]] = {}
    for seed in of.seeds:
        rng = torch.Generator().manual_seed(seed)
        wrong = find_mistakes(
            data, owner.spec, partial(top, owner), [partial(top, net) for net in twins], rng
        )
        edge, expected = boundary(owner, data.batch(slice(0, 1_000)), rng)
        pools = [wrong, Mistakes(edge, expected, torch.stack([top(net, edge) for net in twins]))]
        guilty = [[top(copy.net, pool.images) for pool in pools] for copy in copies]
        for innocent in range(len(twins)):
            others = torch.tensor([each for each in range(len(twins)) if each != innocent])
            refs = others[torch.randperm(len(others), generator=rng)[:REFERENCES]]
            for asked in ASKED:
                at = [
                    choose(pool._replace(answers_RN=pool.answers_RN[refs]), asked, rng)
                    for pool in pools
                ]
                for kind, sizes in (
                    ("E", (asked, 0)),
                    ("B", (0, asked)),
                    ("E+B", (asked // 2,) * 2),
                ):
                    taken = [own[:size] for own, size in zip(at, sizes, strict=True)]
                    twin = share([pool.answers_RN[innocent] for pool in pools], pools, taken)
                    for copy, found in zip(copies, guilty, strict=True):
                        of_copies, of_twins = won.setdefault((kind, asked, copy.labels), ([], []))
                        of_copies.append(share(found, pools, taken))
                        of_twins.append(twin)
    rows = [
        [
            kind,
            "labels" if labels else "scores",
            *(f"{auroc(*won[kind, n, labels]):.3f}" for n in ASKED),
        ]
        for kind in ("E", "B", "E+B")
        for labels in sorted({copy.labels for copy in copies})
    ]
    print(table(["Images", "Copies by", *map(str, ASKED)], rows))
    print(", ".join(f"{copy.name} {copy.agreement:.3f}" for copy in copies))


if __name__ == "__main__":
    main()
