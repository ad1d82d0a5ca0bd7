"""The sheet of generated queries: first, middle and last, each image with the teacher's top
answer.
"""

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from dfme.config.messages import printable
from dfme.report.curves import save_figure, without
from dfme.report.run_files import RunFiles, Samples, to_picture

COLUMNS = 10
ROWS = 2  # of each of the moments shown
# inches: of the sheet, around it, between images, of a moment's line, of a line above an image
WIDTH = 7.0
MARGIN = 0.06
GAP = 0.08
HEADING = 0.30
CAPTION = 0.16
NAME = 14  # letters of a class's name for which there is room above an image


def draw_samples(run: RunFiles, path: Path) -> bool:
    """Draw the sheet; False, and no picture, for a run without samples."""
    if not run.samples:
        return without(path)
    moments = choose(run.samples)
    named = ((run.summary or {}).get("teacher") or {}).get("class_names")
    names = [*map(str, named)] if isinstance(named, list) else []
    caption = CAPTION * (2 if names else 1)
    cell = (WIDTH - 2 * MARGIN + GAP) / COLUMNS  # inches from one image to the next
    side = cell - GAP
    rises = [side * moment.images.shape[2] / moment.images.shape[3] for moment in moments]
    rows = [min(ROWS, -(-len(moment.images) // COLUMNS)) for moment in moments]
    height = 2 * MARGIN + sum(
        HEADING + n * (caption + rise + GAP) for n, rise in zip(rows, rises, strict=True)
    )
    figure = Figure(figsize=(WIDTH, height))
    axes = figure.add_axes((0.0, 0.0, 1.0, 1.0), frame_on=False)  # in inches, from the upper left
    top = MARGIN
    for moment, count, rise in zip(moments, rows, rises, strict=True):
        axes.text(
            MARGIN, top + HEADING / 2, f"after {moment.queries:,} queries", fontsize=9, va="center"
        )
        top += HEADING
        captions = top_answers(moment.answers, len(moment.images), names)
        for index, image_CHW in enumerate(moment.images[: count * COLUMNS]):
            row, column = divmod(index, COLUMNS)
            place = (
                MARGIN + column * cell,
                top + caption + row * (caption + rise + GAP),
                side,
                rise,
            )
            _draw_image(axes, image_CHW, captions[index], place)
        top += count * (caption + rise + GAP)
    axes.set(xlim=(0.0, WIDTH), ylim=(height, 0.0), xticks=[], yticks=[], aspect="auto")
    return save_figure(figure, path)


def choose(samples: list[Samples]) -> list[Samples]:
    """The first, the middle one and the last, without repeating any."""
    return [samples[i] for i in sorted({0, (len(samples) - 1) // 2, len(samples) - 1})]


def _draw_image(
    axes: Axes, image_CHW: NDArray[np.uint8], caption: str, place: tuple[float, float, float, float]
) -> None:
    """One image below its caption; ``place``: left, top, width and height in inches."""
    left, top, width, height = place
    look: dict[str, Any] = {"ha": "center", "va": "bottom", "linespacing": 1.1, "parse_math": False}
    axes.text(left + width / 2, top - 0.03, caption, fontsize=6 if "\n" in caption else 7, **look)
    extent = (left, left + width, top + height, top)
    axes.imshow(to_picture(image_CHW), interpolation="nearest", aspect="auto", extent=extent)


def top_answers(answers: NDArray[Any] | None, count: int, names: Sequence[str] = ()) -> list[str]:
    """The teacher's top class for each image, by name if it has one; of scores (N, K) its
    probability too.

    Scores that are no probabilities (below zero, or not summing to one) are taken for logits; NaN:
    hidden.
    """
    if answers is None:
        return [""] * count
    if answers.ndim == 1:
        return [called(int(label), names) for label in answers]
    return [_top_answer(scores_K, names) for scores_K in answers.astype(np.float64)]


def called(label: int, names: Sequence[str]) -> str:
    """A class by its name, shortened between words, or by its number where it has none."""
    if label >= len(names):
        return str(label)
    name = printable(names[label].replace("_", " "), " ")
    short = textwrap.shorten(name, NAME, placeholder=" …")
    return short if short.strip(" …") else f"{name.strip()[: NAME - 1]}…"


def _top_answer(scores_K: NDArray[np.float64], names: Sequence[str]) -> str:
    hidden = np.isnan(scores_K)
    revealed = scores_K[~hidden]
    if revealed.size == 0:
        return "?"
    top = int(np.nanargmax(scores_K))
    total = float(revealed.sum())
    probabilities = revealed.min() >= 0 and (
        abs(total - 1) < 0.02 or (hidden.any() and total <= 1.02)
    )
    share = revealed.max() if probabilities else 1 / np.exp(revealed - revealed.max()).sum()
    between = "\n" if names else " · "
    return f"{called(top, names)}{between}{share:.0%}"
