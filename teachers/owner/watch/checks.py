"""What is checked of a watch before anything is loaded. No torch."""

from collections.abc import Iterator

from dfme.config.defences import NEED_FEATURES
from dfme.config.settings import TeacherConfig
from dfme.data import check_dataset
from dfme.errors import Message, Problem, Ref, UserError, say


def watch_problems(teacher: TeacherConfig, local: bool) -> Iterator[Problem | Message]:
    """``local``: the teacher is in this process."""
    names = ",".join(teacher.watch)
    benign = teacher.benign
    needing = ", ".join(name for name in teacher.watch if name in NEED_FEATURES)
    if names and not local:
        text = say("a service is watched where it runs, by run.py serve {}", Ref("watch", names))
        yield Problem("teacher.watch", text)
        return
    if names and benign is None:
        text = say("expected held-out labelled images to calibrate {} on: a set or FOLDER", names)
        yield Problem("teacher.benign", text)
    if needing and teacher.kind != "torch":
        expected = f"{needing}: expected a teacher of kind torch to look into"
        yield Problem("teacher.watch", expected, got=teacher.kind)
    if teacher.on_alarm == "label" and teacher.label_mode == "logits":
        yield say("{teacher.on_alarm:label}: expected a {teacher.label_mode} other than logits")
    try:
        if benign is not None:
            check_dataset(benign, download=False)
    except UserError as error:
        yield Problem("teacher.benign", error.message)
