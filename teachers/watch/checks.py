"""What is wrong with a watch, as far as the options show it, before anything heavy is loaded. No torch here."""

from __future__ import annotations

from collections.abc import Iterator

from dfme.config.settings import TeacherConfig
from dfme.config.watch_texts import NEED_FEATURES
from dfme.data import check_dataset
from dfme.errors import UserError
from dfme.spec import LabelMode


def check_watch(teacher: TeacherConfig, local: bool) -> None:
    """UserError that names all that is wrong; ``local``: the model runs in this process."""
    if problems := [*_problems(teacher, local)]:
        raise UserError("; ".join(problems))


def _problems(teacher: TeacherConfig, local: bool) -> Iterator[str]:
    names, benign = ",".join(teacher.watch), teacher.benign
    if names and not local:
        yield f"--teacher.watch: a service is watched where it runs: run.py serve --watch {names}; leave it out here"
        return
    if not names and (benign is not None or teacher.on_alarm != "log"):
        yield "--teacher.watch: expected detectors, such as pairs,sequential, with --teacher.benign or on-alarm"
    if names and benign is None:
        yield f"--teacher.benign: expected held-out labelled images to calibrate {names} on, such as digits or FOLDER"
    needing = ", ".join(name for name in teacher.watch if name in NEED_FEATURES)
    if needing and teacher.kind != "torch":
        yield f"--teacher.watch: {needing}: look into the network of a teacher of kind torch, got {teacher.kind}"
    if names and teacher.on_alarm == "label" and LabelMode.parse(teacher.label_mode or "label").kind == "logits":
        yield "--teacher.on-alarm label: expected --teacher.label-mode probabilities, top_k or label, got logits"
    try:
        if benign is not None:
            check_dataset(benign, download=False)
    except UserError as error:
        yield f"--teacher.benign: {error}"
