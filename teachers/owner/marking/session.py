"""One marking: a rule is chosen by rehearsal copies, the model is taught it, and a last copy says
whether the mark holds on this model.
"""

import copy
import secrets
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from dfme.compute.device import derived_seed
from dfme.errors import RunError, UserError, say
from dfme.files import remove
from dfme.teachers.owner.marking.key import MarkKey, save_key
from dfme.teachers.owner.marking.lessons import (
    COPY_RATE,
    Lesson,
    Owner,
    answers,
    of_images,
    of_rule,
    train,
)
from dfme.teachers.owner.marking.memory import Memory
from dfme.teachers.owner.marking.options import MarkConfig, Tools
from dfme.teachers.owner.marking.plan import Pace, Plan, Progress, plan_within, require_images
from dfme.teachers.owner.marking.result import (
    KEY,
    MODEL,
    SHEET,
    Accuracy,
    Candidate,
    CopyResult,
    MarkResult,
    Outcome,
    write_result,
)
from dfme.teachers.owner.marking.rule import Images, StyleRule, rule_between
from dfme.teachers.owner.marking.sheet import write_sheet
from dfme.teachers.owner.marking.subject import Subject
from dfme.version import __version__

COPIED = 1000
"""Images that a rehearsal copy learns from, or half of those there are."""
SMALLER_SHARES = (1.0, 0.75, 0.5)
"""Of the share that was asked for, where the mark costs too much."""
MIN_OF_CLASS = 40
"""Training images of a class that a rule may be of."""
MIN_CHANGED = 5
"""Training images that a rule changes."""
MIN_TEST = 50
TIMED_STEPS = 5
PLAN = "plan"


def mark(subject: Subject, config: MarkConfig, folder: Path, tools: Tools) -> MarkResult:
    """Mark the model of ``subject``, and write what there is to use of it into ``folder``.

    A marking that was interrupted goes on where it was. UserError for what cannot be marked, or not
    in the time that is given.
    """
    began = time.monotonic()
    _check(subject, config)
    pace = _pace(subject, tools)
    plan = plan_within(config.candidates, pace, None if config.resume else config.minutes)
    memory = Memory(folder)
    begun = _begun(memory, subject, config, plan)
    seconds = begun.plan.seconds(pace)
    tools.tell(
        f"{begun.plan.candidates} rules are rehearsed by copies ({subject.arch}, "
        f"{begun.plan.copy_steps:,} steps each), and the model is taught one in "
        f"{begun.plan.teach_steps:,}: about {tools.duration(seconds)} on this machine, more if the "
        "mark costs too much at first"
    )
    session = _Session(subject, config, memory, begun, tools, Progress(seconds, tools), pace)
    result = session.run(folder, time.monotonic() - began)
    write_result(folder, result)
    memory.clear()
    return result


@dataclass(frozen=True)
class _Begun:
    """What a marking was begun with: its seed, maybe a secret one, its plan, seconds so far."""

    seed: int
    plan: Plan


def _begun(memory: Memory, subject: Subject, config: MarkConfig, plan: Plan) -> _Begun:
    """From the folder, if it is there, else by this plan. UserError for another model, other images
    or options.
    """
    inputs = dict(subject.inputs)
    for name in ("marks", "share", "candidates", "max_loss", "seed"):
        inputs[name] = str(getattr(config, name))
    kept = memory.read(PLAN)
    if kept is None:
        seed = secrets.randbits(62) if config.seed is None else config.seed
        facts = {**inputs, "secret": str(seed)}
        facts |= {f"plan.{name}": value for name, value in plan.facts().items()}
        memory.write(PLAN, {"none": torch.zeros(1)}, facts)
        return _Begun(seed, plan)
    facts = kept[1]
    if changed := [name for name, value in inputs.items() if facts.get(name) != value]:
        names = ", ".join(changed)
        raise UserError(
            say("{resume}: this marking was begun with another {}; expected the same", names)
        )
    try:
        counts = {name: int(facts[f"plan.{name}"]) for name in plan.facts()}
        return _Begun(int(facts["secret"]), Plan(**counts))
    except (KeyError, ValueError) as error:
        raise RunError(f"{memory.folder}: damaged; begin anew in another --out") from error


