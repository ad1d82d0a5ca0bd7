"""Findings of an audit for ``audit.json``, from the files of its cells, by arithmetic alone. No
torch.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from dfme.audits.audit.model import Entry
from dfme.audits.audit.verdicts import verdict
from dfme.audits.compare.attacked import defended
from dfme.audits.compare.figures import ComparisonResult, Outcome
from dfme.audits.compare.plan import NO_DEFENCE, Cell
from dfme.oracle.ledger_log import Totals
from dfme.queries.names import PROCEDURAL
from dfme.report.classified import reached
from dfme.report.facts import LEVELS, Beside
from dfme.statistics import Spread, middle_of, spread, wilson_interval

COPY = 0.9  # the agreement at which a student counts as a copy


@dataclass
class Findings:
    """Results of an audit so far, of whose attackers the worst counts. ``second``: once defences
    were tried.

    ``runs``: every run of both comparisons, as it ended. By its name: ``summaries``, what each
    finished one says, and ``ledgers``, what each asked.
    """

    own: str
    budget: int
    price_per_1000: float | None
    first: ComparisonResult
    second: ComparisonResult | None = None
    runs: Sequence[Outcome] = ()
    summaries: Mapping[str, Entry] = field(default_factory=dict)
    utility: Sequence[Entry] = ()
    ledgers: Mapping[str, Totals] = field(default_factory=dict)

    @property
    def example(self) -> Entry:
        """Summary of a run of the teacher's own answers, which describes the teacher; empty without
        any.
        """
        names = (each.cell.name for each in self.first.outcomes if each.cell.mode == self.own)
        return next((self.summaries[name] for name in names if name in self.summaries), {})

    @property
    def images(self) -> int:
        """The images that copies are scored on."""
        return int((self.example.get("evaluation") or {}).get("images", 0))

    @property
    def holds_data(self) -> bool:
        """True if the attacker of the defences has images of the teacher's task, which makes a gate
        void.
        """
        return any(has_images(each.cell) for each in (self.second.outcomes if self.second else ()))

    @property
    def free(self) -> list[Entry]:
        """Price lines of attackers without images, on whom defences are tried; else every line."""
        return [line for line in self.price if not line["has_images"]] or self.price

    @property
    def like(self) -> list[Entry]:
        """Price lines of the attackers who have images like the owner's, beside those who have
        none.
        """
        return [line for line in self.price if line["has_images"] and line not in self.free]

    @property
    def beside(self) -> Beside:
        """The figures of one answer to everything."""
        return Beside.of_summary(self.example)

    @property
    def constant(self) -> float | None:
        """Agreement of one answer to everything."""
        return self.beside.constant

    def one_sided(self, line: Entry | None) -> str:
        """A sentence on what the answers to an attacker's images reached, if a run's are
        one-sided.
        """
        for name in line["cells"] if line else ():
            paid = (self.summaries.get(name) or {}).get("paid_answers") or {}
            if paid.get("one_sided"):
                return f" The answers to its images are one-sided: {reached(paid)}."
        return ""

    def cost(self, queries: float | None) -> float | None:
        """Cost of so many images."""
        price = self.price_per_1000
        return None if price is None or queries is None else queries * price / 1000

    def interval(self, share: float | None) -> list[float] | None:
        """Over the images of the evaluation."""
        return None if share is None or not self.images else [*wilson_interval(share, self.images)]

    @cached_property
    def price(self) -> list[Entry]:
        """Price of a copy: a line for each attacker and form of answers."""
        groups: dict[tuple[str, str], list[Outcome]] = {}
        for each in self.first.outcomes:
            groups.setdefault((each.cell.row, each.cell.mode), []).append(each)
        return [self._line(*group, outcomes) for group, outcomes in groups.items()]

    def _line(self, row: str, mode: str, outcomes: Sequence[Outcome]) -> Entry:
        figures = [each.figures for each in outcomes]
        agreement = [None if each is None else each.agreement for each in figures]
        queries = {
            f"{level:g}": [each and each.queries_to[level] for each in figures] for level in LEVELS
        }
        balanced = [None if each is None else each.agreement_balanced for each in figures]
        means = over_seeds(agreement)
        first = outcomes[0].cell
        domain = first.job.queries.domain
        ended = next((each for each in outcomes if each.state != "finished"), outcomes[0])
        line = {
            "row": row,
            "mode": mode,
            "agreement": agreement,
            "mean": means["mean"],
            "sd": means["sd"],
            "agreement_balanced": balanced,
            "balanced": over_seeds(balanced)["mean"],
            "has_images": has_images(first),
            "budget": first.budget,
            "knows": None if domain == "unknown" else domain,
            "interval": self.interval(means["mean"]),
            "queries_to": queries,
            "state": ended.state,
            "reason": ended.reason,
            "cells": [each.cell.name for each in outcomes if each.state != "not applicable"],
        }
        line["cost_to_90"] = self.cost(median_to_copy(line))
        return line

    @cached_property
    def defences(self) -> list[Entry]:
        """Each defence and its attackers, that of the strongest attacker's answers without one
        first.
        """
        found = []
        cells = self.second.rows(self.own, self.budget) if self.second else {}
        for line in defended(self.second, self.own, self.budget) if self.second else ():
            attackers = list[Entry]()
            for each in line.attackers:
                attackers.append(
                    {
                        "answers": each.answers,
                        "agreement": plain(each.agreement),
                        "score": plain(each.score),
                        "remarks": [*each.remarks],
                        "cells": [run.cell.name for run in cells[each.label] if run.figures],
                    }
                )
            scores = (each["score"] for each in attackers if each["answers"] == line.best)
            found.append(
                {
                    "defence": line.defence,
                    "attackers": attackers,
                    "best": line.best,
                    "best_score": next(scores, None),
                    "to_label_only": line.to_label_only,
                    "balanced": line.best_balanced,
                }
            )
        return found

    def paid(self, name: str) -> Entry:
        """Cost of a defence or label mode to honest users on held-out images, where it was
        measured.
        """
        rows = {row["row"]: row["held_out"] for row in self.utility}
        # a quota changes no answer
        return rows.get(NO_DEFENCE if name.startswith("quota") else name) or {}

    def switches(self) -> Iterator[tuple[str, str, Spread, str]]:
        """Name, kind, best agreement and its place, of each switch; the first row is no switch."""
        best: dict[str, Entry] = {}
        for mode in dict.fromkeys(line["mode"] for line in self.free):
            lines = usable(self.free, mode)
            if any(line["mode"] == mode for line in lines):
                best[mode] = max(lines, key=lambda line: float(line["mean"]))
        places = {mode: f"price.{self.price.index(line)}" for mode, line in best.items()}
        spreads = {mode: _spread(line) for mode, line in best.items()}
        tried = [
            (line["defence"], Spread(*line["best_score"].values()), f"defences.{at}")
            for at, line in enumerate(self.defences)
            if line["best_score"]
        ]
        bare = [(spreads[self.own], places[self.own])] if self.own in spreads else []
        bare += [(score, place) for name, score, place in tried if name == NO_DEFENCE]
        if bare:
            yield NO_DEFENCE, "defence", *max(bare, key=lambda pair: pair[0].mean)
        yield from ((name, "defence", *found) for name, *found in tried if name != NO_DEFENCE)
        yield from (
            (mode, "label mode", spreads[mode], places[mode])
            for mode in spreads
            if mode != self.own
        )

    def balanced_at(self, place: str) -> float | None:
        """The balanced agreement of the best copy at a place that ``switches`` gives."""
        part, _, at = place.partition(".")
        rows = self.price if part == "price" else self.defences
        balanced: float | None = rows[int(at)]["balanced"]
        return balanced

    def pareto(self) -> list[Entry]:
        """Cost of every switch to honest users, beside what the best attacker gets."""
        points = []
        for name, kind, score, place in self.switches():
            costs = {each: self.paid(name).get(each) for each in ("l1_mean", "accuracy_drop")}
            points.append({"name": name, "kind": kind, **costs, "agreement": score.mean})
            points[-1]["balanced"] = self.balanced_at(place)
        return [
            {**point, "dominated": any(_dominates(other, point) for other in points)}
            for point in points
        ]

    def verdicts(self, limits: Mapping[str, float]) -> list[Entry]:
        """Hold each stated limit against the worst attacker and seed with the teacher's own
        answers.

        ``pass`` is None, not known, where an attack that might have failed the limit has not
        finished.
        """
        lines = usable(self.price, self.own)
        own = [each for each in self.first.outcomes if each.cell.mode in (self.own, "label")]
        unknown = [
            each.cell.name for each in own if each.state not in ("finished", "not applicable")
        ]
        return [
            verdict(name, wanted, lines, unknown, self.beside) for name, wanted in limits.items()
        ]

    def games(self, twin: Entry | None) -> Entry:
        """Reference agreements, and a copy's share of the way from a constant answer to a twin."""
        known = self.example.get("baselines") or {}
        least = self.constant
        way = twin["agreement"] - least if twin is not None and least is not None else 0.0
        advantage = []
        for line in self.price if way > 0 else ():
            values = [
                None if share is None else (share - least) / way for share in line["agreement"]
            ]
            means = over_seeds(values)
            advantage.append(
                {
                    "row": line["row"],
                    "mode": line["mode"],
                    "values": values,
                    "mean": means["mean"],
                    "sd": means["sd"],
                }
            )
        return {
            "constant": least,
            "constant_balanced": self.beside.balanced,
            "guess": known.get("chance"),
            "twin": twin,
            "advantage": advantage,
        }

    def cells(self) -> list[Entry]:
        """Every run of both comparisons, once."""
        every: dict[str, Outcome] = {}
        for each in self.runs:
            if each.state != "not applicable":
                # of cells that share a run, its own comparison's
                every.setdefault(each.cell.name, each)
        return [self._cell(each, each.cell) for each in every.values()]

    def _cell(self, of: Outcome, cell: Cell) -> Entry:
        summary = self.summaries.get(cell.name) or {}
        asked = self.ledgers.get(cell.name)
        agreement = None if of.figures is None else of.figures.agreement
        watch = (summary.get("watch") or {}).get("detectors") or {}
        spent = None if asked is None else asked.spent
        return {
            "name": cell.name,
            "row": cell.row,
            "mode": cell.mode,
            "defence": cell.attempt.runs,
            "seed": cell.seed,
            "answers": cell.attempt.answers,
            "budget": cell.budget,
            "state": of.state,
            "reason": of.reason,
            "spent": spent,
            "agreement_balanced": None if of.figures is None else of.figures.agreement_balanced,
            "agreement": agreement,
            "dir": f"cells/{cell.name}",
            "interval": self.interval(agreement),
            "curve": [[*at] for at in of.figures.curve] if of.figures else [],
            "alarms": {detector: alarms["first_alarm"] for detector, alarms in watch.items()},
            "config_hash": summary.get("config_hash"),
            "requests": None if asked is None else asked.requests,
            "steps_seconds": of.figures and of.figures.seconds,
            "cost": self.cost(spent),
        }

    def ledger(self, beside: Sequence[Totals], shared: int) -> Entry:
        """Images of all cells, and of the ledgers ``beside`` them; ``served``, ``cost``: the most
        owed.

        ``shared``: those that were not asked, since another cell had asked them.
        """
        every = [*self.ledgers.values(), *beside]
        served = sum(each.served for each in every) - shared
        return {
            "images": sum(each.spent for each in every),
            "evaluation": sum(each.evaluation_queries for each in every),
            "transfer": sum(each.transfer_queries for each in every),
            "benign": sum(each.benign_queries for each in every),
            "served": served,
            "shared": shared,
            "cost": self.cost(served),
            "cells": len(self.ledgers),
        }

    def not_run(self) -> list[Entry]:
        """Cells that were never to be run, and those that failed."""
        found: dict[str, str] = {}
        for each in self.runs:
            if each.state in ("not applicable", "failed"):
                seed = f", seed {each.cell.seed}" if each.state == "failed" else ""
                found.setdefault(f"{each.cell.label} with {each.cell.mode}{seed}", each.reason)
        return [{"what": what, "why": why} for what, why in found.items()]


