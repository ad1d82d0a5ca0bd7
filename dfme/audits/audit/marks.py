"""Would the owner recognise an audit's copies by the mark? Each is held to ``run.py verify
--marks``; nothing is asked of the model behind its API.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from dfme.audits.audit.document import cached
from dfme.audits.audit.fidelity import ExaminedCell
from dfme.audits.audit.parts import MarkedCopies, MarkRecognition
from dfme.audits.audit.plan import AuditPlan
from dfme.audits.owner import Owner
from dfme.audits.verify.evidence import MarkEvidence
from dfme.audits.verify.marks import MAX_ASKED, KeyFile, MarkCase
from dfme.compute.device import choose_device, ieee_fp32, within_memory
from dfme.run.build import white_box
from dfme.run.scores import scores
from dfme.run.student_file import load_student_of_run

Tell = Callable[[str], None]


class _AskedMarks(NamedTuple):
    cell: ExaminedCell
    seen: MarkEvidence


def case_of(plan: AuditPlan, owner: Owner, tell: Tell) -> MarkCase:
    """The audited model, which has to be the marked one, beside the references, and the key."""
    file = str(plan.config.marks)
    checkpoint = plan.job.teacher_options["checkpoint"]
    paths = [Path(path) for path in (checkpoint, *plan.config.references)]
    key = KeyFile(Path(file), owner.marks(file))
    return MarkCase(plan.job, white_box(plan.job), paths, tell, key)


def require_marked(plan: AuditPlan, owner: Owner) -> None:
    """UserError for a key that is not of the audited model, or references that tell nothing."""
    case_of(plan, owner, lambda line: None).choose(MAX_ASKED, None)


def recognised_by_marks(
    plan: AuditPlan, owner: Owner, cells: Sequence[ExaminedCell], tell: Tell
) -> MarkRecognition:
    """The test of every copy of an audit by the marks, or what is on file of it. UserError where
    they tell nothing.
    """
    case = case_of(plan, owner, tell)
    key = [case.digest, *plan.config.references, *(cell.name for cell in cells)]
    ask = partial(_recognise, plan, case, cells)
    return cached(plan.out / "examined" / "marks.json", MarkRecognition, key, ask)


def _recognise(plan: AuditPlan, case: MarkCase, cells: Sequence[ExaminedCell]) -> MarkRecognition:
    device = choose_device(plan.job.config.device)
    tests = list[_AskedMarks]()
    with within_memory(device), ieee_fp32():
        files = (cell.directory / "student.safetensors" for cell in cells)
        nets: list[Any] = [load_student_of_run(file).to(device) for file in files]
        probes, facts = case.choose(MAX_ASKED, nets[0].spec.levels)
        for cell, net in zip(cells, nets, strict=True):
            ask = case.answer(net.spec, case.names, partial(scores, net))
            answers = [(ask(probes.images), probes.expected)]
            tests.append(_AskedMarks(cell, case.weigh(answers, facts["p_reference"])))
    references = [row["repeated"] / row["asked"] for row in facts["references"]]
    seen = tests[0].seen
    return MarkRecognition(
        text=_text(tests, max(references)),
        key=case.digest,
        marks=seen.asked,
        controls=seen.controls,
        p_reference=facts["p_reference"],
        references=references,
        rows=_rows(tests),
    )


def _rows(tests: Iterable[_AskedMarks]) -> list[MarkedCopies]:
    """Each attacker's copies over seeds."""
    copies = dict[tuple[str, str], list[_AskedMarks]]()
    for test in tests:
        copies.setdefault((test.cell.row, test.cell.mode), []).append(test)
    return [
        MarkedCopies(
            row=row,
            mode=mode,
            cells=[test.cell.name for test in group],
            repeated=[_repeated(test.seen) for test in group],
            controls=[_controls(test.seen) for test in group],
            e_values=[test.seen.evidence.e_value for test in group],
            recognised=[test.seen.evidence.sure for test in group],
        )
        for (row, mode), group in copies.items()
    ]


def _repeated(seen: MarkEvidence) -> float:
    return seen.repeated / seen.asked


def _controls(seen: MarkEvidence) -> float:
    return seen.controls_repeated / seen.controls


def _text(tests: Sequence[_AskedMarks], reference: float) -> str:
    """Would you recognise the copy, with the mark?"""
    repeated = [_repeated(test.seen) for test in tests]
    most = max(_controls(test.seen) for test in tests)
    sure = sum(test.seen.evidence.sure for test in tests)
    return (
        f"With the mark you would recognise {sure} of {len(tests)} copies: they repeat "
        f"{min(repeated):.0%} to {max(repeated):.0%} of the marks and at most {most:.0%} of the "
        f"controls, the references at most {reference:.0%} of the marks."
    )
