"""Would the owner recognise an audit's copies? Each is held to the test of ``run.py verify``."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from dfme.audits.audit.examine import ExaminedCell
from dfme.audits.audit.model import Entry
from dfme.audits.verify.evidence import BATCH, Evidence, follow
from dfme.audits.verify.session import Case
from dfme.compute import choose_device, within_memory
from dfme.config.settings import Job
from dfme.precision import ieee_fp32
from dfme.run.build import white_box
from dfme.run.scores import scores
from dfme.run.student_file import load_student_of_run
from dfme.statistics import auroc

PROBES = 300  # as many as ``run.py verify`` asks by default


def case_of(job: Job, references: Sequence[str], tell: Callable[[str], None]) -> Case:
    """The audited model beside the references. UserError for those that do not fit."""
    return Case(job, white_box(job), [*map(Path, references)], tell)


def recognise(
    job: Job, references: Sequence[str], cells: Sequence[ExaminedCell], tell: Callable[[str], None]
) -> Entry:
    """Each attacker's copies over seeds. ``auroc``: of their shares of matches against the
    references' own.

    UserError where the owner's images have too few mistakes to tell anything.
    """
    device = choose_device(job.config.device)
    with within_memory(device), ieee_fp32():
        files = (cell.directory / "student.safetensors" for cell in cells)
        nets: list[Any] = [load_student_of_run(file).to(device) for file in files]
        case = case_of(job, references, tell)
        probes, found = case.choose(PROBES, nets[0].spec.levels)
        told = {"probes": len(probes.images), "p_reference": found["p_reference"]}
        innocent = [each["matches"] / each["asked"] for each in found["references"]]
        copies = dict[tuple[str, str], list[tuple[str, float, Evidence]]]()
        for cell, net in zip(cells, nets, strict=True):
            ask = case.answer(net.spec, case.names, partial(scores, net))
            hits = (ask(probes.images) == probes.expected).tolist()
            seen = follow(
                (hits[at : at + BATCH] for at in range(0, len(hits), BATCH)), told["p_reference"]
            )
            copies.setdefault((cell.row, cell.mode), []).append(
                (cell.name, sum(hits) / len(hits), seen)
            )
    rows = []
    for (row, mode), found_of in copies.items():
        names, matches, evidence = zip(*found_of, strict=True)
        rows.append(
            {
                "row": row,
                "mode": mode,
                "cells": [*names],
                "matches": [*matches],
                "e_values": [each.e_value for each in evidence],
                "recognised": [each.sure for each in evidence],
                "auroc": auroc({row: matches}, innocent)[0],
            }
        )
    return told | {"references": innocent, "rows": rows}
