"""What an audit's figures are evidence for in catalogues of controls; it never says that one is
met. No torch.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from dfme.audits.audit.drills import drill_text, response_text
from dfme.audits.audit.ladder import delay, parse_rate
from dfme.audits.audit.parts import WatchedAttack
from dfme.audits.audit.price_parts import PriceLine
from dfme.audits.audit.prices import median_to_copy, strongest, usable
from dfme.audits.audit.result import AuditResult
from dfme.audits.audit.sheet_parts import Control
from dfme.audits.audit.sheets import waits
from dfme.errors import UserError
from dfme.spec import LabelMode

AISVS = "OWASP AISVS", "1.0", "2026"
GUIDE = "OWASP AI Testing Guide", "AITG-APP-09", "23 November 2025"
EXCHANGE = "OWASP AI Exchange", "as published", "22 August 2026"
ATLAS = "MITRE ATLAS", "2026.05", "27 May 2026"
NIST = "NIST AI 100-2", "E2025", "24 March 2025"
EU = "EU AI Act", "Regulation (EU) 2024/1689", "13 June 2024"
DRAFT = "prEN 18282", "draft", "enquiry of 7 May 2026"
CONTROLS = (
    (
        AISVS,
        "11.2.2, for each account",
        "a limit for each account, sized by what an extraction needs",
        "limits",
    ),
    (
        AISVS,
        "11.2.2, for all together",
        "a limit for all accounts together, sized by what an extraction needs",
        "images",
    ),
    (AISVS, "11.3.1", "a detector of extraction that is fed with the patterns of queries", "watch"),
    (
        AISVS,
        "11.3.2",
        "answers no more detailed than the risk of extraction allows, raw outputs kept inside",
        "forms",
    ),
    (AISVS, "11.3.3", "a mark or fingerprint by which a copy can be recognised", "copies"),
    (AISVS, "11.3.4", "a suspected extraction sets off a response", "response"),
    (AISVS, "12.2.4", "alarms of an extraction that say which queries raised them", "alarms"),
    (GUIDE, "AITG-APP-09", "a copy's agreement after 1,000 to 5,000 queries", "test"),
    (
        EXCHANGE,
        "rate limit",
        "limits for each actor and for all, judged by the time that an attack then takes",
        "delay",
    ),
    (EXCHANGE, "model exfiltration", "to know what a copy through the answers costs", "price"),
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
    (
        DRAFT,
        "public scope",
        "to prevent, detect, answer, resolve and control attacks, also those on secrecy (we read "
        "its public scope alone)",
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
    directories = {cell.name: cell.dir for cell in audit.cells}
    figures = _figures(audit)
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


def _figures(audit: AuditResult) -> Mapping[str, _Figure | None]:
    """The figures by their names in ``CONTROLS``; None: not measured."""
    headline = audit.headline
    labels = headline.labels.attacker if headline.labels else None
    quotas = _quotas(audit)
    sentences = headline.sentences[:-1] or headline.sentences
    price = _price(audit, headline.mode, headline.attacker, sentences)
    cheapest = strongest(audit.price, audit.target.label_mode)
    return {
        "alarms": _alarms(audit),
        "copies": _copies(audit),
        "delay": _delay(audit, cheapest),
        "forms": _forms(audit),
        "images": _images(cheapest),
        "labels": _price(audit, "label", labels, headline.sentences[-1:]),
        "limits": quotas or price,
        "price": price,
        "quotas": quotas,
        "response": _response(audit),
        "test": _test(audit),
        "watch": _watch(audit),
    }


def _price(
    audit: AuditResult, mode: str, attacker: str | None, sentences: Sequence[str]
) -> _Figure | None:
    """Sentences of the headline, and a cell of the attacker of the first one."""
    for line in audit.price:
        if (line.row, line.mode) == (attacker, mode) and line.cells:
            return _Figure(" ".join(sentences), line.cells[0])
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


def _by(line: PriceLine) -> str:
    return f"by somebody with {line.has}" if line.has else f"by {line.row}"


def _images(line: PriceLine | None) -> _Figure | None:
    """The images that all accounts of the cheapest copy need together."""
    queries = median_to_copy(line) if line else None
    if line is None or not line.cells:
        return None
    text = f"No attack made a copy within {line.budget:,} images of all its accounts together."
    if queries is not None:
        text = (
            f"The cheapest copy, {_by(line)}, needs {queries:,.0f} images of all its accounts "
            "together, however many they are."
        )
    return _Figure(text, line.cells[0])


def _delay(audit: AuditResult, line: PriceLine | None) -> _Figure | None:
    """How long the owner's rate limit, or the quota, holds up the cheapest copy."""
    texts = []
    queries = median_to_copy(line) if line else None
    if line is None or queries is None or not line.cells:
        return None
    if audit.options.rate is not None:
        try:
            rate = parse_rate(audit.options.rate)
        except UserError:  # a document may say anything
            return None
        texts.append(f"{delay(rate.hours(queries))} at your limit of {rate.text}")
    if audit.quota is not None and audit.quota.delays:
        quota = audit.quota
        texts.append(f"{waits(quota)}, at {quota.images:,} images per {quota.per} for each")
    text = f"The cheapest copy ({queries:,.0f} queries, {_by(line)}) takes {'; '.join(texts)}."
    return _Figure(text, line.cells[0]) if texts else None


