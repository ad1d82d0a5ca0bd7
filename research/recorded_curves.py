"""The recorded learning curves, what they say of how curves go on.

    python -m research.recorded_curves docs/results/curves.csv              the constants and
    the coverage python -m research.recorded_curves docs/results/curves.csv RUN RUN...   the
    same, with finished runs added

A line of the file is a run that was given a pilot's budget first and a larger one afterwards
(``points``: queries and agreement wherever the student had learnt since the last score).
"""

import csv
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from dfme.config.yaml_files import load_yaml
from dfme.oracle.ledger_log import read_history
from dfme.report.metrics import read_metrics
from dfme.report.run_files import Series, read_summary
from dfme.run.forecast import GOALS, GROWTH, Law, Start, logit, scores_after_training, start_of
from dfme.run.recipes import plain_name

FIELDS = ["recipe", "method", "task", "label_mode", "seed", "images", "pilot", "version", "points"]
TAIL = 0.05
"""Of the departures, on either side of the interval."""


@dataclass(frozen=True)
class Recorded:
    """A curve whose end is known."""

    recipe: str
    method: str
    task: str
    label_mode: str
    seed: int
    images: int
    pilot: int
    version: str
    points: Series

    @property
    def group(self) -> tuple[str, ...]:
        """What runs with other seeds and pilots share."""
        return self.recipe, self.method, self.task, self.label_mode

    @property
    def start(self) -> Start | None:
        return start_of([point for point in self.points if point[0] <= self.pilot], self.images)

    @property
    def later(self) -> Series:
        """Scores after the pilot, half an image from none and all."""
        least = 0.5 / self.images
        later = [point for point in self.points if point[0] > self.pilot]
        return [(queries, min(max(share, least), 1 - least)) for queries, share in later]

    @property
    def ends(self) -> dict[float, tuple[float, float]]:
        """Of each goal that the pilot does not reach: where it is reached, and the goal; else the
        end.
        """
        found = {goal: when_reached(self.points, goal) for goal in GOALS}
        reached = {
            goal: (queries, goal) if queries else self.later[-1] for goal, queries in found.items()
        }
        return {goal: end for goal, end in reached.items() if end[0] > self.pilot}


Begun = Sequence[tuple[Recorded, Start]]
"""Curves, and where each is drawn on from."""


def when_reached(points: Series, agreement: float) -> float | None:
    """Queries at which a curve first reaches it: between two scores.

    A run in rounds has few scores, and the first one above may be far above.
    """
    after = next((number for number, (_, share) in enumerate(points) if share >= agreement), None)
    if not after or points[after][1] == 1 or points[after - 1][1] == 0:
        return None if after is None else float(points[after][0])
    (before, low), (then, high) = points[after - 1], points[after]
    way = (logit(agreement) - logit(low)) / (logit(high) - logit(low))
    return float(before * (then / before) ** way)


def departure(start: Start, law: Law, queries: float, agreement: float) -> float:
    """Of a later score from the expected one, in widths."""
    (level, rise), distance = start.lines(law)[1], math.log(queries / start.queries)
    return (logit(agreement) - level - rise * distance) / (start.width + GROWTH * distance)


def rise_of(begun: Begun) -> Law:
    """The rise by least squares over levels, a group of curves counting as the root of its
    number.
    """
    rows = []
    for curve, start in begun:
        later = [
            (math.log(at / start.queries), logit(share) - start.level) for at, share in curve.later
        ]
        slope = sum(x * y for x, y in later) / sum(x * x for x, _ in later)
        count = sum(other.group == curve.group for other, _ in begun)
        rows.append((start.level, slope, 1 / count**0.5))
    levels, slopes, weights = np.array(rows).T
    bend, base = np.polyfit(levels, slopes, 1, w=np.sqrt(weights))
    return Law(round(float(base), 3), round(-float(bend), 3), 0.0, 0.0)


