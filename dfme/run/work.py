"""Work that a run still has to do, and its time: as a rehearsal foretold it, and as it is measured.
On a CPU, the number of torch threads that is fastest for it.
"""

import copy
import math
import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal

import torch

from dfme.compute.device import choose_device
from dfme.config.settings import Job
from dfme.errors import flag
from dfme.methods.base import Method
from dfme.report.console import Standing, duration
from dfme.run.checks import keeps_answers, learns_in_stages
from dfme.run.components import Nets
from dfme.spec import ImageSpec

THREADS_GIVEN = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
)  # a person's or a scheduler's number for torch

WORTH = 0.65
"""Share of what twice the threads could give that they must give to be taken, so 1.3 times the pace
of one. Measured: two threads give steps of 45 ms 1.5 to 1.6 times the pace. Where the machine gets
busy they wait for each other, and go at half the pace of one (docs/precision.md)."""

SHORT_STEP = 0.01  # seconds of one core, below which a step is left to it

LONG_STEP = 0.25  # seconds of one core, from which on a step's operations keep every thread at work

ROUNDS = 5

ROUND_SECONDS = 0.015

ROUNDS_SECONDS = 0.3

PILOT_IMAGES = 8


def worthwhile_threads(
    step: Callable[[int], object],
    images: int,
    most: int,
    wall: Callable[[], float] = time.perf_counter,
    busy: Callable[[], float] = time.process_time,
) -> int:
    """Choose the number of torch threads, 1 to ``most``, by timing some steps on so many
    ``images``.

    The threads are doubled for as long as that pays (``WORTH``): the usual pace of the more is held
    against the best of the fewer, so that a gain that comes and goes is none. A step longer than
    ``LONG_STEP`` is not measured: it is worth all. ``wall``, ``busy``: seconds gone by, and of
    those on a core. torch's number is as it was afterwards.
    """

    def pace(threads: int) -> float:
        torch.set_num_threads(threads)
        started = wall()
        steps = 0
        while (taken := wall() - started) < ROUND_SECONDS or not steps:
            step(images)
            steps += 1
        return taken / steps

    was = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        few = min(images, PILOT_IMAGES)
        step(few)  # whatever is made once
        began = busy()
        step(few)
        if (busy() - began) * images / few > LONG_STEP:
            return most
        threads = 1
        started = wall()
        while threads < most:
            more = min(2 * threads, most)
            paces = list[tuple[float, float]]()
            while len(paces) < ROUNDS and (not paces or wall() - started < ROUNDS_SECONDS):
                paces.append((pace(threads), pace(more)))
            fewer, doubled = zip(*paces, strict=True)
            if max(statistics.median(doubled) * WORTH * more, SHORT_STEP) > min(fewer) * threads:
                break
            threads = more
        return threads
    finally:
        torch.set_num_threads(was)


def take_threads(job: Job, nets: Nets, spec: ImageSpec) -> list[str]:
    """Set the number of torch threads that is fastest for this job on a CPU, unless set. A line."""
    most = torch.get_num_threads()
    if most == 1 or any(os.environ.get(name) for name in THREADS_GIVEN):
        return []
    net = copy.deepcopy(nets.students[0])  # its statistics are nobody's
    config = job.config
    images = (
        config.student.batch(config.images) if keeps_answers(job) else job.method_config.batch_size
    )
    x_BCHW = torch.rand(images, *spec.shape, generator=torch.Generator().manual_seed(0))

    def step(count: int) -> None:
        net.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=config.precision == "bf16"):
            scores_BK = net(x_BCHW[:count])
        scores_BK.float().square().mean().backward()

    torch.set_num_threads(taken := worthwhile_threads(step, images, most))
    return [
        f"threads: {taken} of {most}, by timing a few steps of the student; OMP_NUM_THREADS=N "
        "takes N"
    ]


Activity = Literal["asking", "training", "scoring"]

TRUST = 2.0  # seconds measured that count as much as the rehearsal; heuristic
MEMORY = (
    120.0  # seconds of work that a pace is taken from, about: a machine becomes faster or slower
)
END_SECONDS = 0.5  # for a run's last files; .3 to .5 of a core with the embedded teachers
LONG_SECONDS = 1200.0  # from which on it is said what would shorten a run
STEPS_AT_ONCE = 50  # most student steps between two looks at the clock, ...
LOOK_SECONDS = 0.5  # ... and the most time of them, about


def shorter(seconds: float, by: str) -> str:
    """The end of a line that foretells so many: what shortens them, if they are long."""
    return f"; shorter with {by}" if seconds > LONG_SECONDS else ""


