"""A student's score beside its teacher, outside a run."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from dfme.compute.device import choose_device
from dfme.config.settings import Job
from dfme.config.yaml_files import load_yaml
from dfme.errors import UserError
from dfme.oracle.ledger import Ledger
from dfme.oracle.oracle import Oracle
from dfme.report.classified import Training, baselines
from dfme.report.metrics import read_metrics
from dfme.report.run_files import AGREEMENTS, NO_LABELS
from dfme.report.verdict import warnings
from dfme.run.build import build_teacher
from dfme.run.evaluation import (
    EvaluationSet,
    OwnersRecord,
    classified,
    examination_of,
    under_defences,
)
from dfme.run.scores import evaluation_images
from dfme.run.student_file import load_student_of_run


def score(student: Path, job: Job, tell: Callable[[str], None]) -> dict[str, float | str]:
    """Accuracy, agreement and KL of the student in a file, by the job's teacher on the job's
    evaluation set.

    The teacher is asked about every image once; as in a run, that is counted but not charged.
    ``tell`` hears of a service's troubles. UserError if student, teacher and evaluation set do not
    go together.
    """
    net = load_student_of_run(student)
    device = choose_device(job.config.device)
    teacher = build_teacher(job, None, device)
    if net.spec != teacher.spec or net.num_classes != teacher.num_classes:
        ours, theirs = (
            f"images {spec} and {classes} classes"
            for spec, classes in ((net.spec, net.num_classes), (teacher.spec, teacher.num_classes))
        )
        raise UserError(f"--student {student}: it is for {ours}, but the teacher takes {theirs}")
    ledger = Ledger(budget=1)  # the evaluation uses nothing of it
    names = teacher.info.class_names
    data = evaluation_images(
        job.config.evaluation, teacher.spec, teacher.num_classes, names, tell=tell
    )
    oracle = Oracle(teacher, ledger, tell=tell)
    examination = examination_of(
        data, oracle.spec, oracle.label_mode, device, partial(oracle, purpose="evaluation")
    )
    assert isinstance(examination, EvaluationSet), "without an evaluation set there is no job"
    examination.prepare()
    scores = examination.score(net.to(device))
    seen = classified(examination, teacher.num_classes, student=net)
    seen = replace(seen, training=_record(student.parent))
    images = f"{examination.name}, {len(examination)} images"
    if count := examination.left_out:
        images += f"; the teacher named no class for {count} more, which are left out"
    result: dict[str, str | float] = {"student": str(student), "evaluation set": images}
    if examination.labels is None:
        result["teacher accuracy"] = NO_LABELS
        result["accuracy"] = NO_LABELS
    result.update(_beside_a_constant_answer(scores, baselines(seen)))
    defended = under_defences(OwnersRecord(teacher), examination, seen)
    for name in AGREEMENTS:
        if defended.get(name) is not None:
            result[name.replace("_", " ")] = defended[name]
    result["evaluation queries"] = str(ledger.evaluation_queries)
    if lines := warnings(seen):
        result["warning"] = "\nwarning  ".join(lines)
    return result


def _beside_a_constant_answer(
    scores: Mapping[str, float], baselines: Mapping[str, Any]
) -> dict[str, float]:
    """Scores by their names for people; what a constant answer has of each stands directly below
    it.
    """
    named: dict[str, float] = {}
    constants = {"agreement_balanced": "constant_balanced"}
    for name, value in scores.items():
        if name != "constant_agreement":
            named[name.replace("_", " ")] = value
            constant = constants.get(name, f"constant_{name}")
            if baselines.get(constant) is not None:
                named[constant.replace("_", " ")] = baselines[constant]
    return named | {"chance": baselines["chance"]}


def _record(run: Path) -> Training | None:
    """The record of the student's training in its run directory; None if there is none that can be
    read.
    """
    try:
        records = read_metrics(run / "metrics.jsonl")
        config = load_yaml(run / "config.yaml") if records else {}
    except UserError:
        return None
    if not records:
        return None
    student = config.get("student")
    return Training.of_records(records, bool(isinstance(student, dict) and student.get("rounds")))
