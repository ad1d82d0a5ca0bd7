"""What the oracle does for a teacher with defences besides asking it: its state, the record, its owner's figures."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dfme.answers.reading import as_tensor
from dfme.errors import RunError
from dfme.files import AppendFile, whole_lines
from dfme.oracle.journal import Record
from dfme.spec import Teacher


def state_of(teacher: Any) -> dict[str, Any]:
    """The entry of a checkpoint; none of a teacher without state."""
    stateful = hasattr(teacher, "witness") and hasattr(teacher, "state_dict")
    return {"teacher": teacher.state_dict()} if stateful else {}


def take_up_state(teacher: Any, state: Mapping[str, Any]) -> None:
    """Put the teacher where it was at the checkpoint. ValueError where one has a state and the other has none."""
    if ("teacher" in state) != bool(own := state_of(teacher)):
        raise ValueError(f"expected {'the' if own else 'no'} state of a teacher's defences")
    if own:
        teacher.load_state_dict(state["teacher"])


def witness(teacher: Any, part_BCHW: Tensor, record: Record) -> None:
    """Let the teacher's state go on past an answer on record. RunError where it would answer otherwise."""
    if not hasattr(teacher, "witness"):
        return
    try:
        with torch.no_grad(), torch.autocast(part_BCHW.device.type, enabled=False):
            teacher.witness(part_BCHW.clone(), record.answers.to(part_BCHW.device, copy=True))
    except ValueError as error:
        raise RunError(
            f"the teacher answers otherwise than request {record.seq} on record ({' '.join(str(error).split())[:300]})"
            "; its key, files or settings changed: resume with them as they were, or start a new run"
        ) from error


def served(teacher: Any, queries_BCHW: Tensor) -> Tensor | None:
    """What an honest user would be answered now; None where the teacher does not say."""
    if not hasattr(teacher, "served"):
        return None
    parts = queries_BCHW.split(getattr(teacher, "max_batch", None) or len(queries_BCHW))
    with torch.no_grad(), torch.autocast(queries_BCHW.device.type, enabled=False):
        return torch.cat([as_tensor(teacher.served(part.clone())) for part in parts])


def told(teacher: Teacher) -> dict[str, Any]:
    """Of a teacher with defences, their texts and what they report, and what its watch does, as JSON has it."""
    watch = getattr(teacher, "watch", None) if hasattr(teacher, "witness") else None
    texts = getattr(teacher, "defences", ()) if hasattr(teacher, "witness") else ()
    found: object = {
        **({"defences": list(texts), "defence_report": getattr(teacher, "report", dict)()} if texts else {}),
        **({} if watch is None else {"watch": watch.report()}),
    }
    plain: dict[str, Any] = json.loads(json.dumps(found, default=str))
    return plain


def keep_lines(teacher: Any, path: Path) -> None:
    """Append what the watch said since the last time; what a killed session appended later than that goes.

    RunError where the disk refuses, or for a file that holds something else.
    """
    watch, size = getattr(teacher, "watch", None), 0
    if watch is None or not (lines := watch.drain()):
        return
    first = min(line["images"] for line in lines)
    try:
        for line in whole_lines(path) if path.exists() else ():
            if json.loads(line)["images"] >= first:
                break
            size += len(line)
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        raise RunError(f"{path}: expected the lines of a run's watch; remove it to go on") from None
    with closing(AppendFile(path, size)) as file:
        file.append("".join(json.dumps(line) + "\n" for line in lines).encode())
