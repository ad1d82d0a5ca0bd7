"""Time of a run: foretold by a rehearsal on noise, which asks nobody, and corrected by what is measured."""

import copy
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from dfme.answers.asking import Reader
from dfme.compute import DeferredChecks, choose_device
from dfme.config.settings import Job
from dfme.data import ImageSet
from dfme.methods.base import Method
from dfme.oracle.ledger import Ledger
from dfme.oracle.oracle import Oracle
from dfme.queries.pool import ImageSource
from dfme.randomness import Streams
from dfme.report.console import Standing, duration
from dfme.run.components import Nets, build_components, build_method
from dfme.run.parts import with_placeholder_step
from dfme.run.scores import evaluation_batch, scores
from dfme.spec import Teacher, TeacherInfo
from dfme.students.optimizers import StepPlan
from dfme.students.trainer import Metrics

Activity = Literal["asking", "training", "scoring"]

PART_SECONDS = 0.15  # after which no more of one kind of work is rehearsed
SHORT_SECONDS = 2.0  # of a run by the first calls alone, which are slow, up to which there are no others
SLOW_SECONDS = 1.5  # of a call, after which there is no second; of a student's step, timed on FEW images then
FEW = 16
HELD = 512  # answered images in a rehearsal's replay: some methods breed from so many on
TRUST = 2.0  # seconds measured that count as much as the rehearsal; heuristic
MEMORY = 120.0  # seconds of work that a pace is taken from, about: a machine becomes faster or slower
LONG_SECONDS = 1200.0  # from which on it is said what would shorten a run
STEPS_AT_ONCE = 50  # most student steps between two looks at the clock, ...
LOOK_SECONDS = 0.5  # ... and the most time of them, about


class UnitTime:
    """Seconds of a unit of work: as foretold, if it was, and more and more as measured."""

    def __init__(self, foretold: float | None) -> None:
        self._seconds = TRUST if foretold else 0.0
        self._units = TRUST / foretold if foretold else 0.0

    def add(self, seconds: float, units: float) -> None:
        """Count ``units`` that took so long."""
        kept = 0.5 if self._seconds > MEMORY else 1.0
        self._seconds = kept * self._seconds + seconds
        self._units = kept * self._units + units

    @property
    def each(self) -> float | None:
        """Seconds of a unit; None if not known yet."""
        return self._seconds / self._units if self._units else None


@dataclass(frozen=True)
class Rehearsed:
    """Seconds of parts of a run.

    ``image``: of one that is charged, without student steps, with the teacher's ``answer`` where that is
    known. ``fresh``, ``replayed``: of a student's step on such a batch. ``score``: of an evaluation.
    ``learnt``: fresh batches per charged image, which is no time.
    """

    image: float
    learnt: float
    fresh: float
    replayed: float
    score: float
    answer: float | None


