"""What defences leave of an attacker with the owner's public backbone, by the answers of one run.

    python -m research.public_defences RUN [--defences lattice:n=10,mad,...]

RUN: a finished run with public weights (recipe ``public``) on a teacher that answers probabilities
and is not defended. Nothing is asked: each defence changes the recorded answers, in the order in
which they were paid for. Of the changed answers a last layer is learnt in three ways, by linear
equations, by a fit to scores and by a fit to labels, and scored on the run's evaluation images
against the undefended answers to them.
"""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from dfme.answers.reading import cut_to, top_class
from dfme.compute.modules import evaluating
from dfme.config.defences import parse_defences
from dfme.config.settings import EvaluationConfig, ExtractConfig
from dfme.config.values import from_mapping
from dfme.config.yaml_files import load_yaml
from dfme.errors import DfmeError, UserError
from dfme.nets.public import PublicNet
from dfme.report.markdown import table
from dfme.run.components import FEATURES
from dfme.run.retrain import PaidAnswers, paid_answers, recorded_examination
from dfme.run.student_file import load_student
from dfme.spec import ImageSpec, LabelMode, TeacherInfo
from dfme.students import heads
from dfme.students.features import FeatureCache
from dfme.students.public import feature_key
from dfme.teachers.owner.defences.wrapper import Defended

BATCH = 32
LABELS = LabelMode("label")
DEFENCES = (
    "none",
    "probabilities:6",
    "probabilities:4",
    "probabilities:2",
    "temperature:t=2",
    "lattice:n=10",
    "modelguard_s",
    "modelguard_w",
    "reverse_sigmoid:beta=0.7",
    "mad",
    "grad2:keep_top=true",
)


class Recorded:
    """A teacher that gives recorded answers, in the order in which they were paid for."""

    def __init__(self, spec: ImageSpec, answers_NK: Tensor) -> None:
        self.spec = spec
        self.num_classes = answers_NK.shape[1]
        self.label_mode = LabelMode("probabilities")
        self.info = TeacherInfo()
        self._answers_NK = answers_NK
        self._place = 0

    def __call__(self, images: Tensor, /) -> Tensor:
        self._place += len(images)
        return self._answers_NK[self._place - len(images) : self._place]


@dataclass(frozen=True)
class Attack:
    """Features and answers of the images paid for, and of those that score a copy."""

    paid: PaidAnswers
    features_ND: Tensor
    answers_NK: Tensor
    scored_MD: Tensor
    truth_M: Tensor

    def agreement(self, head: heads.Head) -> float:
        """Share of the scored images on which a head agrees with the undefended teacher."""
        return float((head(self.scored_MD).argmax(1) == self.truth_M).float().mean())

    def defended(self, text: str) -> tuple[Tensor, LabelMode]:
        """The answers behind a defence, or cut to a label mode, and their form."""
        mode = LabelMode("probabilities")
        if text == "none":
            return self.answers_NK, mode
        if text.startswith("probabilities:"):
            mode = LabelMode.parse(text)
            return cut_to(self.answers_NK, mode), mode
        teacher = Defended(Recorded(self.paid.spec, self.answers_NK), parse_defences(text), mode)
        batches = self.paid.replay.batches(BATCH)
        return torch.cat([teacher(images) for images, _ in batches]).float(), mode

    def row(self, text: str, seed: int) -> tuple[str, ...]:
        """A line of the table: the three ways to learn, and the answers' classes."""
        answers, mode = self.defended(text)
        classes = self.answers_NK.shape[1]
        solved = heads.solve(self.features_ND, answers, mode, classes, seed)
        fitted = heads.fit(self.features_ND, answers, mode, classes, seed)
        labels = heads.fit(self.features_ND, top_class(answers), LABELS, classes, seed)
        shares = [f"{100 * self.agreement(one.head):.1f}" for one in (solved, fitted, labels)]
        return text, *shares, f"{solved.residual:.1g}", _spread(top_class(answers), classes)


def _spread(labels_N: Tensor, classes: int) -> str:
    """Classes that the answers reach, and the share of the most frequent one."""
    counts = torch.bincount(labels_N, minlength=classes)
    return (
        f"{int((counts > 0).sum())} of {classes}, at most {float(counts.max() / counts.sum()):.0%}"
    )


def attack_of(run: Path) -> Attack:
    """What a run holds. UserError for one whose answers or student do not do."""
    paid = paid_answers(run)
    if str(paid.label_mode) != "probabilities":
        raise UserError(
            f"{run}: expected answers as unrounded probabilities, got {paid.label_mode}"
        )
    net = load_student(run)
    if not isinstance(net, PublicNet):
        raise UserError(f"{run}: expected a student with public weights")
    cache = FeatureCache(run / FEATURES, feature_key(net), net.width)

    def features_of(images: Tensor) -> Tensor:
        with evaluating(net), torch.no_grad():
            return cache(images, net.features)

    config = load_yaml(run / "config.yaml", own=True)
    evaluation = from_mapping(EvaluationConfig, config["evaluation"])
    settings = ExtractConfig(evaluation=evaluation, answers=paid.answers)
    examination = recorded_examination(run, settings, paid, torch.device("cpu"))
    scored = [(features_of(images), answers) for images, answers in examination.paid]
    learnt = [(features_of(images), answers) for images, answers in paid.replay.batches(BATCH)]
    return Attack(
        paid=paid,
        features_ND=torch.cat([features for features, _ in learnt]),
        answers_NK=torch.cat([answers for _, answers in learnt]),
        scored_MD=torch.cat([features for features, _ in scored]),
        truth_M=torch.cat([top_class(answers) for _, answers in scored]),
    )


HEADS = ("Answers", "Solved", "Fitted to scores", "To labels", "Residual", "Classes answered")


def lines(attack: Attack, defences: Sequence[str], seed: int) -> Iterator[tuple[str, ...]]:
    """The table's lines, and last what one constant answer gets."""
    for text in defences:
        yield attack.row(text, seed)
    constant = float(torch.bincount(attack.truth_M).max()) / len(attack.truth_M)
    yield "one constant answer", f"{100 * constant:.1f}", "", "", "", ""


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m research.public_defences",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("run", type=Path)
    parser.add_argument("--defences", default=",".join(DEFENCES))
    parser.add_argument("--seed", type=int, default=0, help="of what is held back (default: 0)")
    given = parser.parse_args()
    try:
        attack = attack_of(given.run)
        print(table(HEADS, [*lines(attack, given.defences.split(","), given.seed)]))
    except DfmeError as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
