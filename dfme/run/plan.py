"""What a run will ask, cost and take, as a table; the teacher is asked no image, and nothing is written."""

from __future__ import annotations

import math
import textwrap
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from dfme.answers.asking import Reader
from dfme.compute import DeferredChecks, choose_device
from dfme.config.settings import Job
from dfme.estimators.preflight import preflight_calls
from dfme.methods.base import Ask, Method
from dfme.nets.footprint import weight_bytes
from dfme.oracle.journal import HEAD_BYTES
from dfme.oracle.ledger import Ledger
from dfme.oracle.oracle import Oracle
from dfme.queries.pool import ImageSource
from dfme.randomness import Streams
from dfme.report.console import duration
from dfme.run.build import build_teacher, facts_of
from dfme.run.components import Nets, build_components, build_method, build_replay
from dfme.run.evaluation import held_back_bytes
from dfme.run.memory import at_once, free_memory
from dfme.run.parts import build_parts, drafted, is_checked
from dfme.run.scores import evaluation_batch
from dfme.spec import RequestPolicy, Teacher

WIDTH = 80
"""Columns of the table."""


@dataclass
class Spending:
    """Images by purpose, requests and whole iterations of a run in which every request is answered."""

    limit: int | None
    times: int  # that a charged image is asked
    images: Counter[str] = field(default_factory=Counter)
    requests: int = 0
    iterations: int = 0

    def add(self, ask: Ask) -> None:
        images = ask.images * (1 if ask.purpose == "evaluation" else self.times)
        self.images[ask.purpose] += images
        self.requests += math.ceil(images / (self.limit or images))

    @property
    def charged(self) -> int:
        return sum(self.images.values()) - self.images["evaluation"]


