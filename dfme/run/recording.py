"""The record of a run's queries, which goes on where the checkpoint of a resumed run stands."""

from pathlib import Path

from dfme.data.recorded_queries import QueryForm, QueryRecord
from dfme.spec import Teacher


def record_queries(teacher: Teacher, folder: Path) -> QueryRecord:
    """Record in ``folder`` what the watched teacher is asked from here on, behind what its watch
    saw before.

    A killed session's images after the checkpoint go: the resumed run asks them again, or takes
    their answers from its journal. RunError for a record that is not this run's.
    """
    watch = teacher.info.watch
    assert watch is not None, "a teacher whose queries are recorded has a watch"
    spec = teacher.spec
    form = QueryForm(
        shape=spec.shape,
        bounds=spec.bounds,
        levels=spec.levels,
        classes=teacher.num_classes,
        distance=watch.features is not None,
    )
    record = QueryRecord(folder, form)
    record.cut(watch.images)
    watch.sent = record.append
    return record
