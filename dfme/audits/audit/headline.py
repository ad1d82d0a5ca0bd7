"""Text of an audit: three sentences with the price, advice, limits of the figures, and the model
card.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from dfme.audits.audit.drills import drill_text, of_whom
from dfme.audits.audit.findings import Findings
from dfme.audits.audit.ladder import WEIGHTS, delay, whom
from dfme.audits.audit.price_parts import (
    CopyPrice,
    Headline,
    LabelsPrice,
    LikePrice,
    PriceLine,
)
from dfme.audits.audit.prices import (
    COPY,
    COPY_LEVEL,
    median_to_copy,
    of_mode,
    seeds_text,
    strongest,
    to_copy,
)
from dfme.audits.audit.result import (
    AuditResult,
    CommonRequirement,
    Taxonomy,
    Technique,
)
from dfme.config.messages import printable
from dfme.report.markdown import plain
from dfme.report.run_files import is_above
from dfme.run.job import shown_command
from dfme.statistics import Spread

JUDGED = {True: "holds", False: "FAILS", None: "NOT KNOWN"}  # words of a verdict
FAILED = "This shows that these attacks failed, not that the model is safe"
GATES = (
    "We do not advise a gate (misinform): it lets somebody with images of your task pass, and no "
    "such attacker was run against it."
)
DATA_FREE = "Only attackers without images were run against defences."
SCALE = "on a scale from 0 to 2"  # of an L1 change

ATLAS = {
    "AML.T0040": "AI Model Inference API Access",
    "AML.T0024.002": "Extract AI Model",
    "AML.T0005.001": "Train Proxy via Replication",
    "AML.T0043.002": "Black-Box Transfer",
    "AML.T0048.004": "AI Intellectual Property Theft",
}
OPENCRE = {
    "141-385": "model exfiltration",
    "187-083": "rate limiting against AI input attacks",
    "637-021": "watermarking AI models",
}
TAXONOMY = Taxonomy(
    atlas=[Technique(*pair) for pair in ATLAS.items()],
    owasp=["ML05:2023 Model Theft"],
    opencre=[CommonRequirement(*pair, "OWASP AI Exchange") for pair in OPENCRE.items()],
)
"""Names of the threat in MITRE ATLAS 5.6.1, OWASP's list, and OpenCRE as the AI Exchange has it."""


PriceForm = TypeVar("PriceForm", bound=CopyPrice)


def headline(findings: Findings, seeds: Sequence[int]) -> Headline:
    """Price of a copy from the teacher's own answers, and from labels alone, in figures and two
    sentences.
    """
    free = findings.without_like
    line = strongest(free, findings.mode)
    labels = None
    if findings.mode != "label" and any(line.mode == "label" for line in free):
        of_labels = partial(LabelsPrice, l1_mean=findings.l1_mean("label"))
        labels = _price(findings, strongest(free, "label"), of_labels)
    modes = dict.fromkeys(line.mode for line in findings.with_like)
    like = [
        _price(findings, of_mode(findings.with_like, mode), partial(LikePrice, mode=mode))
        for mode in modes
        if mode in (findings.mode, "label")
    ]
    form = partial(
        Headline,
        level=COPY,
        mode=line.mode if line else findings.mode,
        labels=labels,
        like=like,
        sentences=_sentences(findings, line, labels, seeds),
    )
    return _price(findings, line, form)


def _sentences(
    findings: Findings, line: PriceLine | None, labels: LabelsPrice | None, seeds: Sequence[int]
) -> list[str]:
    """The price without images like the owner's, with some, and by labels alone; where a level was
    not reached, who was not tried.
    """
    sentences = [_first(findings, line, seeds), *_third(findings), _second(findings, labels)]
    missed = line is not None and None in to_copy(line)
    by_labels = labels is not None and None in labels.queries
    if findings.not_tried and missed:
        sentences[0] += f" {findings.not_tried}"
    elif findings.not_tried and by_labels:
        sentences[-1] += f" {findings.not_tried}"
    return sentences


def _price(findings: Findings, line: PriceLine | None, form: Callable[..., PriceForm]) -> PriceForm:
    if line is None:
        return form(
            attacker=None,
            has="",
            knows=None,
            queries=[],
            median=None,
            cost=None,
            hours=None,
            by_seed=[],
            balanced=None,
            best_agreement=None,
        )
    median = median_to_copy(line)
    return form(
        attacker=line.row,
        has=line.has,
        knows=line.knows,
        queries=line.queries_to[COPY_LEVEL],
        median=median,
        cost=findings.cost(median),
        hours=findings.hours(median),
        by_seed=seeds_text(line),
        balanced=line.balanced,
        best_agreement=Spread(line.mean or 0.0, line.sd, len(to_copy(line))),
    )


