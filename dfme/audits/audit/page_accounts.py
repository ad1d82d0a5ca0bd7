"""The page's table of attacks from many accounts."""

from collections.abc import Sequence
from dataclasses import dataclass

from dfme.audits.audit.account_parts import SplitAlarm
from dfme.audits.audit.page_parts import FIXED, PageTable, across
from dfme.audits.audit.result import AuditResult
from dfme.measured import HonestStream

MAX_DETECTORS = 5  # on the page, which has six sheets; the appendix has all
CAPTION = (
    "Split over accounts that share {}'s {:,} queries (accounts x queries of each): queries of all "
    "accounts until the first alarm, and the copy's agreement with a quarter more at most"
)


@dataclass(frozen=True)
class AccountsRow:
    """A cell of the table: what a detector said with so many accounts, of at most so many queries
    each.
    """

    detector: str
    accounts: int
    most: int
    text: str


def accounts_table(audit: AuditResult) -> PageTable | None:
    """What the detectors that hold longest say of the strongest attack; None where nothing was
    scored.
    """
    part = audit.accounts
    alarms = [alarm for alarm in part.alarms if alarm.row == part.attacker] if part else []
    if part is None or not alarms:
        return None
    detectors = _longest(alarms)
    shown = [alarm for alarm in alarms if alarm.detector in detectors]
    shown.sort(key=lambda alarm: detectors.index(alarm.detector))
    rows = [
        AccountsRow(alarm.detector, alarm.accounts, alarm.most, _text(alarm)) for alarm in shown
    ]
    caption = CAPTION.format(part.attacker, max(alarm.images for alarm in alarms))
    return across(caption, rows, {"Detector": "{detector}"}, "{accounts:,} x {most:,}", "{text}")


def _longest(alarms: list[SplitAlarm]) -> list[str]:
    """Detectors with an alarm, those first that raise one from most accounts, and then earliest."""
    raised = [alarm for alarm in alarms if alarm.first_alarm is not None]
    raised.sort(key=lambda alarm: (-alarm.accounts, alarm.first_alarm))
    return list(dict.fromkeys(alarm.detector for alarm in raised))[:MAX_DETECTORS]


def _text(alarm: SplitAlarm) -> str:
    if alarm.first_alarm is None:
        return "never"
    share = alarm.agreement_at_alarm
    worth = "" if share is None else f"{FIXED}({share:.0%})"
    return f"{alarm.first_alarm:,}{worth}"


HONEST = (
    "Honest accounts of all streams with an alarm within so many queries, as many as an account of "
    "the attack has; below, of the stream with most"
)


@dataclass(frozen=True)
class HonestRow:
    """Honest accounts that raised an alarm within so many queries, in words; ``worst``: the stream
    with most of them.
    """

    detector: str
    queries: int
    text: str
    worst: str


def honest_table(audit: AuditResult) -> PageTable | None:
    """How many honest accounts as short as the strongest attack's raise an alarm; None where
    nothing was scored, or nobody kept when their alarms were.
    """
    part = audit.accounts
    streams = [stream for stream in _streams(audit) if stream.first_alarms]
    if part is None or audit.detection is None or not streams:
        return None
    lengths = {alarm.most for alarm in part.alarms if alarm.row == part.attacker}
    rows = []
    for detector in dict.fromkeys(stream.detector for stream in streams):
        own = [stream for stream in streams if stream.detector == detector]
        for length in sorted(lengths, reverse=True):
            if length <= audit.detection.session:
                rows.append(_honest(detector, length, own))
    return across(HONEST, rows, {"Detector": "{detector}"}, "{queries:,}", "{text}|{worst}")


def _streams(audit: AuditResult) -> Sequence[HonestStream]:
    return audit.detection.benign if audit.detection else ()


def _honest(detector: str, length: int, streams: Sequence[HonestStream]) -> HonestRow:
    counts = [
        sum(first is not None and first <= length for first in stream.first_alarms)
        for stream in streams
    ]
    sessions = sum(len(stream.first_alarms) for stream in streams)
    most = max(counts)
    worst = streams[counts.index(most)]
    text = f"{worst.stream}: {most} of {len(worst.first_alarms)}" if most else ""
    return HonestRow(detector, length, f"{sum(counts)} of {sessions}", text)