def has_images(cell: Cell) -> bool:
    """True if the cell's attacker asks a pool of somebody's images."""
    return str(getattr(cell.job.method_config, "pool", PROCEDURAL)) != PROCEDURAL


def over_seeds(values: Sequence[float | None]) -> Entry:
    """Mean and deviation of the values there are, each None where it is not known."""
    of = spread(values)
    return {"mean": of and of.mean, "sd": of and of.sd}


def plain(of: Spread | None) -> Entry | None:
    """A mean and a deviation over so many seeds."""
    return None if of is None else {"mean": of.mean, "sd": of.sd, "n": of.count}


def _spread(line: Entry) -> Spread:
    return Spread(line["mean"], line["sd"], sum(share is not None for share in line["agreement"]))


def to_copy(line: Entry, level: str = f"{COPY:g}") -> list[float | None]:
    """Queries until a copy, of every seed that is finished; None: it did not get there."""
    pairs = zip(line["queries_to"][level], line["agreement"], strict=True)
    return [queries for queries, agreement in pairs if agreement is not None]


def median_to_copy(line: Entry) -> float | None:
    """Over seeds; one that did not get there counts as more than any number."""
    return middle_of(to_copy(line))


def usable(lines: Iterable[Entry], mode: str) -> list[Entry]:
    """Lines of attacks that answers of a form allow, its own first: whoever gets scores may learn
    labels.
    """
    scored = [
        line for line in lines if line["mode"] in (mode, "label") and line["mean"] is not None
    ]
    return sorted(scored, key=lambda line: line["mode"] != mode)


def strongest(lines: Iterable[Entry], mode: str) -> Entry | None:
    """The attacker that made a copy with the fewest queries, else the one whose students agree
    most.
    """
    found = usable(lines, mode)
    return min(
        found, key=lambda line: (median_to_copy(line) or math.inf, -line["mean"]), default=None
    )


def _dominates(one: Entry, other: Entry) -> bool:
    """True if a point is nowhere worse and somewhere better, in what is known of both; the price
    must be.
    """
    pairs = [(one[name], other[name]) for name in ("l1_mean", "accuracy_drop", "agreement")]
    less = [left - right for left, right in pairs if None not in (left, right)]
    return len(less) > 1 and max(less) <= 0 and min(less) < 0
