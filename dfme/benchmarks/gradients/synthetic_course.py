"""Synthetic gradients over a run: what is predicted for nothing beside what is paid for, against the truth."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from dfme.benchmarks.gradients.candidates import Condition, loss_of
from dfme.benchmarks.gradients.measure import Setting, Sizes
from dfme.benchmarks.gradients.stages import WhiteBox, stages
from dfme.benchmarks.gradients.table import Section
from dfme.benchmarks.gradients.truth import beside_truth, true_gradients
from dfme.config.estimator_settings import ObjectiveName
from dfme.config.settings import Job
from dfme.estimators.synthetic import Synthetic
from dfme.randomness import Streams
from dfme.report.markdown import table as markdown_table
from dfme.spec import LabelMode
from dfme.students.losses import make_distance

SHARES = tuple(number / 20 for number in range(1, 21))
"""Shares of the budget at which it is measured."""
PICTURE = "synthetic.png"
TITLE = "Synthetic gradients over the run"
LEGEND = """\
Cosines to the truth, each the mean over {batches} batches of {batch_size} images: `predicted` by the network, for
nothing, and `paid`, by the estimator that it learns from, at the same points. In the first pair per image at the
generator's output, in the second of the resulting gradient in the generator's weights, with its standard deviation
over the batches. `length` is that of the weights' gradient that a prediction gives, in lengths of a paid one's."""


@dataclass(frozen=True)
class Moment:
    """Predicted and paid gradients at one time of a run; cosines to the truth, means over batches.

    ``_weights``: of the generator's weight gradient, ``_sd`` its standard deviation over the batches.
    ``length``: of the predicted weight gradient, as a share of the paid one's.
    """

    share: float
    queries: int
    agreement: float
    predicted: float
    paid: float
    predicted_weights: float
    predicted_weights_sd: float
    paid_weights: float
    paid_weights_sd: float
    length: float


def synthetic_section(box: WhiteBox, job: Job, sizes: Sizes, out: Path) -> Section:
    """Run the recipe once more, measure on the way, draw ``PICTURE`` into ``out``; the table for the report."""
    moments = list(course(box, job, sizes, SHARES))
    draw(moments, out / PICTURE)
    legend, every = LEGEND.format(batches=sizes.batches, batch_size=sizes.batch_size), job.estimator.every
    saved = (
        f"One step of the generator in {every} is paid for, besides the first few: in the long run it asks for "
        f"{1 - 1 / every:.0%} fewer images."
    )
    return TITLE, f"{legend}\n\n{table(moments)}\n\n{saved}\n\n![{TITLE}]({PICTURE})"


def course(box: WhiteBox, job: Job, sizes: Sizes, shares: Sequence[float]) -> Iterator[Moment]:
    """What the recipe's own network predicts when so much of the budget is spent; ``shares`` within 0 and 1.

    What is paid for here, to compare with, is charged to nobody and learnt from by nobody.
    """
    condition = Condition("as in the recipe", job.teacher.levels, job.teacher.label_mode or "probabilities")
    for stage in stages(box, job, shares):
        if isinstance(stage.estimator, Synthetic):
            setting = Setting(box, stage, condition, sizes)
            yield _moment(box, setting, stage.estimator, job.estimator.objective, sizes)


def _moment(box: WhiteBox, setting: Setting, estimator: Synthetic, wanted: ObjectiveName, sizes: Sizes) -> Moment:
    stage = setting.stage
    loss = loss_of(wanted, sizes.loss)
    distances = {loss: make_distance(loss, LabelMode("logits"))}
    streams = Streams(sizes.seed, box.device)
    figures: list[dict[str, float]] = []
    for number in range(sizes.batches):
        truth = true_gradients(box, stage, distances, sizes.batch_size, streams["latent"])[loss]
        objective, u_BCHW = setting.objective(wanted, truth.features_BFHW), truth.gen_op.detach()
        predicted_P, predicted = beside_truth(stage, truth, estimator.predict(objective, u_BCHW))
        estimate = estimator.inner.estimate(objective, u_BCHW, streams[f"directions/{number}"])
        paid_P, paid = beside_truth(stage, truth, estimate.grad_BCHW)
        figures.append(
            {
                "predicted": predicted["cosine"],
                "paid": paid["cosine"],
                "predicted_weights": predicted["weights_cosine"],
                "paid_weights": paid["weights_cosine"],
                "length": float(predicted_P.norm() / paid_P.norm()),
            }
        )
    columns = {name: [each[name] for each in figures] for name in figures[0]}
    means = {name: statistics.fmean(column) for name, column in columns.items()}
    spreads = {f"{name}_sd": statistics.stdev(columns[name]) for name in ("predicted_weights", "paid_weights")}
    return Moment(stage.share, stage.queries, stage.agreement, **means, **spreads)


def table(moments: Sequence[Moment]) -> str:
    """The course in Markdown."""
    heads = ("queries", "agreement", "predicted", "paid", "weights, predicted", "weights, paid", "length")
    lines = [
        (
            *(f"{moment.queries:,}", f"{moment.agreement:.1%}", f"{moment.predicted:.3f}", f"{moment.paid:.3f}"),
            f"{moment.predicted_weights:.3f} +- {moment.predicted_weights_sd:.3f}",
            f"{moment.paid_weights:.3f} +- {moment.paid_weights_sd:.3f}",
            f"{moment.length:.2f}",
        )
        for moment in moments
    ]
    return markdown_table(heads, lines)


def draw(moments: Sequence[Moment], path: Path) -> None:
    """Two panels against queries: cosines at the generator's output, and in its weights with their spread."""
    from matplotlib.figure import Figure

    from dfme.report.curves import BLUE, ORANGE, query_axis, save_figure

    figure = Figure(figsize=(7.2, 3.2), layout="constrained")
    at_output, in_weights = figure.subplots(1, 2)
    queries = [moment.queries for moment in moments]
    for kind, colour, marker in (("predicted", BLUE, "o"), ("paid", ORANGE, "s")):
        cosines = [getattr(moment, kind) for moment in moments]
        at_output.plot(queries, cosines, color=colour, marker=marker, markersize=3, label=kind)
        weights = [getattr(moment, f"{kind}_weights") for moment in moments]
        spread = [getattr(moment, f"{kind}_weights_sd") for moment in moments]
        in_weights.errorbar(queries, weights, yerr=spread, color=colour, marker=marker, markersize=3, elinewidth=0.8)
    for axes, title in ((at_output, "generator's output, per image"), (in_weights, "generator's weights")):
        axes.set_title(f"cosine to the truth: {title}", loc="left", fontsize=9)
        axes.axhline(0.0, color="black", linewidth=0.6)
        query_axis(axes)
    entries = at_output.get_legend_handles_labels()
    figure.legend(*entries, loc="outside lower center", ncols=2, frameon=False, fontsize=8)
    save_figure(figure, path)
