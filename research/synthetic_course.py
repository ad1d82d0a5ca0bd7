"""Synthetic gradients over a run: free predictions and paid estimates against the truth."""

import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from dfme.compute.device import Streams
from dfme.config.settings import Job
from dfme.estimators.synthetic import Synthetic
from dfme.report.curves import BLUE, ORANGE, query_axis, save_figure
from dfme.report.markdown import table as markdown_table
from dfme.spec import LabelMode
from dfme.students.losses import make_distance
from dfme.teachers.local.pytorch import TorchTeacher
from research.candidates import Condition, loss_of
from research.measure import Setting, Sizes
from research.table import Section
from research.truth import beside_truth, stages, true_gradients

SHARES = tuple(number / 20 for number in range(1, 21))
"""Shares of the budget at which it is measured."""
PICTURE = "synthetic.png"
TITLE = "Synthetic gradients over the run"
LEGEND = """\
Cosines to the truth, each the mean over {batches} batches of {batch_size} images: `predicted` by
the network, for nothing, and `paid`, by the estimator that it learns from, at the same points. In
the first pair per image at the generator's output, in the second of the resulting gradient in the
generator's weights, with its standard deviation over the batches. `length` is that of the
weights' gradient that a prediction gives, in lengths of a paid one's."""


Moment = dict[str, Any]
"""Predicted and paid gradients at one time of a run; cosines to the truth, means over batches.

``_weights``: of the generator's weight gradient, ``_sd`` its standard deviation over the batches.
"""


def synthetic_section(box: TorchTeacher, job: Job, sizes: Sizes, out: Path) -> Section:
    """Run the recipe, measure on the way, draw ``PICTURE`` into ``out``; the report's table."""
    moments = list(course(box, job, sizes, SHARES))
    draw(moments, out / PICTURE)
    legend = LEGEND.format(batches=sizes.batches, batch_size=sizes.batch_size)
    every = job.estimator.every
    saved = (
        f"One step of the generator in {every} is paid for, besides the first few: in the long run "
        "it asks "
        f"for {1 - 1 / every:.0%} fewer images."
    )
    return TITLE, f"{legend}\n\n{table(moments)}\n\n{saved}\n\n![{TITLE}]({PICTURE})"


def course(box: TorchTeacher, job: Job, sizes: Sizes, shares: Sequence[float]) -> Iterator[Moment]:
    """Predictions of the recipe's own network when so much of the budget is spent; ``shares``
    within 0 and 1.

    The estimates that are paid for here, to compare with, are charged to nobody and learnt from by
    nobody.
    """
    condition = Condition(
        "as in the recipe", job.teacher.levels, job.teacher.label_mode or "probabilities"
    )
    for stage in stages(box, job, shares):
        if isinstance(stage.estimator, Synthetic):
            setting = Setting(box, stage, condition, sizes)
            yield _moment(box, setting, stage.estimator, job, sizes)


def _moment(
    box: TorchTeacher, setting: Setting, estimator: Synthetic, job: Job, sizes: Sizes
) -> Moment:
    stage = setting.stage
    loss = loss_of(job.estimator.objective, sizes.loss)
    distances = {loss: make_distance(loss, LabelMode("logits"))}
    streams = Streams(sizes.seed, box.device)
    figures: dict[str, list[float]] = {}
    for number in range(sizes.batches):
        truth = true_gradients(box, stage, distances, sizes.batch_size, streams["latent"])[loss]
        objective = setting.objective(job.estimator.objective, truth.features_BFHW)
        u_BCHW = truth.gen_op.detach()
        predicted_P, predicted = beside_truth(stage, truth, estimator.predict(objective, u_BCHW))
        estimate = estimator.inner.estimate(objective, u_BCHW, streams[f"directions/{number}"])
        paid_P, paid = beside_truth(stage, truth, estimate.grad_BCHW)
        batch = {
            "predicted": predicted["cosine"],
            "paid": paid["cosine"],
            "predicted_weights": predicted["weights_cosine"],
            "paid_weights": paid["weights_cosine"],
            "length": float(predicted_P.norm() / paid_P.norm()),
        }
        for name, value in batch.items():
            figures.setdefault(name, []).append(value)
    means = {name: statistics.fmean(column) for name, column in figures.items()}
    spreads = {
        f"{name}_sd": statistics.stdev(figures[name])
        for name in ("predicted_weights", "paid_weights")
    }
    return {"queries": stage.queries, "agreement": stage.agreement} | means | spreads


def table(moments: Sequence[Moment]) -> str:
    """The course in Markdown."""
    heads = (
        "queries",
        "agreement",
        "predicted",
        "paid",
        "weights, predicted",
        "weights, paid",
        "length",
    )
    line = (
        "{queries:,}|{agreement:.1%}|{predicted:.3f}|{paid:.3f}|{predicted_weights:.3f} +- "
        "{predicted_weights_sd:.3f}|{paid_weights:.3f} +- {paid_weights_sd:.3f}|{length:.2f}"
    )
    lines = [line.format(**moment).split("|") for moment in moments]
    return markdown_table(heads, lines)


def draw(moments: Sequence[Moment], path: Path) -> None:
    """Two panels against queries: cosines at the generator's output, and in its weights with their
    spread.
    """
    figure = Figure(figsize=(7.2, 3.2), layout="constrained")
    at_output, in_weights = figure.subplots(1, 2)
    queries = [moment["queries"] for moment in moments]
    for kind, colour, marker in (("predicted", BLUE, "o"), ("paid", ORANGE, "s")):
        cosines = [moment[kind] for moment in moments]
        weights = [moment[f"{kind}_weights"] for moment in moments]
        spread = [moment[f"{kind}_weights_sd"] for moment in moments]
        at_output.plot(queries, cosines, color=colour, marker=marker, markersize=3, label=kind)
        in_weights.errorbar(
            queries, weights, yerr=spread, color=colour, marker=marker, markersize=3, elinewidth=0.8
        )
    for axes, title in (
        (at_output, "generator's output, per image"),
        (in_weights, "generator's weights"),
    ):
        axes.set_title(f"cosine to the truth: {title}", loc="left", fontsize=9)
        axes.axhline(0.0, color="black", linewidth=0.6)
        query_axis(axes)
    figure.legend(
        *at_output.get_legend_handles_labels(),
        loc="outside lower center",
        ncols=2,
        frameon=False,
        fontsize=8,
    )
    save_figure(figure, path)
