"""The recorder writes what a run logs to its files, to the console and to wandb."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dfme.config.sections import WandbConfig
from dfme.errors import flag
from dfme.files import make_folder, remove, replacing
from dfme.report.console import Console
from dfme.report.metrics import MetricsFile, callback_metrics

if TYPE_CHECKING:
    from dfme.report.wandb_run import WandbRun

Callback = Callable[[int, dict[str, float]], object]
"""A function of the user's, called with the queries so far and a record's metrics, which it may add
to.
"""

SHEET_IMAGES = 32  # of a sheet, sent to wandb


class Recorder(AbstractContextManager["Recorder"]):
    """Records a run in its directory, on the console and, if asked for, in wandb.

    ``resume_at``: charged images at the checkpoint; what was recorded beyond them is dropped, since
    the resumed run records it again. ``bounds``: the lowest and highest pixel value handed to
    ``samples``. ``document``: the effective configuration, for wandb. ``callback`` hears every
    record, and metrics that it returns join it; the run is asked to stop (``stopped``) once it
    returns True or raises ``error``. ``note`` and ``follow`` are the console's.
    """

    callback: Callback | None = None
    stopped = False
    error: Exception | None = None

    def __init__(
        self,
        run_dir: Path,
        budget: int,
        document: Mapping[str, Any],
        wandb: WandbConfig,
        *,
        bounds: tuple[float, float] = (0.0, 1.0),
        resume_at: int = 0,
        quiet: bool = False,
    ) -> None:
        self._run_dir = run_dir
        self._bounds = bounds
        self._console = Console(budget, quiet=quiet)
        self.note = self._console.note
        self.follow = self._console.follow
        self._trackers = list["WandbRun"]()
        if wandb.mode != "off":
            from dfme.report import wandb_run

            tracker = wandb_run.WandbRun(wandb, run_dir, document, self._console.note)
            self._trackers.append(tracker)
        self._watch = GradientWatch(checked=(document.get("estimator") or {}).get("kind") == "auto")
        self._metrics = MetricsFile(run_dir / "metrics.jsonl", resume_at)
        self._trim_samples(resume_at)
        self._console.start(resume_at)

    def __exit__(self, *_: object) -> None:
        self.close()

    def step(self, queries: int, metrics: Mapping[str, float]) -> None:
        """Record training metrics after ``queries`` charged images. How often is the loop's
        choice.
        """
        self._console.step(queries, self._write(queries, metrics))

    def evaluation(self, queries: int, metrics: Mapping[str, float]) -> None:
        """Record how good the student is after ``queries`` charged images."""
        self._console.evaluation(queries, self._write(queries, metrics))

    def samples(
        self, queries: int, images_NCHW: NDArray[np.floating], answers: NDArray[np.generic] | None
    ) -> None:
        """Keep a sheet of queries: images within bounds; the teacher's answers (N, K) or (N,), if
        known.
        """
        low, high = self._bounds
        pixels_NCHW = np.rint(np.clip((images_NCHW - low) / (high - low), 0.0, 1.0) * 255.0).astype(
            np.uint8
        )
        arrays: dict[str, Any] = {"images": pixels_NCHW}
        if answers is not None:
            arrays["answers"] = answers
        with replacing(self._run_dir / "samples" / f"queries-{queries:09d}.npz") as file:
            np.savez_compressed(file, allow_pickle=False, **arrays)
        for tracker in self._trackers:
            tracker.images(queries, pixels_NCHW[:SHEET_IMAGES])

    def finish(self, summary: Mapping[str, Any]) -> None:
        """End the records of a finished run and show its table; the run's other files exist
        already.
        """
        self._metrics.close()
        self._console.table(summary, self._run_dir)
        for tracker in self._trackers:
            tracker.finish(summary, self._run_dir / "student.safetensors")

    def close(self) -> None:
        """Let go of the terminal, the file and wandb, whatever happened; after ``finish`` it does
        nothing.
        """
        self._console.close()
        self._metrics.close()
        for tracker in self._trackers:
            tracker.close()

    def _write(self, queries: int, metrics: Mapping[str, float]) -> dict[str, float]:
        """Record metrics and what the callback adds to them; all of these."""
        added: dict[str, float] = {}
        try:
            returned = self.callback(queries, dict(metrics)) if self.callback else None
            self.stopped |= returned is True
            added = callback_metrics(returned)
        except Exception as error:  # what is paid is kept first
            self.stopped = True
            self.error = error
        self._metrics.write(queries, metrics, added)
        for tracker in self._trackers:
            tracker.log(queries, {**metrics, **added})
        if warned := self._watch.see(metrics):
            self._console.note(warned)
        return {**metrics, **added}

    def _trim_samples(self, queries: int) -> None:
        make_folder(self._run_dir / "samples")
        for path in (self._run_dir / "samples").glob("queries-*.npz"):
            number = path.stem.removeprefix("queries-")
            if number.isdecimal() and int(number) > queries:
                remove(path)


IN_A_ROW = 3  # logged generator steps that must show a symptom: a single one may by chance


@dataclass(frozen=True)
class Symptom:
    """A sign of gradients that are noise: when a metric's value is one, and the line to show."""

    is_bad: Callable[[float], bool]
    text: str


SYMPTOMS: dict[str, Symptom] = {
    "difference_zero_share": Symptom(
        lambda share: share > 0.5,
        "{:.0%} of the finite differences are exactly zero; likely cause: rounded answers or 8-bit "
        "images hide so small a step",
    ),
    "probe_alignment": Symptom(
        lambda cosine: cosine < 0.5,
        "the steps that the API's images carry have a cosine of {:.2f} with those intended; likely "
        "cause: 8-bit images round so small a step away",
    ),
    "difference_snr": Symptom(
        lambda ratio: ratio < 2.0,
        "finite differences are only {:.2g} times what the answers' rounding hides; likely cause: "
        "the step is too small for answers with so few decimals",
    ),
}
REMEDY = (
    f"start a new run with {flag('estimator.kind', 'auto')}, or see what run.py check recommends"
)
NO_REMEDY = (
    f"the check chose the best there is; more {flag('estimator.directions')} and finer answers help"
)


class GradientWatch:
    """Warns of logged metrics once, after the same symptom in ``IN_A_ROW`` records.

    ``checked``: the settings were chosen by the pre-flight check, which is no remedy then.
    """

    def __init__(self, checked: bool = False) -> None:
        self._remedy = NO_REMEDY if checked else REMEDY
        self._times = dict.fromkeys(SYMPTOMS, 0)
        self._warned = False

    def see(self, metrics: Mapping[str, float]) -> str | None:
        """The line to show after these metrics, or None. Records without a symptom's metric do not
        count.
        """
        for name, symptom in SYMPTOMS.items():
            if name not in metrics:
                continue
            self._times[name] = self._times[name] + 1 if symptom.is_bad(metrics[name]) else 0
            if self._times[name] >= IN_A_ROW and not self._warned:
                self._warned = True
                return f"warning: {symptom.text.format(metrics[name])}; {self._remedy}"
        return None
