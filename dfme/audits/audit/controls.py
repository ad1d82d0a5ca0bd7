"""What an audit's figures are evidence for, in catalogues of controls; it never says that one is
met.
"""

from typing import NamedTuple

from dfme.audits.audit.result import AuditResult, Control
from dfme.audits.compare.plan import NO_DEFENCE

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
