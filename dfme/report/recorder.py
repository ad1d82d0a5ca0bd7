"""The recorder writes what a run logs to its files, to the console and to wandb."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from dfme.config.settings import WandbConfig
from dfme.files import make_folder, remove, replacing
from dfme.report.console import Console
from dfme.report.gradient_warnings import GradientWatch
from dfme.report.metrics import MetricsFile, callback_metrics
from dfme.report.wandb_run import WandbRun

Callback = Callable[[int, dict[str, float]], object]
"""A function of the user's, called with the queries so far and the metrics of a record, which it may add to."""

SHEET_COLUMNS = 8
SHEET_IMAGES = 32
SHEET_PIXELS = 32  # least edge of one image on the sheet sent to wandb


class Recorder(AbstractContextManager["Recorder"]):
    """Records a run in its directory, on the console and, if asked for, in wandb.

    ``resume_at`` is the checkpoint's number of charged images: what was recorded beyond it is dropped, since
    the resumed run records it again. Save a checkpoint after the records of its own number of images.
    ``bounds``: the teacher's lowest and highest pixel value, of the images handed to ``samples``. ``checked``:
    the pre-flight check chose how gradients are estimated. ``callback`` hears every record, and metrics that it returns
    join it; the run is asked to stop (``stopped``) once it returns True or raises ``error``.
    """

    callback: Callback | None = None
    stopped = False
    error: Exception | None = None

    def __init__(
        self,
        run_dir: Path,
        console: Console,
        wandb: WandbRun,
        bounds: tuple[float, float] = (0.0, 1.0),
        resume_at: int = 0,
        checked: bool = False,
    ) -> None:
        self._run_dir, self._console, self._wandb, self._bounds = run_dir, console, wandb, bounds
        self._watch = GradientWatch(checked)
        self._metrics = MetricsFile(run_dir / "metrics.jsonl", resume_at)
        self._trim_samples(resume_at)
        console.start(resume_at)

    @classmethod
    def open(
        cls,
        run_dir: Path,
        budget: int,
        document: Mapping[str, Any],
        wandb: WandbConfig,
        *,
        bounds: tuple[float, float] = (0.0, 1.0),
        resume_at: int = 0,
        quiet: bool = False,
    ) -> Self:
        """The recorder of a run, with a console on the standard streams unless ``quiet``, and wandb as asked.

        ``document`` is the effective configuration, which wandb is given.
        """
        console = Console(budget, quiet=quiet)
        checked = (document.get("estimator") or {}).get("kind") == "auto"
        return cls(run_dir, console, WandbRun(wandb, run_dir, document, console.note), bounds, resume_at, checked)

    def __exit__(self, *_: object) -> None:
        self.close()

    def step(self, queries: int, metrics: Mapping[str, float]) -> None:
        """Record training metrics after ``queries`` charged images. How often is the loop's choice."""
        self._console.step(queries, self._write(queries, metrics))

    def evaluation(self, queries: int, metrics: Mapping[str, float]) -> None:
        """Record how good the student is after ``queries`` charged images."""
        self._console.evaluation(queries, self._write(queries, metrics))

    def samples(self, queries: int, images_NCHW: NDArray[np.floating], answers: NDArray[np.generic] | None) -> None:
        """Keep a sheet of queries: images within bounds; the teacher's answers (N, K) or (N,), if known."""
        low, high = self._bounds
        pixels_NCHW = to_pixels((images_NCHW - low) / (high - low))
        arrays: dict[str, NDArray[Any]] = {"images": pixels_NCHW}
        if answers is not None:
            arrays["answers"] = answers
        path = self._run_dir / "samples" / f"queries-{queries:09d}.npz"
        with replacing(path) as file:
            np.savez_compressed(file, allow_pickle=False, **arrays)
        self._wandb.image(queries, contact_sheet(pixels_NCHW), f"after {queries:,} queries")

    def note(self, line: str) -> None:
        """Say one line to the person in front of the console."""
        self._console.note(line)

    def finish(self, summary: Mapping[str, Any]) -> None:
        """End the records of a finished run and show its table; the run's other files exist already."""
        self._metrics.close()
        self._console.table(summary, self._run_dir)
        self._wandb.finish(summary, self._run_dir / "student.safetensors")

    def close(self) -> None:
        """Let go of the terminal, the file and wandb, whatever happened; after ``finish`` it does nothing."""
        self._console.close()
        self._metrics.close()
        self._wandb.close()

    def _write(self, queries: int, metrics: Mapping[str, float]) -> dict[str, float]:
        """Record metrics and what the callback adds to them; all of these."""
        added: dict[str, float] = {}
        try:
            returned = self.callback(queries, dict(metrics)) if self.callback else None
            self.stopped |= returned is True
            added = callback_metrics(returned)
        except Exception as error:  # what is paid is kept first
            self.stopped, self.error = True, error
        self._metrics.write(queries, metrics, added)
        self._wandb.log(queries, {**metrics, **added})
        warned = self._watch.see(metrics)
        if warned is not None:
            self._console.note(warned)
        return {**metrics, **added}

    def _trim_samples(self, queries: int) -> None:
        make_folder(self._run_dir / "samples")
        for path in (self._run_dir / "samples").glob("queries-*.npz"):
            number = path.stem.removeprefix("queries-")
            if number.isdecimal() and int(number) > queries:
                remove(path)


def to_pixels(images_NCHW: NDArray[np.floating]) -> NDArray[np.uint8]:
    """Images in [0, 1] as 8-bit pixels, rounded to nearest; what lies outside is clipped."""
    pixels: NDArray[np.uint8] = np.rint(np.clip(images_NCHW, 0.0, 1.0) * 255.0).astype(np.uint8)
    return pixels


def contact_sheet(pixels_NCHW: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """The first images side by side as one (H, W, 3) picture, small images enlarged without smoothing.

    Grey images are shown grey; of more than three channels only the first three are shown.
    """
    pixels_NCHW = pixels_NCHW[:SHEET_IMAGES]
    count, channels, height, width = pixels_NCHW.shape
    rgb_NCHW = np.repeat(pixels_NCHW[:, :1], 3, axis=1) if channels < 3 else pixels_NCHW[:, :3]
    factor = max(1, -(-SHEET_PIXELS // min(height, width)))
    tiles_NHWC = rgb_NCHW.transpose(0, 2, 3, 1).repeat(factor, axis=1).repeat(factor, axis=2)
    framed = np.pad(tiles_NHWC, ((0, -count % SHEET_COLUMNS), (1, 1), (1, 1), (0, 0)), constant_values=255)
    rows = framed.reshape(-1, SHEET_COLUMNS, *framed.shape[1:])  # (rows, columns, H, W, 3)
    return np.concatenate([np.concatenate(list(row), axis=1) for row in rows], axis=0)
