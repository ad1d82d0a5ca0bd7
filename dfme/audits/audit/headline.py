"""Text of an audit: two sentences with the price, advice, limits of the figures, and the model card."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dfme.audits.audit.findings import COPY, Findings, median_to_copy, strongest, to_copy
from dfme.audits.audit.model import Entry
from dfme.audits.compare.figures import Spread
from dfme.audits.compare.plan import NO_DEFENCE
from dfme.audits.compare.table import gains
from dfme.report.facts import wilson_interval

JUDGED = {True: "holds", False: "FAILS", None: "NOT KNOWN"}  # words of a verdict
ADVICE = 3  # lines what to do
FAILED = "This shows that these attacks failed, not that the model is safe"
NOTHING = "Nothing here helps: no switch takes more from the best attacker we ran than chance explains."
GATES = "A gate (misinform) is not advised: nobody with images of your task, whom it lets pass, attacked it."
DATA_FREE = "Defences and quotas were tried on attackers without images alone."
UNTRIED = "No switch of yours was tried: see what was not run, and why."

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
    """Price of a copy from the teacher's own answers, and from labels alone, in figures and two sentences."""
    best = _price(of, of.free, of.own)
    labels = None
    if of.own != "label" and any(line["mode"] == "label" for line in of.free):
        labels = {**_price(of, of.free, "label"), "l1_mean": of.paid("label").get("l1_mean")}
    modes = dict.fromkeys(line["mode"] for line in of.like if line["mode"] in (of.own, "label"))
    like = [{"mode": mode, **_price(of, of.like, mode)} for mode in modes]
    sentences = [_first(of, best, seeds), *_third(of), _second(of, labels)]
    return {"level": COPY, "mode": of.own, **best, "labels": labels, "like": like, "sentences": sentences}


def _price(of: Findings, lines: Sequence[Entry], mode: str) -> Entry:
    line = strongest(lines, mode)
    if line is None:
        unknown = dict.fromkeys(("attacker", "knows", "median", "cost", "best_agreement"))
        return {**unknown, "queries": [], "by_seed": []}
    middle = median_to_copy(line)
    told = {"mean": line["mean"], "sd": line["sd"], "n": len(to_copy(line))}
    queries = {"queries": line["queries_to"][f"{COPY:g}"], "median": middle, "cost": of.cost(middle)}
    queries |= {"by_seed": seeds_text(line, f"{COPY:g}")}
    return {"attacker": line["row"], "knows": line["knows"], **queries, "best_agreement": told}


def _first(of: Findings, best: Entry, seeds: Sequence[int]) -> str:
    held_back = (of.example.get("evaluation") or {}).get("held_back")
    images = f"{of.images:,} held-{'back generated queries' if held_back else 'out images'}"
    copy = f"A copy that agrees with your model on {COPY:.0%} of {images}"
    if best["attacker"] is None:
        return f"What a copy costs is not known: no attack on {of.own} has finished."
    texts = best["by_seed"]
    told = f"seeds: {', '.join(texts)}" if len(texts) > 1 else f"seed {seeds[0]} alone"
    knowing = f", who knows that it is for {best['knows']}" if best["knows"] else ""
    by = f"{best['attacker']}, the best attacker we ran{knowing}"
    if best["median"] is not None:
        return f"{copy} costs {best['median']:,.0f} queries ({told}){_money(best)}; it is of {by}."
    mean = best["best_agreement"]["mean"]
    if of.is_no_copy(mean):
        free = " without images" if not of.free[0]["has_images"] else ""
        return (
            f"No attack that we ran{free} copied your model: after {of.budget:,} queries the best agrees on "
            f"{mean:.1%} of {images}, where one constant answer agrees on {of.constant:.1%}. {FAILED}."
        )
    if any(best["queries"]):
        return f"{copy} was not made in most seeds ({told}): those of {by}, agree on {mean:.1%}."
    return f"{copy} was not made within {of.budget:,} queries: those of {by}, agree on {mean:.1%}. {FAILED}."


def _third(of: Findings) -> list[str]:
    """The price for somebody with images like the owner's; nothing where every attacker has some."""
    if of.free[:1] and of.free[0]["has_images"]:
        return []
    own = strongest(of.like, of.own)
    if own is None:
        return ["What it costs somebody with images like yours is not known: no such attack ran to its end."]
    labels = strongest(of.like, "label") if of.own != "label" else None
    also = f"; from labels alone, the same attacker {_gets(of, labels)}" if labels else ""
    return [f"Somebody with {own['budget']:,} images like yours {_gets(of, own)}{also}."]


