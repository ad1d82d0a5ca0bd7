"""What every cell would find for itself is found once, before the first of them asks anything."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch

from dfme.audits.compare.engines import EXTRAS
from dfme.audits.compare.engines.pool import cores, threads_each
from dfme.audits.compare.plan import NO_DEFENCE, Cell, ComparisonPlan, rates_of
from dfme.compute.device import choose_device
from dfme.config.settings import Job
from dfme.errors import UserError
from dfme.methods import find_method
from dfme.oracle.ledger import Ledger
from dfme.oracle.oracle import Oracle
from dfme.report.console import teacher_name
from dfme.run.build import build_teacher, is_local
from dfme.run.job import document, unwatched
from dfme.run.parts import build_parts, require_room
from dfme.run.scores import evaluation_images
from dfme.run.timing import SLOW_SECONDS, method_of
from dfme.run.timing import rehearse as rehearse_run
from dfme.run.work import Work
from dfme.spec import ImageSpec, LabelMode, Teacher
from dfme.students.losses import make_distance

WATCHED = 100  # images of noise on which a watch is timed, as many as a stream's batch
START_SECONDS = 5.5  # of a process until its first query, for what it imports above all; heuristic


class Rehearsal(NamedTuple):
    """``sharing``: cells that ask a service at once, if it is one; ``scored``: images of the
    evaluation.

    ``seconds``: of a cell by row and budget, on its share of cores; ``of_image``: of a step and an
    answer; ``building``: until a teacher is there and its watch calibrated. ``watched``: seconds of
    an image that it answers while its detectors look on, 0 where it has none.
    """

    sharing: int
    scored: int
    spec: ImageSpec
    num_classes: int
    seconds: dict[tuple[str, int], float | None]
    of_image: list[tuple[float, float]]
    building: float = 0.0
    watched: float = 0.0

    def total(self, cells: Sequence[Cell], jobs: int) -> float:
        """Seconds of these cells, as many side by side."""
        every = [self.seconds.get((cell.row, cell.budget)) or 0.0 for cell in cells]
        return max([math.fsum(every) / max(1, min(jobs, cores())), *every])


def rehearse(
    plan: ComparisonPlan, cells: Sequence[Cell], tell: Callable[[str], None], ask: bool = True
) -> Rehearsal | None:
    """Build the teacher of the waiting cells, and each row's parts; return a line about the
    teacher.

    A teacher in this process is asked for one image, if ``ask``. A service is not: its count and
    the cells' ledgers must be equal. None where no cell waits. UserError: everything that cannot
    work, in one line.
    """
    problems = dict[str, dict[str, None]]()
    sharing = scored = 0
    building = seconds_watched = 0.0
    rehearsal: Rehearsal | None = None
    seconds = dict[tuple[str, int], float | None]()
    of_image = list[tuple[float, float]]()
    facts = dict[str, None]()
    for mode, defence in dict.fromkeys((cell.mode, cell.attempt.runs) for cell in cells):
        of_mode = [cell for cell in cells if (cell.mode, cell.attempt.runs) == (mode, defence)]
        job = of_mode[0].job
        name = teacher_name(document(job)["teacher"])
        # A watch, the same for all, is calibrated once; others than ours would be asked by that.
        began = time.perf_counter()
        watched = is_local(job) and rehearsal is None
        teacher = build_teacher(job if watched else unwatched(job), None, torch.device("cpu"))
        building = building or time.perf_counter() - began
        try:
            # whoever runs a list may run it all at once
            most = len(cells) if plan.config.engine == "commands" else min(plan.jobs, len(cells))
            sharing = 0 if teacher.info.remote is None else most
            _require_rates(job, name, sharing)
            if rehearsal is None:
                images = evaluation_images(
                    job.config.evaluation,
                    teacher.spec,
                    teacher.num_classes,
                    teacher.info.class_names,
                    tell=tell,
                )
                scored = len(images or ())
            if watched and not problems:
                seconds_watched = _seconds_watched(teacher)
            rehearsal = Rehearsal(
                sharing,
                scored,
                teacher.spec,
                teacher.num_classes,
                seconds,
                of_image,
                building,
                seconds_watched,
            )
            measures = _measures(of_mode, teacher, scored, plan, sharing, problems)
            for place, measure in measures.items():
                if not problems and place not in seconds:
                    seconds[place] = measure(rehearsal)
            asks = ask and not sharing
            if asks and not problems:
                grey_BCHW = torch.full((1, *teacher.spec.shape), sum(teacher.spec.bounds) / 2)
                Oracle(teacher, Ledger(1))(grey_BCHW, purpose="check")
        finally:
            teacher.info.close()
        facts |= dict.fromkeys(_facts(teacher, defence))
    if problems:
        raise UserError("; ".join(f"{', '.join(rows)}: {text}" for text, rows in problems.items()))
    if rehearsal:
        tell(f"teacher {name}: {', '.join(facts)}; {_manner(job, sharing, asks)}")
    return rehearsal


def _manner(job: Job, sharing: int, asks: bool) -> str:
    """How a teacher is asked, in words."""
    manner = "it answers (an image each, charged to no run)"
    if not asks:
        manner = "not asked before the cells"
    if sharing:
        manner = f"a service, {manner}"
    if sharing > 1:
        rates = " and ".join(
            f"{rate:g} {name.replace('_', ' ')}" for name, rate in rates_of(job).items()
        )
        manner += f"; {sharing} cells ask at once, each at 1/{sharing} of its {rates}"
    return manner


def _measures(
    cells: Sequence[Cell],
    teacher: Teacher,
    scored: int,
    plan: ComparisonPlan,
    sharing: int,
    problems: dict[str, dict[str, None]],
) -> dict[tuple[str, int], Callable[[Rehearsal], float | None]]:
    """What ``_fitting`` gives for each row and budget; ``problems`` gets what does not fit, with
    its rows.
    """
    measures = dict[tuple[str, int], Callable[[Rehearsal], float | None]]()
    # which answers a cell gets matters little to its time
    for cell in {(cell.row, cell.budget, cell.attempt.answers): cell for cell in cells}.values():
        try:
            measures.setdefault(
                (cell.row, cell.budget), _fitting(cell, teacher, scored, plan, sharing)
            )
        except UserError as error:
            problems.setdefault(str(error), {})[cell.row] = None
    return measures


def _seconds_watched(teacher: Teacher) -> float:
    """Seconds of an image of noise that a teacher of ours answers while its detectors look on; 0
    without.
    """
    if teacher.info.watch is None:
        return 0.0
    low, high = teacher.spec.bounds
    count = min(teacher.spec.at_once(WATCHED), teacher.info.max_batch or WATCHED)
    rng = torch.Generator().manual_seed(0)
    seconds = 0.0
    for _ in range(3):  # the first call is slow, and counts for none
        x_BCHW = torch.rand(count, *teacher.spec.shape, generator=rng) * (high - low) + low
        began = time.perf_counter()
        with torch.no_grad():
            teacher(x_BCHW.to(teacher.info.device))
        seconds = time.perf_counter() - began
        if seconds > SLOW_SECONDS:
            break
    return seconds / count


def _require_rates(job: Job, service: str, sharing: int) -> None:
    """Refuse cells that would ask a service, on this machine or not, at once at a rate that nobody
    states.
    """
    if sharing > 1 and not rates_of(job):
        raise UserError(
            f"--jobs: {sharing} cells would ask {service} at once, and nobody says how "
            "fast; give --teacher.images-per-second or --teacher.requests-per-second, to "
            "be shared, or --jobs 1 with --engine local"
        )


def _facts(teacher: Teacher, defence: str) -> list[str]:
    """A teacher's shape, classes, label mode and defence, and what was inferred of it."""
    facts = [
        "x".join(map(str, teacher.spec.shape)),
        f"{teacher.num_classes} classes",
        str(teacher.label_mode),
        *teacher.info.inferred,
    ]
    return [*facts, f"defended by {defence}"] if defence != NO_DEFENCE else facts


