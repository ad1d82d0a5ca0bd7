"""The answers that a run paid for and kept, read again from its directory; nothing there is changed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from dfme.config.yaml_files import load_yaml
from dfme.errors import UserError
from dfme.report.summary_file import read_summary
from dfme.run.checkpoint import load_checkpoint
from dfme.run.resume import fitting
from dfme.run.student_file import load_student
from dfme.spec import ImageSpec, LabelMode
from dfme.students.replay import Replay


@dataclass(frozen=True)
class PaidAnswers:
    """What a run kept, ready to be trained on: ``replay`` draws from it, or gives all of it in order (``batches``).

    ``taught``: answers that went into its replay, still there or not. ``spent``: images that it paid for in all.
    ``state``: the rest of the run's checkpoint.
    """

    replay: Replay
    spec: ImageSpec
    label_mode: LabelMode
    num_classes: int
    taught: int
    spent: int
    state: dict[str, Any]

    @property
    def shortfall(self) -> str | None:
        """In a line, what of all that was paid for is not there, and why; None if all of it is."""
        reasons = []
        if self.taught > len(self.replay):
            reasons.append(f"{self.taught - len(self.replay):,} older than the --student.replay-capacity last ones")
        if self.spent > self.taught:
            reasons.append(f"{self.spent - self.taught:,} that served other ends (gradient estimates, checks, scores)")
        if not reasons:
            return None
        return f"{len(self.replay):,} of {self.spent:,} paid answers are kept; not {' and not '.join(reasons)}"


def paid_answers(run_dir: Path, rng: torch.Generator | None = None) -> PaidAnswers:
    """What the run in ``run_dir`` kept, on the device of ``rng`` (or left on disk, if the run kept it there).

    Raises UserError where the run kept nothing, naming the option that would have, or is no run; RunError for files
    that are damaged or missing.
    """
    checkpoint = run_dir / "checkpoint.pt"
    if not (run_dir / "config.yaml").is_file():
        raise UserError(f"{run_dir}: expected the directory of a run, but it holds no config.yaml")
    state = load_checkpoint(checkpoint)
    with fitting(checkpoint):
        kept = state["trainer"]["replay"]
        if kept is None or not kept["held"]:
            raise UserError(
                f"{run_dir}: this run kept none of its paid answers; start one with --student.replay-steps 1 or more"
            )
        student = load_student(run_dir)
        spec, num_classes = student.spec, student.num_classes
        assert isinstance(spec, ImageSpec)
        assert isinstance(num_classes, int)
        folder = run_dir / "replay" if kept["items"]["kind"] == "disk" else None
        # What never overflowed lies in the order of its numbers, and what did fills its window: both are of this size.
        replay = Replay(kept["held"], spec, rng or torch.Generator().manual_seed(0), folder)
        replay.load_state_dict(kept)
        return PaidAnswers(replay, spec, _label_mode(run_dir), num_classes, replay.added, _spent(state), state)


def _label_mode(run_dir: Path) -> LabelMode:
    """From the summary of a finished run, else from the configuration, if it was given there."""
    summary = read_summary(run_dir / "summary.json")
    told = summary["label_mode"] if summary else load_yaml(run_dir / "config.yaml")["teacher"]["label_mode"]
    if told is None:
        raise UserError(
            f"{run_dir}: this run is not finished, and its config.yaml does not say teacher.label_mode; "
            "resume it to its end first"
        )
    return LabelMode.parse(told)


def _spent(state: dict[str, Any]) -> int:
    """Images that were charged until the checkpoint, for all purposes but evaluation."""
    images: dict[str, int] = state["oracle"]["ledger"]["images"]
    return sum(count for purpose, count in images.items() if purpose != "evaluation")