class Work:
    """What a run still has to do: images to pay for, student steps in rounds, evaluations; and its time."""

    def __init__(self, job: Job, method: Method, found: Rehearsed | None = None) -> None:
        self.found = found
        self._asked_times = method.oracle.times
        self._job = job
        self._trainer = method.students
        self._ledger = method.oracle.ledger
        self._scored = 0
        self._at = time.monotonic()
        foretold = dict[Activity, float]()
        if found is not None:
            of_step = found.replayed / self._batch(1.0)
            foretold = {"training": of_step, "scoring": found.score, "asking": found.image}
            during = self._trainer.plan.during
            if during is None:
                again = job.config.student.replay_steps * found.replayed
                foretold["asking"] += found.learnt * (found.fresh + again)
            else:
                foretold["asking"] += during * found.replayed / self._ledger.budget
        kinds: tuple[Activity, ...] = ("asking", "training", "scoring")
        self._times = {kind: UnitTime(foretold.get(kind)) for kind in kinds}
        self._left = self.left

    @contextmanager
    def doing(self, kind: Activity) -> Iterator[None]:
        """Count what is done within the context, and how long it takes."""
        before = self._done(kind)
        began = time.monotonic()
        yield
        self._at = time.monotonic()
        self._scored += kind == "scoring"
        self._times[kind].add(self._at - began, self._done(kind) - before)
        self._left = self.left

    @property
    def left(self) -> float | None:
        """Seconds of all that is to come; None if a part of it is not known."""
        unpaid = self._ledger.budget - self._ledger.spent
        steps = self._trainer.steps
        rounds = [(begin, end, held) for begin, end, held in self._rounds if end > steps]
        points = self._job.config.evaluation.points * unpaid / self._ledger.budget
        to_come: dict[Activity, float] = {
            "asking": unpaid,
            "training": sum((end - max(begin, steps)) * self._batch(held) for begin, end, held in rounds),
            "scoring": min(points, unpaid / self._job.method_config.batch_size) + len(rounds),
        }
        seconds = 0.0
        for kind, units in to_come.items():
            each = self._times[kind].each
            if each is None and units and (kind != "scoring" or self.found):
                return None
            seconds += (each or 0.0) * units
        return seconds

    @property
    def steps_at_once(self) -> int:
        """Student steps between two looks at the clock, of those in rounds; no result depends on it."""
        each = self._times["training"].each
        return 1 if each is None else min(STEPS_AT_ONCE, max(1, int(LOOK_SECONDS / (each * self._now))))

    @property
    def steps(self) -> int:
        """Student steps of the whole run."""
        plan = self._trainer.plan
        if plan.during is not None:
            return plan.edges[-1]
        batches = self.found.learnt * self._ledger.budget if self.found else 0.0
        return round(batches * (1 + self._job.config.student.replay_steps))

    def standing(self, seconds: float) -> Standing:
        """The run's progress now, after so many seconds of it; for another thread, too."""
        left = None if self._left is None else max(0.0, self._left - (time.monotonic() - self._at))
        share = None if left is None else seconds / max(seconds + left, 1e-9)
        where = ""
        if self._trainer.steps_due:
            steps = self._trainer.steps
            rounds = self._rounds
            number = sum(end <= steps for _, end, _ in rounds)
            begin, end, _ = rounds[min(number, len(rounds) - 1)]
            where = f"round {number + 1} of {len(rounds)}, " * (len(rounds) > 1)
            where += f"step {steps - begin:,} of {end - begin:,}"
        return Standing(self._ledger.spent, share, left, where)

    def training(self, arch: str) -> str:
        """The students, of this architecture, and their steps, in words."""
        nets = self._trainer.nets
        parameters = sum(parameter.numel() for parameter in nets[0].parameters())
        replays = self._trainer.replay is not None
        images = self._batch(1.0) if replays else self._job.method_config.batch_size
        several = f"{len(nets)} of " * (len(nets) > 1)
        return f"{several}{arch}, {parameters:,} parameters, {self.steps:,} steps of {images} images"

    def foretold(self, evaluated: int) -> tuple[str, str]:
        """The time of the run in words, and what would shorten it, if it is long.

        ``evaluated``: images that the teacher is still to be asked about, to score on.
        """
        seconds = self.left
        if self.found is None or seconds is None:
            return "the time is not known yet", ""
        answer = self.found.answer
        seconds += evaluated * (answer or 0.0)
        text = f"about {duration(seconds)} on this machine"
        text += ", the teacher's own time apart" * (answer is None)
        student = self._job.config.student
        fewer = "passes" if student.passes and not student.steps else "steps"
        gpu = "" if choose_device(self._job.config.device).type == "cuda" else ", a GPU"
        short = f"; shorter with --minutes {LONG_SECONDS / 60:g}, fewer --student.{fewer}, "
        return text, f"{short}a smaller --student.arch{gpu}" * (seconds > LONG_SECONDS)

    @property
    def _rounds(self) -> list[tuple[int, int, float]]:
        """Of each round the steps at which it begins and ends, and the share of the budget it learns from."""
        plan = self._trainer.plan
        if plan.during is None:
            return []
        dues = [due for due in plan.rounds if plan.since < due]
        pairs = [*pairwise(plan.edges)]
        held = [1.0] * (len(pairs) - len(dues)) + dues
        return [(begin, end, share) for (begin, end), share in zip(pairs, held, strict=True)]

    def _batch(self, share: float) -> int:
        """Images of a step once this share of the budget is spent."""
        student = self._job.config.student
        held = math.ceil(share * self._ledger.budget / self._asked_times)
        return student.batch(min(held, student.replay_capacity))

    @property
    def _now(self) -> int:
        return self._batch(self._ledger.share)

    def _done(self, kind: Activity) -> float:
        if kind == "scoring":
            return self._scored
        return self._ledger.spent if kind == "asking" else self._trainer.steps * self._now


