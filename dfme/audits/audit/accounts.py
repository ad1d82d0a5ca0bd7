"""An audit's attacks from many accounts: which record their queries, and what limits would see.

Nobody rotates accounts: queries that one client sent are dealt out afterwards, on the owner's side.
"""

import math
import os
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from dfme.audits.audit.account_parts import AccountShare, ManyAccounts, SplitAlarm
from dfme.audits.audit.ladder import ImageRate, delay, parse_rate
from dfme.audits.audit.options import AuditConfig
from dfme.audits.audit.parts import CellResult, NotRun
from dfme.audits.audit.price_parts import PriceLine
from dfme.audits.audit.prices import median_to_copy, of_mode
from dfme.audits.audit.result import AuditResult
from dfme.audits.compare.figures import Outcome
from dfme.audits.compare.plan import NO_DEFENCE, Cell, ComparisonPlan
from dfme.data.recorded_queries import QueryForm
from dfme.measured import ACCOUNTS, SplitAttack
from dfme.report.run_files import read_object
from dfme.run.directory import QUERIES
from dfme.spec import ImageSpec, Shape

WHAT = "the attacks from many accounts"
DEALT = "in turn"
SOON = 1.25
"""A quarter more queries than there were at an alarm."""
ON_FILE = "accounts.json"
MAX_RECORD = 1_000_000_000
"""Bytes of an attack's recorded queries, unless ``--record-queries`` is given."""
CLASSES = 1_000  # of a teacher whose classes nobody states; more of them take more bytes


# Which attacks record their queries


def recording(
    first: ComparisonPlan, config: AuditConfig, shape: Shape | None, stated: bool
) -> tuple[ComparisonPlan, list[NotRun]]:
    """The comparison whose attacks on the model's own answers, of the first seed, record their
    queries, for as long as detectors watch them.

    ``stated``: ``--record-queries`` was given, and counts for all attacks. A record of more than
    ``MAX_RECORD`` is left out.
    """
    if not first.cells[0].job.teacher.watch:
        return first, []
    if stated:
        recorded = first.cells[0].job.config.record_queries
        return first, [] if recorded else [NotRun(WHAT, "--record-queries false")]
    cells = []
    largest = 0
    for cell in first.cells:
        teacher = cell.job.teacher
        spec = None if shape is None else ImageSpec(shape, levels=teacher.levels)
        size = cell.budget * query_bytes(spec, teacher.num_classes or CLASSES) if spec else 0
        wanted = (cell.mode, cell.seed) == (config.label_modes[0], config.seeds[0])
        if wanted:
            largest = max(largest, size)
        if wanted and size <= MAX_RECORD:
            job = cell.job
            job = replace(job, config=replace(job.config, record_queries=True))
            cell = replace(cell, job=job)
        cells.append(cell)
    left_out = []
    if largest > MAX_RECORD:
        why = f"an attack's queries take {largest / 1e9:.1f} GB on disk; add --record-queries true"
        left_out.append(NotRun(WHAT, why))
    return replace(first, cells=tuple(cells)), left_out


def query_bytes(spec: ImageSpec, classes: int) -> int:
    """Bytes of a recorded query, with a distance."""
    return QueryForm(spec.shape, spec.bounds, spec.levels, classes, True).image_bytes


def recorded_cells(plan: ComparisonPlan) -> list[Cell]:
    """The cells that record their queries."""
    return [cell for cell in plan.cells if cell.job.config.record_queries]


def recorded_runs(
    plan: ComparisonPlan, runs: Iterable[Outcome], config: AuditConfig
) -> dict[str, Path]:
    """The queries of finished attacks on the model's own answers, of the first seed, by name."""
    folders = {}
    for run in runs:
        cell = run.cell
        folder = plan.directory(cell) / QUERIES
        wanted = (cell.mode, cell.seed) == (config.label_modes[0], config.seeds[0])
        bare = cell.attempt.runs == NO_DEFENCE
        if run.state == "finished" and wanted and bare and os.path.lexists(folder):
            folders[cell.name] = folder
    return folders


def key_of(out: Path, watch: Sequence[str], recorded: Iterable[str]) -> list[str]:
    """What the scores on file are to be of: these detectors and attacks, or more."""
    key = [*watch, *recorded]
    stored = _stored(out)
    return stored if {*key} <= {*stored} else key


def is_scored(out: Path, plan: ComparisonPlan) -> bool:
    """Whether the scores of all attacks that record their queries are on file."""
    return {cell.name for cell in recorded_cells(plan)} <= {*_stored(out)}


def _stored(out: Path) -> list[str]:
    stored = read_object(out / ON_FILE).get("of")
    return [str(name) for name in stored] if isinstance(stored, list) else []


# What they come to


