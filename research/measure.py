"""Estimates beside the truth, under one condition: direction, scale, queries and time of every
candidate.
"""

import statistics
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from dfme.compute.device import Streams, arithmetic
from dfme.config.sections import EstimatorConfig, ObjectiveName
from dfme.estimators.approximate import CHUNK
from dfme.estimators.base import Objective
from dfme.estimators.build import make_estimator, needs_preflight
from dfme.estimators.preflight.choose import choose
from dfme.estimators.preflight.measure import Channel, run_preflight
from dfme.oracle.ledger import Ledger
from dfme.oracle.oracle import Oracle
from dfme.spec import LabelMode
from dfme.students.losses import make_distance
from dfme.teachers.local.pytorch import TorchTeacher
from research.behind_api import as_seen
from research.candidates import CONDITIONS, Candidate, Condition, FloatArithmetic, limit_of, loss_of
from research.speed import clock
from research.truth import Stage, Truth, beside_truth, cosine, limit_gradient, true_gradients

UNLIMITED = 2**62


@dataclass(frozen=True)
class Sizes:
    """Counts of a measurement, and the loss between student and teacher; not auto."""

    batches: int
    batch_size: int
    seed: int
    loss: str = "l1"


@dataclass(frozen=True)
class GradientRow:
    """One estimator under one condition at one stage; means over batches, ``_sd`` their standard
    deviation.

    ``objective``: the loss that the row is the gradient of, and whose truth it is compared with.
    ``cosine``: to the truth at the generator's output, mean over the images. ``scale``: <estimate,
    truth> / <truth, truth> over the batch, 1 without bias along the truth. ``weights_cosine``: of
    the generator's weight gradient. ``sum_cosine``: of that gradient summed over all batches, as an
    optimiser that averages sees it: noise leaves it, bias stays. ``queries``: images the meter
    counted, per image of the batch. ``settings``: of the estimator, choices of auto included. A row
    ``limit`` is no estimator: see ``limit_gradient``.
    """

    share: float
    condition: str
    estimator: str
    objective: str
    queries: float
    cosine: float
    cosine_sd: float
    scale: float
    scale_sd: float
    weights_cosine: float
    weights_cosine_sd: float
    sum_cosine: float
    milliseconds: float
    settings: dict[str, Any]


def within(
    net: nn.Module, kind: FloatArithmetic, device: torch.device
) -> Callable[[Tensor], Tensor]:
    """The net in an arithmetic of its own; it answers float32."""

    def scores(x_NCHW: Tensor) -> Tensor:
        with arithmetic(kind, device):
            return net(x_NCHW).float()  # type: ignore[no-any-return]

    return scores


@dataclass
class _Tally:
    """Figures of one row, a list entry per batch; ``make`` gives the gradient of ``loss``."""

    loss: str
    make: Callable[[Truth, torch.Generator], Tensor]
    settings: dict[str, Any]
    reuse: bool = False
    figures: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    weights_P: Tensor = field(default_factory=lambda: torch.zeros(()))


class Setting:
    """Student and teacher under one condition, with a meter that never refuses."""

    def __init__(self, box: TorchTeacher, stage: Stage, condition: Condition, sizes: Sizes) -> None:
        self.stage = stage
        mode = LabelMode.parse(condition.mode)
        api = as_seen(
            box, condition.levels, mode, partial(arithmetic, condition.arithmetic, box.device)
        )
        self.oracle = Oracle(api, Ledger(UNLIMITED))
        self.net = within(stage.student, condition.arithmetic, box.device)
        self._loss = sizes.loss
        self.streams = Streams(sizes.seed, box.device)

    @property
    def queries(self) -> int:
        """Images asked for estimates so far."""
        return self.oracle.ledger.spent_by_purpose["generator"]

    def resolve(self, config: EstimatorConfig, reuse: bool) -> EstimatorConfig:
        """The settings with the pre-flight probe's choices where they leave it open."""
        if not needs_preflight(config):
            return config
        oracle = self.oracle
        channel = Channel(
            partial(oracle, purpose="check"),
            oracle.spec,
            oracle.label_mode,
            oracle.ledger.remaining,
        )
        finding = run_preflight(
            channel, self.stage.generator, self.value_of, config, self.streams["check"]
        )
        return choose(config, finding, self.oracle.spec, reuse)

    def value_of(self, objective: ObjectiveName) -> Callable[[Tensor, Tensor], Tensor]:
        """The value that a generator minimises: images and answers -> minus the objective's
        distance (N,).
        """
        distance = make_distance(loss_of(objective, self._loss), self.oracle.label_mode)
        return lambda x_NCHW, answers: -distance(self.net(x_NCHW).double(), answers.double())

    def objective(self, name: ObjectiveName, features_BFHW: Tensor) -> Objective:
        """The whole of it, whose queries are charged to nobody."""
        ask = partial(self.oracle, purpose="generator")
        return Objective(ask, self.value_of(name), features_BFHW, self.net)


