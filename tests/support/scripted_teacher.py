"""A teacher in this process whose every outcome is written down beforehand, with a meter of its
own.
"""

import threading
import time
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from dfme.errors import BatchTooLarge, Refused, Unanswered
from dfme.spec import ImageSpec, LabelMode, RequestPolicy, TeacherInfo

SHAPE = (1, 2, 2)


class Interrupted(KeyboardInterrupt):
    """Ctrl-C for the second time, in the middle of a request."""


class ScriptedTeacher:
    """Answers by arithmetic; request number n (from 0) first does what ``plan[n]`` says.

    ``ok``; ``429``: refused; ``500``: served, then failed; ``nan``: served, and answers with NaN;
    ``stop before`` and ``stop after``: the client is interrupted, the request not yet or already
    served; a number: refused for more images.
    """

    spec, num_classes, label_mode = ImageSpec(SHAPE), 3, LabelMode("probabilities")

    def __init__(
        self,
        plan: Sequence[str | int] = (),
        wire: RequestPolicy | None = None,
        max_batch: int | None = None,
    ) -> None:
        self.plan, self.wire = list(plan), wire or RequestPolicy(patience=5.0)
        self.info = TeacherInfo(max_batch=max_batch, remote=self)
        self.requests = self.served = self.unserved = self.at_once = self.most_at_once = 0
        self.keys: list[str] = []
        self.delay: Callable[[int], float] = lambda number: 0.0
        self._lock = threading.Lock()

    @staticmethod
    def truth(images: Tensor) -> Tensor:
        return (images.flatten(1)[:, :3] * 5).softmax(dim=1)

    def __call__(self, images: Tensor) -> Tensor:
        raise AssertionError("a teacher with ask is asked with a key")

    def ask(self, images: Tensor, key: str) -> Tensor:
        with self._lock:
            number, self.requests = self.requests, self.requests + 1
            outcome = self.plan[number] if number < len(self.plan) else "ok"
            self.keys.append(key)
            self.at_once += 1
            self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            time.sleep(self.delay(number))
            return self._do(outcome, images)
        finally:
            with self._lock:
                self.at_once -= 1

    def close(self) -> None:
        pass

    def _do(self, outcome: str | int, images: Tensor) -> Tensor:
        if outcome == "429":
            raise Refused("service: too many requests", "429", retry_after=0.0)
        if isinstance(outcome, int) and len(images) > outcome:
            raise BatchTooLarge(f"service: at most {outcome} images", outcome or None)
        with self._lock:
            self.served += 0 if outcome == "stop before" else len(images)
            self.unserved += len(images) if outcome == "stop before" else 0
        if str(outcome).startswith("stop"):
            raise Interrupted
        if outcome == "500":
            raise Unanswered("service: internal error", "500")
        answers = self.truth(images)
        return answers.fill_(torch.nan) if outcome == "nan" else answers
