"""Text of an audit: three sentences with the price, advice, limits of the figures, and the model
card.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from dfme.audits.audit.findings import COPY, Findings, median_to_copy, strongest, to_copy
from dfme.audits.audit.model import Entry
from dfme.config.messages import printable
from dfme.queries.names import WORTH_NOTHING
from dfme.report.facts import is_above
from dfme.report.markdown import plain
from dfme.run.job import shown_command

JUDGED = {True: "holds", False: "FAILS", None: "NOT KNOWN"}  # words of a verdict
FAILED = "This shows that these attacks failed, not that the model is safe"
GATES = (
    "We do not advise a gate (misinform): it lets somebody with images of your task pass, and no "
    "such attacker was run against it."
)
DATA_FREE = "Only attackers without images were run against defences and quotas."
SCALE = "on a scale from 0 to 2"  # of an L1 change

ATLAS = {
    "AML.T0040": "AI Model Inference API Access",
    "AML.T0024.002": "Extract AI Model",
    "AML.T0005.001": "Train Proxy via Replication",
    "AML.T0043.002": "Black-Box Transfer",
    "AML.T0048.004": "AI Intellectual Property Theft",
}
TAXONOMY = {
    "atlas": [{"id": key, "name": name} for key, name in ATLAS.items()],
    "owasp": ["ML05:2023 Model Theft"],
}
"""Names of the threat in MITRE ATLAS 5.6.1 and OWASP's list."""


def headline(of: Findings, seeds: Sequence[int]) -> Entry:
    """Price of a copy from the teacher's own answers, and from labels alone, in figures and two
    sentences.
    """
    line = strongest(of.free, of.own)
    best = {**_price(of, line), "mode": line["mode"] if line else of.own}
    labels = None
    if of.own != "label" and any(line["mode"] == "label" for line in of.free):
        labels = {
            **_price(of, strongest(of.free, "label")),
            "l1_mean": of.paid("label").get("l1_mean"),
        }
    modes = dict.fromkeys(line["mode"] for line in of.like if line["mode"] in (of.own, "label"))
    like = [{"mode": mode, **_price(of, _of_mode(of.like, mode))} for mode in modes]
    first = _first(of, best, seeds) + ("" if best["median"] else of.one_sided(line))
    sentences = [first, *_third(of), _second(of, labels)]
    return {"level": COPY, **best, "labels": labels, "like": like, "sentences": sentences}


def _of_mode(lines: Sequence[Entry], mode: str) -> Entry | None:
    """The strongest attacker on this form of answers alone."""
    return strongest([line for line in lines if line["mode"] == mode], mode)


def _price(of: Findings, line: Entry | None) -> Entry:
    if line is None:
        return {
            "attacker": None,
            "knows": None,
            "median": None,
            "cost": None,
            "best_agreement": None,
            "queries": [],
            "by_seed": [],
            "balanced": None,
        }
    middle = median_to_copy(line)
    return {
        "attacker": line["row"],
        "knows": line["knows"],
        "queries": line["queries_to"][f"{COPY:g}"],
        "median": middle,
        "cost": of.cost(middle),
        "by_seed": seeds_text(line, f"{COPY:g}"),
        "balanced": line["balanced"],
        "best_agreement": {"mean": line["mean"], "sd": line["sd"], "n": len(to_copy(line))},
    }


