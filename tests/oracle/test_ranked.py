"""A teacher that only the first of several ranks may ask looks to all of them alike: they take the same steps."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from typing import Any, ClassVar

import pytest
import torch
from gradient_toys import job
from torch import Tensor

from dfme.compute import DeferredChecks
from dfme.config.settings import TeacherConfig
from dfme.oracle.ledger import Ledger
from dfme.oracle.ranked import RankedOracle
from dfme.ranks import Ranks
from dfme.run import build
from dfme.teachers.build import wrap_callable


class OneOfTwo(Ranks):
    """A rank that hears what the first one said before it, in this process."""

    heard: ClassVar[list[Any]] = []

    def said(self, own: Any) -> list[Any]:
        if self.first:
            self.heard[:] = [own]
        return self.heard

    def share(self, x: Tensor) -> Tensor:
        return x


class OnGpu:
    """Somebody's own teacher, which works on an accelerator and takes few images at a time."""

    device, shape, num_classes, max_batch = torch.device("cuda"), (1, 8, 8), 2, 8

    def __call__(self, images: Tensor) -> Tensor:
        return images.flatten(1)[:, :2].softmax(dim=1)


def test_every_rank_plans_the_same_calls_to_a_teacher_it_may_not_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "build_teacher", lambda *given: wrap_callable(OnGpu()))
    asked, seen = replace(job(), teacher=TeacherConfig("mine:OnGpu")), []
    for number in range(2):
        ranks = OneOfTwo(number, 2)
        teacher = build.ranked_teacher(asked, torch.device("cpu"), ranks)
        oracle = RankedOracle(teacher, Ledger(10), None, DeferredChecks(), ranks, split=False)
        described = teacher.spec, teacher.num_classes, str(teacher.label_mode), getattr(teacher, "max_batch", None)
        seen.append((described, oracle.on_own_accelerator))
    assert seen[0] == seen[1]
    assert seen[0][0][-1] == 8


def test_the_first_rank_has_downloaded_and_read_before_the_others_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two that download the same file at once would cut it short for each other."""
    told, done = threading.Event(), list[str]()

    class Waiting(Ranks):
        def share(self, x: Tensor) -> Tensor:
            assert told.set() is None if self.first else told.wait()
            return x

    def load(*given: Any) -> None:
        done.append(f"begins {threading.current_thread().name}")
        time.sleep(0.05)
        done.append(f"ends {threading.current_thread().name}")

    monkeypatch.setattr(build, "build_teacher", load)
    given = [(job(), torch.device("cpu"), Waiting(number, 2)) for number in (1, 0)]
    both = [threading.Thread(target=build.ranked_teacher, args=each, name=str(each[-1].number)) for each in given]
    for thread in both:
        thread.start()
        time.sleep(0.02)
    for thread in both:
        thread.join()
    assert done == ["begins 0", "ends 0", "begins 1", "ends 1"]
