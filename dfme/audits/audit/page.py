"""audit.html and its appendix, from an audit alone."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from dfme.audits.audit.drills import drill_text, of_whom
from dfme.audits.audit.evidence_rows import evidence, unmeasured
from dfme.audits.audit.ladder import not_tried
from dfme.audits.audit.options import APPENDIX
from dfme.audits.audit.page_accounts import accounts_table, honest_table
from dfme.audits.audit.page_parts import (
    UNKNOWN,
    PageTable,
    across,
    curves,
    in_words,
    kind_of,
    name_of,
    pareto,
    table,
)
from dfme.audits.audit.parts import (
    AttackedDefence,
    ClassAgreement,
    DefenceAttacker,
    Fidelity,
    ParetoPoint,
    WatchedAttack,
)
from dfme.audits.audit.price_parts import PriceLine
from dfme.audits.audit.price_tables import delay_of, ladder, medians, of_seeds
from dfme.audits.audit.prices import seeds_text
from dfme.audits.audit.result import AuditResult
from dfme.measured import Bill, HonestStream
from dfme.report.page import MAX_SHOWN, render
from dfme.report.run_files import Beside
from dfme.statistics import Spread

SHEET = re.compile(r"data:image/png;base64,[A-Za-z0-9+/=]+")


def write_page(audit: AuditResult, path: Path) -> Path:
    """Write the page, and the appendix beside it; the page's path."""
    contents = {
        "audit": audit,
        "large": Beside(audit.games.constant).is_large,
        "table": table,
        "across": across,
        "in_words": in_words,
    }
    render("audits/audit/appendix.html", path.with_name(APPENDIX), contents | _appendix(audit))
    return render("audits/audit/audit.html", path, contents | _first(audit))


FACTS = {
    "Model": "{target.name}, {target.kind}",
    "Its answers": (
        "{target.label_mode}, {target.num_classes:,} classes, images of {target.shape}"
    ),
    "Its levels": "{target.levels}",
    "Its defences": "{target.defences}",
    "Its accuracy": "{target.accuracy:.2%}",
    "Authorised by": "{target.authorised_by}",
    "Seeds": "{options.seeds}",
    "Scored on": "{target.evaluation.images:,} images of {target.evaluation.name}",
    "Held back for an attacker": "{halves.held_back:,} images of {halves.dataset}",
    "Profile": "{options.profile}, {options.budget:,} queries an attack",
    "At most in all": "{options.total:,} queries",
    "Price of 1,000": "{options.price_per_1000:,.2f}",
    "A key may ask": "{options.rate} images",
    "Public weights": "{options.weights}",
    "Public pictures": "{options.public_pool}",
    "Sent by attacks": "{ledger.images:,} images in {ledger.cells:,} attacks",
    "Sent besides": "{ledger.evaluation:,} images to score, {ledger.transfer:,} for transfer",
    "Sent as honest users": "{ledger.benign:,} images",
    "Asked by another attack before": "{ledger.shared:,} images",
    "May have been served": "{ledger.served:,} images",
    "Money for these": "{ledger.cost:,.2f}",
    "Versions": "dfme {tool.dfme}, torch {tool.torch}, Python {tool.python}",
    "Commit": "{tool.commit}",
    "Made": (
        "{made.started} in {made.wall_seconds:,.1f} s, on {made.machine}, in {made.directory}"
    ),
}
"""What was audited, and how; what is not known is left out."""


@dataclass(frozen=True)
class PointRow:
    """A point of the Pareto picture, by what it is called there."""

    name: str
    kind: str
    point: ParetoPoint


@dataclass(frozen=True)
class AlarmRow:
    """First alarms of a detector in an attacker's runs, and its ``worst`` honest stream.

    ``worth``: the median agreement of the copies with a quarter more queries at most.
    """

    detector: str
    row: str
    text: str
    worth: float | None
    worst: HonestStream | None


def _first(audit: AuditResult) -> dict[str, Any]:
    """What the page shows beside the audit itself: a figure for all seeds, of the answers as
    deployed.
    """
    pictures = audit.differences.shown if audit.differences else ()
    return {
        "ladder": ladder(audit),
        "not_tried": not_tried(audit.untried),
        "medians": medians(audit),
        "curves": curves(audit, {audit.target.label_mode, "label"}),
        "points": [PointRow(name_of(point), kind_of(point), point) for point in audit.pareto],
        "pareto": pareto(audit),
        "alarms": [*_alarms(audit)],
        "accounts": accounts_table(audit),
        "shown": [picture for picture in pictures if SHEET.fullmatch(picture.image)],
        "drill": _drill(audit),
        "evidence": evidence(audit),
        "unmeasured": unmeasured(audit.controls),
    }


def _drill(audit: AuditResult) -> str:
    """What a drill found, and of whom; empty without one."""
    if audit.drill is None:
        return ""
    return f"{drill_text(audit.drill)} {of_whom(audit.drill, audit.target.name)}"