def _first(of: Findings, best: Entry, seeds: Sequence[int]) -> str:
    held_back = (of.example.get("evaluation") or {}).get("held_back")
    images = f"{of.images:,} held-{'back generated queries' if held_back else 'out images'}"
    constant = "" if of.constant is None else f" (one constant answer: {of.constant:.1%})"
    copy = f"copy that agrees with your model on {COPY:.0%} of {images}{constant}"
    if best["attacker"] is None:
        return f"What a copy costs is not known: no attack on your model's {of.own} has finished."
    mean = best["best_agreement"]["mean"]
    runs = best["best_agreement"]["n"]
    counts = [count for count in best["queries"] if count is not None]
    whom = f" an attacker who knows that it is for {best['knows']}" if best["knows"] else ""
    if best["knows"] in WORTH_NOTHING:
        whom = f" an attacker who draws for {best['knows']}"
    by = ", by labels alone" if best["mode"] != of.own else ""
    more = _balanced(of, best["balanced"])
    if best["median"] is not None:
        told = [] if best["cost"] is None else [f"{best['cost']:,.2f} at your price"]
        told += [f"{len(counts)} of {runs} runs made one" if len(counts) < runs else _range(counts)]
        if runs < len(seeds):
            told.append(f"{len(seeds) - runs} more failed")
        price = f"{best['median']:,.0f} queries{by} ({'; '.join(told)})"
        return f"A {copy} costs{whom} {price}.{more}"
    # no better than one answer to everything, as far as the images can tell
    if of.constant is not None and not is_above(mean, of.constant, of.images):
        nothing = f"one constant answer agrees on {of.constant:.1%}. {FAILED}.{more}"
        return (
            f"No attack {_free(of)}copied your model: after {of.budget:,} queries the best copy "
            f"agrees on {mean:.1%} of {images}; {nothing}"
        )
    named = f"({best['attacker']}{by})"
    best_of = f"copies {named} agree" if runs > 1 else f"copy {named} agrees"
    after = f"the best {best_of} on {mean:.1%}"
    if counts:
        made = f"Only {len(counts)} of {runs} runs made a {copy}"
        return f"{made}: after {of.budget:,} queries {after}.{more}"
    return (
        f"No attack {_free(of)}made a {copy} within {of.budget:,} queries: {after}. {FAILED}.{more}"
    )


def _balanced(of: Findings, balanced: float | None) -> str:
    """A sentence with the agreement that a constant answer does not flatter, where it flatters the
    other.
    """
    if not of.beside.is_large or balanced is None:
        return ""
    constant = of.beside.balanced
    beside = "" if constant is None else f", one constant answer on {constant:.1%}"
    return (
        " With each class of your model counting alike, the best copy agrees on "
        f"{balanced:.1%}{beside}."
    )


def _shares(of: Findings, line: Entry) -> str:
    """An agreement in a sentence, balanced too where a constant answer agrees on over half."""
    told = f"{line['mean']:.1%}"
    if of.beside.is_large and line["balanced"] is not None:
        told += f" (with each class counting alike on {line['balanced']:.1%})"
    return told


def _free(of: Findings) -> str:
    return "" if of.free[0]["has_images"] else "without images "


def _range(counts: Sequence[int]) -> str:
    if len(counts) == 1:
        return "one run"
    between = f"{min(counts):,}" if len({*counts}) == 1 else f"{min(counts):,} to {max(counts):,}"
    return f"{between} in {len(counts)} runs"


def _third(of: Findings) -> list[str]:
    """The price for somebody with images like the owner's; nothing where every attacker has
    some.
    """
    if of.free[:1] and of.free[0]["has_images"]:
        return []
    own = _of_mode(of.like, of.own)
    if own is None:
        return [
            "The price for somebody with images like yours is not known: no such attack has "
            "finished."
        ]
    labels = strongest(of.like, "label") if of.own != "label" else None
    told = f"Somebody with {own['budget']:,} images like yours {_gets(of, own)}."
    if labels is not None:
        told += (
            f" If your model answered labels alone, this attacker {_gets(of, labels, 'would ')}."
        )
    return [told]


def _gets(of: Findings, line: Entry, would: str = "") -> str:
    end = "" if would else "s"
    if (middle := median_to_copy(line)) is None:
        made = f"{would}make{end} a copy that agrees on {_shares(of, line)}"
        if not is_above(line["mean"], of.constant, of.images):
            made = (
                f"{would}make{end} no copy: what it learns agrees on "
                f"{_shares(of, line)}, no more than one"
            )
            made += " constant answer,"
        return f"{made} after {line['budget']:,} queries"
    return (
        f"{would}need{end} {middle:,.0f} queries for such a copy{_money({'cost': of.cost(middle)})}"
    )