def agreement_by(cell: CellResult, images: int | None, constant: float | None) -> float | None:
    """The agreement of a cell's copy in its last evaluation with at most ``SOON`` times so many
    images, and before the first what one answer to everything has.

    A copy that learns in rounds has learned nothing yet from the answers of its round; where the
    round ends much later, they are worth more than this.
    """
    if images is None:
        return None
    most = SOON * images
    scored = (point.agreement for point in reversed(cell.curve) if point.queries <= most)
    return next(scored, constant)


def many_accounts(audit: AuditResult, rows: Sequence[SplitAttack]) -> ManyAccounts | None:
    """The audit's part on many accounts; None where no attack's queries were scored so."""
    cells = {cell.name: cell for cell in audit.cells}
    rows = [row for row in rows if row.cell in cells]
    names = {row.cell for row in rows}
    lines = [line for line in audit.price if names & {*line.cells}]
    free = [line for line in lines if line.pictures != "like"] or lines
    best = of_mode(free, audit.target.label_mode)
    if best is None:
        return None
    alarms = [_alarm(row, cells[row.cell], audit.games.constant) for row in rows]
    median = median_to_copy(best)
    queries = math.ceil(best.budget if median is None else median)
    part = ManyAccounts(
        attacker=best.row,
        queries=queries,
        copied=median is not None,
        dealt=DEALT,
        alarms=alarms,
        shares=[_share(audit, accounts, queries) for accounts in ACCOUNTS],
        text="",
    )
    return replace(part, text=f"{_counted(part, best)} {_limits(part, audit)}")


def _alarm(row: SplitAttack, cell: CellResult, constant: float | None) -> SplitAlarm:
    return SplitAlarm(
        cell=row.cell,
        row=cell.row,
        mode=cell.mode,
        seed=cell.seed,
        detector=row.detector,
        accounts=row.accounts,
        images=row.images,
        most=row.most,
        alarmed=row.alarmed,
        first_alarm=row.first_alarm,
        agreement_at_alarm=agreement_by(cell, row.first_alarm, constant),
    )


def _share(audit: AuditResult, accounts: int, queries: int) -> AccountShare:
    most = -(-queries // accounts)
    quota = audit.quota.images if audit.quota else None
    rate = None if audit.options.rate is None else parse_rate(audit.options.rate)
    return AccountShare(
        accounts=accounts,
        most=most,
        within_quota=most <= quota if quota else None,
        hours=None if rate is None else rate.hours(queries / accounts),
    )


def _counted(part: ManyAccounts, best: PriceLine) -> str:
    """A sentence on how many detectors raised an alarm at the queries of one account, and of most
    accounts.
    """
    of_best = [alarm for alarm in part.alarms if alarm.cell in best.cells]
    detectors = len({alarm.detector for alarm in of_best})
    raised = [alarm.accounts for alarm in of_best if alarm.first_alarm is not None]
    alone, many = (raised.count(accounts) or "none" for accounts in (ACCOUNTS[0], ACCOUNTS[-1]))
    text = f"Of {detectors} detectors {alone} raised an alarm at the queries of {best.row}"
    text += f" from one account, {many} from {ACCOUNTS[-1]:,}."
    of_all = dict.fromkeys(alarm.detector for alarm in of_best if alarm.alarmed is None)
    if of_all:
        text += (
            f" {', '.join(of_all)} looks at the traffic of all accounts, which is this attack "
            "alone here: among honest images it sees less."
        )
    return text


def _accounts(count: int) -> str:
    return f"{count:,} account" if count == 1 else f"{count:,} accounts"


def time_at_limit(share: AccountShare, rate: ImageRate) -> str:
    """The time that the owner's rate limit takes, in words. It holds up no account that may ask all
    of its share at once, in the first term.
    """
    if share.most <= rate.images:
        return f"no longer than the first {rate.term}"
    return delay(share.hours)


def _limits(part: ManyAccounts, audit: AuditResult) -> str:
    """A sentence on what limits of a key, and of all keys together, see."""
    last = part.shares[-1]
    what = "its copy takes" if part.copied else "it asked"
    seen = f"Of the {part.queries:,} queries that {what}, a limit on each key counts {last.most:,}"
    text = [f"{seen} where {_accounts(last.accounts)} share them"]
    passing = next((share for share in part.shares if share.within_quota), None)
    if passing and audit.quota:
        whom = _accounts(passing.accounts)
        text.append(f"your quota of {audit.quota.images:,} for a key does not stop {whom}")
    if audit.options.rate is not None:
        rate = parse_rate(audit.options.rate)
        alone, shared = (time_at_limit(share, rate) for share in (part.shares[0], last))
        times = f"{alone} from one account, {shared} from {_accounts(last.accounts)}"
        text.append(f"at your limit they take {times}")
    text.append(f"a limit on all keys together counts {part.queries:,}, however many share them")
    return "; ".join(text) + "."