def _first(findings: Findings, line: PriceLine | None, seeds: Sequence[int]) -> str:
    held_back = (findings.example.get("evaluation") or {}).get("held_back")
    constant = findings.constant
    images = f"{findings.images:,} held-{'back generated queries' if held_back else 'out images'}"
    beside = "" if constant is None else f" (one constant answer: {constant:.1%})"
    copy = f"copy that agrees with your model on {COPY:.0%} of {images}{beside}"
    if line is None or line.mean is None:
        mode = findings.mode
        return f"What a copy costs is not known: no attack on your model's {mode} has finished."
    runs = to_copy(line)
    counts = [count for count in runs if count is not None]
    by = ", by labels alone" if line.mode != findings.mode else ""
    balanced = _balanced(findings, line.balanced)
    median = median_to_copy(line)
    if median is not None:
        details = _price_words(findings, median)
        some = f"{len(counts)} of {len(runs)} runs made one"
        details.append(some if len(counts) < len(runs) else _range(counts))
        if len(runs) < len(seeds):
            details.append(f"{len(seeds) - len(runs)} more failed")
        return (
            f"A {copy} costs{whom(line)} {median:,.0f} queries{by} "
            f"({'; '.join(details)}).{balanced}"
        )
    one_sided = findings.one_sided(line)
    without = _without_images(findings)
    # no better than one answer to everything, as far as the images can tell
    if constant is not None and not is_above(line.mean, constant, findings.images):
        return (
            f"No attack {without}copied your model: after {findings.budget:,} queries the best "
            f"copy agrees on {line.mean:.1%} of {images}; one constant answer agrees on "
            f"{constant:.1%}. {FAILED}.{balanced}{one_sided}"
        )
    had = f", with {line.has}" if line.weights else ""
    named = f"({line.row}{by}{had})"
    best = f"copies {named} agree" if len(runs) > 1 else f"copy {named} agrees"
    after = f"the best {best} on {line.mean:.1%}"
    if counts:
        some = f"Only {len(counts)} of {len(runs)} runs made a {copy}"
        return f"{some}: after {findings.budget:,} queries {after}.{balanced}{one_sided}"
    return (
        f"No attack {without}made a {copy} within {findings.budget:,} queries: {after}. "
        f"{FAILED}.{balanced}{one_sided}"
    )


def _balanced(findings: Findings, balanced: float | None) -> str:
    """A sentence with the agreement that a constant answer does not flatter, where it flatters the
    other.
    """
    if not findings.beside.is_large or balanced is None:
        return ""
    constant = findings.beside.balanced
    beside = "" if constant is None else f", one constant answer on {constant:.1%}"
    return (
        " With each class of your model counting alike, the best copy agrees on "
        f"{balanced:.1%}{beside}."
    )


def _shares(findings: Findings, mean: float, balanced: float | None) -> str:
    """An agreement in a sentence, balanced too where a constant answer agrees on over half."""
    text = f"{mean:.1%}"
    if findings.beside.is_large and balanced is not None:
        text += f" (with each class counting alike on {balanced:.1%})"
    return text


def _without_images(findings: Findings) -> str:
    """What an attacker of the first sentence lacks, in words before a verb."""
    pictures = {line.pictures for line in findings.without_like}
    if "like" in pictures:
        return ""
    return "without images like yours " if "public" in pictures else "without images "


def _range(counts: Sequence[int]) -> str:
    if len(counts) == 1:
        return "one run"
    between = f"{min(counts):,}" if len({*counts}) == 1 else f"{min(counts):,} to {max(counts):,}"
    return f"{between} in {len(counts)} runs"


def _third(findings: Findings) -> list[str]:
    """The price for somebody with images like the owner's; nothing where every attacker has
    some.
    """
    lines = findings.with_like
    if findings.without_like[:1] and findings.without_like[0].pictures == "like":
        return []
    line = of_mode(lines, findings.mode)
    if line is None:
        return [
            "The price for somebody with images like yours is not known: no such attack has "
            "finished."
        ]
    text = f"{_somebody(line)} {_gets(findings, line)}."
    labels = strongest(lines, "label") if findings.mode != "label" else None
    if labels is not None:
        price = _gets(findings, labels, "would ")
        same = labels.row == line.row
        who = "this attacker" if same else _somebody(labels).replace("S", "s", 1)
        text += f" If your model answered labels alone, {who} {price}."
    return [text]


def _somebody(line: PriceLine) -> str:
    """An attacker with images like the owner's, as a sentence begins."""
    weights = "" if line.weights is None else f" and {WEIGHTS} ({line.weights})"
    return f"Somebody with {line.budget:,} images like yours{weights}"


def _gets(findings: Findings, line: PriceLine, would: str = "") -> str:
    end = "" if would else "s"
    median = median_to_copy(line)
    if median is not None:
        price = _money(findings, median)
        return f"{would}need{end} {median:,.0f} queries for such a copy{price}"
    mean = line.mean or 0.0
    shares = _shares(findings, mean, line.balanced)
    outcome = f"{would}make{end} a copy that agrees on {shares}"
    if not is_above(mean, findings.constant, findings.images):
        outcome = (
            f"{would}make{end} no copy: what it learns agrees on {shares}, no more than "
            "one constant answer,"
        )
    return f"{outcome} after {line.budget:,} queries"


