"""The end of an audit on the command line: what it says, and its exit code. No torch."""

from dfme.audits.audit.drills import drill_text, of_whom
from dfme.audits.audit.headline import JUDGED
from dfme.audits.audit.result import AuditResult

FAILS = 4
"""Exit code where a stated limit fails, or a copy became cheaper."""


def last_words(audit: AuditResult) -> list[str]:
    """The lines of the terminal: the price, advice, limits, and what became of the audit before."""
    lines = [*audit.headline.sentences, *(f"- {advice.text}" for advice in audit.advice)]
    lines += audit.findings
    lines += [f"{JUDGED[verdict.holds]}: {verdict.text}" for verdict in audit.verdicts]
    if audit.drill is not None:
        lines.append(f"{drill_text(audit.drill)} {of_whom(audit.drill, audit.target.name)}")
    if audit.history is not None:
        lines.append(" ".join(audit.history.text))
        lines += [f"- {line.text}" for line in audit.history.changed]
    return lines


def exit_code(audit: AuditResult) -> int:
    """0, ``FAILS`` where a limit fails or a copy became cheaper, 1 where an attack failed."""
    cheaper = audit.history is not None and audit.history.fails
    if cheaper or any(verdict.holds is False for verdict in audit.verdicts):
        return FAILS
    return int(any(cell.state == "failed" for cell in audit.cells))
