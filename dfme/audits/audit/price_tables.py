"""Tables of an audit's page that say what copies cost: medians over seeds, and what each attacker
had.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from dfme.audits.audit.ladder import delay
from dfme.audits.audit.page_parts import FIXED, UNKNOWN, PageTable, table
from dfme.audits.audit.price_parts import PriceLine
from dfme.audits.audit.prices import median_to_copy, to_copy
from dfme.audits.audit.result import AuditResult
from dfme.report.run_files import Beside
from dfme.statistics import middle_of


@dataclass(frozen=True)
class PriceRow:
    """A price line over seeds. ``at``: queries until a level, ``delay``: the time until a copy, in
    words.
    """

    row: str
    mode: str
    mean: float | None
    balanced: float | None
    range: str
    at: Mapping[str, str]
    cost_to_90: float | None = None
    delay: str = UNKNOWN


@dataclass(frozen=True)
class LadderRow:
    """A price line with what its attacker had, in words. ``to_90``: queries until 90 %."""

    line: PriceLine
    to_90: str
    delay: str
    alarm: str


MEDIANS = (
    "Agreement after all queries, and queries until 80%, 90% and 95%: the median over seeds (how "
    "many seeds got there, where not all did)"
)


def medians(audit: AuditResult) -> PageTable:
    """The price lines, with a balanced agreement where a constant answer has more than half."""
    forms = {
        "Attacker": "{row}",
        "Answers": "{mode}",
        "Agreement": "{mean:.1%}",
        "Balanced agreement": "{balanced:.1%}",
        "Range over seeds": "{range}",
        "80%": "{at[0.8]}",
        "90%": "{at[0.9]}",
        "95%": "{at[0.95]}",
        "Money until 90%": "{cost_to_90:,.2f}",
    }
    if audit.options.rate is not None:
        forms["Time at your limit"] = "{delay}"
    if not Beside(audit.games.constant).is_large:
        del forms["Balanced agreement"]
    return table(MEDIANS, [*_prices(audit.price), *_constant_row(audit)], forms, 2)


def ladder(audit: AuditResult) -> list[LadderRow]:
    """Every attacker and form of answers, where somebody had public weights or pictures, or the
    owner states a rate limit; else none.
    """
    special = (line.weights is not None or line.pictures == "public" for line in audit.price)
    if not any(special) and audit.options.rate is None:
        return []
    rows = []
    for line in (line for line in audit.price if line.cells):
        scored = any(share is not None for share in line.agreement)
        rows.append(
            LadderRow(
                line,
                to_90=of_seeds(to_copy(line), "not reached") if scored else UNKNOWN,
                delay=delay_of(line),
                alarm=of_seeds(line.alarms, "never") if line.alarms else UNKNOWN,
            )
        )
    return rows


def delay_of(line: PriceLine) -> str:
    """The time until a copy by the owner's rate limit, in words."""
    return delay(line.hours_to_90).replace(" ", FIXED) or UNKNOWN


def _prices(lines: Sequence[PriceLine]) -> list[PriceRow]:
    """The price lines of attacks that ran, the cheapest copy first within each form of answers."""
    modes = list(dict.fromkeys(line.mode for line in lines))

    def order(line: PriceLine) -> tuple[float, ...]:
        return modes.index(line.mode), median_to_copy(line) or math.inf, -(line.mean or 0.0)

    rows = []
    for line in sorted((line for line in lines if line.cells), key=order):
        shares = [share for share in line.agreement if share is not None]
        between = UNKNOWN
        if len(shares) > 1:
            between = f"{min(shares):.1%} to {max(shares):.1%}".replace(" ", FIXED)
        at = {level: of_seeds(to_copy(line, level), "not reached") for level in line.queries_to}
        figures = line.row, line.mode, line.mean, line.balanced
        price = line.cost_to_90, delay_of(line)
        rows.append(PriceRow(*figures, between, at if shares else {}, *price))
    return rows


def _constant_row(audit: AuditResult) -> Iterator[PriceRow]:
    """The row of one answer to everything, which asks nothing, where it agrees on more than
    half.
    """
    games = audit.games
    if Beside(games.constant).is_large:
        figures = games.constant, games.constant_balanced
        yield PriceRow("one answer to everything", UNKNOWN, *figures, UNKNOWN, {})


def of_seeds(counts: Sequence[int | None], never: str) -> str:
    """Median over seeds, and how many are known, if not all."""
    reached = sum(count is not None for count in counts)
    middle = middle_of(counts)
    if middle is None:
        text = f"in {reached} of {len(counts)}" if reached else never
    elif reached == len(counts):
        text = f"{middle:,.0f}"
    else:
        text = f"{middle:,.0f} ({reached} of {len(counts)})"
    return text.replace(" ", FIXED)
