"""Would the owner recognise an audit's copies? Each is held to the test of ``run.py verify``."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from dfme.audits.audit.document import cached
from dfme.audits.audit.fidelity import ExaminedCell
from dfme.audits.audit.parts import RecognisedCopies, Recognition
from dfme.audits.audit.plan import AuditPlan
from dfme.audits.verify.case import Case
from dfme.audits.verify.evidence import BATCH, Evidence, follow
from dfme.compute.device import choose_device, ieee_fp32, within_memory
from dfme.config.settings import Job
from dfme.run.build import white_box
from dfme.run.scores import scores
from dfme.run.student_file import load_student_of_run
from dfme.statistics import auroc

PROBES = 300  # as many as ``run.py verify`` asks by default


class _Tested(NamedTuple):
    """A cell's copy. ``matches``: share of the probes on which it gives the model's mistake."""

    cell: str
    matches: float
    evidence: Evidence


def case_of(job: Job, references: Sequence[str], tell: Callable[[str], None]) -> Case:
    """The audited model beside the references. UserError for those that do not fit."""
    return Case(job, white_box(job), [*map(Path, references)], tell)


def recognised(
    plan: AuditPlan, cells: Sequence[ExaminedCell], tell: Callable[[str], None]
) -> Recognition:
    """The test of every copy of an audit by the owner's mistakes, or what is on file of it.

    UserError where the images tell nothing.
    """
    references = plan.config.references
    key = [*references, *(cell.name for cell in cells)]
    ask = partial(recognise, plan.job, references, cells, tell)
    return cached(plan.out / "examined" / "recognised.json", Recognition, key, ask)


def recognise(
    job: Job, references: Sequence[str], cells: Sequence[ExaminedCell], tell: Callable[[str], None]
) -> Recognition:
    """Each attacker's copies over seeds. ``auroc``: of their shares of matches against the
    references' own.

    UserError where the owner's images have too few mistakes to tell anything.
    """
    device = choose_device(job.config.device)
    copies = dict[tuple[str, str], list[_Tested]]()
    with within_memory(device), ieee_fp32():
        files = (cell.directory / "student.safetensors" for cell in cells)
        nets: list[Any] = [load_student_of_run(file).to(device) for file in files]
        case = case_of(job, references, tell)
        probes, facts = case.choose(PROBES, nets[0].spec.levels)
        p_reference = facts["p_reference"]
        for cell, net in zip(cells, nets, strict=True):
            ask = case.answer(net.spec, case.names, partial(scores, net))
            hits = (ask(probes.images) == probes.expected).tolist()
            batches = (hits[at : at + BATCH] for at in range(0, len(hits), BATCH))
            tested = _Tested(cell.name, sum(hits) / len(hits), follow(batches, p_reference))
            copies.setdefault((cell.row, cell.mode), []).append(tested)
    innocent = [reference["matches"] / reference["asked"] for reference in facts["references"]]
    rows = []
    for (row, mode), tests in copies.items():
        matches = [test.matches for test in tests]
        rows.append(
            RecognisedCopies(
                row=row,
                mode=mode,
                cells=[test.cell for test in tests],
                matches=matches,
                e_values=[test.evidence.e_value for test in tests],
                recognised=[test.evidence.sure for test in tests],
                auroc=auroc({row: matches}, innocent)[0],
            )
        )
    return Recognition(len(probes.images), p_reference, innocent, rows)
