"""The number of torch threads of a run on a CPU, chosen by timing some steps of its student."""

import copy
import os
import statistics
import time
from collections.abc import Callable

import torch

from dfme.config.settings import Job
from dfme.run.checks import keeps_answers
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
