"""An audit beside one before: what became cheaper or dearer, as far as seeds and images tell, and
what cannot be compared. No torch.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePath
from statistics import median
from typing import NamedTuple

from dfme.audits.audit.beside_parts import AuditHistory, Change, PriceChange, Sameness
from dfme.audits.audit.parts import Interval, NotRun
from dfme.audits.audit.price_parts import PriceLine
from dfme.audits.audit.prices import COPY_LEVEL, median_to_copy, to_copy
from dfme.audits.audit.result import AuditResult, Halves, audit_result
from dfme.config.messages import printable
from dfme.errors import RunError, UserError
from dfme.report.run_files import is_above, read_object
from dfme.statistics import Spread, difference_interval, means_differ

FILE = "audit.json"
ONE_SEED_CHANCE = 0.08
"""What the agreements of two copies by single seeds may differ by (95 %), if copies deviate by .03
between seeds; measured are .005 to .07 (docs/audit.md), so this is a heuristic.
"""
MIN_SEEDS = 3
"""Of each audit, from which on ranges of queries over seeds are compared."""
MIN_FACTOR = 1.5
"""By which medians of queries have to differ: ranges of three seeds each lie apart by chance in one
of ten pairs of equal audits. Heuristic.
"""
MAX_COUNT = 10**12
"""Of images and queries in a file."""
MAX_SHOWN = 60
"""Letters of an option's value in a message."""

Line = tuple[str, str]
"""An attacker's row, and the form of the answers."""


@dataclass(frozen=True)
class AttackForm:
    """What has to be alike for the prices of two attacks to be compared.

    ``options``: those of students and queries; empty where they are not known, and the audit's
    ``profile`` stands for them.
    """

    profile: str
    budget: int
    seeds: int
    options: Mapping[str, str]

    def differing(self, before: "AttackForm") -> Iterator[str]:
        """Options that differ, with both values."""
        if self.budget != before.budget:
            yield _both("--budget", f"{self.budget:,}", f"{before.budget:,}")
        if self.seeds != before.seeds:
            yield _both("--seeds", _count(self.seeds, "seed"), _count(before.seeds, "seed"))
        if not (self.options and before.options):
            if self.profile != before.profile:
                yield _both("--profile", self.profile, before.profile)
            return
        for key in sorted({*self.options, *before.options}):
            now = self.options.get(key, "the default")
            then = before.options.get(key, "the default")
            if now != then:
                yield _both(f"--{key.replace('_', '-')}", now, then)


@dataclass(frozen=True)
class ScoringImages:
    """The images that copies are scored on, as far as they are known: by ``name``, number, digest,
    and the ``halves`` that they are one of.
    """

    name: str | None
    images: int | None
    sha256: str | None
    halves: Halves | None

    def differing(self, before: "ScoringImages") -> Iterator[str]:
        """What differs, with both values. The digests decide, where both are known."""
        if self.sha256 and before.sha256:
            if self.sha256 != before.sha256:
                yield _both("--evaluation.dataset", self.sha256[:12], before.sha256[:12])
            return
        names = [PurePath(scored.name or "").name for scored in (self, before)]
        if names[0] != names[1]:
            yield _both("--evaluation.dataset", *names)
        if self.images and before.images and self.images != before.images:
            yield _both("evaluation images", f"{self.images:,}", f"{before.images:,}")
        if self.halves and before.halves and self.halves.sha256 != before.halves.sha256:
            digests = (halves.sha256[:12] for halves in (self.halves, before.halves))
            yield _both("images held back", *digests)


def _both(what: str, now: str, before: str) -> str:
    values = (printable(value)[:MAX_SHOWN] for value in (now, before))
    return "{} ({} now, {} before)".format(printable(what)[:MAX_SHOWN], *values)


def _count(number: int, unit: str) -> str:
    return f"{number:,} {unit}" if number == 1 else f"{number:,} {unit}s"


def read_before(text: str, out: Path) -> AuditResult:
    """A finished audit of a file, or of its folder. UserError, in one line, for anything else, and
    for the audit that is in ``out``.
    """
    path = Path(os.path.expanduser(text))
    path = path / FILE if path.is_dir() else path
    named = f"--against {printable(text):.200}"
    if not path.is_file():
        raise UserError(f"{named}: expected the {FILE} of an audit before, or its folder")
    if os.path.realpath(path) == os.path.realpath(out / FILE):
        raise UserError(f"{named}: expected the audit before, got the one that is to be made")
    try:
        before = audit_result(read_object(path))
    except RunError as error:
        fault = str(error).partition("; ")[0].removeprefix(f"{FILE}: ")
        raise UserError(f"{named}: {fault}; make that audit again") from None
    if not before.made.finished:
        raise UserError(f"{named}: expected a finished audit; resume that one first")
    if (figure := _impossible(before)) is not None:
        raise UserError(f"{named}: expected figures of an audit, got {figure}; make that one again")
    return before


