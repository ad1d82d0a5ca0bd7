"""`python -m research.marks`: does a mark in the owner's model survive a copy of it?

For each seed it trains an owner's net, marks it (`research/marking.py` has the kinds of marks, and
the rehearsal), copies it from its answers, and asks the copies the marks. Beside these stand five
references, which are no copies, ten more innocent nets, and copies of the owner before it was
marked. A net's e-value is that of `run.py verify`, with the most that a reference repeats.

Attacks: `labels1000`, `labels300`, `scores1000`, `decimals1000` (scores of two decimals) learn from
so many images like the owner's; `drawn3000` from labels, `drawnscores3000` from scores of drawn
images; `filtered` leaves out labels that a copy by the other half does not give; `tuned`, `pruned`,
`again` are the copy by 1,000 labels after fine-tuning on images with their true classes, without
half of its weights, and copied once more.
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
from torch.nn.utils import prune

from dfme.audits.verify.evidence import Evidence, MarkEvidence
from dfme.queries.programs import ProceduralImages
from dfme.spec import ImageSpec
from dfme.teachers.owner.marking.rule import LabelledImages as Images
from dfme.teachers.owner.marking.rule import StyleRule
from research import marking
from research.marked_task import DECAY, Task, share, task_of
from research.marking import Marking, Rehearsal, View, learn, top
from research.script import reported

OWNER_STEPS = 2500
CHOOSERS = (100, 101, 102)
REFERENCES = ("lenet5", "lenet5", "lenet5", "cnn_medium", "cnn_large")
INNOCENTS = (*["lenet5"] * 5, "lenet5:half0", "lenet5:half1", "lenet5", "lenet5", "cnn_medium")
TUNED = 500
AFTERWARDS = ("tuned", "pruned", "again")
PROGRAMS = ("leaves", "pen", "text")


# Marks of one owner


def marking_of(
    of: argparse.Namespace, task: Task, seed: int, say: Callable[[str], None]
) -> Marking:
    """By the owner's seed; ``say`` is given what was chosen among how many."""
    rng = torch.Generator().manual_seed(seed)
    nets = list[nn.Module]()
    if of.kind in ("between", "overlaid", "border"):
        nets = [task.innocent(of.owner, number) for number in CHOOSERS]
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
        marking.rule_of(of.kind, task.train, nets, of.share, task.classes, rng, task.view.mirror)
        for _ in range(of.candidates)
    ]
    rule = rules[of.pick or 0]
    if len(rules) > 1 and of.pick is None:
        copied = partial(rehearsal_copy, task, of)
        rule, shares = marking.rehearsed(rules, task.train, of.marks, of.rehearsal, copied)
        say("rehearsed: " + " ".join(f"{value:.2f}" for value in shares))
    changed = int(rule.changed(task.like).sum())
    say(f"rule: {rule.source} answered {rule.target}; {changed} of the attacker's images")
    marks = rule.marks(task.train, of.marks, of.push)
    controls = None
    if isinstance(rule, StyleRule):
        x_NCHW = rule.controls(task.scored, of.marks, rng)
        controls = Images(x_NCHW, torch.full((len(x_NCHW),), rule.target))
    return Marking(marks, rule.taught(task.train), controls)


def rehearsal_copy(
    task: Task, of: argparse.Namespace, x_NCHW: Tensor, classes_N: Tensor, seed: int
) -> nn.Module:
    net = task.fresh(of.owner, 500 + seed)
    return learn(net, x_NCHW, task.hot(classes_N), DECAY, of.copy_steps, seed, task.view)


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
    start: Path | None = None
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
        drawn = form.startswith("drawn")
        x_NCHW = self.drawn(count) if drawn else self.task.like.x_NCHW[:count]
        scores_NK = marking.scores(self.owner, x_NCHW)
        if form == "decimals":
            scores_NK = scores_NK.mul(100).round() / 100
        elif not form.endswith("scores"):
            scores_NK = self.task.hot(scores_NK.argmax(1))
        return self.trained(x_NCHW, scores_NK, self.seed)

    def trained(self, x_NCHW: Tensor, target_NK: Tensor, seed: int) -> nn.Module:
        net = self.task.fresh(self.arch, 900 + seed)
        if self.start is not None:
            begin_as(net, self.start)
        view = self.task.view
        return learn(net, x_NCHW, target_NK, self.decay, self.steps, seed, view)

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
            steps = self.steps // 4
            view = self.task.view
            return learn(net, images.x_NCHW, target_NK, self.decay, steps, self.seed, view)
        layers = [part for part in net.modules() if isinstance(part, nn.Conv2d | nn.Linear)]
        weights = [(layer, "weight") for layer in layers]
        prune.global_unstructured(weights, prune.L1Unstructured, amount=0.5)
        return net


def begin_as(net: nn.Module, path: Path) -> None:
    """Give a net the weights of a file of a net of its architecture, but for the last layer."""
    state = torch.load(path, weights_only=True)
    last = [name for name, part in net.named_modules() if isinstance(part, nn.Linear)][-1]
    kept = {name: value for name, value in state.items() if not name.startswith(last + ".")}
    net.load_state_dict(kept, strict=False)


# The report


