"""One marking: a rule is chosen by rehearsal copies, the model is taught it, and a last copy says
whether the mark holds on this model.
"""

import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from dfme.compute.device import derived_seed
from dfme.errors import RunError, UserError, flag, say
from dfme.files import remove
from dfme.teachers.owner.marking.judging import (
    Judge,
    Judged,
    newly_wrong,
    share_answered,
    share_right,
    worst_class,
)
from dfme.teachers.owner.marking.key import MarkKey, save_key
from dfme.teachers.owner.marking.lessons import (
    COPY_RATE,
    Lesson,
    OwnerModel,
    Teaching,
    answers,
    of_images,
    of_rule,
    train,
)
from dfme.teachers.owner.marking.memory import DAMAGED, Memory
from dfme.teachers.owner.marking.options import DECISIVE, MarkConfig, MarkTools
from dfme.teachers.owner.marking.pace import pace_of
from dfme.teachers.owner.marking.plan import (
    MarkProgress,
    Plan,
    StepSeconds,
    plan_within,
)
from dfme.teachers.owner.marking.result import (
    ANEW,
    KEY,
    MODEL,
    NOT_SHOWN,
    SHEET,
    Accuracy,
    MarkOutcome,
    MarkResult,
    RehearsedRule,
    read_result,
    write_result,
)
from dfme.teachers.owner.marking.rule import LabelledImages, StyleRule, rule_between
from dfme.teachers.owner.marking.sheet import write_sheet
from dfme.teachers.owner.marking.subject import MIN_OF_CLASS, Subject, check_images
from dfme.version import __version__

COPIED = 1000
"""Images that a rehearsal copy learns from, or half of those there are."""
ATTEMPTS = ((1.0, False), (1.0, True), (0.75, True), (0.5, True))
"""Part of the share that was asked for, and whether its bound is taught sharply: where the mark
costs too much, or spills over to controls, the next is tried."""
MAX_SPILL = 0.1
"""Share of the controls that the marked model may answer as marked: ``verify`` asks no others."""
PLAN = "plan"


def mark(
    subject: Subject, config: MarkConfig, folder: Path, tools: MarkTools, again: str
) -> MarkResult:
    """Mark the model of ``subject``, and write what there is to use of it into ``folder``.
    ``again``: the command that goes on.

    A marking that was interrupted goes on where it was. UserError for what cannot be marked, or not
    in the time that is given.
    """
    began = time.monotonic()
    for sentence in subject.doubts:
        tools.tell(f"warning: {sentence}")
    check_images(subject, config)
    pace = pace_of(subject, tools)
    plan = plan_within(config.candidates, pace, None if config.resume else config.minutes)
    memory = Memory(folder)
    begun = _begun(memory, subject, config, plan)
    seconds = begun.plan.seconds(pace)
    tools.tell(
        f"{begun.plan.candidates} rules are rehearsed by copies ({subject.arch}, "
        f"{begun.plan.copy_steps:,} steps each), and the model is taught one in "
        f"{begun.plan.teach_steps:,}: about {tools.duration(seconds)} on this machine, more if the "
        f"mark costs too much at first; if stopped, go on with:\n  {again}"
    )
    session = _Session(subject, config, memory, begun, tools, MarkProgress(seconds, tools), pace)
    result = session.run(folder, time.monotonic() - began)
    write_result(folder, result)
    memory.clear()
    return result


def finished(folder: Path) -> MarkResult | None:
    """What a marking that is done came to; None for another. Nothing secret that it needed is
    left.
    """
    result = read_result(folder)
    if result is not None:
        Memory(folder).clear()
    return result


@dataclass(frozen=True)
class _Begun:
    """What a marking was begun with: its seed, maybe a secret one, and its plan."""

    seed: int
    plan: Plan


def _begun(memory: Memory, subject: Subject, config: MarkConfig, plan: Plan) -> _Begun:
    """From the folder, if it is there, else by this plan. UserError for another model, other images
    or options.
    """
    inputs = dict(subject.inputs)
    for name in DECISIVE:
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
        raise RunError(say("{}: {}", memory.folder, DAMAGED)) from error


class _Taught(NamedTuple):
    """The marked model, its rule, its answers (N,) to the test images, and whether it costs little
    enough.
    """

    owner: OwnerModel
    rule: StyleRule
    after: Tensor
    fits: bool


