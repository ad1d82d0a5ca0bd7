"""Time of a run: foretold by a rehearsal on noise, which asks nobody, and corrected by what is
measured.
"""

import copy
import math
import time
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from dfme.answers.asking import Reader
from dfme.answers.reading import cut_to
from dfme.compute.device import Streams, choose_device
from dfme.compute.modules import DeferredChecks
from dfme.config.settings import Job
from dfme.methods.base import Method
from dfme.oracle.ledger import Ledger
from dfme.oracle.oracle import Oracle
from dfme.queries.programs import Sketch, sketching
from dfme.run.checkpoint import DivergedError, naming_the_rate
from dfme.run.components import build_components, build_method
from dfme.run.parts import RunParts, with_placeholder_step
from dfme.run.scores import evaluation_batch, scores
from dfme.run.work import Rehearsed, Work
from dfme.spec import Teacher, TeacherInfo
from dfme.students.optimizers import StepPlan
from dfme.students.trainer import Metrics

PART_SECONDS = 0.15  # after which no more of one kind of work is rehearsed
SHORT_SECONDS = (
    2.0  # of a run by the first calls alone, which are slow, up to which there are no others
)
SLOW_SECONDS = 1.5  # of a call, after which there is no second; of a whole batch, timed on FEW then
LONG_SECONDS = 3.0  # of the first calls, after which there are no others
FEW = 16
HELD = 512  # answered images in a rehearsal's replay: some methods breed from so many on


class RandomTeacher:
    """A teacher in place of another, of the same images and answers, which are random: nobody is
    asked.
    """

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
        if mode.kind == "label":
            return scores_BK.argmax(dim=1)
        return scores_BK if mode.kind == "logits" else cut_to(scores_BK.softmax(dim=1), mode)


def method_of(parts: RunParts, teacher: Teacher) -> Method:
    """The method as it begins, on a ledger of its own; what a check would choose is chosen."""
    job = parts.job
    job = replace(job, estimator=with_placeholder_step(job.estimator, teacher.spec))
    reader = Reader(job.config.answers, teacher.label_mode, teacher.num_classes)
    oracle = Oracle(teacher, Ledger(int(job.config.budget)), reader=reader)
    streams = Streams(job.config.seed, choose_device(job.config.device))
    components = build_components(
        job, parts.nets, oracle, streams, DeferredChecks(), pool=parts.pool
    )
    return build_method(job, components)