def spending(job: Job, teacher: Teacher, method: Method, evaluated: int, at_once: int) -> Spending:
    """What the run pays for, step by step; ``evaluated`` images are scored on, ``at_once`` of them in one batch."""
    wire, budget = getattr(teacher, "wire", None) or RequestPolicy(), int(job.config.budget)
    limits = [getattr(teacher, "max_batch", None), wire.images_per_second and max(1, int(wire.images_per_second))]
    times = job.config.answers.times
    spent = Spending(min(filter(None, limits), default=None), times)
    for images in preflight_calls(job.estimator, teacher.spec) if is_checked(job) else ():
        spent.add(Ask("check", images))
    for start in range(0, evaluated, at_once):
        spent.add(Ask("evaluation", min(at_once, evaluated - start)))
    for ask in method.asks_before():
        spent.add(ask)
    while (step := method.asks(spent.iterations)) and spent.charged + times * sum(ask.images for ask in step) <= budget:
        spent.iterations += 1
        for ask in step:
            spent.add(ask)
    for ask in method.student_asks((budget - spent.charged) // times):
        spent.add(ask)
    return spent


def plan(job: Job) -> str:
    """The table for a job. UserError for whatever would stop the run before its first query."""
    device, shown, told = choose_device(job.config.device), list[str](), list[str]()
    with ExitStack() as held:
        teacher = build_teacher(job, None, device)
        held.callback(getattr(teacher, "close", lambda: None))
        data, pool, nets, needed = build_parts(job, teacher, device, tell=told.append, always=True)
        method = method_of(job, teacher, nets, pool)
        evaluated = 0 if data is None else len(data)
        spent = spending(job, teacher, method, evaluated, 1 if data is None else evaluation_batch(teacher.spec.shape))
        rows = [
            *_who(job, teacher),
            *_images(job, spent),
            *_price(job, teacher, spent),
            ("memory", _memory(needed, free_memory(device))),
            ("disk", _disk(job, teacher, nets, spent)),
            *(("note", line) for line in told),
            ("not in it", "what fails and is asked again, what kernels, samples and the report take"),
        ]
    for name, text in rows:
        shown += textwrap.wrap(f"{name:12}{text}", WIDTH, subsequent_indent=" " * 12, break_on_hyphens=False)
    return "\n".join(["plan: the teacher was asked no image, nothing was written", *shown])


def method_of(job: Job, teacher: Teacher, nets: Nets, pool: ImageSource | None) -> Method:
    """The method as it begins, on a ledger of its own; what a check would choose is chosen."""
    job = replace(job, estimator=drafted(job.estimator, teacher.spec))
    reader = Reader(job.config.answers, teacher.label_mode, teacher.num_classes)
    oracle = Oracle(teacher, Ledger(int(job.config.budget)), reader=reader)
    streams = Streams(job.config.seed, choose_device(job.config.device))
    return build_method(
        job, build_components(job, nets, oracle, streams, DeferredChecks(), pool=pool, directory=Path())
    )


def _who(job: Job, teacher: Teacher) -> Iterator[tuple[str, str]]:
    spec, low, high = teacher.spec, *teacher.spec.bounds
    yield "teacher", str(facts_of(job, teacher)["target"])
    shape = "x".join(map(str, spec.shape))
    yield "", f"{teacher.num_classes} classes, images {shape} within {low:g} and {high:g}, answers {teacher.label_mode}"
    if inferred := getattr(teacher, "inferred", ()):
        yield "inferred", "; ".join(inferred)
    if getattr(teacher, "wire", None) is not None:
        yield "asked", "at most what the service says of itself (its metadata), and no image"
    yield "recipe", f"{job.config.recipe or 'none named'}; method {job.method}"


def _images(job: Job, spent: Spending) -> Iterator[tuple[str, str]]:
    by_purpose = ", ".join(f"{name} {count:,}" for name, count in spent.images.items() if name != "evaluation")
    yield "images", f"{spent.charged:,} would be charged: {by_purpose}"
    yield "", f"{spent.images['evaluation']:,} more would be asked for evaluation, not charged to the budget"
    yield "iterations", f"{spent.iterations:,}" + ("" if spent.iterations else ": the budget does not reach for one")
    if getattr(job.method_config, "training", "always") != "always":
        yield "", "of the generator at most; in what it does not train, the images are the student's"
    if is_checked(job) and job.estimator.directions > 1:
        yield "", "with forward differences; where the check takes central ones, fewer"
    limit = "no limit to a request" if spent.limit is None else f"at most {spent.limit:,} images in one"
    yield "requests", f"{spent.requests:,}, {limit}"


def _price(job: Job, teacher: Teacher, spent: Spending) -> Iterator[tuple[str, str]]:
    wire, images = getattr(teacher, "wire", None) or RequestPolicy(), sum(spent.images.values())
    rates = {"images": (images, wire.images_per_second), "requests": (spent.requests, wire.requests_per_second)}
    slowest = max((count / rate for count, rate in rates.values() if rate), default=0.0)
    at = " and ".join(f"{rate:g} {name}" for name, (_, rate) in rates.items() if rate)
    if at:
        yield "time", f"at least {duration(slowest)} to ask, at {at} per second; training comes on top"
    elif getattr(teacher, "wire", None) is not None:
        yield "time", "not known: state the rate by --teacher.images-per-second or --teacher.requests-per-second"
    else:
        yield "time", "not known of a teacher on this machine: the first line of a run's progress says it"
    price = job.teacher.price_per_1000
    if price is None:
        yield "cost", "not known: state the price by --teacher.price-per-1000"
    else:
        yield "cost", f"{images * price / 1000:,.2f} it would be, at {price:g} per 1,000 images, evaluation included"


def _memory(needed: dict[str, int], free: int) -> str:
    parts = ", ".join(f"{part} {_size(count)}" for part, count in needed.items() if count)
    said = "; the teacher's own is not known" if not needed["teacher"] else ""
    said += "; THIS DOES NOT FIT: the run will be refused" if at_once(needed) > free else ""
    return f"about {_size(at_once(needed))} beside torch, of {_size(free)} free; not all at once: {parts}{said}"


def _disk(job: Job, teacher: Teacher, nets: Nets, spent: Spending) -> str:
    """What lies in the run directory at the end, and at most."""
    told = teacher.label_mode.answer_bytes(teacher.num_classes)
    answer = job.config.answers.mode(teacher.label_mode).answer_bytes(teacher.num_classes)
    journal = sum(spent.images.values()) * told + spent.requests * HEAD_BYTES
    replay = build_replay(job, teacher.spec, answer, directory=Path())
    learnt = ("student", "seed") + ("generator",) * (getattr(job.method_config, "learn_from", "students") == "all")
    paid = sum(spent.images[purpose] for purpose in learnt) // spent.times
    within = 0 if replay is None else replay.full_size(answer) * min(paid, replay.capacity) // replay.capacity
    beside = 0 if replay is None else replay.disk_size(answer, paid)
    scored = spent.images["evaluation"] * told + held_back_bytes(job, teacher.spec, answer, paid)
    checkpoint = _state_bytes(job, nets) + within + scored
    replayed = f", replay {_size(beside)}" if beside else ""
    whole = 2 * checkpoint + weight_bytes(nets.students[0]) + beside
    return (
        f"a checkpoint {_size(checkpoint)} (two are kept, a third while it is written), journal up to "
        f"{_size(journal)}{replayed}; with the student up to {_size(whole)} at the end"
    )


def _state_bytes(job: Job, nets: Nets) -> int:
    """Bytes of the networks and their optimisers in a checkpoint."""

    def states(net: Any, slots: int) -> int:
        buffers = sum(buffer.nbytes for buffer in net.buffers())
        return int(buffers + (1 + slots) * weight_bytes(net))

    student = job.config.student
    slots = (2 if student.optimizer != "sgd" else int(student.momentum > 0)) + bool(student.average)
    trained = 2 if hasattr(job.method_config, "generator_steps") else 0
    generator = 0 if nets.generator is None else states(nets.generator, trained)
    return sum(states(net, slots) for net in nets.students) + generator


def _size(count: int) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count / 1e3:.1f} kB"