def _price_words(findings: Findings, queries: float | None) -> list[str]:
    """The money and the delay of so many queries, as far as the owner states price and limit."""
    details = []
    if (cost := findings.cost(queries)) is not None:
        details.append(f"{cost:,.2f} at your price")
    if findings.rate is not None and (hours := findings.hours(queries)) is not None:
        details.append(f"{delay(hours)} at your limit of {findings.rate.text}")
    return details


def _money(findings: Findings, queries: float | None) -> str:
    details = _price_words(findings, queries)
    return f" ({'; '.join(details)})" if details else ""


def _second(findings: Findings, labels: LabelsPrice | None) -> str:
    if findings.mode == "label":
        return "Your model answers with labels alone."
    best = labels.best_agreement if labels else None
    if labels is None or best is None:
        return "What a copy from labels alone costs is not known."
    change = ""
    if labels.l1_mean is not None:
        change = f"; your users' answers would change by {labels.l1_mean:.2f} on average, {SCALE}"
    if labels.median is not None:
        return (
            "If your model answered labels alone, such a copy would cost "
            f"{labels.median:,.0f} queries{_money(findings, labels.median)}{change}."
        )
    seeds = len(labels.queries)
    copies = sum(count is not None for count in labels.queries)
    outcome = f"no attack {_without_images(findings)}made"
    if copies:
        outcome = f"only {copies} of {best.count} runs made"
    if best.count < seeds:
        outcome += f" ({seeds - best.count} failed)"
    agrees = _shares(findings, best.mean, labels.balanced)
    return (
        f"From labels alone, {outcome} such a copy within {findings.budget:,} queries: the "
        f"best copy agrees on {agrees}{change}."
    )


ONE_CLIENT = "Every attack came from one client. "
DIVIDED = "Several clients divide a quota, and what a detector sees, among them."
SPLIT = (
    "We dealt its queries out to many accounts afterwards, in turn; accounts that share what they "
    "learn in another way may be seen later, or never."
)


def what_it_does_not_tell(
    findings: Findings, seeds: int, local: bool, split: bool = False
) -> list[str]:
    """The sentences below every audit. ``split``: attacks were scored as from many accounts."""
    rows = ", ".join(dict.fromkeys(line.row for line in findings.price))
    images = "images of your task"
    if any(line.has_images for line in findings.price):
        images = f"more {images}"
    counted = f"{seeds} seeds" if seeds > 1 else f"{seeds} seed"
    watched = "We do not know which defences or detectors the service has, and tried none."
    if local:
        watched = (
            "We made the honest streams from your evaluation images; your real traffic differs."
        )
    return [
        f"We ran the attackers {rows}. A stronger one, or one with {images}, may need fewer "
        "queries. Where no copy was made, these attacks failed; that does not show that the model "
        "is safe.",
        *([findings.not_tried] if findings.not_tried else []),
        f"We measured agreement on {findings.images:,} images with {counted}. The 95% intervals "
        "are over images; with fewer than five seeds we state none over seeds.",
        "Prices are upper bounds: a copy may have been as good before the evaluation that showed "
        "it, and an attacker who trains longer pays for no more queries.",
        "Every copy is a net of one architecture. Another may learn far more from the same "
        "answers: name one by --student.arch, your model's own first.",
        *([] if findings.holds_data or not local else [GATES]),
        *([DATA_FREE] if findings.without_images != findings.price and findings.defences else []),
        ONE_CLIENT + (SPLIT if split else DIVIDED),
        "We do not count what an attacker learns elsewhere, such as answers of an earlier version.",
        "The figures hold for this model and these answers. Another model, or this one trained "
        "again, has others.",
        watched,
    ]


def commands(before: str, words: Sequence[str]) -> str:
    """Command that repeats an audit: the recorded one, and the present words if they change
    something.
    """
    flags = {word.partition("=")[0] for word in words if word.startswith("--")}
    if before and not flags - {"--resume", "--out"}:
        return before
    return " && ".join(filter(None, (before, shown_command(words))))


def model_card(audit: AuditResult) -> str:
    """A section for the model's card."""
    lines = ["## Extraction resistance", "", *map(plain, audit.headline.sentences), ""]
    lines += [f"- {plain(advice.text)}" for advice in audit.advice]
    lines += [
        f"- Limit {JUDGED[verdict.holds]}: {plain(verdict.text)}" for verdict in audit.verdicts
    ]
    lines += [f"- {plain(text)}" for text in audit.findings]
    if audit.history is not None:
        lines.append(f"- {plain(' '.join(audit.history.text))}")
        lines += [f"  - {plain(line.text)}" for line in audit.history.changed]
    if audit.drill is not None:
        of = of_whom(audit.drill, audit.target.name)
        lines.append(f"- {plain(f'{drill_text(audit.drill)} {of}')}")
    lines += [
        "",
        "What this does not tell:",
        "",
        *(f"- {plain(text)}" for text in audit.limits),
        "",
    ]
    seeds = ", ".join(map(str, audit.options.seeds))
    how = (
        f"dfme {audit.tool.dfme}, {audit.made.started[:10]}, {audit.options.profile}, "
        f"seeds {seeds}:"
    )
    return "\n".join([*lines, plain(how), "", f"    {printable(audit.made.command)}"]) + "\n"
