"""How fast this machine trains and scores, measured before a marking begins."""

import time

import torch

from dfme.compute.modules import Seldom
from dfme.teachers.owner.marking.lessons import answers, of_images
from dfme.teachers.owner.marking.options import MarkTools
from dfme.teachers.owner.marking.plan import StepSeconds
from dfme.teachers.owner.marking.subject import Subject

TIMED_STEPS = 5


def pace_of(subject: Subject, tools: MarkTools) -> StepSeconds:
    """Seconds of steps and of scoring, measured on networks that are thrown away."""
    few = subject.train.part(slice(0, 500))
    net = subject.fresh(0)
    owner = subject.second()
    times = list[float]()
    heard = Seldom(lambda step: tools.show(f"trying how fast this machine is: step {step}"))
    for trained in (net, owner):
        loss = of_images(trained, few, tools.augment)
        rng = torch.Generator().manual_seed(0)
        for number in range(2 + TIMED_STEPS):
            if number == 2:
                began = time.perf_counter()
            trained.zero_grad()
            loss(rng).backward()
            heard(number + 1)
        times.append((time.perf_counter() - began) / TIMED_STEPS)
    began = time.perf_counter()
    answers(owner, few.x_NCHW)
    scoring = 4 * (time.perf_counter() - began) * len(subject.test) / len(few)
    # the optimiser's part of a copy's step; the owner's has more images, and asks it as it was
    return StepSeconds(times[0] * 1.15, times[1] * 1.9, scoring)