class RandomTeacher:
    """A teacher in place of another, of the same images and answers, which are random: nobody is asked."""

    def __init__(self, teacher: Teacher) -> None:
        self.spec = teacher.spec
        self.num_classes = teacher.num_classes
        self.label_mode = teacher.label_mode
        self.info = TeacherInfo(device=teacher.info.device, max_batch=teacher.info.max_batch)
        self._rng = torch.Generator(self.info.device).manual_seed(0)

    def __call__(self, images: Tensor, /) -> Tensor:
        mode = self.label_mode
        size = (len(images), self.num_classes)
        scores_BK = torch.randn(size, generator=self._rng, device=self.info.device)
        if mode.kind in ("logits", "label"):
            return scores_BK if mode.kind == "logits" else scores_BK.argmax(dim=1)
        answers_BK = scores_BK.softmax(dim=1)
        if mode.decimals is not None:
            answers_BK = answers_BK.round(decimals=mode.decimals)
        if mode.k is None:
            return answers_BK
        least_B1 = scores_BK.topk(min(mode.k, self.num_classes), dim=1).values[:, -1:]
        return answers_BK.masked_fill(scores_BK < least_B1, math.nan)


def method_of(job: Job, teacher: Teacher, nets: Nets, pool: ImageSource | None) -> Method:
    """The method as it begins, on a ledger of its own; what a check would choose is chosen."""
    job = replace(job, estimator=with_placeholder_step(job.estimator, teacher.spec))
    reader = Reader(job.config.answers, teacher.label_mode, teacher.num_classes)
    oracle = Oracle(teacher, Ledger(int(job.config.budget)), reader=reader)
    streams = Streams(job.config.seed, choose_device(job.config.device))
    parts = build_components(job, nets, oracle, streams, DeferredChecks(), pool=pool, directory=Path())
    return build_method(job, parts)


