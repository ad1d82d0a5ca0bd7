"""The record of a student's training: its learning rate, and losses that tell a fall. No torch
here.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from dfme.report.metrics import MetricRecord

EARLY = 0.2  # of all steps, by which the first loss must be on record to tell a fall; heuristic
FEW_STEPS = 20  # that an iteration of a method may take before a run's first record; heuristic
NO_RATE = 1e-12  # a learning rate up to which no step changes a weight in single precision, by far
STILL = 0.1  # share of the steps at a learning rate of 0 from which on a run says so; heuristic


@dataclass(frozen=True)
class Training:
    """What is on record of a student's training, by metrics.jsonl.

    ``steps`` taken by each record, and the learning rate of the last of them (``rates``).
    ``losses``: those that tell a fall, if any do. ``fit``: the agreement of student and teacher on
    images that were trained on, that of a constant answer to these, and their number.
    """

    steps: Sequence[float] = ()
    rates: Sequence[float] = ()
    losses: Sequence[float] = ()
    fit: tuple[float, float, int] | None = None

    @staticmethod
    def of_records(records: Iterable[MetricRecord], in_rounds: bool = False) -> "Training":
        """By the records of metrics.jsonl, in order; ``in_rounds``: losses rise as each round
        begins.
        """
        steps: list[float] = []
        rates: list[float] = []
        losses: list[float] = []
        for record in records:
            now = record.get("student_steps")
            rate = record.get("student_lr")
            if now is None or rate is None or (steps and now <= steps[-1]):
                continue
            steps.append(now)
            rates.append(rate)
            loss = record.get("replay_loss", record.get("student_loss"))
            losses += [] if loss is None else [loss]
        tells = bool(steps) and not in_rounds and steps[0] <= EARLY * steps[-1]
        return Training(steps, rates, losses if tells else ())

    @property
    def still_rate(self) -> float:
        """The greatest learning rate on record that is so small that no step changes a weight."""
        return max((rate for rate in self.rates if rate <= NO_RATE), default=0.0)

    @property
    def always_still(self) -> bool:
        """True if no record has a greater rate: it was chosen, and no schedule came to it."""
        return bool(self.rates) and max(self.rates) <= NO_RATE

    @property
    def still(self) -> float:
        """Steps that are shown to have been taken at a learning rate of 0: from one such record to
        the next.

        What comes before the first record counts if that is such a record, of more than
        ``FEW_STEPS``: the rate of a schedule that ends at 0 is 0 in its last step.
        """
        steps = [0.0, *self.steps]
        first = self.rates[0] if self.steps and self.steps[0] > FEW_STEPS else math.inf
        rates = [first, *self.rates]
        pairs = zip(pairwise(steps), pairwise(rates), strict=True)
        return sum(
            end - start for (start, end), (before, after) in pairs if max(before, after) <= NO_RATE
        )

    @property
    def stood_still(self) -> bool:
        """True if so many of the steps were taken at a learning rate of 0 that a run says so."""
        return bool(self.steps) and self.still >= STILL * self.steps[-1]