def law_of(curves: Sequence[Recorded]) -> Law:
    """The rise, and the quantiles of the departures, each from what the other groups say."""
    begun = [(curve, start) for curve in curves if (start := curve.start) is not None]
    found = []
    for group in {curve.group for curve, _ in begun}:
        law = rise_of([each for each in begun if each[0].group != group])
        own = (each for each in begun if each[0].group == group)
        found += [
            departure(start, law, *end) for curve, start in own for end in curve.ends.values()
        ]
    found.sort()
    outside = max(1, int(TAIL * (len(found) + 1)))  # on either side, of so many and one to come
    return replace(rise_of(begun), low=round(found[outside - 1], 3), high=round(found[-outside], 3))


def coverage(curves: Sequence[Recorded]) -> Iterator[tuple[Recorded, float, bool, bool]]:
    """Of every curve and goal whether it was reached.

    Of a goal that was not reached: whether the interval does not end before the curve does.
    """
    groups = {curve.group for curve in curves}
    laws = {group: law_of([each for each in curves if each.group != group]) for group in groups}
    for curve in curves:
        if (start := curve.start) is None:
            continue
        law = laws[curve.group]
        for goal, (queries, agreement) in curve.ends.items():
            low, _, high = start.queries_to(law, goal)
            reached = agreement == goal
            held = (high or math.inf) >= queries and (not reached or (low or math.inf) <= queries)
            yield curve, goal, reached, held


def of_run(run: Path) -> Recorded:
    """The curve of a finished run."""
    config, summary = load_yaml(run / "config.yaml"), read_summary(run / "summary.json") or {}
    pilot, *later = (budget for _, budget in read_history(run / "ledger.jsonl").budgets)
    assert later, f"{run}: its budget was never enlarged"
    points = scores_after_training(read_metrics(run / "metrics.jsonl"))
    named = plain_name(config["recipe"]), summary["method"], config["evaluation"]["dataset"]
    numbers = summary["seed"], summary["evaluation"]["images"], pilot
    return Recorded(*named, summary["label_mode"], *numbers, summary["version"], points)


def read_curves(path: Path) -> list[Recorded]:
    """The curves of the file; its comments say how they came about."""
    with path.open(encoding="utf-8") as file:
        return [
            _parsed(line)
            for line in csv.DictReader(line for line in file if not line.startswith("#"))
        ]


def _parsed(line: dict[str, str]) -> Recorded:
    pairs = (pair.split(":") for pair in line["points"].split())
    points = [(int(queries), float(share)) for queries, share in pairs]
    return Recorded(
        recipe=line["recipe"],
        method=line["method"],
        task=line["task"],
        label_mode=line["label_mode"],
        seed=int(line["seed"]),
        images=int(line["images"]),
        pilot=int(line["pilot"]),
        version=line["version"],
        points=points,
    )


def thinned(points: Series, pilot: int) -> Series:
    """Those at least a hundredth of an e-fold apart, the pilot's last and the last."""
    kept: Series = []
    for number, point in enumerate(points):
        ends = number + 1 == len(points) or point[0] <= pilot < points[number + 1][0]
        if not kept or ends or point[0] > 1.05 * kept[-1][0]:
            kept.append(point)
    return kept


def main(words: Sequence[str]) -> None:
    path, runs = Path(words[0]), [of_run(Path(word)) for word in words[1:]]
    if runs:
        with path.open("a", encoding="utf-8") as file:
            writer = csv.writer(file, lineterminator="\n")
            for each in runs:
                points = [
                    f"{queries}:{share:.4f}" for queries, share in thinned(each.points, each.pilot)
                ]
                writer.writerow([*(getattr(each, name) for name in FIELDS[:-1]), " ".join(points)])
    curves = read_curves(path)
    print(law_of(curves))
    told = [*coverage(curves)]
    for curve, goal, reached, held in told:
        how = ("reached" if reached else "not reached") + (", held" if held else ", MISSED")
        print(" ".join(map(str, (*curve.group, curve.seed, curve.pilot, goal, how))))
    known = {
        "reached": [held for _, _, reached, held in told if reached],
        "all": [each[-1] for each in told],
    }
    for name, of in known.items():
        print(f"{name}: the interval held {sum(of)} of {len(of)}, {sum(of) / len(of):.0%}")


if __name__ == "__main__":
    main(sys.argv[1:])