@dataclass(frozen=True)
class Judge:
    """Marks, the most that references repeat, and a rule's controls: images that it leaves, with
    the marked class.
    """

    marks: Images
    p_reference: float
    controls: Images | None

    def hits(self, net: nn.Module) -> int:
        return int((top(net, self.marks.x_NCHW) == self.marks.classes_N).sum())

    def controlled(self, net: nn.Module) -> list[float]:
        """Shares of pushed controls, and of ordinary ones, that are answered as marked."""
        if self.controls is None:
            return [0.0, 0.0]
        same_N = (top(net, self.controls.x_NCHW) == self.controls.classes_N).float()
        half = len(same_N) // 2
        return [float(same_N[:half].mean()), float(same_N[half:].mean())]

    def evidence(self, net: nn.Module) -> Evidence:
        """That of ``run.py verify --marks``; without controls, against references alone."""
        marks = len(self.marks.classes_N)
        hits = self.hits(net)
        if self.controls is None:
            return Evidence(marks, hits, self.p_reference)
        count = len(self.controls.classes_N)
        anyway = int((top(net, self.controls.x_NCHW) == self.controls.classes_N).sum())
        return MarkEvidence(marks, hits, count, anyway, self.p_reference).evidence


def judge_of(of: argparse.Namespace, task: Task, chosen: Marking) -> Judge:
    marks = chosen.marks
    nets = [task.innocent(name, seed) for seed, name in enumerate(of.references, 110)]
    hits = [int((top(net, marks.x_NCHW) == marks.classes_N).sum()) for net in nets]
    constant = int(marks.classes_N.bincount().max()) if len(marks.classes_N.unique()) > 1 else 0
    p_reference = (max(*hits, constant) + 0.5) / (len(marks.classes_N) + 1)
    return Judge(marks, p_reference, chosen.controls)


def controlled(judge: Judge, net: nn.Module) -> str:
    return "/".join(f"{value:.2f}" for value in judge.controlled(net))


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
            Attacker(task, arch, of.copy_steps, of.decay, seed, owner, of.start)
            for seed in of.copy_seeds
        ]
        innocent = Attacker(task, arch, of.copy_steps, of.decay, of.copy_seeds[0], plain, of.start)
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
            if judge.controls:
                end += "; controls " + ", ".join(controlled(judge, net) for net in nets)
            spent = time.process_time() - began
            yield f"  {attack} {arch}: agree {agreed}; marks {end}; {spent:.0f} s"


def owner_of(
    of: argparse.Namespace, task: Task, plain: nn.Module, chosen: Marking, seed: int
) -> nn.Module:
    if of.kind == "answers":
        return marking.Answering(plain, chosen.marks)
    how = Rehearsal(of.weight, of.unrolled, of.life, of.temperature)
    fresh = partial(task.fresh, of.owner)
    net = copy.deepcopy(plain)
    return marking.marked(net, task.train, chosen, how, fresh, of.steps, seed + 1, task.view)


def note(text: str) -> None:
    print(f"  {text}", flush=True)


def report(of: argparse.Namespace, task: Task, seed: int) -> Iterator[str]:
    plain = task.innocent(of.owner, seed)
    began = time.process_time()
    chosen = marking_of(of, task, seed, note)
    owner = owner_of(of, task, plain, chosen, seed)
    spent = time.process_time() - began
    judge = judge_of(of, task, chosen)
    accuracies = f"{100 * task.accuracy(plain):.1f} -> {100 * task.accuracy(owner):.1f}"
    yield (
        f"  {len(chosen.marks.classes_N)} marks, p_reference {judge.p_reference:.2f}; accuracy "
        f"{accuracies}, one answer {100 * task.constant(owner):.1f}, marks "
        f"{said(judge.evidence(owner))}, controls {controlled(judge, owner)}; {spent:.0f} CPU s"
    )
    called = 0
    for number, name in enumerate(of.innocents, 200):
        net = task.innocent(name, number)
        called += judge.evidence(net).sure
        yield (
            f"  innocent {name}: {100 * task.accuracy(net):.1f} %, marks "
            f"{said(judge.evidence(net))}, controls {controlled(judge, net)}"
        )
    yield f"  {called} of {len(of.innocents)} innocents called copies"
    yield from copies(of, task, plain, owner, judge)


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m research.marks",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("data", help="an .npz file with 1,000 test images and more")
    parser.add_argument("folder", type=Path, help="of the innocent nets, trained at the first call")
    parser.add_argument("--owner", default="lenet5", help="architecture, of rehearsals too")
    parser.add_argument("--owner-steps", type=int, default=OWNER_STEPS)
    parser.add_argument(
        "--like", default="test", help="attacker's images: test, so many of train, or a file"
    )
    parser.add_argument("--references", nargs="+", default=REFERENCES)
    parser.add_argument("--innocents", nargs="*", default=INNOCENTS)
    parser.add_argument("--mirror", action="store_true", help="images in training, half of them")
    parser.add_argument("--brief", action="store_true", help="train in bf16")
    parser.add_argument("--rehearsal", type=int, default=1000, help="images of a rehearsal copy")
    parser.add_argument("--start", type=Path, help="copies begin as this net, but for the head")
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
    view = View(of.mirror, of.brief)
    task = task_of(of.data, of.folder, of.like, of.owner_steps, view)
    for seed in of.seeds:
        settings = f"{of.kind}, weight {of.weight:g}, {of.unrolled} unrolled, life {of.life}, "
        settings += f"temperature {of.temperature:g}, share {of.share:g}, seed {seed}"
        print(settings, flush=True)
        for line in report(of, task, seed):
            print(line, flush=True)


if __name__ == "__main__":
    sys.exit(reported("marks", main))
