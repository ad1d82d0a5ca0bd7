"""The sheet of generated queries: first, middle and last, each image with the teacher's top answer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from dfme.disk import replacing
from dfme.report.run_files import RunFiles, Samples

COLUMNS, ROWS = 10, 2  # of each of the moments shown
DOTS = 200  # per inch


def draw_samples(run: RunFiles, path: Path) -> bool:
    """Draw the sheet; False, and no picture, for a run without samples."""
    if not run.samples:
        path.unlink(missing_ok=True)
        return False
    moments = choose(run.samples)
    rows = [min(ROWS, -(-len(moment.images) // COLUMNS)) for moment in moments]
    figure = Figure(figsize=(7.0, sum(0.30 + 0.82 * count for count in rows)), layout="constrained")
    parts: Any = figure.subfigures(len(moments), 1, squeeze=False, height_ratios=[0.30 + 0.82 * n for n in rows])
    for part, moment, count in zip(parts[:, 0], moments, rows, strict=True):
        _draw_moment(part, moment, count)
    with replacing(path) as file:
        figure.savefig(file, format="png", dpi=DOTS, facecolor="white")
    return True


def choose(samples: list[Samples]) -> list[Samples]:
    """The first, the middle one and the last, without repeating any."""
    return [samples[i] for i in sorted({0, (len(samples) - 1) // 2, len(samples) - 1})]


def _draw_moment(part: Any, moment: Samples, rows: int) -> None:
    part.suptitle(f"after {moment.queries:,} queries", fontsize=9, x=0.01, ha="left")
    grid = part.subplots(rows, COLUMNS, squeeze=False)
    captions = top_answers(moment.answers, len(moment.images))
    for index, axes in enumerate(grid.flat):
        axes.set_axis_off()
        if index < len(moment.images):
            picture = to_picture(moment.images[index])
            axes.imshow(picture, cmap="gray", vmin=0, vmax=255, interpolation="nearest")
            axes.set_title(captions[index], fontsize=7, pad=2)


def to_picture(image_CHW: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """An image as it can be shown: (H, W) grey, or (H, W, 3). Of other channel counts the first is shown."""
    picture: NDArray[np.uint8] = image_CHW.transpose(1, 2, 0) if image_CHW.shape[0] == 3 else image_CHW[0]
    return picture


def top_answers(answers: NDArray[Any] | None, count: int) -> list[str]:
    """The teacher's top class for each image, with its probability where the answers are scores (N, K).

    Scores that are no probabilities (below zero, or not summing to one) are taken for logits. NaN marks a
    class that a top-k answer does not reveal.
    """
    if answers is None:
        return [""] * count
    if answers.ndim == 1:
        return [str(int(label)) for label in answers]
    return [_top_answer(scores_K) for scores_K in answers.astype(np.float64)]


def _top_answer(scores_K: NDArray[np.float64]) -> str:
    hidden = np.isnan(scores_K)
    known = scores_K[~hidden]
    if known.size == 0:
        return "?"
    top = int(np.nanargmax(scores_K))
    total = float(known.sum())
    probabilities = known.min() >= 0 and (abs(total - 1) < 0.02 or (hidden.any() and total <= 1.02))
    share = known.max() if probabilities else 1 / np.exp(known - known.max()).sum()
    return f"{top} · {share:.0%}"
