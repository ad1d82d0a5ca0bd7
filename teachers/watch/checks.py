"""What is checked of a watch before anything is loaded. No torch."""

from collections.abc import Iterator

from dfme.config.detectors import NEED_FEATURES
from dfme.config.settings import TeacherConfig
from dfme.data import check_dataset
from dfme.errors import UserError


def watch_problems(teacher: TeacherConfig, local: bool) -> Iterator[str]:
    """In words; ``local``: the teacher is in this process."""
    names = ",".join(teacher.watch)
    benign = teacher.benign
    needing = ", ".join(name for name in teacher.watch if name in NEED_FEATURES)
    if names and not local:
        yield (
            f"--teacher.watch: a service is watched where it runs, by run.py serve --watch {names}"
        )
        return
    if names and benign is None:
        yield (
            f"--teacher.benign: expected held-out labelled images to calibrate {names} "
            "on: a set or FOLDER"
        )
    if needing and teacher.kind != "torch":
        yield (
            f"--teacher.watch: {needing}: expected a teacher of kind torch to look into, "
            f"got {teacher.kind}"
        )
    if teacher.on_alarm == "label" and teacher.label_mode == "logits":
        yield "--teacher.on-alarm label: expected a --teacher.label-mode other than logits"
    try:
        if benign is not None:
            check_dataset(benign, download=False)
    except UserError as error:
        yield f"--teacher.benign: {error}"
