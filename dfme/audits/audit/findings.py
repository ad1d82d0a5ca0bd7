"""Findings of an audit for ``audit.json``, from the files of its cells, by arithmetic alone. No
torch.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

from dfme.audits.audit.aitg import aitg_verdict
from dfme.audits.audit.ladder import ImageRate, not_tried, untried
from dfme.audits.audit.parts import (
    AttackedDefence,
    CellResult,
    CurvePoint,
    DefenceAttacker,
    Interval,
    NotRun,
    OverSeeds,
    ParetoPoint,
    SwitchKind,
    Twin,
)
from dfme.audits.audit.price_lines import has_images, price_line
from dfme.audits.audit.price_parts import PriceLine
from dfme.audits.audit.prices import median_to_copy, over_seeds, usable, verdict
from dfme.audits.audit.result import AITG, Games, LedgerSums, LimitVerdict
from dfme.audits.compare.attacked import defended
from dfme.audits.compare.figures import ComparisonResult, Outcome
from dfme.audits.compare.plan import NO_DEFENCE, Cell
from dfme.measured import Bill, StreamBill
from dfme.oracle.ledger_log import Totals
from dfme.report.classified import reached
from dfme.report.run_files import Beside
from dfme.statistics import Spread, wilson_interval


class Switch(NamedTuple):
    """A change of the answers, and the best copy under it: its agreement, also ``balanced`` over
    classes, and its ``place`` in audit.json.
    """

    name: str
    kind: SwitchKind
    agreement: Spread
    balanced: float | None
    place: str


@dataclass
class Findings:
    """Results of an audit so far, of whose attackers the worst counts. ``second``: once defences
    were tried.

    ``mode``: the form of the teacher's own answers. ``rate``: images that its owner lets a key ask.
    ``runs``: every run of both comparisons, as it ended. By its name: ``summaries``, what each
    finished one says, and ``ledgers``, what each asked.
    """

    mode: str
    budget: int
    price_per_1000: float | None
    first: ComparisonResult
    second: ComparisonResult | None = None
    runs: Sequence[Outcome] = ()
    summaries: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    utility: Sequence[Bill] = ()
    ledgers: Mapping[str, Totals] = field(default_factory=dict)
    rate: ImageRate | None = None

    @property
    def example(self) -> Mapping[str, Any]:
        """Summary of a run of the teacher's own answers, which describes the teacher; empty without
        any.
        """
        for outcome in self.first.outcomes:
            if outcome.cell.mode == self.mode and outcome.cell.name in self.summaries:
                return self.summaries[outcome.cell.name]
        return {}

    @property
    def images(self) -> int:
        """The images that copies are scored on."""
        return int((self.example.get("evaluation") or {}).get("images", 0))

    @property
    def holds_data(self) -> bool:
        """True if the attacker of the defences has images of the teacher's task, which makes a gate
        void.
        """
        outcomes = self.second.outcomes if self.second else ()
        return any(has_images(outcome.cell) for outcome in outcomes)

    @property
    def without_images(self) -> list[PriceLine]:
        """Price lines of attackers without images, on whom defences are tried; else every line."""
        return [line for line in self.price if not line.has_images] or self.price

    @property
    def without_like(self) -> list[PriceLine]:
        """Price lines of attackers without images like the owner's, who may have public pictures;
        else every line.
        """
        return [line for line in self.price if line.pictures != "like"] or self.price

    @property
    def with_like(self) -> list[PriceLine]:
        """Price lines of the attackers who have images like the owner's, beside those who have
        none.
        """
        return [line for line in self.price if line not in self.without_like]

    @property
    def untried(self) -> list[str]:
        """What attackers had of whom none has finished."""
        shape = (self.example.get("teacher") or {}).get("shape")
        return untried(self.price, max(shape[1:]) if shape else None)

    @property
    def not_tried(self) -> str:
        """A sentence on these."""
        return not_tried(self.untried)

    @property
    def beside(self) -> Beside:
        """The figures of one answer to everything."""
        return Beside.of_summary(self.example)

    @property
    def constant(self) -> float | None:
        """Agreement of one answer to everything."""
        return self.beside.constant

    def one_sided(self, line: PriceLine | None) -> str:
        """A sentence on what the answers to an attacker's images reached, if a run's are
        one-sided.
        """
        for name in line.cells if line else ():
            paid_answers = self.summaries.get(name, {}).get("paid_answers") or {}
            if paid_answers.get("one_sided"):
                return f" The answers to its images are one-sided: {reached(paid_answers)}."
        return ""

    def cost(self, queries: float | None) -> float | None:
        """Cost of so many images."""
        price = self.price_per_1000
        return None if price is None or queries is None else queries * price / 1000

    def hours(self, queries: float | None) -> float | None:
        """Hours that so many images take a key, by the owner's rate limit."""
        return None if self.rate is None else self.rate.hours(queries)

    def interval(self, share: float | None) -> Interval | None:
        """Over the images of the evaluation."""
        if share is None or not self.images:
            return None
        return Interval(*wilson_interval(share, self.images))

    @cached_property
    def price(self) -> list[PriceLine]:
        """Price of a copy: a line for each attacker and form of answers."""
        groups: dict[tuple[str, str], list[Outcome]] = {}
        for outcome in self.first.outcomes:
            groups.setdefault((outcome.cell.row, outcome.cell.mode), []).append(outcome)
        return [self._line(outcomes) for outcomes in groups.values()]

    def _line(self, outcomes: Sequence[Outcome]) -> PriceLine:
        line = price_line(outcomes, self.summaries)
        median = median_to_copy(line)
        return replace(
            line,
            interval=self.interval(line.mean),
            cost_to_90=self.cost(median),
            hours_to_90=self.hours(median),
        )

    @cached_property
    def defences(self) -> list[AttackedDefence]:
        """Each defence and its attackers, that of the strongest attacker's answers without one
        first.
        """
        if self.second is None:
            return []
        runs = self.second.rows(self.mode, self.budget)
        defences = []
        for line in defended(self.second, self.mode, self.budget):
            attackers = [
                DefenceAttacker(
                    answers=attacker.answers,
                    agreement=attacker.agreement,
                    score=attacker.score,
                    remarks=[*attacker.remarks],
                    cells=[run.cell.name for run in runs[attacker.label] if run.figures],
                )
                for attacker in line.attackers
            ]
            scores = (attacker.score for attacker in attackers if attacker.answers == line.best)
            defences.append(
                AttackedDefence(
                    defence=line.defence,
                    attackers=attackers,
                    best=line.best,
                    best_score=next(scores, None),
                    to_label_only=line.to_label_only,
                    balanced=line.best_balanced,
                )
            )
        return defences

    def paid(self, name: str) -> StreamBill | None:
        """Cost of a defence or label mode to honest users on held-out images, where it was
        measured.
        """
        # a quota changes no answer
        row = NO_DEFENCE if name.startswith("quota") else name
        return next((bill.held_out for bill in self.utility if bill.row == row), None)

    def l1_mean(self, name: str) -> float | None:
        """Mean change of an honest user's answer, where it was measured."""
        bill = self.paid(name)
        return None if bill is None else bill.l1_mean

    def switches(self) -> list[Switch]:
        """Each switch with the best copy under it; the first row is no switch, where there is
        one.
        """
        modes = list[Switch]()
        for mode in dict.fromkeys(line.mode for line in self.without_images):
            lines = usable(self.without_images, mode)
            if any(line.mode == mode for line in lines):
                best = max(lines, key=lambda line: line.mean or 0.0)
                agreement = Spread(
                    best.mean or 0.0, best.sd, sum(share is not None for share in best.agreement)
                )
                place = f"price.{self.price.index(best)}"
                modes.append(Switch(mode, "label mode", agreement, best.balanced, place))
        defences = [
            Switch(line.defence, "defence", line.best_score, line.balanced, f"defences.{at}")
            for at, line in enumerate(self.defences)
            if line.best_score
        ]
        bare = [switch for switch in modes if switch.name == self.mode]
        bare += [switch for switch in defences if switch.name == NO_DEFENCE]
        best_bare = sorted(bare, key=lambda switch: -switch.agreement.mean)[:1]
        return [
            *(switch._replace(name=NO_DEFENCE, kind="defence") for switch in best_bare),
            *(switch for switch in defences if switch.name != NO_DEFENCE),
            *(switch for switch in modes if switch.name != self.mode),
        ]

    def pareto(self) -> list[ParetoPoint]:
        """Cost of every switch to honest users, beside what the best attacker gets."""
        points = []
        for switch in self.switches():
            bill = self.paid(switch.name) or StreamBill(answered=0)
            points.append(
                ParetoPoint(
                    name=switch.name,
                    kind=switch.kind,
                    l1_mean=bill.l1_mean,
                    accuracy_drop=bill.accuracy_drop,
                    agreement=switch.agreement.mean,
                    balanced=switch.balanced,
                    dominated=False,
                )
            )
        return [
            replace(point, dominated=any(_dominates(other, point) for other in points))
            for point in points
        ]

    def verdicts(self, limits: Mapping[str, float]) -> list[LimitVerdict]:
        """Hold each stated limit against the worst attacker and seed with the teacher's own
        answers.

        A limit is not known to hold where an attack that might have failed it has not finished.
        """
        lines = usable(self.price, self.mode)
        unknown = [
            outcome.cell.name
            for outcome in self.first.outcomes
            if outcome.cell.mode in (self.mode, "label")
            and outcome.state not in ("finished", "not applicable")
        ]
        verdicts = []
        for name, wanted in limits.items():
            one = verdict(name, wanted, lines, unknown, self.beside)
            if name == AITG:
                names = {cell for line in lines for cell in line.cells}
                finished = [cell for cell in self.cells() if cell.name in names and cell.curve]
                one = aitg_verdict(finished, unknown, self.beside)
            if one.holds:
                one = replace(one, text=f"{one.text} {self.not_tried}".strip())
            verdicts.append(one)
        return verdicts

    def games(self, twin: Twin | None) -> Games:
        """Reference agreements, and a copy's share of the way from a constant answer to a twin."""
        least = self.constant
        advantage = list[OverSeeds]()
        if twin is not None and least is not None and twin.agreement > least:
            way = twin.agreement - least
            for line in self.price:
                values = [
                    None if share is None else (share - least) / way for share in line.agreement
                ]
                advantage.append(OverSeeds(line.row, line.mode, values, *over_seeds(values)))
        return Games(
            constant=least,
            constant_balanced=self.beside.balanced,
            guess=(self.example.get("baselines") or {}).get("chance"),
            twin=twin,
            advantage=advantage,
        )

    def cells(self) -> list[CellResult]:
        """Every run of both comparisons, once."""
        runs: dict[str, Outcome] = {}
        for outcome in self.runs:
            if outcome.state != "not applicable":
                # of cells that share a run, its own comparison's
                runs.setdefault(outcome.cell.name, outcome)
        return [self._cell(outcome, outcome.cell) for outcome in runs.values()]

    def _cell(self, outcome: Outcome, cell: Cell) -> CellResult:
        summary = self.summaries.get(cell.name, {})
        totals = self.ledgers.get(cell.name)
        figures = outcome.figures
        agreement = figures.agreement if figures else None
        watch = (summary.get("watch") or {}).get("detectors") or {}
        spent = None if totals is None else totals.spent
        return CellResult(
            name=cell.name,
            row=cell.row,
            mode=cell.mode,
            defence=cell.attempt.runs,
            seed=cell.seed,
            answers=cell.attempt.answers,
            budget=cell.budget,
            state=outcome.state,
            reason=outcome.reason,
            spent=spent,
            agreement_balanced=figures.agreement_balanced if figures else None,
            agreement=agreement,
            dir=f"cells/{cell.name}",
            interval=self.interval(agreement),
            curve=[CurvePoint(*point) for point in figures.curve] if figures else [],
            alarms={detector: statistics["first_alarm"] for detector, statistics in watch.items()},
            config_hash=summary.get("config_hash"),
            requests=None if totals is None else totals.requests,
            steps_seconds=figures.seconds if figures else None,
            cost=self.cost(spent),
        )

    def ledger(self, others: Sequence[Totals], shared: int) -> LedgerSums:
        """Images of all cells, and of the ``others`` that are no cells'.

        ``shared``: those that were not asked, since another cell had asked them.
        """
        ledgers = [*self.ledgers.values(), *others]
        served = sum(totals.served for totals in ledgers) - shared
        return LedgerSums(
            images=sum(totals.spent for totals in ledgers),
            evaluation=sum(totals.evaluation_queries for totals in ledgers),
            transfer=sum(totals.transfer_queries for totals in ledgers),
            benign=sum(totals.benign_queries for totals in ledgers),
            served=served,
            shared=shared,
            cost=self.cost(served),
            cells=len(self.ledgers),
        )


def not_run(runs: Iterable[Outcome]) -> list[NotRun]:
    """Cells that were never to be run, and those that failed."""
    reasons: dict[str, str] = {}
    for run in runs:
        if run.state in ("not applicable", "failed"):
            seed = f", seed {run.cell.seed}" if run.state == "failed" else ""
            reasons.setdefault(f"{run.cell.label} with {run.cell.mode}{seed}", run.reason)
    return [NotRun(*pair) for pair in reasons.items()]


def _dominates(point: ParetoPoint, other: ParetoPoint) -> bool:
    """True if a point is nowhere worse and somewhere better, in what is known of both; the price
    must be.
    """
    pairs = (
        (point.l1_mean, other.l1_mean),
        (point.accuracy_drop, other.accuracy_drop),
        (point.agreement, other.agreement),
    )
    more = [figure - rival for figure, rival in pairs if figure is not None and rival is not None]
    return len(more) > 1 and max(more) <= 0 and min(more) < 0
