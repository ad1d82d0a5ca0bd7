"""What a teacher in this process, with defences or a watch, adds to a run's record.

All of it is its owner's, who sees more than the attack does. None of it passes the oracle.
"""

import json
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dfme.errors import RunError
from dfme.files import AppendFile, whole_lines
from dfme.spec import Teacher


@dataclass(frozen=True)
class OwnersRecord:
    """Facts of a teacher's defences and watch, and answers that an honest user would get."""

    teacher: Teacher

    def facts(self) -> dict[str, Any]:
        """Texts of defences and ``report`` of defences and watch; empty for a plain teacher."""
        info = self.teacher.info
        facts: dict[str, Any] = {}
        if info.defences and info.stateful:
            facts = {"defences": list(info.defences), "defence_report": info.stateful.report()}
        if info.watch:
            facts["watch"] = info.watch.report()
        plain: dict[str, Any] = json.loads(json.dumps(facts, default=str))
        return plain

    def preview(self, images_BCHW: Tensor) -> Tensor | None:
        """Answers that an honest user would get now; None if unavailable. No state changes."""
        info = self.teacher.info
        if info.preview is None:
            return None
        spec = self.teacher.spec
        queries_BCHW = images_BCHW.to(info.device, torch.float32)
        if spec.levels is not None:
            queries_BCHW = spec.quantise(queries_BCHW)
        parts = queries_BCHW.split(info.max_batch or len(queries_BCHW))
        with torch.no_grad(), torch.autocast(queries_BCHW.device.type, enabled=False):
            return torch.cat([info.preview(part.clone()) for part in parts])

    def keep_watch(self, path: Path) -> None:
        """Append to a file what the watch said since the checkpoint, in place of a killed session's
        lines.

        RunError where the disk refuses, or for a file that holds something else.
        """
        watch = self.teacher.info.watch
        if watch is None or not (lines := watch.drain()):
            return
        first = min(line["images"] for line in lines)
        size = 0
        try:
            for line in whole_lines(path) if path.exists() else ():
                if json.loads(line)["images"] >= first:
                    break
                size += len(line)
        except (OSError, ValueError, LookupError, TypeError, RecursionError):
            raise RunError(
                f"{path}: expected the lines of a run's watch; remove it to go on"
            ) from None
        with closing(AppendFile(path, size)) as file:
            file.append("".join(json.dumps(line) + "\n" for line in lines).encode())