def rehearse(parts: RunParts, teacher: Teacher, *, scored: int, free: bool) -> Rehearsed | None:
    """Time a few steps of a copy of the run's parts on noise; nothing of the run's own changes.

    ``scored``: images of the evaluation set, 0 without one. ``free``: the teacher is one of ours in
    this process, so it is timed, too; any other is not asked, and its stated rate counts. None
    where a custom part cannot be copied or rehearsed.
    """
    job = parts.job
    nets = parts.nets
    device = choose_device(job.config.device)
    most = min(job.config.student.replay_capacity, 8 * HELD)
    student = replace(job.config.student, replay_store="memory", replay_capacity=most)
    rehearsed = replace(job, config=replace(job.config, student=student, shared_answers=None))
    try:
        with (
            sketching() as sketch,
            torch.random.fork_rng([device] if device.type == "cuda" else []),
        ):
            students, generator = copy.deepcopy((nets.students, nets.generator))
            copied = RunParts(
                rehearsed,
                parts.evaluation,
                copy.copy(parts.pool),
                replace(nets, students=students, generator=generator),
            )
            method = method_of(copied, RandomTeacher(teacher))
            images = scored or min(2_000, job.config.images // 20) // 2
            with naming_the_rate(job.config.student, method.students, method):
                return _Stage(job, teacher, method, images, free, sketch).rehearse()
    except DivergedError:  # on noise; whether it does on what is asked, the run itself will say
        return None
    except Exception:
        # what a custom part raises, if it cannot be copied or called so, the run itself will
        # report
        named = (
            job.method,
            str(job.config.student.arch),
            str(getattr(job.method_config, "generator", "")),
        )
        if job.objects or any(":" in name for name in named):
            return None
        raise


class _Stage:
    """A rehearsal's method, with noise that is answered and held; ``scored``: images of an
    evaluation.
    """

    def __init__(
        self, job: Job, teacher: Teacher, method: Method, scored: int, free: bool, sketch: Sketch
    ) -> None:
        self._sketch = sketch
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
        began = time.perf_counter()
        first = self._parts(0.0)
        if time.perf_counter() - began > LONG_SECONDS:
            return first  # hardly slower than other calls are
        self._method.students.plan = plan
        seconds = Work(self._job, self._method, first).left
        return (
            first if seconds is not None and seconds < SHORT_SECONDS else self._parts(PART_SECONDS)
        )

    def _parts(self, most: float) -> Rehearsed:
        method = self._method
        trainer = method.students
        trainer.plan = StepPlan()
        batch = self._job.method_config.batch_size
        of_replay = trainer.config.batch(self._job.config.images)
        fresh = self._step(batch, most)
        replayed = (
            fresh if trainer.replay is None or of_replay == batch else self._step(of_replay, most)
        )
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
        before = dict(self._sketch.seconds)
        trainer.learn = counted  # type: ignore[method-assign]
        image = _mean_seconds(iteration, most, lambda: self._sketch.owed)
        trainer.learn = learn  # type: ignore[method-assign]
        answer = self._answer(batch, most)
        part = self._x_NCHW[: min(128, evaluation_batch(self._x_NCHW.shape))]
        score = self._mean_of(
            lambda count: scores(trainer.delivered, part[:count]),
            len(part),
            most,
        )
        score *= self._scored * (1 if trainer.vote is None else 1 + len(trainer.nets))
        charged = max(1, ledger.spent - spent)
        drawn = {
            name: (seconds - before.get(name, 0.0)) / charged
            for name, seconds in self._sketch.seconds.items()
        }
        return Rehearsed(
            image=image + (answer or 0.0),
            learnt=learnt / charged,
            fresh=fresh,
            replayed=replayed,
            score=score,
            answer=answer,
            drawn=drawn,
            of_drawn=dict(self._sketch.of_image),
        )

    def _step(self, images: int, most: float) -> float:
        def step(count: int) -> None:
            which = torch.arange(count, device=self._x_NCHW.device) % len(self._x_NCHW)
            self._method.students.learn(self._x_NCHW[which], self._answers[which], keep=False)

        return images * self._mean_of(step, images, most)

    def _mean_of(self, act: Callable[[int], object], images: int, most: float) -> float:
        """Seconds of an image of an act on so many at once; of a slow one by few of them."""

        def count_of(count: int) -> float:
            act(count)
            return count

        few = min(images, FEW, max(2, self._teacher.spec.at_once(4 * FEW)))
        of_few = _mean_seconds(lambda: count_of(few), most / 5)
        if few == images or images * of_few > SLOW_SECONDS:
            return of_few
        return _mean_seconds(lambda: count_of(images), most)

    def _answer(self, batch: int, most: float) -> float | None:
        """Seconds of an answer to an image, by the stated rate or the teacher's own time; None if
        unknown.
        """
        info = self._teacher.info
        at_once = min(batch, info.max_batch or batch)
        rates = [
            info.wire.images_per_second or 0.0,
            (info.wire.requests_per_second or 0.0) * at_once,
        ]
        if any(rates):
            return 1 / min(filter(None, rates))
        asked = self._teacher if info.stateful is None and info.watch is None else info.network
        if not self._free or asked is None:
            return None
        some_BCHW = self._x_NCHW[: min(at_once, 64)].to(info.device)
        with torch.no_grad():
            return self._mean_of(lambda count: asked(some_BCHW[:count]), len(some_BCHW), most)


def _mean_seconds(
    act: Callable[[], float], most: float, owed: Callable[[], float] = lambda: 0.0
) -> float:
    """Mean seconds of a unit of an act, which returns its units, for about ``most`` after the slow
    first one.

    At 0 it is the first one's. 0 where there was nothing to do. ``owed``: seconds so far by which a
    real run would have taken longer.
    """
    taken: list[tuple[float, float]] = []
    lacking: list[float] = []
    while not taken or (len(taken) < 20 and sum(seconds for seconds, _ in taken[1:]) < most):
        before = owed()
        began = time.perf_counter()
        units = act()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        if not units:
            break
        taken.append((time.perf_counter() - began, units))
        lacking.append(owed() - before)
        if taken[0][0] > SLOW_SECONDS:
            break
    if not taken:
        return 0.0
    first = 1 if len(taken) > 1 else 0
    seconds = math.fsum(seconds for seconds, _ in taken[first:]) + math.fsum(lacking[first:])
    return seconds / math.fsum(units for _, units in taken[first:])