def _gets(of: Findings, line: Entry) -> str:
    if (middle := median_to_copy(line)) is None:
        return f"agrees on {line['mean']:.1%} after {line['budget']:,} queries"
    return f"needs {middle:,.0f} queries for such a copy{_money({'cost': of.cost(middle)})}"


def seeds_text(line: Entry, level: str) -> list[str]:
    """Queries until an agreement, per seed of a price line; a failed attack counts as unknown."""
    unfinished = {"failed": "failed", "not applicable": "-"}.get(line["state"], "not finished")
    missed = [unfinished if share is None else "not reached" for share in line["agreement"]]
    pairs = zip(line["queries_to"][level], missed, strict=True)
    return [text if count is None else f"{count:,}" for count, text in pairs]


def _money(price: Entry) -> str:
    return "" if price["cost"] is None else f", {price['cost']:,.2f} at your price"


def _second(of: Findings, labels: Entry | None) -> str:
    if of.own == "label":
        return "Your model answers labels alone."
    if labels is None or labels["attacker"] is None:
        return "What it costs with labels alone is not known."
    paid = labels["l1_mean"]
    change = "" if paid is None else f"; your users' answers would change by {paid:.2f} on average"
    if labels["median"] is not None:
        return f"With labels alone it costs {labels['median']:,.0f} queries{_money(labels)}{change}."
    reached = sum(count is not None for count in labels["queries"])
    mean = labels["best_agreement"]["mean"]
    finished = labels["best_agreement"]["n"]
    made = f"one was made in {reached} of {finished} seeds" if reached else "none was made"
    made += f" ({len(labels['queries']) - finished} failed)" if finished < len(labels["queries"]) else ""
    return f"With labels alone {made} within {of.budget:,} queries: the best agree on {mean:.1%}{change}."


def advice(of: Findings, detection: Entry | None) -> list[Entry]:
    """What helps beyond chance of seeds and images, largest effect first; or that nothing does."""
    told = [
        {"text": text, "effect": f"{100 * gain:.1f} points of agreement less", "from": at}
        for gain, text, at in sorted([*_switches(of), *_watch(of, detection)], key=lambda each: -each[0])
    ]
    tried = detection or len([*of.switches()]) > 1
    return told[:ADVICE] or [{"text": NOTHING if tried else UNTRIED, "effect": "none", "from": "price.0"}]


def _switches(of: Findings) -> Iterator[tuple[float, str, str]]:
    switches = [*of.switches()]
    if not switches or switches[0][0] != NO_DEFENCE:
        return
    before = switches[0][2]
    cheapest = sorted(switches[1:], key=lambda each: of.paid(each[0]).get("l1_mean") or 0.0)
    for name, kind, after, at in cheapest:  # of equal effect the first
        if _helps(of, before, after) and ("misinform" not in name or of.holds_data):
            answers = f"Answer {'labels alone' if name == 'label' else name}"
            what = answers if kind == "label mode" else f"Switch on {name}"
            if name.startswith("quota"):
                what = f"Answer no client more than {int(name.partition('=')[2]):,} images ({name})"
            text = f"{what}: the best attacker agrees on {after.mean:.1%} in place of {before.mean:.1%}"
            paid = of.paid(name).get("l1_mean")
            lost = of.paid(name).get("accuracy_drop")
            text += "" if paid is None else f"; your users' answers change by {paid:.2f} on average"
            text += "" if lost is None else f", and their accuracy falls by {100 * lost:.1f} points"
            means = [
                [line["mean"] or 0.0 for line in of.like if line["mode"] == mode] for mode in (of.own, name)
            ]
            if all(shares := [max(each, default=0.0) for each in means]):
                text += (
                    f"; somebody with images like yours agrees on {shares[1]:.1%} in place of {shares[0]:.1%}"
                )
            yield before.mean - after.mean, f"{text}.", at


def _helps(of: Findings, before: Spread, after: Spread) -> bool:
    """True if agreement falls by more than the spread over seeds, and than the images can tell."""
    if not of.images or not gains(before, after):
        return False
    return wilson_interval(before.mean, of.images)[0] > wilson_interval(after.mean, of.images)[1]


