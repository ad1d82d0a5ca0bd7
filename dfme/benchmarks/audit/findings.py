"""What the cells of an audit come to, as ``audit.json`` has it: from what they left, by arithmetic alone. No torch.

Of attackers the worst counts, never their mean: the cheapest copy, the largest agreement. What a defence costs is that
of its stack in ``utility``.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dfme.benchmarks.audit.options import LIMITS
from dfme.benchmarks.audit.plan import NOT_RUN
from dfme.benchmarks.compare.attackers import NO_DEFENCE
from dfme.benchmarks.compare.defended import defended
from dfme.benchmarks.compare.figures import ComparisonResult, Outcome, Spread, spread
from dfme.report.facts import LEVELS, wilson_interval

Row = dict[str, Any]

COPY = 0.9
"""The agreement at which a student counts as a copy, in the headline."""


@dataclass
class Findings:
    """What an audit has found so far. ``second`` is None until the defences have been tried.

    ``runs``: every run of both comparisons, as it ended; ``summaries``: what each finished one says, by its name.
    """

    own: str
    budget: int
    seeds: tuple[int, ...]
    price: float | None
    first: ComparisonResult
    second: ComparisonResult | None = None
    runs: Sequence[Outcome] = ()
    summaries: Mapping[str, Row] = field(default_factory=dict)
    utility: Sequence[Row] = ()

    @property
    def example(self) -> Row:
        """The summary of a run of the teacher's own answers, which says what the teacher is; empty without any."""
        ended = (self.summaries.get(each.cell.name) for each in self.first.outcomes if each.cell.mode == self.own)
        return next((summary for summary in ended if summary), {})

    @property
    def images(self) -> int:
        """The images that copies are scored on."""
        return int((self.example.get("evaluation") or {}).get("images", 0))

    def cost(self, queries: float | None) -> float | None:
        """What so many images cost."""
        return None if self.price is None or queries is None else queries * self.price / 1000

    def interval(self, share: float | None) -> list[float] | None:
        """Over the evaluation's images."""
        return None if share is None or not self.images else [*wilson_interval(share, self.images)]


def plain(of: Spread | None) -> Row | None:
    """A mean and a deviation over seeds."""
    return None if of is None else {"mean": of.mean, "sd": of.sd, "n": of.count}


def to_copy(line: Row) -> list[float | None]:
    """Queries until a copy, of every seed that is finished; None: it did not get there."""
    pairs = zip(line["queries_to"][f"{COPY:g}"], line["agreement"], strict=True)
    return [queries for queries, agreement in pairs if agreement is not None]


def median(queries: Sequence[float | None]) -> float | None:
    """Over seeds; one that did not get there counts as more than any number."""
    middle = statistics.median([math.inf if count is None else count for count in queries]) if queries else math.inf
    return middle if math.isfinite(middle) else None


def price(of: Findings) -> list[Row]:
    """What a copy costs: a line for each attacker and form of answers."""
    found = []
    groups = dict.fromkeys((each.cell.row, each.cell.mode) for each in of.first.outcomes)
    for row, mode in groups:
        outcomes = [each for each in of.first.outcomes if (each.cell.row, each.cell.mode) == (row, mode)]
        figures = [each.figures for each in outcomes]
        agreement = [None if each is None else each.agreement for each in figures]
        over_seeds = spread(agreement)
        queries = {
            f"{level:g}": [None if each is None else each.queries_to[level] for each in figures] for level in LEVELS
        }
        missing = next((each for each in outcomes if each.state != "finished"), None)
        found.append(
            {"row": row, "mode": mode, "agreement": agreement}
            | {"mean": None, "sd": None, **(plain(over_seeds) or {})}
            | {"interval": of.interval(over_seeds.mean if over_seeds else None), "queries_to": queries}
            | {"cost_to_90": of.cost(median(queries[f"{COPY:g}"])), "cells": [each.cell.name for each in outcomes]}
            | {"state": missing.state if missing else "finished", "reason": missing.reason if missing else ""}
        )
    return found


def strongest(lines: Iterable[Row], mode: str) -> Row | None:
    """The attacker that made a copy with the fewest queries, else the one whose students agree most."""
    scored = [line for line in lines if line["mode"] == mode and line["mean"] is not None]
    return min(scored, key=_queries_then_agreement, default=None)


def _queries_then_agreement(line: Row) -> tuple[float, float]:
    middle = median(to_copy(line))
    return math.inf if middle is None else middle, -line["mean"]


def verdicts(limits: Mapping[str, float], lines: Sequence[Row], own: str) -> list[Row]:
    """Each stated limit beside the worst that any attacker and seed came to with the teacher's own answers."""
    lines, found = [line for line in lines if line["mode"] == own], []
    for name, wanted in limits.items():
        if name in LIMITS:
            counts = [count for line in lines for count in line["queries_to"][f"{LIMITS[name]:g}"] if count is not None]
            value, least = min(counts, default=None), f"at least {wanted:,.0f} queries to {LIMITS[name]:.0%} agreement"
            holds, told = value is None or value >= wanted, "none got there" if value is None else f"{value:,}"
        else:
            shares = [share for line in lines for share in line["agreement"] if share is not None]
            value, least = max(shares, default=None), f"at most {wanted:.1%} agreement"
            holds, told = value is None or value <= wanted, "" if value is None else f"{value:.1%}"
        if all(line["mean"] is None for line in lines):
            holds, told = False, "not known, since no attack has finished"
        text = f"you want {least}; the worst attack we ran: {told}"
        found.append({"limit": name, "wanted": wanted, "value": value, "pass": holds, "text": text})
    return found