def _check(subject: Subject, config: MarkConfig) -> None:
    """UserError for too few images."""
    require_images(len(subject.test), MIN_TEST, "test images")
    counts_K = subject.train.classes_N.bincount()
    require_images(int(counts_K.max()), MIN_OF_CLASS, "training images of some class")
    require_images(
        round(config.share * len(subject.train)),
        MIN_CHANGED,
        f"training images in a share of {config.share:g} (a larger --share, or more images)",
    )


def _pace(subject: Subject, tools: Tools) -> Pace:
    """Seconds of steps and of scoring, measured on networks that are thrown away."""
    few = subject.train.part(slice(0, 500))
    rule_free = Images(few.x_NCHW, few.classes_N)
    net = subject.fresh(0)
    owner = subject.second()
    times = list[float]()
    for trained in (net, owner):
        loss = of_images(trained, rule_free, tools.augment)
        rng = torch.Generator().manual_seed(0)
        for number in range(2 + TIMED_STEPS):
            if number == 2:
                began = time.perf_counter()
            trained.zero_grad()
            loss(rng).backward()
        times.append((time.perf_counter() - began) / TIMED_STEPS)
    began = time.perf_counter()
    answers(owner, few.x_NCHW)
    scoring = 4 * (time.perf_counter() - began) * len(subject.test) / len(few)
    # the optimiser's part of a copy's step, and the images beside a batch of the owner's
    return Pace(times[0] * 1.15, times[1] * 1.5, scoring)


