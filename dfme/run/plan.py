"""What a run will ask, cost and take, as a table; the teacher is asked no image, and nothing is
written.
"""

import math
import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field

import torch
from rich.filesize import decimal as size_of
from torch import nn

from dfme.compute.device import choose_device
from dfme.config.settings import Job
from dfme.errors import flag
from dfme.estimators.preflight.measure import preflight_calls
from dfme.methods.base import Ask, Method, in_batches
from dfme.report.console import duration
from dfme.run.build import build_teacher, facts_of, is_local
from dfme.run.components import Nets
from dfme.run.minutes import within_minutes
from dfme.run.parts import (
    build_parts,
    free_memory,
    replay_bytes,
    require_room,
    runs_preflight,
)
from dfme.run.recipes import with_variants
from dfme.run.scores import evaluation_batch
from dfme.run.timing import method_of, rehearse
from dfme.run.work import Work, take_threads
from dfme.spec import Teacher

WIDTH = 80  # columns of the table


@dataclass
class Spending:
    """Images by purpose, requests and whole iterations of a run in which every request is
    answered.
    """

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


def spending(job: Job, teacher: Teacher, method: Method, evaluated: int) -> Spending:
    """Images that the run pays for, by step; so many are ``evaluated``."""
    wire = teacher.info.wire
    budget = int(job.config.budget)
    rate = wire.images_per_second
    limits = [teacher.info.max_batch, max(1, int(rate)) if rate else None]
    times = job.config.answers.times
    spent = Spending(min(filter(None, limits), default=None), times)
    checks = preflight_calls(job.estimator, teacher.spec) if runs_preflight(job) else ()
    scored = in_batches("evaluation", evaluated, evaluation_batch(teacher.spec.shape))
    for ask in (*(Ask("check", images) for images in checks), *scored, *method.asks_before()):
        spent.add(ask)
    while step := method.asks(spent.iterations):
        if spent.charged + times * sum(ask.images for ask in step) > budget:
            break
        spent.iterations += 1
        for ask in step:
            spent.add(ask)
    for ask in method.student_asks((budget - spent.charged) // times):
        spent.add(ask)
    return spent


def plan(job: Job) -> str:
    """The table for a job. UserError for whatever would stop the run before its first query."""
    device = choose_device(job.config.device)
    notes = list[str]()
    with ExitStack() as held:
        teacher = build_teacher(job, None, device)
        held.callback(teacher.info.close)
        job, variants = with_variants(job, teacher.label_mode, teacher.spec.shape)
        job = within_minutes(job, teacher, is_local(job))
        parts = build_parts(job, teacher, device, tell=notes.append)
        job = parts.job
        method = method_of(parts, teacher)
        spent = spending(job, teacher, method, parts.scored)
        held.callback(torch.set_num_threads, torch.get_num_threads())
        take_threads(job, parts.nets, teacher.spec)
        rehearsed = rehearse(parts, teacher, scored=parts.scored, free=is_local(job))
        work = Work(job, method, rehearsed)
        rows = [
            *_who(job, teacher),
            *([("variants", variants)] if variants else []),
            *_images(job, spent),
            ("student", work.training(parts.nets.arch)),
            ("time", "".join(work.foretold(parts.scored))),
            *_price(job, teacher, spent),
            *_space(job, teacher, parts.nets, device),
            *(("note", line) for line in notes),
            ("not in it", "what fails and is asked again"),
        ]
    return table(rows)


def table(rows: Iterable[tuple[str, str]]) -> str:
    """What is planned, row by row."""
    shown = ["plan: the teacher was asked no image, nothing was written"]
    for name, text in rows:
        label = f"{name:11} "  # longer names are those of an audit's rows
        shown += textwrap.wrap(
            label + text, WIDTH, subsequent_indent=" " * 12, break_on_hyphens=False
        )
    return "\n".join(shown)


def _who(job: Job, teacher: Teacher) -> Iterator[tuple[str, str]]:
    low, high = teacher.spec.bounds
    yield "teacher", str(facts_of(job, teacher)["target"])
    images = f"images {'x'.join(map(str, teacher.spec.shape))} within {low:g} and {high:g}"
    yield "", f"{teacher.num_classes} classes, {images}, answers {teacher.label_mode}"
    if inferred := teacher.info.inferred:
        yield "inferred", "; ".join(inferred)
    if teacher.info.remote:
        yield "asked", "at most what the service says of itself (its metadata), and no image"
    yield "recipe", f"{job.config.recipe or 'none named'}; method {job.method}"


def _images(job: Job, spent: Spending) -> Iterator[tuple[str, str]]:
    purposes = [f"{name} {count:,}" for name, count in spent.images.items() if name != "evaluation"]
    yield "images", f"{spent.charged:,} would be charged: {', '.join(purposes)}"
    yield (
        "",
        f"{spent.images['evaluation']:,} more would be asked for evaluation, not charged to the "
        "budget",
    )
    none = "" if spent.iterations else ": the budget does not reach for one"
    yield "iterations", f"{spent.iterations:,}{none}"
    if runs_preflight(job) and job.estimator.directions > 1:
        yield "", "with forward differences; where the check takes central ones, fewer"
    limit = (
        "no limit to a request" if spent.limit is None else f"at most {spent.limit:,} images in one"
    )
    yield "requests", f"{spent.requests:,}, {limit}"


def _price(job: Job, teacher: Teacher, spent: Spending) -> Iterator[tuple[str, str]]:
    wire = teacher.info.wire
    images = sum(spent.images.values())
    rates = {
        "images": (images, wire.images_per_second),
        "requests": (spent.requests, wire.requests_per_second),
    }
    slowest = max((count / rate for count, rate in rates.values() if rate), default=0.0)
    at = " and ".join(f"{rate:g} {name}" for name, (_, rate) in rates.items() if rate)
    if at:
        yield "", f"at least {duration(slowest)} to ask, at {at} per second"
    elif teacher.info.remote:
        by_requests = flag("teacher.requests_per_second")
        yield "", f"state the rate by {flag('teacher.images_per_second')} or {by_requests}"
    price = job.teacher.price_per_1000
    cost = f"not known: state the price by {flag('teacher.price_per_1000')}"
    if price is not None:
        cost = (
            f"{images * price / 1000:,.2f} it would be, at {price:g} per 1,000 images, "
            "evaluation included"
        )
    yield "cost", cost


def numbers_of(net: nn.Module) -> int:
    """The numbers that a network learns."""
    return sum(parameter.numel() for parameter in net.parameters())


def _space(
    job: Job, teacher: Teacher, nets: Nets, device: torch.device
) -> Iterator[tuple[str, str]]:
    """The student, and the bytes of the run's state in memory and in a checkpoint."""
    networks = [net for net in (*nets.students, nets.generator) if net is not None]
    weights = 4 * sum(map(numbers_of, networks))
    on_disk, replay = replay_bytes(job, teacher)
    held = 0 if on_disk else replay
    require_room(job, teacher, device)
    # of a weight there are its value and two moments, in memory also its gradient
    memory = f"about {size_of(4 * weights + held)} for networks, optimisers and replay, of "
    memory += (
        f"{size_of(free_memory(device))} free; a batch's activations and the teacher come on top"
    )
    yield "memory", memory
    beside = f"; a replay of up to {size_of(replay)} beside it" if on_disk else ""
    kept = "(two are kept, a third while it is written)"
    yield "checkpoint", f"up to {size_of(3 * weights + held)} {kept}{beside}"