def _watch(of: Findings, told: Entry | None) -> Iterator[tuple[float, str, str]]:
    """The detector with alarms in the fewest honest streams; of equal ones the best against attacks."""
    benign, attacks = ((told or {}).get(name, ()) for name in ("benign", "attacks"))
    before = next((score for name, _, score, _ in of.switches() if name == NO_DEFENCE), None)
    able = list[tuple[int, float, int, list[Entry]]]()
    for name in dict.fromkeys(each["detector"] for each in benign):
        streams = [each for each in benign if each["detector"] == name]
        place = name, of.own, NO_DEFENCE
        rung = [
            (1.0 if (worth := each["agreement_at_alarm"]) is None else worth, at)
            for at, each in enumerate(attacks)
            if (each["detector"], each["mode"], each["defence"]) == place
        ]
        worst = max(rung, default=(1.0, 0))
        quiet = not any(each["alarms"] for each in streams if each["stream"] == "random order")
        if quiet and before is not None and _helps(of, before, Spread(worst[0], None, 1)):
            able.append((sum(bool(each["alarms"]) for each in streams), *worst, streams))
    if before is None or not able:
        return
    _, share, at, streams = min(able, key=lambda one: one[:2])
    wrong = [one for one in streams if one["alarms"]]
    false = [f"{one['sessions_with_alarm']} of {one['sessions']} {one['stream']}" for one in wrong]
    honest = ", ".join(false) or f"none of {sum(one['sessions'] for one in streams)}"
    most = max(one["per_10000_upper"] for one in streams)
    text = f"Watch with {attacks[at]['detector']}, and stop whom it names: it raised an alarm in every "
    text += f"attack, in the worst at image {attacks[at]['first_alarm']:,} of its budget, where the copy "
    text += f"agreed on {share:.1%} in place of {before.mean:.1%}; of honest sessions in {honest} (at most "
    text += f"{most:,.0f} alarms in 10,000 images, as far as yours can tell)."
    yield before.mean - share, text, f"detection.attacks.{at}"


def what_it_does_not_tell(of: Findings, seeds: int, local: bool) -> list[str]:
    """The sentences below every audit."""
    rows = ", ".join(dict.fromkeys(line["row"] for line in of.price))
    images = "more " * any(line["has_images"] for line in of.price) + "images of your task"
    watched = "Which defences or watches the service has is not known here, and none was tried."
    if local:
        watched = "Honest streams were made from your evaluation images; your real traffic is another."
    return [
        f"The attackers that ran are {rows}; a stronger one, or one with {images}, may need fewer queries. A "
        "copy that was not made says that these attacks failed, never that the model is safe.",
        f"Shares are of {of.images:,} images and {seeds} seed{'s' * (seeds > 1)}; intervals are over images, "
        "and stand beside them; below five seeds none is claimed for those.",
        "Prices are upper bounds: a copy may have been as good before the evaluation that saw it, and "
        "training longer costs an attacker no query.",
        *([] if of.holds_data or not local else [GATES]),
        *([DATA_FREE] if of.like and of.defences else []),
        "Every attack was one client: several divide a quota, and what a watch sees, among them.",
        "What an attacker learns elsewhere is not counted, such as an earlier version's answers.",
        "Figures hold for this model and these answers; another, or this one trained again, has others.",
        watched,
    ]


def commands(said: str, now: Sequence[str]) -> str:
    """Command that repeats an audit: the recorded words, and the present ones if they change something."""
    more = {word.partition("=")[0] for word in now if word.startswith("--")} - {"--resume", "--out"}
    return " && ".join(filter(None, (said, shlex.join(now) if more or not said else "")))


def model_card(audit: Mapping[str, Any]) -> str:
    """A section for the model's card."""
    made = audit["made"]
    options = audit["options"]
    lines = ["## Extraction resistance", "", *audit["headline"]["sentences"], ""]
    lines += [f"- {each['text']}" for each in audit["advice"]]
    lines += [f"- Limit {JUDGED[each['pass']]}: {each['text']}" for each in audit["verdicts"]]
    lines += ["", "What this does not tell:", "", *(f"- {text}" for text in audit["limits"]), ""]
    seeds = ", ".join(map(str, options["seeds"]))
    how = f"dfme {audit['tool']['dfme']}, {made['started'][:10]}, {options['profile']}, seeds {seeds}:"
    return "\n".join([*lines, how, "", f"    {made['command']}"]) + "\n"