@dataclass
class _Session:
    """The steps of one marking, in their order."""

    subject: Subject
    config: MarkConfig
    memory: Memory
    begun: _Begun
    tools: Tools
    progress: Progress
    pace: Pace

    def run(self, folder: Path, seconds: float) -> MarkResult:
        began = time.monotonic()
        subject = self.subject
        unmarked = subject.second()
        before = answers(unmarked, subject.test.x_NCHW)
        rules = self._rules()
        rule, candidates, innocent = self._chosen(rules, unmarked)
        owner, rule, fits = self._taught(rule, before)
        after = answers(owner, subject.test.x_NCHW)
        outcome = _Judged(self, rule, owner, unmarked, innocent) if fits else None
        holds = outcome is not None and outcome.copy.e_value >= self.tools.sure
        key_sha256 = None
        model_sha256 = None
        accuracy = _share(after, subject.test.classes_N)
        if outcome is not None and holds:
            model_sha256 = subject.save(folder / MODEL, accuracy)
            key = self._key(rule, outcome, model_sha256)
            key_sha256 = key.digest
            save_key(folder / KEY, key)
            changed = subject.train.part(rule.changed(subject.train))
            write_sheet(folder / SHEET, changed.x_NCHW, outcome.marks_MCHW)
        else:
            for name in (MODEL, KEY, SHEET):
                remove(folder / name)
        verdict: Outcome = "holds" if holds else "does not hold"
        tests = len(subject.test)
        return MarkResult(
            dfme=__version__,
            outcome=verdict if fits else "costs too much",
            accuracy_before=Accuracy.of(_share(before, subject.test.classes_N), tests),
            accuracy_after=Accuracy.of(accuracy, tests),
            constant=int(subject.test.classes_N.bincount().max()) / tests,
            test_images=tests,
            worst_class=_worst_class(before, after, subject.test.classes_N),
            share=float(rule.changed(subject.train).float().mean()),
            changed=float(rule.changed(subject.test).float().mean()),
            candidates=tuple(candidates),
            marks=len(outcome.marks_MCHW) if outcome else 0,
            controls=len(outcome.controls_NCHW) if outcome else 0,
            owner=outcome.owner if outcome else 0.0,
            copy=outcome.copy if outcome else None,
            unmarked_copy=outcome.unmarked_copy if outcome else None,
            copy_images=len(self.bought),
            copy_arch=subject.arch,
            key_sha256=key_sha256,
            model_sha256=model_sha256,
            original_sha256=subject.inputs["original"],
            seconds=round(seconds + time.monotonic() - began, 1),
            seed=self.config.seed,
        )

    # Choosing

    def _rules(self) -> list[StyleRule]:
        """Random rules, each of a class with images enough."""
        subject = self.subject
        rng = torch.Generator().manual_seed(derived_seed(self.begun.seed, "rules"))
        counts_K = subject.train.classes_N.bincount(minlength=subject.classes)
        rules = list[StyleRule]()
        while len(rules) < self.begun.plan.candidates:
            source, target = torch.randperm(subject.classes, generator=rng)[:2].tolist()
            if int(counts_K[source]) >= MIN_OF_CLASS:
                rules.append(rule_between(subject.train, self.config.share, source, target, rng))
        return rules

    def _chosen(
        self, rules: list[StyleRule], unmarked: nn.Module
    ) -> tuple[StyleRule, list[Candidate], nn.Module]:
        """The rule of which held-back marks are repeated most by a copy of it, over what innocents
        repeat; what each came to; a copy of the true classes.
        """
        train_images = self.subject.train
        rng = torch.Generator().manual_seed(derived_seed(self.begun.seed, "rehearsal"))
        order_N = torch.randperm(len(train_images), generator=rng)
        count = min(COPIED, len(train_images) // 2)
        asked = train_images.part(order_N[:count])
        rest = train_images.part(order_N[count:])
        innocent = self._copy("innocent", asked, "copy of true classes")
        candidates = list[Candidate]()
        for number, rule in enumerate(rules, start=1):
            images = Images(asked.x_NCHW, rule.taught(asked))
            title = f"rehearsal copy {number} of {len(rules)}"
            net = self._copy(f"rule{number}", images, title)
            marks_MCHW = rule.secret_marks(rest, self.config.marks)
            hits = [_hits(other, marks_MCHW, rule.target) for other in (innocent, unmarked)]
            candidates.append(
                Candidate(copy=_hits(net, marks_MCHW, rule.target), innocent=max(hits))
            )
        scores = [candidate.copy - candidate.innocent for candidate in candidates]
        return rules[scores.index(max(scores))], candidates, innocent

    @property
    def bought(self) -> Images:
        """The images whose labels the last copies learn from: no image that chose or taught."""
        return self.subject.test.part(slice(0, COPIED))

    def _copy(self, name: str, images: Images, title: str) -> nn.Module:
        """A network trained on images and classes, or the one that was."""
        plan = self.begun.plan
        seed = derived_seed(self.begun.seed, name)
        net = self.subject.fresh(seed)
        cost = plan.copy_steps * self.pace.copy_step
        if self.memory.restore(name, net):
            self.progress.skip(cost)
            return net.eval()
        net.train()
        loss = of_images(net, images, self.tools.augment)
        say_step = self.progress.steps(title, plan.copy_steps, self.pace.copy_step)
        lesson = Lesson(loss, COPY_RATE, plan.copy_steps, seed)
        train(net, lesson, self.memory, name, say_step)
        self.memory.finish(name, net)
        return net.eval()

    # Teaching

    def _taught(self, rule: StyleRule, before: Tensor) -> tuple[Owner, StyleRule, bool]:
        """The marked model and its rule, of the largest share that costs little enough, and whether
        there is one.
        """
        subject = self.subject
        original = copy.deepcopy(subject.teacher.network.state_dict())
        right = _share(before, subject.test.classes_N)
        owner = subject.owner
        for part in SMALLER_SHARES:
            smaller = rule.of_share(subject.train, part * self.config.share)
            subject.teacher.network.load_state_dict(original)
            self._teach(owner, smaller, f"owner{round(100 * part)}", part)
            after = answers(owner, subject.test.x_NCHW)
            loss = round(100 * (right - _share(after, subject.test.classes_N)), 6)
            if loss <= self.config.max_loss:
                return owner, smaller, True
            self.tools.tell(
                f"a share of {part * self.config.share:g} costs {loss:.1f} points of accuracy, "
                f"more than --max-loss {self.config.max_loss:g}"
            )
        return owner, smaller, False

    def _teach(self, owner: Owner, rule: StyleRule, name: str, part: float) -> None:
        plan = self.begun.plan
        cost = plan.teach_steps * self.pace.teach_step
        if part < 1:
            self.progress.more(cost)
        if self.memory.restore(name, owner.net):
            self.progress.skip(cost)
            return
        title = "teaching the model" if part == 1 else f"teaching it {part:.0%} of the share"
        say_step = self.progress.steps(title, plan.teach_steps, self.pace.teach_step)
        loss = of_rule(owner, self.subject.train, rule, self.tools.augment)
        seed = derived_seed(self.begun.seed, name)
        lesson = Lesson(loss, self.subject.rate, plan.teach_steps, seed)
        train(owner.net, lesson, self.memory, name, say_step)
        self.memory.finish(name, owner.net)

    def _key(self, rule: StyleRule, outcome: "_Judged", model_sha256: str) -> MarkKey:
        low, high = self.subject.teacher.spec.bounds
        return MarkKey(
            outcome.marks_MCHW * (high - low) + low,
            outcome.controls_NCHW * (high - low) + low,
            rule.source,
            rule.target,
            self.subject.classes,
            (low, high),
            model_sha256,
            self.begun.seed,
        )


# Judging


class _Judged:
    """What a last copy of the marked model repeats, and one of the unmarked model."""

    def __init__(
        self,
        session: _Session,
        rule: StyleRule,
        owner: nn.Module,
        unmarked: nn.Module,
        innocent: nn.Module,
    ) -> None:
        self._tools = session.tools
        self._target = rule.target
        train_images = session.subject.train
        rng = torch.Generator().manual_seed(derived_seed(session.begun.seed, "controls"))
        self.marks_MCHW = rule.secret_marks(train_images, session.config.marks)
        self.controls_NCHW = rule.controls(train_images, len(self.marks_MCHW), rng)
        x_NCHW = session.bought.x_NCHW
        marked_labels = Images(x_NCHW, answers(owner, x_NCHW))
        marked_copy = session._copy("copy", marked_labels, "last copy, of the marked model")
        labels = Images(x_NCHW, answers(unmarked, x_NCHW))
        plain_copy = session._copy("unmarked", labels, "last copy, of the unmarked model")
        self.owner = _hits(owner, self.marks_MCHW, rule.target)
        self.copy = self._result(marked_copy, [unmarked, innocent, plain_copy])
        self.unmarked_copy = self._result(plain_copy, [unmarked, innocent])

    def _result(self, net: nn.Module, innocents: list[nn.Module]) -> CopyResult:
        """Held against models that are no copies, and against how often it answers so anyway."""
        marks = len(self.marks_MCHW)
        shares = [_hits(other, self.marks_MCHW, self._target) for other in innocents]
        controls = _hits(net, self.controls_NCHW, self._target)
        hits = _hits(net, self.marks_MCHW, self._target)
        p_reference = (max(shares) * marks + 0.5) / (marks + 1)
        count = len(self.controls_NCHW)
        p_null = max(p_reference, (controls * count + 0.5) / (count + 1))
        e_value = self._tools.e_value(round(hits * marks), marks, p_null)
        return CopyResult(marks=hits, controls=controls, p_null=p_null, e_value=e_value)


def _hits(net: nn.Module, x_NCHW: Tensor, target: int) -> float:
    """Share of images that a network answers ``target``."""
    return float((answers(net, x_NCHW) == target).double().mean())


def _share(answer_N: Tensor, classes_N: Tensor) -> float:
    return float((answer_N == classes_N).double().mean())


def _worst_class(before_N: Tensor, after_N: Tensor, classes_N: Tensor) -> float:
    """Points of accuracy that the class loses which loses most."""
    losses = list[float]()
    for number in classes_N.unique():
        of_class_N = classes_N == number
        first = _share(before_N[of_class_N], classes_N[of_class_N])
        losses.append(100 * (first - _share(after_N[of_class_N], classes_N[of_class_N])))
    return max(losses)
