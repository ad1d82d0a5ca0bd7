"""The pictures of a run: curves against the queries spent, and the sheet of generated queries."""

import textwrap
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter, NullLocator, PercentFormatter
from numpy.typing import NDArray

from dfme.config.messages import printable
from dfme.files import remove, replacing
from dfme.report.run_files import RunFiles, Samples, Series, beside_of, scored_on, to_picture
from dfme.statistics import wilson_interval

# told apart by colour-blind readers and in grey print
BLUE = "#0072b2"
ORANGE = "#c75000"
GREY = "#555555"
EARLY = 0.1
# greatest over least value of a panel: above it the axis is logarithmic, if all are positive
WIDE = 50.0

PANELS: dict[str, dict[str, str]] = {
    "student's loss": {"student_loss": "fresh answers", "replay_loss": "replayed answers"},
    "generator's objective": {"generator_loss": "minimised by the generator"},
    "gradient norm": {
        "upstream_grad_norm": "upstream, at the generator's output",
        "generator_grad_norm": "generator",
        "student_grad_norm": "student",
    },
}
"""Of each panel of losses.png, the metrics and what the legend calls them."""


def draw_curve(run: RunFiles, path: Path) -> bool:
    """Draw agreement, with its 95% interval, and accuracies against queries; False without
    evaluations.
    """
    agreement = run.series("agreement")
    accuracy = run.series("accuracy")
    if not agreement and not accuracy:
        return without(path)
    figure = Figure(figsize=(6.4, 3.9))
    # Margins that are given: finding them takes as long as drawing the rest.
    axes = figure.add_axes((0.13, 0.13, 0.85, 0.77))
    # Open squares below solid dots: where both shares are the same, both can still be seen.
    squares = {
        "color": ORANGE,
        "linestyle": "--",
        "marker": "s",
        "markersize": 6.0,
        "fillstyle": "none",
    }
    _draw_share(axes, accuracy, label="student's accuracy", **squares)
    _draw_share(
        axes, agreement, label="agreement with the teacher", color=BLUE, marker="o", markersize=3.0
    )
    if agreement and (images := scored_on(run).images):
        low, high = zip(*(wilson_interval(share, images) for _, share in agreement), strict=True)
        axes.fill_between(
            [queries for queries, _ in agreement], low, high, color=BLUE, alpha=0.13, linewidth=0
        )
    if (teacher := run.final("teacher_accuracy")) is not None:
        axes.axhline(
            teacher,
            color=GREY,
            linewidth=1.0,
            linestyle=":",
            label=f"teacher's accuracy ({teacher:.1%})",
        )
    if (beside := beside_of(run)).is_large and beside.constant is not None:
        axes.axhline(beside.constant, color=GREY, linewidth=1.0, linestyle="-.")
        label = f"constant answer ({beside.constant:.1%})"
        place = axes.get_yaxis_transform()  # at the right edge, at that share
        axes.text(
            0.99,
            beside.constant,
            label,
            transform=place,
            ha="right",
            va="top",
            fontsize=7.5,
            color=GREY,
        )
    share_axis(axes)
    axes.set_ylabel(f"share of {scored_on(run).phrase.removeprefix('the ')}")
    query_axis(axes, [agreement or accuracy])
    figure.legend(loc="upper center", ncols=3, frameon=False, fontsize=8.5)
    return save_figure(figure, path)


def draw_losses(run: RunFiles, path: Path) -> bool:
    """Draw losses and gradient norms against queries, one panel each; False where none were
    logged.
    """
    panels: dict[str, list[tuple[str, Series]]] = {}
    for title, metrics in PANELS.items():
        lines = [(label, run.series(name)) for name, label in metrics.items()]
        if drawn := [(label, series) for label, series in lines if len(series) > 1]:
            panels[title] = drawn
    if not panels:
        return without(path)
    height = 0.5 + 1.8 * len(panels)
    figure = Figure(figsize=(6.4, height))
    figure.subplots_adjust(
        left=0.14, right=0.98, bottom=0.5 / height, top=1 - 0.35 / height, hspace=0.24
    )
    grid: Any = figure.subplots(len(panels), 1, sharex=True, squeeze=False)
    for axes, (title, lines) in zip(grid[:, 0], panels.items(), strict=True):
        for (label, series), colour, dash in zip(
            lines, (BLUE, ORANGE, GREY), ("-", "--", ":"), strict=False
        ):
            axes.plot(
                *zip(*series, strict=True), color=colour, linestyle=dash, linewidth=1.2, label=label
            )
        axes.set_ylabel(title)
        query_axis(axes, [run.series("agreement")], label="")
        values = [value for _, series in lines for _, value in series]
        if min(values) > 0 and max(values) > WIDE * min(values):
            axes.set_yscale("log")
            axes.yaxis.set_major_formatter(short_count)
            axes.yaxis.set_minor_formatter(NullFormatter())
        axes.legend(
            loc="lower left",
            bbox_to_anchor=(0.0, 1.0),
            ncols=3,
            borderaxespad=0.1,
            frameon=False,
            fontsize=8,
        )
    grid[-1, 0].set_xlabel("queries")
    return save_figure(figure, path)


def _draw_share(axes: Axes, series: Series, **style: Any) -> None:
    if series:
        axes.plot(
            *zip(*series, strict=True), linewidth=1.5, markevery=max(1, len(series) // 20), **style
        )


def query_axis(
    axes: Axes, agreements: Sequence[Series] = (), label: str = "queries", log: bool = False
) -> None:
    """The axis of queries and its panel's frame: logarithmic if ``log``, or most agreements are
    ``early``.
    """
    if log or 2 * sum(map(early, agreements)) > len(agreements):
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.xaxis.set_minor_locator(NullLocator())
    else:
        axes.set_xlim(left=0)
    axes.xaxis.set_major_formatter(short_count)
    axes.set_xlabel(label)
    frame(axes)


def early(agreement: Series) -> bool:
    """True if half of the last value was reached within the first ``EARLY`` of the queries, near
    the edge.
    """
    half = agreement[-1][1] / 2 if agreement else 0.0
    return any(
        value >= half and 0 < queries <= EARLY * agreement[-1][0] for queries, value in agreement
    )


def share_axis(axes: Axes) -> None:
    """The axis of a share, in percent."""
    axes.set_ylim(0.0, 1.02)
    axes.yaxis.set_major_formatter(PercentFormatter(xmax=1.0, decimals=0))


def frame(axes: Axes, grid: Literal["both", "y"] = "both") -> None:
    """A pale grid below what is drawn, and no box around it."""
    axes.grid(visible=True, axis=grid, color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def legend_entries(panels: Iterable[Axes]) -> dict[str, Any]:
    """Handle of each label, once, whichever panel has it."""
    entries: dict[str, Any] = {}
    for axes in panels:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            entries.setdefault(label, handle)
    return entries


def short_count(value: float, _position: object = None) -> str:
    """A count as an axis shows it, wherever the tick is: 500, 20k, 1.5M."""
    for size, letter in ((1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:g}{letter}"
    return f"{value:g}"


def save_figure(figure: Figure, path: Path) -> bool:
    """Write the figure as the PNG or the PDF that its path names, whole or not at all; True."""
    with (
        replacing(path) as file,
        rc_context({"pdf.fonttype": 42}),
    ):  # TrueType, as conferences ask for
        figure.savefig(file, format=path.suffix[1:], dpi=200, facecolor="white")
    return True


def without(path: Path) -> bool:
    """Nothing to draw: remove the previous picture and return False. RunError as for files."""
    remove(path)
    return False


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