def _impossible(audit: AuditResult) -> str | None:
    """A figure that no audit has and no statistic can take, if there is one: a stranger's file has
    numbers of the right types, and no more.
    """
    counts = [audit.target.evaluation.images]
    shares = [audit.games.constant]
    for line in audit.price:
        counts += [line.budget, *(count for runs in line.queries_to.values() for count in runs)]
        shares += [line.mean, line.sd, *line.agreement]
    for count in counts:
        if count is not None and not 0 <= count <= MAX_COUNT:
            return f"{str(count)[:20]} images or queries"
    for share in shares:
        if share is not None and not 0 <= share <= 1:
            return f"an agreement of {share:.3g}"
    return None


def require_comparable(
    forms: Mapping[Line, AttackForm], scored: ScoringImages, before: AuditResult
) -> None:
    """UserError where no attack that is planned can be compared with one of the audit before, with
    the options that differ.
    """
    then = _forms_of(before)
    reasons = [*scored.differing(_scored_on(before))]
    common = [line for line in forms if line in then]
    if not reasons:
        alike = [line for line in common if not [*forms[line].differing(then[line])]]
        if alike:
            return
        for line in common:
            reasons += forms[line].differing(then[line])
    if not common:
        rows = (", ".join(dict.fromkeys(row for row, _ in lines)) for lines in (forms, then))
        reasons.append(_both("--attackers", *rows))
    raise UserError(
        "--against: expected an audit with which something can be compared; these differ: "
        f"{'; '.join(dict.fromkeys(reasons))}"
    )


def _forms_of(audit: AuditResult) -> dict[Line, AttackForm]:
    """The attacks of an audit that finished for at least one seed."""
    profile = audit.options.profile
    forms = {}
    for line in audit.price:
        seeds = sum(share is not None for share in line.agreement)
        if seeds and line.mean is not None:
            form = AttackForm(profile, line.budget, seeds, line.attack)
            forms[line.row, line.mode] = form
    return forms


def _scored_on(audit: AuditResult) -> ScoringImages:
    on = audit.target.evaluation
    return ScoringImages(on.name, on.images, on.sha256, audit.halves)


def history(audit: AuditResult, before: AuditResult) -> AuditHistory:
    """What the audit says beside the one before."""
    now = _forms_of(audit)
    then = _forms_of(before)
    others = [*_scored_on(audit).differing(_scored_on(before))]
    lines = list[PriceChange]()
    left_out = list[NotRun]()
    old_lines = {(line.row, line.mode): line for line in before.price}
    for line in audit.price:
        place = line.row, line.mode
        if place not in now:
            continue
        reasons = [*others]
        if place in then:
            reasons += now[place].differing(then[place])
        else:
            reasons.append("it has no finished attack in the audit before")
        if reasons:
            left_out.append(NotRun(", ".join(place), "; ".join(reasons)))
        else:
            lines.append(_change(_Side(line, audit), _Side(old_lines[place], before)))
    left_out += [
        NotRun(", ".join(place), "it has no finished attack in this audit")
        for place in then
        if place not in now
    ]
    held = {verdict.stated for verdict in before.verdicts if verdict.holds}
    limits = [
        verdict.stated
        for verdict in audit.verdicts
        if verdict.holds is False and verdict.stated in held
    ]
    counted = (audit.target.label_mode, "label")
    result = AuditHistory(
        started=before.made.started,
        dfme=before.tool.dfme,
        model=_same(audit.target.files, before.target.files),
        images=_same(audit.target.evaluation.sha256, before.target.evaluation.sha256),
        lines=lines,
        left_out=left_out,
        limits=limits,
        fails=any(line.change == "cheaper" and line.mode in counted for line in lines),
        text=[],
    )
    known = all(form.options for form in (*now.values(), *then.values()))
    text = [*_text(result, audit.tool.dfme, known), *_switched(audit, before)]
    return replace(result, text=text)


def _switched(audit: AuditResult, before: AuditResult) -> Iterator[str]:
    """A sentence where the model's owner changed the form of its answers since."""
    now = audit.target.label_mode
    then = before.target.label_mode
    if now != then:
        yield f"Your model answers {printable(now)} now, and answered {printable(then)} then."


def _same(now: object, before: object) -> Sameness:
    if not now or not before:
        return "not known"
    return "same" if now == before else "other"


class _Side(NamedTuple):
    """A price line, and the audit that it is of."""

    line: PriceLine
    audit: AuditResult

    @property
    def spread(self) -> Spread:
        line = self.line
        return Spread(line.mean or 0.0, line.sd, sum(part is not None for part in line.agreement))

    @property
    def images(self) -> int:
        return self.audit.target.evaluation.images or 0

    @property
    def is_copy(self) -> bool:
        """True if it is shown to be above one constant answer."""
        return is_above(self.spread.mean, self.audit.games.constant, self.images)