def seeds_text(line: Entry, level: str) -> list[str]:
    """Queries until an agreement, per seed of a price line; a failed attack counts as unknown."""
    unfinished = {"failed": "failed", "not applicable": "-"}.get(line["state"], "not finished")
    missed = [unfinished if share is None else "not reached" for share in line["agreement"]]
    pairs = zip(line["queries_to"][level], missed, strict=True)
    return [text if count is None else f"{count:,}" for count, text in pairs]


def _money(price: Entry) -> str:
    return "" if price["cost"] is None else f" ({price['cost']:,.2f} at your price)"


def _second(of: Findings, labels: Entry | None) -> str:
    if of.own == "label":
        return "Your model answers with labels alone."
    if labels is None or labels["attacker"] is None:
        return "What a copy from labels alone costs is not known."
    paid = labels["l1_mean"]
    change = (
        ""
        if paid is None
        else f"; your users' answers would change by {paid:.2f} on average, {SCALE}"
    )
    if labels["median"] is not None:
        price = f"{labels['median']:,.0f} queries{_money(labels)}"
        return f"If your model answered labels alone, such a copy would cost {price}{change}."
    reached = sum(count is not None for count in labels["queries"])
    mean = labels["best_agreement"]["mean"]
    runs = labels["best_agreement"]["n"]
    made = f"only {reached} of {runs} runs made" if reached else f"no attack {_free(of)}made"
    made += f" ({len(labels['queries']) - runs} failed)" if runs < len(labels["queries"]) else ""
    agrees = _shares(of, {"mean": mean, "balanced": labels["balanced"]})
    within = f"such a copy within {of.budget:,} queries: the best copy agrees on {agrees}"
    return f"From labels alone, {made} {within}{change}."


def what_it_does_not_tell(of: Findings, seeds: int, local: bool) -> list[str]:
    """The sentences below every audit."""
    rows = ", ".join(dict.fromkeys(line["row"] for line in of.price))
    images = "images of your task"
    if any(line["has_images"] for line in of.price):
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
        f"We measured agreement on {of.images:,} images with {counted}. The 95% intervals are over "
        "images; with fewer than five seeds we state none over seeds.",
        "Prices are upper bounds: a copy may have been as good before the evaluation that showed "
        "it, and an attacker who trains longer pays for no more queries.",
        "Every copy is a net of one architecture. Another may learn far more from the same "
        "answers: name one by --student.arch, your model's own first.",
        *([] if of.holds_data or not local else [GATES]),
        *([DATA_FREE] if of.like and of.defences else []),
        "Every attack came from one client. Several clients divide a quota, and what a detector "
        "sees, among them.",
        "We do not count what an attacker learns elsewhere, such as answers of an earlier version.",
        "The figures hold for this model and these answers. Another model, or this one trained "
        "again, has others.",
        watched,
    ]


def commands(said: str, now: Sequence[str]) -> str:
    """Command that repeats an audit: the recorded words, and the present ones if they change
    something.
    """
    more = {word.partition("=")[0] for word in now if word.startswith("--")} - {"--resume", "--out"}
    return " && ".join(filter(None, (said, shown_command(now) if more or not said else "")))


def model_card(audit: Mapping[str, Any]) -> str:
    """A section for the model's card."""
    made = audit["made"]
    options = audit["options"]
    lines = ["## Extraction resistance", "", *map(plain, audit["headline"]["sentences"]), ""]
    lines += [f"- {plain(each['text'])}" for each in audit["advice"]]
    lines += [
        f"- Limit {JUDGED[each['pass']]}: {plain(each['text'])}" for each in audit["verdicts"]
    ]
    lines += [
        "",
        "What this does not tell:",
        "",
        *(f"- {plain(text)}" for text in audit["limits"]),
        "",
    ]
    seeds = ", ".join(map(str, options["seeds"]))
    how = (
        f"dfme {audit['tool']['dfme']}, {made['started'][:10]}, {options['profile']}, "
        f"seeds {seeds}:"
    )
    return "\n".join([*lines, plain(how), "", f"    {printable(made['command'])}"]) + "\n"