class UnitTime:
    """Seconds of a unit of work: as foretold, if it was, and more and more as measured."""

    def __init__(self, foretold: float | None, trust: float = TRUST) -> None:
        self._seconds = trust if foretold else 0.0
        self._units = trust / foretold if foretold else 0.0

    def add(self, seconds: float, units: float) -> None:
        """Count ``units`` that took so long."""
        kept = 0.5 if self._seconds > MEMORY else 1.0
        self._seconds = kept * self._seconds + seconds
        self._units = kept * self._units + units

    @property
    def mean(self) -> float | None:
        """Seconds of a unit; None if not known yet."""
        return self._seconds / self._units if self._units else None


@dataclass(frozen=True)
class Rehearsed:
    """Seconds of parts of a run.

    ``image``: of one that is charged, without student steps, with the teacher's ``answer`` where
    that is known. ``fresh``, ``replayed``: of a student's step on such a batch. ``score``: of an
    evaluation. ``learnt``: fresh batches per charged image, which is no time. ``drawn``: of each
    program that draws images, for one that is charged; ``image`` contains them. ``of_drawn``: of
    one image by each program.
    """

    image: float
    learnt: float
    fresh: float
    replayed: float
    score: float
    answer: float | None
    drawn: Mapping[str, float] = field(default_factory=dict)
    of_drawn: Mapping[str, float] = field(default_factory=dict)


