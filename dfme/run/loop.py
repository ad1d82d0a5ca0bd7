"""The run itself, flat and in order: spend, check, evaluate, log, keep, stop.

It ends with its budget, at an agreement on held-back queries (``Goal``), or by a signal
(``Interrupt``): the step in progress ends, the run is kept, and then it stops.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, Self

import torch
from torch import Tensor, nn

from dfme.answers.reading import top_class
from dfme.compute.modules import DeferredChecks
from dfme.config.settings import ExtractConfig
from dfme.errors import BudgetExhausted, DfmeError
from dfme.methods.base import Method, Metrics
from dfme.oracle.ledger import Ledger
from dfme.oracle.oracle import Oracle
from dfme.report.recorder import Recorder
from dfme.run.checkpoint import DivergedError
from dfme.run.evaluation import EvaluationSet, Examination, HoldOut, score_all
from dfme.run.work import Work
from dfme.statistics import wilson_interval
from dfme.students.trainer import StudentTrainer

GRACE = (
    10.0  # seconds until a second signal comes by itself: a step of a large network takes minutes
)
ACKNOWLEDGED = b"\nstopping after the step in progress (once more: at once)\n"
BEFORE = b"\nstopped before the first step\n"


class Interrupt:
    """Within the context, the first signal only sets ``requested``; a second one interrupts at
    once.

    While ``starting`` the first one does, once no request is on its way (``asking``): there is no
    step to wait for, and what was answered is on file. To one that began so, the second comes by
    itself after ``GRACE``. ``announce``: say so on stderr. Outside the main thread, where Python
    allows no handlers, it is never requested.
    """

    SIGNALS = (signal.SIGINT, signal.SIGTERM)

    def __init__(self, announce: bool = False, starting: bool = False) -> None:
        self._announce = announce
        self.starting = self._insists = starting
        self.asking: Callable[[], bool] = lambda: False
        self._requested = False
        self._over = threading.Event()
        self._previous: dict[signal.Signals, object] = {}

    def requested(self) -> bool:
        return self._requested

    def heed(self) -> None:
        """Raise KeyboardInterrupt if a signal came while starting; called between requests."""
        if self.starting and self._requested:
            raise KeyboardInterrupt

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._previous = {
                number: signal.signal(number, self._receive) for number in self.SIGNALS
            }
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
        self._previous = {}
        self._over.set()

    def _insist(self) -> None:
        """Send the second signal, once no request is on its way, unless all is over before."""
        if not self._over.wait(GRACE):
            while self.asking() and not self._over.wait(0.05):
                pass
            if not self._over.is_set():
                os.kill(os.getpid(), signal.SIGINT)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        at_once = self.starting and not self.asking()
        # past Python's buffers, which this handler may have interrupted
        if self._announce and not self._requested:
            with contextlib.suppress(OSError, ValueError):
                os.write(sys.stderr.fileno(), BEFORE if at_once else ACKNOWLEDGED)
        if self._requested or at_once:
            raise KeyboardInterrupt
        self._requested = True
        if self._insists:
            threading.Thread(target=self._insist, daemon=True).start()


class Goal:
    """Agreement on held-back queries, which are paid for and never trained on.

    It is reached when an evaluation finds it below the 95% interval of the agreement (Wilson's),
    while a student that names one class for everything would not reach it. ``latest``: what that
    found. ``own``: the images are held back for this goal alone, so they are part of its state.
    """

    def __init__(self, share: float, held: HoldOut, own: bool) -> None:
        self.share = share
        self.held = held
        self._own = own
        self.latest = {
            "agreement": 0.0,
            "at_least": 0.0,
            "one_class": 1.0,
            "images": 0,
        }

    @property
    def reached(self) -> bool:
        return self.latest["at_least"] >= self.share > self.latest["one_class"]

    def look(self, student: nn.Module, scored: Mapping[str, Any]) -> dict[str, float]:
        """Metrics of the student; empty without held-back images. ``scored``: on the evaluation
        images.
        """
        score = (self.held.score(student) if self._own else scored).get("agreement")
        images = len(self.held)
        if score is None:
            return {}
        assert self.held.answers is not None
        one_class = torch.bincount(top_class(self.held.answers)).max().item() / images
        at_least = wilson_interval(score, images)[0]
        self.latest = {
            "agreement": score,
            "at_least": at_least,
            "one_class": one_class,
            "images": images,
        }
        return {"held_back_agreement": score}

    def state_dict(self) -> dict[str, Any]:
        return {"latest": self.latest, "held": self.held.state_dict() if self._own else None}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.latest = state["latest"]
        if self._own:
            self.held.load_state_dict(state["held"])


def goal_of(
    config: ExtractConfig,
    examination: EvaluationSet | HoldOut,
    oracle: Oracle,
    device: torch.device,
) -> tuple[Goal | None, Callable[[Tensor, Tensor], bool] | None]:
    """The agreement that ends the run, if one does, and what takes paid batches out of training."""
    held_back = examination if isinstance(examination, HoldOut) else None
    goal = None
    if config.until_agreement is not None:
        held_back = (
            HoldOut(oracle.label_mode, oracle.spec, device) if held_back is None else held_back
        )
        goal = Goal(config.until_agreement, held_back, own=held_back is not examination)
    return goal, None if held_back is None else held_back.hold_out


LOG_SECONDS = (
    0.5  # least time between two logged training steps; reading metrics makes an accelerator wait
)
METRIC_SHARE = (
    0.01  # most of the time between two readings of a metric that working it out may take
)
EARLY = 8
"""Most evaluations before the first even share, at its half, a quarter and so on; nor are they more
than the others."""
SAMPLE_SHEETS = 5  # sheets of queries kept over a run, at evaluations, besides the first
SHEET_IMAGES = 64  # queries on one sheet; fewer of large ones
MUST_BE_FINITE = ("student_loss", "replay_loss", "kl")
"""Metrics that are NaN or infinite only when the student's weights are lost."""


@dataclass
class Progress:
    """Seconds of work so far, over all of a run's sessions; part of the checkpoint.

    ``logging``: those of this session that the log of training steps took. ``scores``: its
    evaluations, by the images that were spent and the student steps taken.
    """

    seconds: float = 0.0
    logging: float = 0.0
    scores: dict[tuple[int, int], dict[str, float]] = field(default_factory=dict)


def numbers(metrics: Metrics) -> dict[str, float]:
    """Metrics as plain numbers; the one place where the host waits for an accelerator.

    Raises DivergedError for a student that has diverged: nothing can be learnt with it any more.
    """
    values = {name: float(value() if callable(value) else value) for name, value in metrics.items()}
    for name in MUST_BE_FINITE:
        if not math.isfinite(values.get(name, 0.0)):
            raise DivergedError(f"its {name.replace('_', ' ')} is {values[name]}")
    return values


class MetricReader:
    """Metrics as plain numbers, without those too expensive to compute again so soon."""

    def __init__(self) -> None:
        self._due: dict[str, float] = {}

    def __call__(self, metrics: Metrics) -> dict[str, float]:
        """Metrics ready first, then the others, which thus are not charged for the device's
        queue.
        """
        values = numbers({name: value for name, value in metrics.items() if not callable(value)})
        for name, value in metrics.items():
            started = time.monotonic()
            if callable(value) and started >= self._due.get(name, 0.0):
                values |= numbers({name: value})
                self._due[name] = started + (time.monotonic() - started) / METRIC_SHARE
        return values


def run(
    method: Method,
    oracle: Oracle,
    examination: Examination,
    recorder: Recorder,
    progress: Progress,
    deferred: DeferredChecks,
    *,
    work: Work,
    points: int,
    checkpoint_seconds: float,
    keep: Callable[[], None],
    stopped: Callable[[], bool],
    price: float | None = None,
    goal: Goal | None = None,
    look: Callable[[], None] = lambda: None,
) -> bool:
    """Spend the budget and train to its end or until ``goal``; True unless ``stopped`` on the way.

    ``points``: evaluations, evenly spaced over the budget; before the first of them there are some
    more, so that what a copy costs that is good early is known. ``price``: of a thousand images, if
    they have one. ``keep`` saves a checkpoint. ``look`` is called at each evaluation. ``work`` is
    told what took how long.
    """
    ledger = oracle.ledger
    trainer = method.students
    read = MetricReader()
    started = time.monotonic() - progress.seconds
    logged = kept = time.monotonic()
    while oracle.remaining + trainer.steps_left > 0 and not (
        goal and goal.reached and oracle.remaining
    ):
        # Take the student steps that are due; else pay for one step of the method, or for what is
        # left of the budget.
        before = oracle.images_counted
        training = (
            trainer.steps_due_under(ledger.budget // oracle.times, ledger.spent // oracle.times) > 0
        )
        with work.doing("training" if training else "asking"):
            metrics = (
                trainer.train_pending(work.steps_at_once) if training else _spend(method, oracle)
            )
        progress.seconds = time.monotonic() - started
        if metrics is None:
            continue
        # Evaluate at even shares of the budget, when the steps due are done, and often at the
        # start.
        done, due = (spent * points // ledger.budget for spent in (before, oracle.images_counted))
        early = [
            halvings(spent, ledger.budget, points) for spent in (before, oracle.images_counted)
        ]
        even = due > done or (training and not trainer.steps_due)
        if even or early[1] < early[0]:
            deferred.verify()
            new = _scored(examination, trainer, progress, work)
            progress.scores[ledger.spent, trainer.steps] = new
            metrics |= new | (goal.look(trainer.delivered, metrics | new) if goal else {})
            recorder.evaluation(ledger.spent, numbers(metrics) | _accounts(ledger, progress, price))
            look()
            if even and (done == 0 or due * SAMPLE_SHEETS % points < SAMPLE_SHEETS):
                _show_samples(method, oracle, recorder)
            logged = time.monotonic()
        # Log, now and then.
        elif (now := time.monotonic()) - logged >= LOG_SECONDS:
            deferred.verify()
            recorder.step(ledger.spent, read(metrics))
            logged = time.monotonic()
            progress.logging += logged - now
        # Keep what was done.
        if time.monotonic() - kept >= checkpoint_seconds and not stopped():
            progress.seconds = time.monotonic() - started
            keep()
            kept = time.monotonic()
        # Stop if asked to.
        if stopped() and oracle.remaining + trainer.steps_left > 0:
            break
    progress.seconds = time.monotonic() - started
    keep()
    return (
        bool(goal and goal.reached and oracle.remaining)
        or oracle.remaining + trainer.steps_left == 0
    )


def _show_samples(method: Method, oracle: Oracle, recorder: Recorder) -> None:
    """Give the recorder the last queries and answers of the method, if it keeps them."""
    if method.recent is not None:
        most = oracle.spec.at_once(SHEET_IMAGES)
        images, answers = (each[:most].cpu().numpy() for each in method.recent)
        recorder.samples(oracle.ledger.spent, images, answers)


def halvings(spent: int, budget: int, points: int) -> int:
    """Halvings of the first even share until ``spent`` reaches it; one too many if never."""
    most = min(EARLY, points)
    return next(
        (times for times in range(most + 1) if spent * points * 2**times >= budget), most + 1
    )


def _spend(method: Method, oracle: Oracle) -> Metrics | None:
    """A step of the method, or what is left of the budget where it no longer fits.

    The method is held to the cost it states, each image as often as it is asked, less what a
    service took without an answer. None: what the service failed to answer, asked again, took what
    the step had counted on.
    """
    ledger = oracle.ledger
    left = oracle.remaining
    answered = ledger.useful
    failed = ledger.failed
    planned = (
        min(method.cost, left) * oracle.times
    )  # of this step: the next one may cost something else
    try:
        metrics = method.step() if left >= method.cost else method.finish(left)
    except BudgetExhausted:
        if ledger.failed == failed:
            raise
        return None
    answered = ledger.useful - answered
    if answered != planned:
        raise DfmeError(
            f"{type(method).__name__} spent {answered} images in a step that costs {planned}"
        )
    return metrics


def _scored(
    examination: Examination, trainer: StudentTrainer, progress: Progress, work: Work
) -> dict[str, float]:
    """The scores of the student as it is, which on an evaluation set no query changes."""
    known = [scores for (_, steps), scores in progress.scores.items() if steps == trainer.steps]
    if known and isinstance(examination, EvaluationSet):
        return known[-1]
    with work.doing("scoring"):
        return score_all(examination, trainer.delivered, trainer.vote)


def _accounts(ledger: Ledger, progress: Progress, price: float | None) -> dict[str, float]:
    accounts: dict[str, float] = {
        f"queries_{purpose}": images for purpose, images in ledger.spent_by_purpose.items()
    }
    if price is not None:
        accounts["cost"] = ledger.totals().served * price / 1000
    return {
        **accounts,
        "queries_evaluation": ledger.evaluation_queries,
        "requests": ledger.requests,
        "refused": ledger.refused,
        "failed": ledger.failed,
        "lost": ledger.lost,
        "no_answer": ledger.totals().no_answer,
        "seconds": round(progress.seconds, 3),
        "queries_per_second": ledger.spent / max(progress.seconds, 1e-9),
    }
