"""From the rest of an audit the rate-limit sheet: the images that a key may ask in a term, and how
long a copy then takes one account, or many.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

from dfme.audits.audit.ladder import HOUR, delay, not_tried
from dfme.audits.audit.parts import CurvePoint
from dfme.audits.audit.prices import median_to_copy, strongest
from dfme.audits.audit.result import AuditResult
from dfme.audits.audit.sheet_parts import CheckedQuota, QuotaDelay, QuotaSheet
from dfme.audits.compare.plan import NO_DEFENCE
from dfme.measured import ACCOUNTS

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
    sentences = _text(quota)
    if keeps:
        price = strongest(audit.price, audit.target.label_mode)
        queries = median_to_copy(price) if price else None
        by = price.row if price else ""
        quota = replace(
            quota, lines=_lines(images, quota.per), delays=_delays(queries, images, quota.per)
        )
        sentences.insert(2, _delay_text(quota, queries, by))
    sentences += [not_tried(audit.untried)] if audit.untried else []
    return replace(quota, text=sentences)


def _delays(queries: float | None, images: int, per: str) -> list[QuotaDelay]:
    """Hours that so many queries take by a quota of so many images; none of unknown queries."""
    if queries is None:
        return []
    hours = queries / images * TERMS[per] / HOUR
    return [QuotaDelay(accounts, round(hours / accounts, 6)) for accounts in ACCOUNTS]


def _delay_text(quota: QuotaSheet, queries: float | None, attacker: str) -> str:
    if queries is None:
        return "How long a copy takes under it is not known, since no attack made one."
    return (
        f"Under this quota the cheapest copy ({queries:,.0f} queries by {attacker}) takes "
        f"{waits(quota)}. A limit of all keys together does not divide so: many accounts then wait "
        "as long as one."
    )


def waits(quota: QuotaSheet) -> str:
    """How long the quota holds a copy up, by the number of accounts; so many as may ask all of it
    in one term do not wait.
    """
    term = TERMS[quota.per] / HOUR
    held_up = [some for some in quota.delays if some.hours > term]
    texts = [f"{_accounts(some.accounts)} {delay(some.hours)}" for some in held_up]
    if len(held_up) < len(quota.delays):
        least = _accounts(quota.delays[len(held_up)].accounts)
        texts.append(f"{least} or more no longer than the first {quota.per}")
    return ", ".join(texts)


def _accounts(number: int) -> str:
    return "one account" if number == 1 else f"{number:,} accounts"


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
