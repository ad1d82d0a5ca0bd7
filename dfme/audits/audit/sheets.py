"""From the rest of an audit: the rate-limit sheet (the images that a key may ask in a term), and
what the figures are evidence for in catalogues of controls; it never says that one is met.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from dfme.audits.audit.ladder import not_tried
from dfme.audits.audit.parts import CurvePoint
from dfme.audits.audit.result import AuditResult, CheckedQuota, Control, QuotaSheet
from dfme.audits.compare.plan import NO_DEFENCE

TERMS = {"minute": 60, "hour": 3_600, "day": 86_400, "month": 2_592_000}
"""Seconds of each term of ``--per``; a month has 30 days."""

WARNING = (
    "nginx, Envoy and Kong count requests: let one carry one image, or divide by those it may "
    "carry. serve "
    "counts images, those of all keys together: run one for each key. The quota comes back: D "
    "terms give one "
    "key D times as many images. Many accounts break it: one published campaign had 24,000."
)


def sheet(audit: AuditResult, checked: str | None) -> QuotaSheet | None:
    """The largest quota with all curves of the model as deployed below ``--keep-below``; None
    unasked.

    It is a number of images at which the attacker who first gets there was scored, and still below:
    what a copy is worth in between is not known. ``checked``: the cell of an attack under the
    quota, if any.
    """
    level = audit.options.keep_below
    cells = {cell.name: cell for cell in audit.cells}
    deployed = [cells[name] for name in _deployed(audit) if name in cells and cells[name].curve]
    if level is None or not deployed:
        return None
    steps = {cell.name: _step(cell.curve, level) for cell in deployed}
    constant = audit.games.constant
    over = {name: step for name, step in steps.items() if step is not None}
    worst = max(deployed, key=lambda cell: max(point.agreement for point in cell.curve))
    if over:
        worst = cells[min(over, key=lambda name: over[name])]
    void = constant is not None and constant >= level
    images = 0 if void else over.get(worst.name, audit.options.budget)
    curves = [cell.curve for cell in deployed]
    below = [point for curve in curves for point in curve if point.queries <= images]
    quota = QuotaSheet(
        keep_below=level,
        per=audit.options.per,
        images=images,
        best=max((point.agreement for point in below), default=0.0),
        attacker=worst.row,
        cell=worst.name,
        open=not over,
        lines={},
        text=[],
    )
    if void:
        text = (
            f"No quota keeps an agreement below {level:.1%}: one constant answer agrees on "
            f"{constant:.1%} without a query. Give a larger --keep-below, or images of which each "
            "class has as many."
        )
        return replace(quota, text=[text])
    under = cells.get(checked or "") if over else worst
    if under and under.agreement is not None:
        quota = replace(
            quota, checked=CheckedQuota(under.name, under.agreement, under.agreement < level)
        )
    keeps = images and (quota.checked is None or quota.checked.holds)
    sentences = [*_text(quota), not_tried(audit.untried)] if audit.untried else _text(quota)
    return replace(quota, lines=_lines(images, quota.per) if keeps else {}, text=sentences)


def _deployed(audit: AuditResult) -> dict[str, None]:
    """Names of the cells of every attacker and seed on the model's own answers, or their labels,
    without a defence.
    """
    names = dict.fromkeys(audit.cells_of(audit.target.label_mode, "label"))
    for line in audit.defences:
        for attacker in line.attackers if line.defence == NO_DEFENCE else ():
            names |= dict.fromkeys(attacker.cells)
    return names


def _step(curve: Sequence[CurvePoint], level: float) -> int | None:
    """The last images at which a curve was scored before those at which it gets there; None: it
    does not.
    """
    first = next((point.queries for point in curve if point.agreement >= level), None)
    if first is None:
        return None
    return max((point.queries for point in curve if point.queries < first), default=0)


def _lines(images: int, per: str) -> dict[str, str]:
    """The quota as servers say it; nginx lets burst + 1 requests pass at once, then ``rate`` a
    minute.

    It counts no request with an empty key, so ``key:`` stands before a header that may be missing.
    """
    minutes = TERMS[per] // 60
    rate, burst = divmod(images - 1, minutes)
    zone = f"limit_req_zone key:$http_x_api_key zone=copy:10m rate={rate}r/m;"
    rare = f"# limit_req cannot: its least rate, 1r/m, is {minutes:,} per {per}"
    return {
        "nginx": f"{zone} limit_req zone=copy burst={burst} nodelay;" if rate else rare,
        "Envoy": (
            f"descriptors: [{{key: api_key, rate_limit: {{unit: {per}, requests_per_unit: "
            f"{images}}}}}]"
        ),
        "Kong": (
            f"plugins: [{{name: rate-limiting, config: {{{per}: {images}, limit_by: credential, "
            "policy: cluster}}]"
        ),
        "serve": (
            f"python run.py serve --teacher.defences quota:images={images}:window={TERMS[per]}"
        ),
    }


def _text(quota: QuotaSheet) -> list[str]:
    level = f"{quota.keep_below:.1%}"
    attacker = quota.attacker
    if not quota.images:
        return [f"No quota keeps {attacker} below {level}: its first copy on record is better."]
    more = f"{attacker} is the first to get there with more"
    if quota.open:
        more = "none that ran got there, and what more images buy is not known"
    first = f"{quota.images:,} images per {quota.per} for a key keep every attacker below {level}"
    check = "We did not check it with an attack."
    if quota.checked is not None:
        judged = "the quota DOES NOT HOLD: take a smaller one"
        if quota.checked.holds:
            judged = "the quota holds"
        check = (
            f"We checked it with an attack: with no more images a copy by {attacker} "
            f"agrees on {quota.checked.agreement:.1%}; {judged}."
        )
    return [f"{first} by their curves (the best: {quota.best:.1%}); {more}.", check, WARNING]


def below(queries: float) -> int:
    """A round number of images, to two digits, below so many."""
    unit = 10 ** max(0, math.floor(math.log10(queries - 1)) - 1)
    return int((queries - 1) // unit * unit)


AISVS = "OWASP AISVS", "1.0", "2026"
ATLAS = "MITRE ATLAS", "2026.05", "27 May 2026"
NIST = "NIST AI 100-2", "E2025", "24 March 2025"
EU = "EU AI Act", "Regulation (EU) 2024/1689", "13 June 2024"
CONTROLS = (
    (
        AISVS,
        "11.2.2",
        "rate limits of each client and of all, sized by what an extraction needs",
        "limits",
    ),
    (AISVS, "11.3.3", "a mark or fingerprint by which a copy can be recognised", "copies"),
    (AISVS, "12.2.4", "alarms of an extraction that say which queries raised them", "alarms"),
    (ATLAS, "AML.M0002", "answers that tell no more of the model than users need", "labels"),
    (ATLAS, "AML.M0004", "a limit on the number of queries", "quotas"),
    (ATLAS, "AML.M0024", "records of queries and answers that can be watched", "alarms"),
    (NIST, "model extraction", "to know this attack, and the limits of what mitigates it", "price"),
    (
        EU,
        "art. 15(5)",
        "of high-risk systems: to prevent, detect and answer attacks on secrecy",
        "price",
    ),
)
"""Source (name, version, date), control, what it asks in our words, and the figure beside it."""


class _Figure(NamedTuple):
    """A sentence, and the name of the cell that it comes from."""

    text: str
    cell: str | None


def controls(audit: AuditResult) -> list[Control]:
    """A row per control; ``figure`` and ``dir``, a cell's directory, are None where nothing was
    measured.
    """
    headline = audit.headline
    labels = headline.labels.attacker if headline.labels else None
    directories = {cell.name: cell.dir for cell in audit.cells}
    quotas = _quotas(audit)
    price = _price(audit, headline.mode, headline.attacker, 0)
    figures = {
        "quotas": quotas,
        "alarms": _alarms(audit),
        "copies": _copies(audit),
        "price": price,
        "labels": _price(audit, "label", labels, -1),
        "limits": quotas or price,
    }
    rows = []
    for (source, version, date), control, asks, name in CONTROLS:
        figure = figures[name]
        rows.append(
            Control(
                source=source,
                version=version,
                date=date,
                control=control,
                asks=asks,
                figure=figure and figure.text,
                dir=directories.get(figure.cell or "") if figure else None,
            )
        )
    return rows


def _price(audit: AuditResult, mode: str, attacker: str | None, sentence: int) -> _Figure | None:
    """A sentence of the headline, and a cell of its attacker."""
    for line in audit.price:
        if (line.row, line.mode) == (attacker, mode) and line.cells:
            return _Figure(audit.headline.sentences[sentence], line.cells[0])
    return None


def _quotas(audit: AuditResult) -> _Figure | None:
    """The rate-limit sheet, else the quota that was tried as a defence."""
    quota = audit.quota
    if quota is not None:
        return _Figure(" ".join(quota.text[:2]), (quota.checked or quota).cell)
    for line in audit.defences:
        if line.defence.startswith("quota") and line.best_score:
            best = next(run for run in line.attackers if run.answers == line.best)
            constant = audit.games.constant
            beside = "" if constant is None else f" (one constant answer: {constant:.1%})"
            share = f"the best copy agrees on {line.best_score.mean:.1%}{beside}."
            return _Figure(f"With {line.defence} {share}", next(iter(best.cells), None))
    return None


def _copies(audit: AuditResult) -> _Figure | None:
    """The number of copies that the test of ``run.py verify`` calls more alike than every
    reference.
    """
    cells = dict[str, bool]()
    for row in audit.recognition.rows if audit.recognition else ():
        cells |= dict(zip(row.cells, row.recognised, strict=True))
    recognised = [name for name, is_copy in cells.items() if is_copy]
    text = f"The test of run.py verify recognises {len(recognised)} of {len(cells)} copies."
    return _Figure(text, [*recognised, *cells][0]) if cells else None


def _alarms(audit: AuditResult) -> _Figure | None:
    """How many attacks on the model as deployed raised an alarm."""
    attacks = [
        attack
        for attack in (audit.detection.attacks if audit.detection else ())
        if (attack.mode, attack.defence) == (audit.target.label_mode, NO_DEFENCE)
    ]
    watched = dict.fromkeys(attack.cell for attack in attacks)
    raised = dict.fromkeys(attack.cell for attack in attacks if attack.first_alarm is not None)
    text = f"{len(raised)} of {len(watched)} attacks raised an alarm of at least one detector."
    return _Figure(text, next(iter(raised or watched))) if watched else None
