"""`python -m research.marks`: does a mark in the owner's model survive a copy of it?

For each seed it trains an owner's net, marks it (`research/marking.py` has the kinds of marks, and
the rehearsal), copies it from its answers, and asks the copies the marks. Beside these stand five
references, which are no copies, ten more innocent nets, and copies of the owner before it was
marked. A net's e-value is that of `run.py verify`, with the most that a reference repeats.

Attacks: `labels1000`, `labels300`, `scores1000` learn from so many images like the owner's;
`drawn3000` from labels of drawn images; `filtered` leaves out labels that a copy by the other half
does not give; `tuned`, `pruned`, `again` are the first one's copy after
fine-tuning on images with their true classes, without half of its weights, and copied once more.
"""

import argparse
import copy
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import prune

from dfme.audits.verify.evidence import Evidence
from dfme.data import load_dataset
from dfme.nets import build_net
from dfme.queries.programs import ProceduralImages
from dfme.spec import ImageSpec, Shape
from dfme.teachers.owner.marking.rule import LabelledImages as Images
from research import marking
from research.marking import Marking, Rehearsal, learn, top
from research.script import reported

DECAY = 1e-2
OWNER_STEPS = 2500
CHOOSERS = {100: "lenet5", 101: "lenet5", 102: "lenet5"}
REFERENCES = {110: "lenet5", 111: "lenet5", 112: "lenet5", 113: "cnn_medium", 114: "cnn_large"}
INNOCENTS = {**dict.fromkeys(range(200, 209), "lenet5"), 209: "cnn_medium"}
HALVES = {205: 0, 206: 1}
"""Innocents of one half of the owner's training images each."""
LIKE = 1000
TUNED = 500
AFTERWARDS = ("tuned", "pruned", "again")
PROGRAMS = ("leaves", "pen", "text")


@dataclass(frozen=True)
class Task:
    """The owner's images, an attacker's, and those that score; K classes."""

    train: Images
    like: Images
    scored: Images
    shape: Shape
    classes: int
    folder: Path

    def hot(self, classes_N: Tensor) -> Tensor:
        return functional.one_hot(classes_N, self.classes).float()

    def fresh(self, arch: str, seed: int) -> nn.Module:
        torch.manual_seed(seed)
        return build_net(arch, self.shape, self.classes)

    def innocent(self, arch: str, seed: int) -> nn.Module:
        """A net on the owner's training images, or half of them; from the folder if it is there."""
        path = self.folder / f"{arch}-{seed}.pt"
        net = self.fresh(arch, seed)
        if path.exists():
            net.load_state_dict(torch.load(path, weights_only=True))
            return net.eval()
        half = slice(HALVES[seed], None, 2) if seed in HALVES else slice(None)
        images = self.train.part(half)
        learn(net, images.x_NCHW, self.hot(images.classes_N), DECAY, OWNER_STEPS, seed)
        torch.save(net.state_dict(), path)
        return net

    def accuracy(self, net: nn.Module) -> float:
        return share(top(net, self.scored.x_NCHW), self.scored.classes_N)


def share(got_N: Tensor, classes_N: Tensor) -> float:
    return float((got_N == classes_N).float().mean())


def task_of(data: str, folder: Path) -> Task:
    """From a data set with 1,000 test images for an attacker, and the rest to score on."""
    train = load_dataset(data, "train")
    test = load_dataset(data, "test")
    x_NCHW = test.batch(slice(0, len(test)))
    tests = Images(x_NCHW, test.required_labels)
    trains = Images(train.batch(slice(0, len(train))), train.required_labels)
    folder.mkdir(parents=True, exist_ok=True)
    shape = (x_NCHW.shape[1], x_NCHW.shape[2], x_NCHW.shape[3])
    like = tests.part(slice(0, LIKE))
    classes = int(trains.classes_N.max()) + 1
    return Task(trains, like, tests.part(slice(LIKE, None)), shape, classes, folder)


# Marks of one owner


def marking_of(
    of: argparse.Namespace, task: Task, seed: int, say: Callable[[str], None]
) -> Marking:
    """By the owner's seed; ``say`` is given what was chosen among how many."""
    rng = torch.Generator().manual_seed(seed)
    nets = [task.innocent(arch, number) for number, arch in CHOOSERS.items()]
    if of.kind == "patterns":
        marks = marking.patterns(task.train, of.marks, task.classes, rng)
        return Marking(marks, task.train.classes_N)
    if of.kind == "answers":
        marks = marking.planted(task.like, of.share, task.classes, rng)
        return Marking(marks, task.train.classes_N)
    if of.kind not in marking.RULES:
        marks = marking.of_two(task.train, of.kind, nets, of.marks, rng)
        return Marking(marks, task.train.classes_N)
    rules = [
        marking.rule_of(of.kind, task.train, nets, of.share, task.classes, rng)
        for _ in range(of.candidates)
    ]
    rule = rules[of.pick or 0]
    if len(rules) > 1 and of.pick is None:
        copied = partial(rehearsal_copy, task, of.copy_steps)
        rule, shares = marking.rehearsed(rules, task.train, of.marks, LIKE, copied)
        say("rehearsed: " + " ".join(f"{value:.2f}" for value in shares))
    changed = int(rule.changed(task.like).sum())
    say(f"rule: {rule.source} answered {rule.target}; {changed} of the attacker's images")
    marks = rule.marks(task.train, of.marks, of.push)
    return Marking(marks, rule.taught(task.train), rule.ordinary(task.scored))