def _alarms(audit: AuditResult) -> Iterator[AlarmRow]:
    """First alarms of each detector and attacker over seeds, beside its worst honest stream."""
    if audit.detection is None:
        return
    names = audit.cells_of(audit.target.label_mode)
    groups: dict[tuple[str, str], list[WatchedAttack]] = {}
    for attack in audit.detection.attacks:
        if attack.cell in names:
            groups.setdefault((attack.detector, attack.row), []).append(attack)
    benign = sorted(
        audit.detection.benign, key=lambda stream: (stream.per_10000, stream.per_10000_upper)
    )
    worst = {stream.detector: stream for stream in benign}
    for (detector, row), attacks in groups.items():
        text = of_seeds([attack.first_alarm for attack in attacks], "never")
        at_alarm = (attack.agreement_at_alarm for attack in attacks)
        shares = [share for share in at_alarm if share is not None]
        yield AlarmRow(detector, row, text, median(shares) if shares else None, worst.get(detector))


@dataclass(frozen=True)
class SeedsRow:
    """A price line, seed by seed. ``reached``: queries until a level, in words."""

    line: PriceLine
    advantage: Sequence[float | None] | None
    reached: Mapping[str, list[str]]
    delay: str


@dataclass(frozen=True)
class AttackerRow:
    """An attacker of a defence. ``paid``: what it costs honest users; ``renamed``: the score if it
    is not the agreement.
    """

    line: AttackedDefence
    attacker: DefenceAttacker
    paid: Bill | None
    renamed: Spread | None

    @property
    def is_best(self) -> bool:
        return self.attacker.answers == self.line.best


@dataclass(frozen=True)
class WatchedRow:
    """A watched attack. ``answers``: how the attacker learns from them."""

    attack: WatchedAttack
    answers: str


@dataclass(frozen=True)
class StreamRow:
    """An honest stream. ``seen``: alarms in 10,000 queries, if there were any."""

    stream: HonestStream
    seen: float | None


@dataclass(frozen=True)
class ClassRow:
    """A class of a copy."""

    copy: Fidelity
    of_class: ClassAgreement


@dataclass(frozen=True)
class Fact:
    """A line of what was audited."""

    what: str
    figure: str


def _appendix(audit: AuditResult) -> dict[str, Any]:
    """What the appendix shows beside the audit itself: rows that stand in two lists of it as
    one.
    """
    advantage = {(way.row, way.mode): way.values for way in audit.games.advantage}
    answers = {cell.name: cell.answers for cell in audit.cells}
    attacks = audit.detection.attacks if audit.detection else ()
    benign = audit.detection.benign if audit.detection else ()
    return {
        "medians": medians(audit) if ladder(audit) else None,
        "not_tried": not_tried(audit.untried),
        "facts": _facts(audit),
        "curves": curves(audit, alarms=True),
        "prices": [
            SeedsRow(
                line,
                advantage.get((line.row, line.mode)),
                {level: seeds_text(line, level) for level in line.queries_to},
                delay_of(line),
            )
            for line in audit.price
        ],
        "attacked": [*_attackers(audit)],
        "attacks": [WatchedRow(attack, answers.get(attack.cell, UNKNOWN)) for attack in attacks],
        "honest_accounts": honest_table(audit),
        "benign": [
            StreamRow(stream, stream.per_10000 if stream.alarms else None) for stream in benign
        ],
        "classes": _least_followed(audit.fidelity),
        "sheets": {
            name: picture for name, picture in audit.pictures.items() if SHEET.fullmatch(picture)
        },
    }


def _facts(audit: AuditResult) -> PageTable:
    facts = [Fact(label, in_words(form, audit)) for label, form in FACTS.items()]
    rows = [fact for fact in facts if fact.figure not in ("", UNKNOWN)]
    return table("What was audited, and how", rows, {"What": "{what}", "Figure": "{figure}"}, 2)


def _attackers(audit: AuditResult) -> Iterator[AttackerRow]:
    """Every attacker of every defence. A quota costs honest users nothing."""
    bills = {bill.row: bill for bill in audit.utility}
    for line in audit.defences:
        paid = bills.get("none" if line.defence.startswith("quota:") else line.defence)
        for attacker in line.attackers:
            renamed = None if attacker.score == attacker.agreement else attacker.score
            yield AttackerRow(line, attacker, paid, renamed)


def _least_followed(copies: Sequence[Fidelity]) -> list[ClassRow]:
    """The ``MAX_SHOWN`` classes that a copy follows least, in order, each with its cell."""
    rows = list[ClassRow]()
    for copy in copies:
        rows += [ClassRow(copy, of_class) for of_class in copy.per_class]
    answered = [row.of_class for row in rows if row.of_class.agreement is not None]
    least = sorted(answered, key=lambda of_class: of_class.agreement or 0.0)
    numbers = list(dict.fromkeys(of_class.number for of_class in least))[:MAX_SHOWN]
    return [row for row in rows if row.of_class.number in numbers]