def games(of: Findings, lines: Sequence[Row], twin: Row | None) -> Row:
    """Agreements to hold a copy against, and by how much of the way to a twin each copy is above one answer to all."""
    known = of.example.get("baselines") or {}
    least, most = known.get("constant_agreement"), (twin or {}).get("agreement")
    advantage = []
    if least is not None and most is not None and most != least:
        for line in lines:
            values = [None if share is None else (share - least) / (most - least) for share in line["agreement"]]
            told = plain(spread(values)) or {"mean": None, "sd": None}
            here = {"row": line["row"], "mode": line["mode"], "values": values}
            advantage.append(here | {"mean": told["mean"], "sd": told["sd"]})
    return {"constant": least, "guess": known.get("chance"), "twin": twin, "advantage": advantage}


def defences(of: Findings) -> list[Row]:
    """Each defence beside its attackers, the strongest attacker's answers undefended first."""
    if of.second is None:
        return []
    cells = of.second.rows(of.own, of.budget)
    found = []
    for line in defended(of.second, of.own, of.budget):
        tried = [
            each for each in line.attackers if any(one.cell.attempt.reason != NOT_RUN for one in cells[each.label])
        ]
        best = next((each for each in tried if each.answers == line.best), None)
        attackers = [
            {"answers": each.answers, "agreement": plain(each.agreement), "score": plain(each.score)}
            | {"remarks": [*each.remarks], "cells": [one.cell.name for one in cells[each.label] if one.figures]}
            for each in tried
        ]
        score = plain(best.score) if best else None
        told = {"best": line.best, "best_score": score, "to_label_only": line.to_label_only}
        found.append({"defence": line.defence, "attackers": attackers, **told})
    return found


def bill(utility: Iterable[Row], name: str) -> Row | None:
    """What honest users pay for a defence or a label mode; of one that changes no answer, that of none."""
    rows = {row["row"]: row for row in utility}
    return rows.get(name) or (rows.get(NO_DEFENCE) if name.startswith("quota") else None)


def pareto(of: Findings, lines: Sequence[Row], tried: Sequence[Row]) -> list[Row]:
    """What honest users pay beside what the best attacker gets, of every defence and label mode."""
    shares = {line["defence"]: line["best_score"]["mean"] for line in tried if line["best_score"]}
    modes: dict[str, float] = {}
    for line in lines:
        if line["mean"] is not None:
            modes[line["mode"]] = max(line["mean"], modes.get(line["mode"], 0.0))
    free = [share for share in (shares.get(NO_DEFENCE), modes.pop(of.own, None)) if share is not None]
    shares |= {NO_DEFENCE: max(free)} if free else {}
    places = [(name, "defence", share) for name, share in shares.items()]
    places += [(name, "label mode", share) for name, share in modes.items()]
    points = []
    for name, kind, share in places:
        paid = (bill(of.utility, name) or {}).get("held_out", {})
        point = {"l1_mean": paid.get("l1_mean"), "accuracy_drop": paid.get("accuracy_drop"), "agreement": share}
        points.append({"name": name, "kind": kind, **point})
    return [{**point, "dominated": any(_dominates(other, point) for other in points)} for point in points]


def _dominates(one: Row, other: Row) -> bool:
    """Whether a point is nowhere worse, and better somewhere; never by what is not known."""
    pairs = [(one[name], other[name]) for name in ("l1_mean", "accuracy_drop", "agreement")]
    known = [(left, right) for left, right in pairs if right is not None]
    no_worse = all(left is not None and left <= right for left, right in known)
    return len(known) > 1 and no_worse and any(left < right for left, right in known)


def cells(of: Findings) -> list[Row]:
    """Every run of both comparisons, once."""
    every = {each.cell.name: each for each in of.runs if each.state != "not applicable"}
    found = []
    for name, outcome in every.items():
        cell, figures, summary = outcome.cell, outcome.figures, of.summaries.get(name) or {}
        watch = (summary.get("watch") or {}).get("detectors") or {}
        spent, agreement = (None, None) if figures is None else (figures.spent, figures.agreement)
        found.append(
            {"name": name, "row": cell.row, "mode": cell.mode, "defence": cell.attempt.runs}
            | {"answers": cell.attempt.answers, "seed": cell.seed, "budget": cell.budget, "state": outcome.state}
            | {"reason": outcome.reason, "spent": spent, "agreement": agreement, "interval": of.interval(agreement)}
            | {"curve": [[*point] for point in figures.curve] if figures else []}
            | {"alarms": {detector: each["first_alarm"] for detector, each in watch.items()}}
            | {"steps_seconds": figures.seconds if figures else None, "config_hash": summary.get("config_hash")}
            | {"dir": f"cells/{name}", "requests": summary.get("requests"), "cost": of.cost(spent)}
        )
    return found


def ledger(of: Findings, asked: Mapping[str, Any]) -> Row:
    """Images of all cells and of the examination, by what is owed for them."""
    done = of.summaries.values()
    charged, scored, lost = (sum(int(each[key]) for each in done) for key in ("spent", "evaluation_queries", "lost"))
    transfer, served = int(asked.get("asked", 0)), int(asked.get("served", 0))
    total = charged + scored + lost + served
    return {"images": charged, "evaluation": scored, "transfer": transfer, "served": total} | {
        "cost": of.cost(total),
        "cells": len(done),
    }


def not_run(of: Findings) -> list[Row]:
    """Cells that were never to be run, and those that failed."""
    found: dict[str, str] = {}
    for each in of.runs:
        if each.state in ("not applicable", "failed") and each.reason != NOT_RUN:
            seed = f", seed {each.cell.seed}" if each.state == "failed" else ""
            found.setdefault(f"{each.cell.label} with {each.cell.mode}{seed}", each.reason)
    return [{"what": what, "why": why} for what, why in found.items()]