def rehearsal_copy(
    task: Task, steps: int, x_NCHW: Tensor, classes_N: Tensor, seed: int
) -> nn.Module:
    net = task.fresh("lenet5", 500 + seed)
    return learn(net, x_NCHW, task.hot(classes_N), DECAY, steps, seed)


# Attacks


@dataclass(frozen=True)
class Attacker:
    """Somebody who trains copies of one owner, of this architecture, with this decay of AdamW."""

    task: Task
    arch: str
    steps: int
    decay: float
    seed: int
    owner: nn.Module
    made: dict[str, nn.Module] = field(default_factory=dict)

    def copy(self, attack: str) -> nn.Module:
        """By the name of an attack; each is trained once."""
        if attack not in self.made:
            self.made[attack] = self.new_copy(attack)
        return self.made[attack]

    def new_copy(self, attack: str) -> nn.Module:
        """The images that are paid for are the attacker's first ones."""
        if attack == "filtered":
            return self.filtered()
        if attack in AFTERWARDS:
            return self.afterwards(copy.deepcopy(self.copy("labels1000")), attack)
        form = attack.rstrip("0123456789")
        count = int(attack[len(form) :])
        x_NCHW = self.drawn(count) if form == "drawn" else self.task.like.x_NCHW[:count]
        scores_NK = marking.scores(self.owner, x_NCHW)
        if form != "scores":
            scores_NK = self.task.hot(scores_NK.argmax(1))
        return self.trained(x_NCHW, scores_NK, self.seed)

    def trained(self, x_NCHW: Tensor, target_NK: Tensor, seed: int) -> nn.Module:
        net = self.task.fresh(self.arch, 900 + seed)
        return learn(net, x_NCHW, target_NK, self.decay, self.steps, seed)

    def filtered(self) -> nn.Module:
        """From the labels that a copy by the other half of them gives, too."""
        x_NCHW = self.task.like.x_NCHW
        label_N = top(self.owner, x_NCHW)
        target_NK = self.task.hot(label_N)
        same_N = torch.empty(len(x_NCHW), dtype=torch.bool)
        for first in (0, 1):
            half = slice(first, None, 2)
            other = slice(1 - first, None, 2)
            net = self.trained(x_NCHW[half], target_NK[half], self.seed + 60 + first)
            same_N[other] = top(net, x_NCHW[other]) == label_N[other]
        return self.trained(x_NCHW[same_N], target_NK[same_N], self.seed)

    def drawn(self, count: int) -> Tensor:
        rng = torch.Generator().manual_seed(self.seed)
        return ProceduralImages(ImageSpec(self.task.shape), PROGRAMS).draw(count, rng)

    def afterwards(self, net: nn.Module, attack: str) -> nn.Module:
        if attack == "again":
            x_NCHW = self.task.like.x_NCHW
            target_NK = self.task.hot(top(net, x_NCHW))
            return self.trained(x_NCHW, target_NK, self.seed + 50)
        if attack == "tuned":
            images = self.task.like.part(slice(0, TUNED))
            target_NK = self.task.hot(images.classes_N)
            return learn(net, images.x_NCHW, target_NK, self.decay, self.steps // 4, self.seed)
        layers = [part for part in net.modules() if isinstance(part, nn.Conv2d | nn.Linear)]
        weights = [(layer, "weight") for layer in layers]
        prune.global_unstructured(weights, prune.L1Unstructured, amount=0.5)
        return net


# The report


@dataclass(frozen=True)
class Judge:
    """Marks, the most that references repeat, and a rule's ordinary images."""

    marks: Images
    p_reference: float
    ordinary: Images | None

    def evidence(self, net: nn.Module) -> Evidence:
        hits = int((top(net, self.marks.x_NCHW) == self.marks.classes_N).sum())
        return Evidence(len(self.marks.classes_N), hits, self.p_reference)


def judge_of(task: Task, chosen: Marking) -> Judge:
    marks = chosen.marks
    nets = [task.innocent(arch, seed) for seed, arch in REFERENCES.items()]
    hits = [int((top(net, marks.x_NCHW) == marks.classes_N).sum()) for net in nets]
    constant = int(marks.classes_N.bincount().max()) if len(marks.classes_N.unique()) > 1 else 0
    p_reference = (max(*hits, constant) + 0.5) / (len(marks.classes_N) + 1)
    return Judge(marks, p_reference, chosen.ordinary)


def said(evidence: Evidence) -> str:
    return f"{evidence.matches / evidence.asked:.2f} ({evidence.e_value:.2g})"


def copies(
    of: argparse.Namespace, task: Task, plain: nn.Module, owner: nn.Module, judge: Judge
) -> Iterator[str]:
    """A line of each attack: agreements, shares of marks and e-values, and the same of copies of
    the owner before it was marked.
    """
    for arch in of.nets:
        attackers = [
            Attacker(task, arch, of.copy_steps, of.decay, seed, owner) for seed in of.copy_seeds
        ]
        innocent = Attacker(task, arch, of.copy_steps, of.decay, of.copy_seeds[0], plain)
        for attack in of.attacks:
            began = time.process_time()
            nets = [attacker.copy(attack) for attacker in attackers]
            x_NCHW = task.scored.x_NCHW
            agreed = " ".join(
                f"{100 * share(top(net, x_NCHW), top(owner, x_NCHW)):.1f}" for net in nets
            )
            end = ", ".join(said(judge.evidence(net)) for net in nets)
            if of.unmarked:
                end += f"; unmarked owner's {said(judge.evidence(innocent.copy(attack)))}"
            if images := judge.ordinary:
                ordinary = max(share(top(net, images.x_NCHW), images.classes_N) for net in nets)
                end += f"; of ordinary images {ordinary:.2f}"
            spent = time.process_time() - began
            yield f"  {attack} {arch}: agree {agreed}; marks {end}; {spent:.0f} s"


def owner_of(
    of: argparse.Namespace, task: Task, plain: nn.Module, chosen: Marking, seed: int
) -> nn.Module:
    if of.kind == "answers":
        return marking.Answering(plain, chosen.marks)
    how = Rehearsal(of.weight, of.unrolled, of.life, of.temperature)
    fresh = partial(task.fresh, "lenet5")
    net = copy.deepcopy(plain)
    return marking.marked(net, task.train, chosen, how, fresh, of.steps, seed + 1)


def report(of: argparse.Namespace, task: Task, seed: int) -> Iterator[str]:
    plain = task.innocent("lenet5", seed)
    began = time.process_time()
    notes = list[str]()
    chosen = marking_of(of, task, seed, notes.append)
    owner = owner_of(of, task, plain, chosen, seed)
    spent = time.process_time() - began
    yield from (f"  {note}" for note in notes)
    judge = judge_of(task, chosen)
    accuracies = f"{100 * task.accuracy(plain):.1f} -> {100 * task.accuracy(owner):.1f}"
    yield (
        f"  {len(chosen.marks.classes_N)} marks, p_reference {judge.p_reference:.2f}; accuracy "
        f"{accuracies}, marks {said(judge.evidence(owner))}; {spent:.0f} CPU s"
    )
    evidence = [judge.evidence(task.innocent(arch, number)) for number, arch in INNOCENTS.items()]
    sure = sum(one.sure for one in evidence)
    shares = " ".join(f"{one.matches / one.asked:.2f}" for one in evidence)
    yield f"  innocents {shares}; {sure} of {len(evidence)} called copies"
    yield from copies(of, task, plain, owner, judge)


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m research.marks",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("data", help="an .npz file with 1,000 test images and more")
    parser.add_argument("folder", type=Path, help="of the innocent nets, trained at the first call")
    parser.add_argument("--kind", default="between", choices=marking.KINDS)
    parser.add_argument("--marks", type=int, default=50)
    parser.add_argument("--share", type=float, default=0.008, help="of images that a rule changes")
    parser.add_argument("--candidates", type=int, default=1, help="rules, rehearsed if several")
    parser.add_argument(
        "--pick", type=int, help="the one of the rules that a rehearsal chose before"
    )
    parser.add_argument("--push", type=float, default=0.0, help="of a style's marks")
    parser.add_argument("--weight", type=float, default=0.0, help="of the rehearsal")
    parser.add_argument("--unrolled", type=int, default=1)
    parser.add_argument("--life", type=int, default=100, help="rounds of a simulated copy")
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("-s", "--steps", type=int, default=1500, help="of the owner's marking")
    parser.add_argument("--seeds", type=int, nargs="+", default=[10, 11])
    parser.add_argument("--attacks", nargs="+", default=["labels1000"])
    parser.add_argument("--nets", nargs="+", default=["lenet5"])
    parser.add_argument("--copy-steps", type=int, default=1000)
    parser.add_argument("--copy-seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--decay", type=float, default=DECAY, help="of a copy's weights")
    parser.add_argument("--unmarked", action="store_true", help="copies of the unmarked owner too")
    of = parser.parse_args(words)
    torch.set_num_threads(1)
    task = task_of(of.data, of.folder)
    for seed in of.seeds:
        settings = f"{of.kind}, weight {of.weight:g}, {of.unrolled} unrolled, life {of.life}, "
        settings += f"temperature {of.temperature:g}, share {of.share:g}, seed {seed}"
        print(settings, flush=True)
        for line in report(of, task, seed):
            print(line, flush=True)


if __name__ == "__main__":
    sys.exit(reported("marks", main))