def _fitting(
    cell: Cell, teacher: Teacher, scored: int, plan: ComparisonPlan, sharing: int
) -> Callable[[Rehearsal], float | None]:
    """UserError unless the parts of the cell's run fit together, and its replay on this machine's
    CPU.

    What comes back finds the seconds of its process, by a rehearsal on its share of this machine's
    CPU; None if it runs elsewhere. Cells that share a service wait for one another.
    """
    config = cell.job.config
    cpu = torch.device("cpu")
    here = plan.config.engine not in EXTRAS and choose_device(config.device) == cpu
    unscored = replace(config.evaluation, dataset="none")
    job = replace(cell.job, config=replace(config, device="cpu", evaluation=unscored))
    parts = build_parts(job, teacher, cpu)
    job = parts.job
    method = method_of(parts, teacher)
    if here:
        require_room(job, teacher, cpu)

    def seconds(into: Rehearsal) -> float | None:
        if not here:
            return None
        threads = torch.get_num_threads()
        torch.set_num_threads(threads_each(plan.jobs))
        timing = rehearse_run(parts, teacher, scored=scored, free=is_local(job))
        torch.set_num_threads(threads)
        of_others = max(0, sharing - 1) * (config.images + scored)
        working = Work(job, method, timing).seconds_to_end(scored + of_others)
        if timing is not None:
            step = timing.replayed / method.students.config.batch(config.images)
            into.of_image.append((step, timing.answer or 0.0))
        # a watched teacher's answer is in the work already
        answer = timing.answer if timing is not None else None
        watching = config.images * max(0.0, into.watched - (answer or 0.0))
        return None if working is None else START_SECONDS + into.building + watching + working

    return seconds


def not_applicable(cells: Sequence[Cell]) -> dict[str, str]:
    """Names and reasons of cells whose method or attacker cannot learn from such answers.

    UserError for a loss that does not fit a row's answers, or where nothing is left to run.
    """
    reasons: dict[str, str] = {}
    problems: dict[str, None] = {}
    for cell in cells:
        able = find_method(cell.job.method).load().label_modes
        config = cell.job.config
        form = config.answers.mode(LabelMode.parse(cell.job.teacher.label_mode or cell.mode))
        if cell.attempt.reason or form.kind not in able:
            reasons[cell.name] = (
                cell.attempt.reason or f"{cell.job.method} needs answers of {' or '.join(able)}"
            )
            continue
        try:
            make_distance(config.answers.loss(config.student.loss), form)
        except UserError as error:
            problems[f"row {cell.row}: {error}"] = None
    if len(reasons) == len(cells):
        problems |= dict.fromkeys(f"row {cell.row}: {reasons[cell.name]}" for cell in cells)
    if problems:
        raise UserError("; ".join(problems))
    return reasons