class Work:
    """What a run still has to do: images to pay for, student steps in rounds, evaluations; and its
    time.
    """

    def __init__(self, job: Job, method: Method, rehearsed: Rehearsed | None = None) -> None:
        self.rehearsed = rehearsed
        self._asked_times = method.oracle.times
        self._job = job
        self._trainer = method.students
        self._ledger = method.oracle.ledger
        self._scored = 0
        self._at = time.monotonic()
        foretold = dict[Activity, float]()
        if rehearsed is not None:
            of_step = rehearsed.replayed / self._batch(1.0)
            foretold = {"training": of_step, "scoring": rehearsed.score, "asking": rehearsed.image}
            during = self._trainer.plan.during
            if during is None:
                again = job.config.student.replay_steps * rehearsed.replayed
                foretold["asking"] += rehearsed.learnt * (rehearsed.fresh + again)
            else:
                foretold["asking"] += during * rehearsed.replayed / self._ledger.budget
        kinds: tuple[Activity, ...] = ("asking", "training", "scoring")
        self._times = {kind: UnitTime(foretold.get(kind)) for kind in kinds}
        self._answered = rehearsed is None or rehearsed.answer is not None
        if not self._answered:  # the teacher's own time is in what is measured alone
            self._times["asking"] = UnitTime(foretold["asking"], trust=1e-6)
        self._left = self.left

    @contextmanager
    def doing(self, kind: Activity) -> Iterator[None]:
        """Count what is done within the context, and how long it takes."""
        before = self._done(kind)
        began = time.monotonic()
        yield
        self._at = time.monotonic()
        self._scored += kind == "scoring"
        self._answered |= kind == "asking"
        self._times[kind].add(self._at - began, self._done(kind) - before)
        self._left = self.left

    @property
    def left(self) -> float | None:
        """Seconds of all that is to come; None if a part of it is not known."""
        seconds = 0.0
        for kind, units in self._to_come.items():
            mean = self._times[kind].mean
            if mean is None and units and kind != "scoring":  # of which the first comes late
                return None
            seconds += (mean or 0.0) * units
        return seconds

    @property
    def _to_come(self) -> dict[Activity, float]:
        """Units of each kind of work that is left."""
        unpaid = self._ledger.budget - self._ledger.spent
        steps = self._trainer.steps
        rounds = [(begin, end, held) for begin, end, held in self._rounds if end > steps]
        evaluation = self._job.config.evaluation
        points = min(
            evaluation.points * unpaid / self._ledger.budget,
            unpaid / self._job.method_config.batch_size,
        )
        if self._trainer.plan.during == 0 and evaluation.dataset != "none":
            points = 0  # between rounds the student, and so its scores, stay as they are
        return {
            "asking": unpaid,
            "training": sum(
                (end - max(begin, steps)) * self._batch(held) for begin, end, held in rounds
            ),
            "scoring": points + len(rounds),
        }

    @property
    def steps_at_once(self) -> int:
        """Student steps between two looks at the clock, of those in rounds; no result depends on
        it.
        """
        mean = self._times["training"].mean
        return (
            1
            if mean is None
            else min(STEPS_AT_ONCE, max(1, int(LOOK_SECONDS / (mean * self._now))))
        )

    @property
    def steps(self) -> int:
        """Student steps of the whole run."""
        plan = self._trainer.plan
        if plan.during is not None:
            return plan.edges[-1]
        batches = self.rehearsed.learnt * self._ledger.budget if self.rehearsed else 0.0
        return round(batches * (1 + self._job.config.student.replay_steps))

    def standing(self, seconds: float) -> Standing:
        """The run's progress now, after so many seconds of it; for another thread, too."""
        planned = self._left if self._answered else None
        remaining = None if planned is None else max(0.0, planned - (time.monotonic() - self._at))
        share = None if remaining is None else seconds / max(seconds + remaining, 1e-9)
        where = ""
        if self._trainer.steps_due:
            steps = self._trainer.steps
            rounds = self._rounds
            number = min(sum(end <= steps for _, end, _ in rounds), len(rounds) - 1)
            begin, end, _ = rounds[number]
            if (
                len(rounds) == 1
            ):  # which counts the steps that were taken while the budget was spent, too
                begin = 0
            if len(rounds) > 1:
                where = f"round {number + 1} of {len(rounds)}, "
            where += f"step {steps - begin:,} of {end - begin:,}"
        return Standing(self._ledger.spent, share, remaining, where)

    def training(self, arch: str) -> str:
        """The students, of this architecture, and their steps, in words."""
        nets = self._trainer.nets
        parameters = sum(parameter.numel() for parameter in nets[0].parameters())
        replays = self._trainer.replay is not None
        images = self._batch(1.0) if replays else self._job.method_config.batch_size
        several = f"{len(nets)} of " if len(nets) > 1 else ""
        bf16 = " in bf16" if self._trainer.precision == "bf16" else ""
        return (
            f"{several}{arch}, {parameters:,} parameters, {self.steps:,} steps of "
            f"{images} images{bf16}"
        )

    def seconds_to_end(self, evaluated: int) -> float | None:
        """Seconds until the run's last file is written; None if a part of them is not known.

        ``evaluated``: images that the teacher is still to be asked about, to score on.
        """
        if self.rehearsed is None or (remaining := self.left) is None:
            return None
        return remaining + evaluated * (self.rehearsed.answer or 0.0) + END_SECONDS

    def slowest(self, evaluated: int) -> str:
        """The longest part of a run that is still to begin, in words; empty if it is not known."""
        rehearsed = self.rehearsed
        if rehearsed is None:
            return ""
        to_come = self._to_come
        images = to_come["asking"]
        answer = rehearsed.answer or 0.0
        drawing = sum(rehearsed.drawn.values())
        parts = dict[str, float]()
        for program, seconds in rehearsed.drawn.items():
            pace = f"{1000 * rehearsed.of_drawn[program]:,.0f} ms each"
            parts[f"drawing images by {program}, {pace}"] = seconds * images
        asking = f"the teacher's answers, {1000 * answer:,.0f} ms each"
        parts[asking] = answer * (images + evaluated)
        parts["the method's own steps"] = (rehearsed.image - answer - drawing) * images
        parts["the student's steps"] = (self._times["training"].mean or 0.0) * to_come["training"]
        parts["scoring the student"] = rehearsed.score * to_come["scoring"]
        longest, part = max((seconds, part) for part, seconds in parts.items())
        return f"{duration(longest)} of it {part}"

    def foretold(self, evaluated: int) -> tuple[str, str]:
        """``seconds_to_end`` in words, and what would shorten it, if it is long."""
        seconds = self.seconds_to_end(evaluated)
        if self.rehearsed is None or seconds is None:
            return "the time is not known yet", ""
        text = f"about {duration(seconds)} on this machine"
        if self.rehearsed.answer is None:
            text += ", the teacher's own time apart"
        student = self._job.config.student
        fewer = "passes" if student.passes and not student.steps else "steps"
        gpu = "" if choose_device(self._job.config.device).type == "cuda" else ", a GPU"
        if learns_in_stages(self._job):
            return text, shorter(seconds, f"a smaller {flag('budget')}{gpu}")
        minutes = flag("minutes", LONG_SECONDS / 60)
        student_steps = flag(f"student.{fewer}")
        return text, shorter(
            seconds, f"{minutes}, fewer {student_steps}, a smaller {flag('student.arch')}{gpu}"
        )

    @property
    def _rounds(self) -> list[tuple[int, int, float]]:
        """Of each round the steps at which it begins and ends, and the share of the budget it
        learns from.
        """
        plan = self._trainer.plan
        if plan.during is None:
            return []
        dues = [due for due in plan.rounds if plan.since < due]
        pairs = [*pairwise(plan.edges)]
        held = [1.0] * (len(pairs) - len(dues)) + dues
        return [(begin, end, share) for (begin, end), share in zip(pairs, held, strict=True)]

    def _batch(self, share: float) -> int:
        """Images of a step once this share of the budget is spent."""
        student = self._trainer.config
        held = math.ceil(share * self._ledger.budget / self._asked_times)
        return student.batch(min(held, student.replay_capacity))

    @property
    def _now(self) -> int:
        return self._batch(self._ledger.share)

    def _done(self, kind: Activity) -> float:
        if kind == "scoring":
            return self._scored
        return self._ledger.spent if kind == "asking" else self._trainer.steps * self._now