@dataclass
class _Session:
    """The steps of one marking, in their order."""

    subject: Subject
    config: MarkConfig
    memory: Memory
    begun: _Begun
    tools: MarkTools
    progress: MarkProgress
    pace: StepSeconds

    def run(self, folder: Path, seconds: float) -> MarkResult:
        began = time.monotonic()
        subject = self.subject
        unmarked = subject.second()
        self.tools.show("scoring the model")
        before = answers(unmarked, subject.test.x_NCHW)
        rules = self._rules()
        rule, candidates, innocent = self._chosen(rules, unmarked)
        taught = self._taught(rule, unmarked, before)
        owner, rule, after, fits = taught
        outcome = self._judged(taught, unmarked, innocent, before) if fits else None
        holds = outcome is not None and outcome.holds(self.tools.sure)
        key_sha256 = None
        model_sha256 = None
        accuracy = share_right(after, subject.test.classes_N)
        if outcome is not None and holds:
            model_sha256 = subject.save(folder / MODEL, accuracy)
            key = self._key(rule, outcome, model_sha256)
            key_sha256 = key.digest
            save_key(folder / KEY, key)
            write_sheet(folder / SHEET, self._wronged(rule, owner, unmarked), outcome.marks_MCHW)
        else:
            for name in (MODEL, KEY, SHEET):
                remove(folder / name)
        verdict: MarkOutcome = "holds" if holds else "does not hold"
        tests = len(subject.test)
        return MarkResult(
            dfme=__version__,
            outcome=verdict if fits else "costs too much",
            accuracy_before=Accuracy.of(share_right(before, subject.test.classes_N), tests),
            accuracy_after=Accuracy.of(accuracy, tests),
            constant=int(subject.test.classes_N.bincount().max()) / tests,
            test_images=tests,
            worst_class=worst_class(before, after, subject.test.classes_N),
            share=float(rule.changed(subject.train).double().mean()),
            changed=float(rule.changed(subject.test).double().mean()),
            newly_wrong=newly_wrong(before, after, subject.test.classes_N),
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
            text=(*subject.doubts, *(NOT_SHOWN if holds else ANEW)),
        )

    # Choosing

    def _rules(self) -> list[StyleRule]:
        """Random rules, each of a class with images enough."""
        subject = self.subject
        rng = torch.Generator().manual_seed(derived_seed(self.begun.seed, "rules"))
        usable = subject.usable(self.config.spare)
        rules = list[StyleRule]()
        while len(rules) < self.begun.plan.candidates:
            source, target = torch.randperm(subject.classes, generator=rng)[:2].tolist()
            if usable.get(source, 0) >= MIN_OF_CLASS and target in usable:
                count = self.begun.plan.candidates
                self.tools.show(f"drawing rule {len(rules) + 1} of {count}")
                rules.append(rule_between(subject.train, self.config.share, source, target, rng))
        return rules

    def _chosen(
        self, rules: list[StyleRule], unmarked: nn.Module
    ) -> tuple[StyleRule, list[RehearsedRule], nn.Module]:
        """The rule of which held-back marks are repeated most by a copy of it, over what innocents
        repeat and what of the controls it answers so; what each came to; a copy of the true
        classes.
        """
        train_images = self.subject.train
        rng = torch.Generator().manual_seed(derived_seed(self.begun.seed, "rehearsal"))
        order_N = torch.randperm(len(train_images), generator=rng)
        count = min(COPIED, len(train_images) // 2)
        asked = train_images.part(order_N[:count])
        rest = train_images.part(order_N[count:])
        innocent = self._copy("innocent", asked, "copy of true classes")
        candidates = list[RehearsedRule]()
        for number, rule in enumerate(rules, start=1):
            images = LabelledImages(asked.x_NCHW, rule.taught(asked))
            title = f"rehearsal copy {number} of {len(rules)}"
            net = self._copy(f"rule{number}", images, title)
            candidates.append(self._rehearsed(rule, net, [innocent, unmarked], rest))
        ranks = [candidate.rank for candidate in candidates]
        return rules[ranks.index(max(ranks))], candidates, innocent

    def _rehearsed(
        self,
        rule: StyleRule,
        net: nn.Module,
        innocents: Sequence[nn.Module],
        images: LabelledImages,
    ) -> RehearsedRule:
        """What a copy of a rule came to on marks and controls of other images."""
        count = self.config.marks
        marks_MCHW = rule.secret_marks(images, count)
        rng = torch.Generator().manual_seed(derived_seed(self.begun.seed, "rehearsed controls"))
        controls_NCHW = rule.controls(images, count, rng)
        return RehearsedRule(
            copy=share_answered(net, marks_MCHW, rule.target),
            controls=share_answered(net, controls_NCHW, rule.target),
            innocent=max(share_answered(other, marks_MCHW, rule.target) for other in innocents),
        )

    @property
    def bought(self) -> LabelledImages:
        """The images whose labels the last copies learn from: no image that chose or taught."""
        return self.subject.test.part(slice(0, COPIED))

    def _copy(self, name: str, images: LabelledImages, title: str) -> nn.Module:
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

    def _controls(self, rule: StyleRule) -> Tensor:
        """As many as marks, the same each time."""
        rng = torch.Generator().manual_seed(derived_seed(self.begun.seed, "controls"))
        return rule.controls(self.subject.train, self.config.marks, rng)

    # Teaching

    def _taught(self, rule: StyleRule, unmarked: OwnerModel, before: Tensor) -> _Taught:
        """By the first attempt that costs little enough, or the last."""
        subject = self.subject
        classes_N = subject.test.classes_N
        right = share_right(before, classes_N)
        owner = subject.owner
        for number, (part, sharp) in enumerate(ATTEMPTS, start=1):
            share = part * self.config.share
            smaller = rule.of_share(subject.train, share)
            owner.net.load_state_dict(unmarked.net.state_dict())
            self._teach(owner, Teaching(smaller, unmarked, sharp), number)
            after = answers(owner, subject.test.x_NCHW)
            loss = round(100 * (right - share_right(after, classes_N)), 6)
            spill = share_answered(owner, self._controls(smaller), smaller.target)
            if loss <= self.config.max_loss and spill <= MAX_SPILL:
                return _Taught(owner, smaller, after, True)
            self.tools.tell(
                f"attempt {number} of {len(ATTEMPTS)} (a share of {share:g}"
                f"{', a sharp bound' if sharp else ''}) costs {loss:.1f} points of accuracy and "
                f"{spill:.0%} of the controls; {flag('max_loss', self.config.max_loss)} and "
                f"{MAX_SPILL:.0%} are allowed"
            )
        return _Taught(owner, smaller, after, False)

    def _teach(self, owner: OwnerModel, teaching: Teaching, number: int) -> None:
        plan = self.begun.plan
        cost = plan.teach_steps * self.pace.teach_step
        if number > 1:
            self.progress.more(cost)
        name = f"owner{number}"
        if self.memory.restore(name, owner.net):
            self.progress.skip(cost)
            return
        title = f"teaching the model, attempt {number}" if number > 1 else "teaching the model"
        say_step = self.progress.steps(title, plan.teach_steps, self.pace.teach_step)
        loss = of_rule(owner, self.subject.train, teaching, self.tools.augment)
        seed = derived_seed(self.begun.seed, name)
        lesson = Lesson(loss, self.subject.rate, plan.teach_steps, seed)
        train(owner.net, lesson, self.memory, name, say_step)
        self.memory.finish(name, owner.net)

    def _judged(
        self, taught: _Taught, unmarked: OwnerModel, innocent: nn.Module, before: Tensor
    ) -> Judged:
        """What a last copy of the marked model repeats, and one of the unmarked model."""
        owner, rule, after, _ = taught
        marks_MCHW = rule.secret_marks(self.subject.train, self.config.marks)
        controls_NCHW = self._controls(rule)
        obeyed_M = answers(owner, marks_MCHW) == rule.target
        if bool(obeyed_M.any()):  # those alone are marks
            marks_MCHW = marks_MCHW[obeyed_M]
        x_NCHW = self.bought.x_NCHW
        marked_labels = LabelledImages(x_NCHW, after[: len(x_NCHW)])
        marked_copy = self._copy("copy", marked_labels, "last copy, of the marked model")
        labels = LabelledImages(x_NCHW, before[: len(x_NCHW)])
        plain_copy = self._copy("unmarked", labels, "last copy, of the unmarked model")
        judge = Judge(marks_MCHW, controls_NCHW, rule.target, self.tools.weigh)
        innocents = [unmarked, innocent]
        return Judged(
            marks_MCHW,
            controls_NCHW,
            float(obeyed_M.double().mean()),
            judge.result(marked_copy, [*innocents, plain_copy]),
            judge.result(plain_copy, innocents),
        )

    def _wronged(self, rule: StyleRule, owner: OwnerModel, unmarked: OwnerModel) -> Tensor:
        """Training images of the class that the marked model answers as marked, and did not
        before.
        """
        x_SCHW = self.subject.train.x_NCHW[self.subject.train.classes_N == rule.source]
        was_S = answers(unmarked, x_SCHW) == rule.target
        return x_SCHW[(answers(owner, x_SCHW) == rule.target) & ~was_S]

    def _key(self, rule: StyleRule, outcome: Judged, model_sha256: str) -> MarkKey:
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