def _forms(audit: AuditResult) -> _Figure | None:
    """The best copies from the model's own answers and from coarser ones, where any were
    attacked.
    """
    best = dict[str, PriceLine]()
    for line in sorted(audit.price, key=lambda line: line.mean or 0.0):
        if line.mean is not None:
            best[line.mode] = line
    modes = [mode for mode in dict.fromkeys(line.mode for line in audit.price) if mode in best]
    own = audit.target.label_mode
    coarse = _is_coarse(own) or any(mode != own for mode in modes)
    if own not in modes or not coarse:
        return None
    shares = ", ".join(f"{best[mode].mean:.1%} from {_form(mode, own)}" for mode in modes)
    cell = next(iter(best[own].cells), None)
    return _Figure(f"The best copies agree on {shares}.", cell)


def _label_mode(mode: str) -> LabelMode | None:
    """The form of the answers; None where a document has none that there is."""
    try:
        return LabelMode.parse(mode)
    except UserError:
        return None


def _is_coarse(mode: str) -> bool:
    """True if answers of this form are labels, or are rounded."""
    form = _label_mode(mode)
    return form is not None and (form.kind == "label" or form.decimals is not None)


def _form(mode: str, own: str) -> str:
    """A form of answers as people say it."""
    form = _label_mode(mode)
    if mode == own:
        return f"your own answers ({mode})"
    if form is not None and form.decimals is not None:
        return f"{form.decimals} decimals ({mode})"
    return "labels" if mode == "label" else mode


def _test(audit: AuditResult) -> _Figure | None:
    """The catalogue's own test."""
    test = audit.fidelity_test
    if test is None:
        return None
    lines = usable(audit.price, audit.target.label_mode)
    cells = [
        line.cells[0]
        for line in lines
        if (line.row, line.mode) == (test.attacker, test.mode) and line.cells
    ]
    word = test.rating or "it tells nothing, being not above one constant answer"
    text = f"The copy agrees on {test.fidelity:.1%} after at most {test.queries:,} queries: {word}."
    return _Figure(text, next(iter(cells), None))


def _copies(audit: AuditResult) -> _Figure | None:
    """The number of copies that the test of ``run.py verify`` calls more alike than every
    reference, by mistakes and by marks.
    """
    texts = list[str]()
    cells = list[str]()
    recognised = list[str]()
    tests = {
        "The test of run.py verify recognises": audit.recognition,
        "With the mark it recognises": audit.marks,
    }
    for words, test in tests.items():
        copies = dict[str, bool]()
        for row in test.rows if test else ():
            copies |= dict(zip(row.cells, row.recognised, strict=True))
        by_it = [name for name, is_copy in copies.items() if is_copy]
        if copies:
            texts.append(f"{words} {len(by_it)} of {len(copies)} copies.")
        cells += copies
        recognised += by_it
    return _Figure(" ".join(texts), [*recognised, *cells][0]) if cells else None


def _attacks(audit: AuditResult) -> list[WatchedAttack]:
    """What detectors said of the price table's attacks on the model as deployed: attackers of the
    defences' table who are tried on the undefended model, too, are not counted.
    """
    cells = {*audit.cells_of(audit.target.label_mode)}
    attacks = audit.detection.attacks if audit.detection else ()
    return [attack for attack in attacks if attack.cell in cells]


def _count(things: Collection[str], unit: str) -> str:
    return f"{len(things)} {unit}" if len(things) == 1 else f"{len(things)} {unit}s"


def _alarms(audit: AuditResult) -> _Figure | None:
    """How many attacks on the model as deployed raised an alarm."""
    attacks = _attacks(audit)
    watched = dict.fromkeys(attack.cell for attack in attacks)
    raised = dict.fromkeys(attack.cell for attack in attacks if attack.first_alarm is not None)
    text = f"{len(raised)} of {_count(watched, 'attack')} raised an alarm of at least one detector."
    return _Figure(text, next(iter(raised or watched))) if watched else None


def _watch(audit: AuditResult) -> _Figure | None:
    """How many attacks the detectors saw, and what a drill of the owner's own service found."""
    attacks = _attacks(audit)
    cells = dict.fromkeys(attack.cell for attack in attacks)
    detectors = {attack.detector for attack in attacks}
    texts = []
    if cells:
        texts.append(
            f"{_count(detectors, 'detector')} saw all queries of {_count(cells, 'attack')}."
        )
    texts += [drill_text(audit.drill)] if audit.drill else ["No drill was given."]
    if not cells and audit.drill is None:
        return None
    return _Figure(" ".join(texts), next(iter(cells), None))


def _response(audit: AuditResult) -> _Figure | None:
    """Whether the owner's service refused the attack of a drill."""
    return _Figure(response_text(audit.drill), None) if audit.drill else None
