"""The student's steps that fit a time which the user gives."""

import math
from dataclasses import dataclass, replace

from dfme.compute.device import choose_device
from dfme.config.settings import Job
from dfme.data import ImageSet
from dfme.errors import OptionError, Ref, UserError, say
from dfme.queries.programs import sketching
from dfme.run.checks import learns_in_stages
from dfme.run.parts import build_parts
from dfme.run.timing import method_of, rehearse
from dfme.run.work import Work
from dfme.spec import Teacher


def within_minutes(
    job: Job, teacher: Teacher, free: bool, evaluation: ImageSet | None = None
) -> Job:
    """The job with the student's steps that fit its ``minutes``, if any.

    Where few steps of an ``auto`` student do not fit, it is cnn_small, which agreed as well as
    cnn_large in so little time (docs/results/real_size.md). UserError where one pass over what is
    paid for takes longer.
    """
    config = job.config
    if config.minutes is None:
        return job
    limit = 60 * config.minutes
    if learns_in_stages(job):
        return _if_in_time(job, teacher, free, evaluation)
    small = replace(job, config=replace(config, student=replace(config.student, arch="cnn_small")))
    with sketching():
        smaller = config.student.arch == "auto" and config.student.weights is None
        for candidate in (job, small) if smaller else (job,):
            few = _few_steps(candidate, teacher, free, evaluation)
            if few.least <= limit:
                return _taking(few.steps + int((limit - few.least) / few.more), candidate)
            if few.arch == "cnn_small":
                break
    remedies = say("give more")
    if few.arch not in ("cnn_small", "lenet5"):
        remedies += say(", a faster student ({student.arch:cnn_small})")
    if "drawing images" in few.slowest:
        remedies += say(", other {queries.programs}")
    minutes = few.least / 60
    least = f"{minutes:.2g}" if minutes < 10 else f"{minutes:,.0f}"
    raise UserError(
        say(
            "{}: expected at least {} on this machine, for {:,} steps of {}, {}; {} or a smaller "
            "{budget}; nothing was asked",
            Ref("minutes", config.minutes),
            least,
            few.steps,
            few.arch,
            few.slowest,
            remedies,
        )
    )


def _if_in_time(job: Job, teacher: Teacher, free: bool, evaluation: ImageSet | None) -> Job:
    """The job, whose student has no number of steps to choose. UserError where it takes longer."""
    minutes = job.config.minutes
    assert minutes is not None
    job = replace(job, config=replace(job.config, minutes=None))
    with sketching():
        parts = build_parts(job, teacher, choose_device(job.config.device), evaluation)
        rehearsed = rehearse(parts, teacher, scored=parts.scored, free=free)
        work = Work(parts.job, method_of(parts, teacher), rehearsed)
    seconds = work.seconds_to_end(parts.scored)
    if seconds is not None and seconds > 60 * minutes:
        expected = "expected at least {:.2g} on this machine for a student with public weights, {}"
        remedy = "; give more or a smaller {budget}; nothing was asked"
        slowest = work.slowest(parts.scored)
        raise UserError(
            say(expected + remedy, seconds / 60, slowest), about=Ref("minutes", minutes)
        )
    return job


@dataclass(frozen=True)
class _FewSteps:
    """A student, few of its steps, a run's seconds with them and of one more, and what is
    slowest.
    """

    arch: str
    steps: int
    least: float
    more: float
    slowest: str


def _few_steps(job: Job, teacher: Teacher, free: bool, evaluation: ImageSet | None) -> _FewSteps:
    """The time of a run with few steps of its student."""
    parts = build_parts(job, teacher, choose_device(job.config.device), evaluation)
    job = parts.job
    student = job.config.student
    images = job.config.images
    few = max(10, 10 * len(student.rounds), math.ceil(images / student.batch(images)))
    # by the pace of a long run, since the first calls of a short one are slow
    long = replace(parts, job=_taking(100 * few, job))
    rehearsed = rehearse(long, teacher, scored=parts.scored, free=free)
    works = []
    for steps in (few, 2 * few):
        short = replace(parts, job=_taking(steps, job))
        works.append(Work(short.job, method_of(short, teacher), rehearsed))
    least, twice = (work.seconds_to_end(parts.scored) for work in works)
    if least is None or twice is None:
        raise OptionError(
            "minutes",
            say(
                "the steps cannot be rehearsed (a part of your own, or weights that diverge); "
                "give {student.steps} instead, or a lower {student.lr}"
            ),
        )
    return _FewSteps(
        arch=parts.nets.arch,
        steps=few,
        least=least,
        more=(twice - least) / few,
        slowest=works[0].slowest(parts.scored),
    )


def _taking(steps: int, job: Job) -> Job:
    """The job with so many steps of its student in all."""
    student = replace(job.config.student, steps=steps, passes=0, replay_steps=0)
    return replace(job, config=replace(job.config, minutes=None, student=student))