def rehearse(
    job: Job, teacher: Teacher, nets: Nets, pool: ImageSource | None, data: ImageSet | None, free: bool
) -> Rehearsed | None:
    """Time a few steps of a copy of the run's parts on noise; nothing of the run's own changes.

    ``free``: the teacher is one of ours in this process, so it is timed, too; any other is not asked, and its
    stated rate counts. None where a part of one's own cannot be copied or rehearsed.
    """
    device = choose_device(job.config.device)
    student = replace(job.config.student, replay_store="memory")
    student = replace(student, replay_capacity=min(student.replay_capacity, 8 * HELD))
    own = replace(job, config=replace(job.config, student=student, graphs=False))
    try:
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            made = copy.deepcopy((nets.students, nets.generator))
            copied = replace(nets, students=made[0], generator=made[1])
            method = method_of(own, RandomTeacher(teacher), copied, copy.copy(pool))
            images = len(data) if data is not None else min(2_000, job.config.images // 20) // 2
            stage = _Stage(job, teacher, method, images, free)
            return stage.rehearse()
    except Exception:  # of a part of one's own, which the run itself will report
        return None


class _Stage:
    """A rehearsal's method, with noise that is answered and held; ``scored``: images of an evaluation."""

    def __init__(self, job: Job, teacher: Teacher, method: Method, scored: int, free: bool) -> None:
        self._job = job
        self._teacher = teacher
        self._method = method
        self._scored = scored
        self._free = free
        spec = teacher.spec
        low, high = spec.bounds
        held = spec.at_once(HELD)
        x_NCHW = torch.rand(held, *spec.shape, generator=torch.Generator().manual_seed(0))
        self._x_NCHW = x_NCHW.mul_(high - low).add_(low).to(choose_device(job.config.device))
        reader = Reader(job.config.answers, teacher.label_mode, teacher.num_classes)
        ledger = Ledger(held * reader.times)
        self._answers = Oracle(RandomTeacher(teacher), ledger, reader=reader)(self._x_NCHW)
        if (replay := method.students.replay) is not None:
            replay.add(self._x_NCHW, self._answers)

    def rehearse(self) -> Rehearsed:
        """First calls alone of a run that is short by them; else some more, without the first."""
        plan = self._method.students.plan
        first = self._parts(0.0)
        self._method.students.plan = plan
        left = Work(self._job, self._method, first).left
        return first if left is not None and left < SHORT_SECONDS else self._parts(PART_SECONDS)

    def _parts(self, most: float) -> Rehearsed:
        method = self._method
        trainer = method.students
        trainer.plan = StepPlan()
        batch = self._job.method_config.batch_size
        of_replay = self._job.config.student.batch(self._job.config.images)
        fresh = self._step(batch, most)
        replayed = fresh if trainer.replay is None or of_replay == batch else self._step(of_replay, most)
        # The students have taken a step, so there is choice; those of the iterations are left out.
        trainer.plan = StepPlan(during=0)
        learnt = 0
        learn = trainer.learn
        ledger = method.oracle.ledger

        def counted(images_BCHW: Tensor, answers: Tensor, keep: bool = True) -> Metrics:
            nonlocal learnt
            learnt += 1
            return learn(images_BCHW, answers, keep)

        def iteration() -> float:
            spent = ledger.spent
            if (remaining := method.oracle.remaining) >= method.cost:
                method.step()
            elif remaining:
                method.finish(remaining)
            return ledger.spent - spent

        if method.asks_before():
            method.prepare()
        spent = ledger.spent
        trainer.learn = counted  # type: ignore[method-assign]
        image = _mean_seconds(iteration, most)
        trainer.learn = learn  # type: ignore[method-assign]
        answer = self._answer(batch, most)
        part = self._x_NCHW[: min(128, evaluation_batch(self._x_NCHW.shape))]
        score = _mean_seconds(lambda: len(scores(trainer.delivered, part)), most)
        score *= self._scored * (1 if trainer.vote is None else 1 + len(trainer.nets))
        batches = learnt / max(1, ledger.spent - spent)
        return Rehearsed(image + (answer or 0.0), batches, fresh, replayed, score, answer)

    def _step(self, images: int, most: float) -> float:
        def step(count: int) -> float:
            which = torch.arange(count, device=self._x_NCHW.device) % len(self._x_NCHW)
            self._method.students.learn(self._x_NCHW[which], self._answers[which], keep=False)
            return count

        of_few = _mean_seconds(lambda: step(FEW), most / 5)
        slow = images * of_few > SLOW_SECONDS
        return images * (of_few if slow else _mean_seconds(lambda: step(images), most))

    def _answer(self, batch: int, most: float) -> float | None:
        """Seconds of an answer to an image, by the stated rate or the teacher's own time; None if unknown."""
        info = self._teacher.info
        at_once = min(batch, info.max_batch or batch)
        rates = [info.wire.images_per_second or 0.0, (info.wire.requests_per_second or 0.0) * at_once]
        if any(rates):
            return 1 / min(filter(None, rates))
        asked = self._teacher if info.stateful is None and info.watch is None else info.network
        if not self._free or asked is None:
            return None
        few = self._x_NCHW[: min(at_once, 64)].to(info.device)
        with torch.no_grad():
            return _mean_seconds(lambda: len(asked(few)), most)


def _mean_seconds(act: Callable[[], float], most: float) -> float:
    """Mean seconds of a unit of an act, which returns its units, for about ``most`` after the slow first one.

    At 0 it is the first one's. 0 where there was nothing to do.
    """
    taken: list[tuple[float, float]] = []
    while not taken or (len(taken) < 20 and sum(seconds for seconds, _ in taken[1:]) < most):
        began = time.perf_counter()
        units = act()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        if not units:
            break
        taken.append((time.perf_counter() - began, units))
        if taken[0][0] > SLOW_SECONDS:
            break
    counted = taken[1:] or taken or [(0.0, 1.0)]
    return math.fsum(seconds for seconds, _ in counted) / math.fsum(units for _, units in counted)