def measure(
    box: TorchTeacher, stage: Stage, name: str, candidates: Mapping[str, Candidate], sizes: Sizes
) -> list[GradientRow]:
    """Every candidate of condition ``name``, at equal points and random draws, then the limits."""
    condition = CONDITIONS[name]
    setting = Setting(box, stage, condition, sizes)
    fitting = {key: candidate for key, candidate in candidates.items() if candidate.fits(condition)}
    tallies = {key: _candidate(setting, candidate, sizes) for key, candidate in fitting.items()}
    objectives: dict[str, ObjectiveName] = {
        tally.loss: tally.settings["objective"] for tally in tallies.values()
    }
    tallies |= {
        limit_of(loss, sizes.loss): _limit(setting, box, loss, by)
        for loss, by in objectives.items()
    }
    distances = {loss: make_distance(loss, LabelMode("logits")) for loss in objectives}
    totals: dict[str, Tensor] = defaultdict(lambda: torch.zeros(()))
    latents = Streams(sizes.seed, box.device)["latent"]
    for number in range(sizes.batches if distances else 0):
        # The same for every condition, made anew to hold one graph at a time.
        truths = true_gradients(box, stage, distances, sizes.batch_size, latents)
        for loss, truth in truths.items():
            totals[loss] = totals[loss] + truth.weights_P
        for tally in tallies.values():
            rng = Streams(sizes.seed, box.device)[f"directions/{number}"]
            _observe(setting, tally, truths[tally.loss], rng, box.device)
    return [
        _row(tally, totals[tally.loss], stage.share, name, key) for key, tally in tallies.items()
    ]


def _candidate(setting: Setting, candidate: Candidate, sizes: Sizes) -> _Tally:
    settings = setting.resolve(candidate.config, candidate.reuse)
    squash = setting.stage.generator.squash
    estimator = make_estimator(settings, setting.oracle.spec, squash, CHUNK, sizes.seed)

    def make(truth: Truth, rng: torch.Generator) -> Tensor:
        objective = setting.objective(settings.objective, truth.features_BFHW)
        return estimator.estimate(objective, truth.gen_op.detach(), rng).grad_BCHW

    return _Tally(loss_of(settings.objective, sizes.loss), make, asdict(settings), candidate.reuse)


def _limit(setting: Setting, box: TorchTeacher, loss: str, objective: ObjectiveName) -> _Tally:
    value = setting.value_of(objective)
    return _Tally(
        loss,
        lambda truth, _: limit_gradient(box, setting.stage, truth.gen_op, setting.oracle, value),
        {},
    )


def _observe(
    setting: Setting, tally: _Tally, truth: Truth, rng: torch.Generator, device: torch.device
) -> None:
    """One gradient of one row, compared with the truth."""
    batch = len(truth.gen_op)
    before = setting.queries
    started = clock(device)
    grad_BCHW = tally.make(truth, rng)
    seconds = clock(device) - started
    paid = setting.queries - before - (batch if tally.reuse else 0)
    weights_P, cosines = beside_truth(setting.stage, truth, grad_BCHW)
    along = (grad_BCHW.double() * truth.grad_BCHW).sum()
    whole = truth.grad_BCHW.double().square().sum()
    figures = {
        "queries": paid / batch,
        "scale": float(along / whole),
        "milliseconds": 1e3 * seconds,
    }
    for name, value in (figures | cosines).items():
        tally.figures[name].append(value)
    tally.weights_P = tally.weights_P + weights_P


def _row(
    tally: _Tally, total_P: Tensor, share: float, condition: str, estimator: str
) -> GradientRow:
    figures = tally.figures
    means = {
        name: statistics.fmean(figures[name])
        for name in ("queries", "cosine", "scale", "weights_cosine")
    }
    means |= {
        f"{name}_sd": statistics.stdev(figures[name])
        for name in ("cosine", "scale", "weights_cosine")
    }
    means |= {"sum_cosine": float(cosine(tally.weights_P, total_P))}
    means |= {"milliseconds": statistics.median(figures["milliseconds"])}
    return GradientRow(share, condition, estimator, tally.loss, settings=tally.settings, **means)