def _change(now: _Side, before: _Side) -> PriceChange:
    """A line's change; a copy that is not above a constant answer is none, and changes nothing."""
    seeds = now.spread.count
    difference = Interval(0.0, 0.0)
    if now.images and before.images:
        shares = now.spread.mean, now.images, before.spread.mean, before.images
        difference = Interval(*difference_interval(*shares))
    more = agreement_change(now.spread, before.spread, difference)
    fewer = _fewer_queries(to_copy(now.line), to_copy(before.line))
    told = {more, fewer} - {0}
    change: Change = "cannot be told"
    if told == {1} and now.is_copy:
        change = "cheaper"
    elif told == {-1} and before.is_copy:
        change = "dearer"
    return PriceChange(
        row=now.line.row,
        mode=now.line.mode,
        change=change,
        agreement=(before.spread.mean, now.spread.mean),
        difference=difference,
        queries=(median_to_copy(before.line), median_to_copy(now.line)),
        seeds=seeds,
        text=_line_text(change, now, before, difference),
    )


def agreement_change(now: Spread, before: Spread, difference: Interval) -> int:
    """1 where agreement rose by more than images and seeds explain, -1 where it fell, else 0.

    ``difference``: its interval over images. One seed knows nothing of other seeds: the interval is
    widened by ``ONE_SEED_CHANCE`` then.
    """
    chance = ONE_SEED_CHANCE if min(now.count, before.count) < 2 else 0.0
    if not chance and not means_differ(now, before):
        return 0
    if difference.low > chance:
        return 1
    return -1 if difference.high < -chance else 0


def _fewer_queries(now: Sequence[int | None], before: Sequence[int | None]) -> int:
    """1 where every seed needed fewer queries for a copy than any before, and the median by
    ``MIN_FACTOR``, -1 where it needed more, else 0; at least ``MIN_SEEDS`` have to have made one in
    both.
    """
    counts = [count for count in now if count is not None]
    counts_before = [count for count in before if count is not None]
    least = min(len(counts), len(counts_before))
    if least < MIN_SEEDS or len(counts) < len(now) or len(counts_before) < len(before):
        return 0
    factor = max(median(counts_before), 1) / max(median(counts), 1)  # 0: of public weights
    if max(counts) < min(counts_before) and factor >= MIN_FACTOR:
        return 1
    return -1 if min(counts) > max(counts_before) and 1 / factor >= MIN_FACTOR else 0


def _line_text(change: Change, now: _Side, before: _Side, difference: Interval) -> str:
    low, high = (f"{100 * end:+.1f}" for end in difference)
    seeds = now.spread.count
    text = (
        f"{now.line.row}, {now.line.mode}: {change}. The copy agrees on {now.spread.mean:.1%}, "
        f"before on {before.spread.mean:.1%} (95% interval of the difference over images {low} to "
        f"{high} points; {_count(seeds, 'seed')})"
    )
    medians = [median_to_copy(side.line) for side in (now, before)]
    if any(count is not None for count in medians):
        queries = ["not reached" if count is None else f"{count:,.0f}" for count in medians]
        text += f"; queries to {float(COPY_LEVEL):.0%}: {queries[0]}, before {queries[1]}"
    return f"{text}."


def _text(history: AuditHistory, version: str, known: bool) -> list[str]:
    """The sentences before the lines: counts, the model, the images, seeds and options."""
    releases = f"dfme {printable(history.dfme)}"
    if history.dfme != version:
        releases += f", this one with {version}, which may change figures by itself"
    cheaper, dearer, unknown = (
        len(history.of(change)) for change in ("cheaper", "dearer", "cannot be told")
    )
    left_out = ""
    if history.left_out:
        left_out = f"; {len(history.left_out)} more could not be compared"
    texts = [
        f"Compared with the audit of {printable(history.started)[:10]} ({releases}): of "
        f"{_count(len(history.lines), 'price')}, one for each attacker and form of answers, "
        f"{cheaper} became cheaper and {dearer} dearer, and for {unknown} no change can be told"
        f"{left_out}."
    ]
    texts.append(
        {
            "same": "Both audits are of the same model files.",
            "other": "The model's files are not those of then.",
            "not known": "Whether the model is the same as then is not known: not both audits have "
            "digests of its files.",
        }[history.model]
    )
    if history.images == "not known":
        texts.append("That the evaluation images are the same is known by name and number alone.")
    if any(line.seeds == 1 for line in history.lines):
        texts.append(
            "One seed does not show how much copies by other seeds differ: a change counts only "
            f"where its 95% interval lies beyond {100 * ONE_SEED_CHANCE:.0f} points. Three seeds "
            "(--seeds 0,1,2) show smaller ones."
        )
    if history.lines and not known:
        texts.append("Not both audits say their students' options; their profiles are the same.")
    texts += [f"Your limit {limit} held then, and fails now." for limit in history.limits]
    return texts
