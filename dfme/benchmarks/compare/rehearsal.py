"""What every cell would find for itself is found once, before the first of them asks anything."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch

from dfme.benchmarks.compare.attackers import NO_DEFENCE
from dfme.benchmarks.compare.engines import EXTRAS
from dfme.benchmarks.compare.plan import Cell, ComparisonPlan, rates_of
from dfme.compute import choose_device
from dfme.errors import UserError
from dfme.oracle.ledger import Ledger
from dfme.oracle.oracle import Oracle
from dfme.report.console import teacher_name
from dfme.run.build import build_teacher, is_local
from dfme.run.components import needed_space
from dfme.run.directory import require_space
from dfme.run.evaluation import evaluation_images
from dfme.run.job import document, unwatched
from dfme.run.memory import require_memory
from dfme.run.parts import build_parts
from dfme.run.plan import method_of
from dfme.spec import ImageSpec, Teacher


class Rehearsal(NamedTuple):
    """What is known of the cells' teacher before it is asked.

    ``sharing``: cells that ask a service at once, 0 where it is none; ``scored``: images of the evaluation.
    """

    sharing: int
    scored: int
    spec: ImageSpec
    num_classes: int


def rehearse(
    plan: ComparisonPlan, cells: Sequence[Cell], tell: Callable[[str], None], ask: bool = True
) -> Rehearsal | None:
    """Make the teacher of the cells that wait, and of every row what its runs are made of; a line about the teacher.

    A teacher in this process is asked for one image, if ``ask``. A service is not: its count and the cells' ledgers
    must be equal. None where no cell waits.

    Raises:
        UserError: one line that names everything that cannot work, or a service whose rate nobody states.
    """
    problems, sharing, needed = dict[str, dict[str, None]](), 0, 0
    rehearsal: Rehearsal | None = None
    for mode, defence in dict.fromkeys((cell.mode, cell.attempt.runs) for cell in cells):
        of_mode = [cell for cell in cells if (cell.mode, cell.attempt.runs) == (mode, defence)]
        job, named = of_mode[0].job, teacher_name(document(of_mode[0].job)["teacher"])
        local = is_local(job)  # others would be asked by the calibration of a watch
        teacher = build_teacher(job if local else unwatched(job), None, torch.device("cpu"))
        try:
            names, service = getattr(teacher, "class_names", None), getattr(teacher, "wire", None) is not None
            most = len(cells) if plan.engine == "commands" else plan.jobs  # whoever runs a list may run it all at once
            sharing = min(most, len(cells)) if service else 0
            if sharing > 1 and not rates_of(job):  # a server on this machine included, which a tunnel looks like
                raise UserError(
                    f"--jobs: {sharing} cells would ask {named} at once, and nobody says how fast it may be asked; "
                    "give --teacher.images-per-second or --teacher.requests-per-second, to be shared, or --jobs 1 with "
                    "--engine local"
                )
            data = evaluation_images(job.config.evaluation, teacher.spec, teacher.num_classes, names)
            rehearsal = Rehearsal(sharing, 0 if data is None else len(data), teacher.spec, teacher.num_classes)
            alike = {(cell.row, cell.budget, cell.attempt.answers): cell for cell in of_mode}.values()
            for cell in alike:
                try:
                    needed += _space(cell, teacher, plan.engine in EXTRAS) * len(of_mode) // len(alike)
                except UserError as error:
                    problems.setdefault(str(error), {})[cell.row] = None
            asks = ask and not service
            if asks and not problems:
                grey_BCHW = torch.full((1, *teacher.spec.shape), sum(teacher.spec.bounds) / 2)
                Oracle(teacher, Ledger(1))(grey_BCHW, purpose="check")
        finally:
            getattr(teacher, "close", lambda: None)()
        told = ["x".join(map(str, teacher.spec.shape)), f"{teacher.num_classes} classes", str(teacher.label_mode)]
        told += getattr(teacher, "inferred", ())  # from the weights or the evaluation, where nobody says
        told += [f"defended by {defence}"] if defence != NO_DEFENCE else []
        asked = "it answers (one image, charged to no run)" if asks else "not asked before the cells"
        asked = f"a service, {asked}" if service else asked
        if not problems:
            tell(f"teacher {named}: {', '.join(told)}; {asked}")
    if problems:
        raise UserError("; ".join(f"{', '.join(rows)}: {text}" for text, rows in problems.items()))
    if not (plan.out / "cells").exists():  # where they were begun, some of it lies there
        require_space(plan.out, needed)
    if sharing > 1:
        rates = " and ".join(f"{rate:g} {name.replace('_', ' ')}" for name, rate in rates_of(cells[0].job).items())
        tell(f"{sharing} cells ask the service at once, each at 1/{sharing} of its {rates}")
    return rehearsal


def _space(cell: Cell, teacher: Teacher, away: bool) -> int:
    """Bytes of disk that a run of the cell needs, whose parts fit together and into the memory of this machine."""
    config, cpu = cell.job.config, torch.device("cpu")
    here, none = None if away else choose_device(config.device), replace(config.evaluation, dataset="none")
    job = replace(cell.job, config=replace(config, device="cpu", evaluation=none))
    _, pool, nets, needed = build_parts(job, teacher, cpu)
    method_of(job, teacher, nets, pool)
    if here == cpu:
        require_memory(needed, cpu)
    return needed_space(job, nets, teacher, Path(config.out or ""))
