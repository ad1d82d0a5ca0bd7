"""The words of an audit: two sentences with the price, and at most three lines what to do, each from a measured row."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dfme.benchmarks.audit.findings import COPY, Findings, Row, bill, median, strongest, to_copy
from dfme.benchmarks.compare.attackers import NO_DEFENCE
from dfme.benchmarks.compare.defended import gains
from dfme.benchmarks.compare.figures import Spread
from dfme.report.facts import wilson_interval
from dfme.spec import LabelMode

SHOWN = 3
"""Lines what to do."""

RANDOM = "random order"
"""The honest stream on which a detector that is recommended must not have rung."""


def headline(of: Findings, lines: Sequence[Row]) -> Row:
    """The price of a copy from the teacher's own answers and from labels alone, in figures and in two sentences."""
    best, labels = _price(of, lines, of.own), None
    if LabelMode.parse(of.own).kind != "label" and any(line["mode"] == "label" for line in lines):
        paid = (bill(of.utility, "label") or {}).get("held_out", {})
        labels = {**_price(of, lines, "label"), "l1_mean": paid.get("l1_mean")}
    sentences = [_first(of, best), _second(of, labels)]
    found = {"level": COPY, "mode": of.own, **best, "labels": labels, "sentences": sentences}
    return found


def _price(of: Findings, lines: Sequence[Row], mode: str) -> Row:
    line = strongest(lines, mode)
    if line is None:
        return {"attacker": None, "queries": [], "median": None, "cost": None, "best_agreement": None}
    middle, values = median(to_copy(line)), [share for share in line["agreement"] if share is not None]
    return {
        "attacker": line["row"],
        "queries": line["queries_to"][f"{COPY:g}"],
        "median": middle,
        "cost": of.cost(middle),
        "best_agreement": {"mean": line["mean"], "sd": line["sd"], "n": len(values)},
    }


def _first(of: Findings, best: Row) -> str:
    held = (of.example.get("evaluation") or {}).get("held_back")
    images = f"{of.images:,} held-{'back generated queries' if held else 'out images'}"
    copy = f"a copy that agrees with your model on {COPY:.0%} of {images}"
    if best["attacker"] is None:
        return f"What {copy} costs is not known: no attack has finished."
    by = f"by {best['attacker']}, the best attacker we ran"
    if best["median"] is None:
        few = sum(count is not None for count in best["queries"])
        some = f"in {few} of {len(best['queries'])} seeds alone ({_seeds(of, best)}), " if few else ""
        mean = f"its students agree on {best['best_agreement']['mean']:.1%} on average"
        reached = f"{some or f'not within {of.budget:,} queries, '}{by}: {mean}"
        return f"A{copy[1:]} was made {reached}."
    money = "" if best["cost"] is None else f", {best['cost']:,.2f} at your price"
    return f"A{copy[1:]} costs {best['median']:,.0f} queries ({_seeds(of, best)}){money}, {by}."


def _seeds(of: Findings, best: Row) -> str:
    """The queries of each seed."""
    texts = ["not reached" if count is None else f"{count:,}" for count in best["queries"]]
    return f"{'seeds' if len(texts) > 1 else f'seed {of.seeds[0]} alone'}: {', '.join(texts)}"


def _second(of: Findings, labels: Row | None) -> str:
    if labels is None or labels["attacker"] is None:
        own = LabelMode.parse(of.own).kind == "label"
        return "Your model answers labels alone already." if own else "What labels alone would cost was not measured."
    change = (
        "" if labels["l1_mean"] is None else f"; your users' answers would change by {labels['l1_mean']:.2f} on average"
    )
    if labels["median"] is not None:
        money = "" if labels["cost"] is None else f", {labels['cost']:,.2f} at your price"
        return f"With labels alone it costs {labels['median']:,.0f} queries{money}{change}."
    mean = f"{labels['best_agreement']['mean']:.1%}"
    few = sum(count is not None for count in labels["queries"])
    reached = f"{few} of {len(labels['queries'])} seeds got there" if few else f"none did within {of.budget:,} queries"
    return f"With labels alone {reached}, and the best students agree on {mean} on average{change}."


def advice(of: Findings, audit: Mapping[str, Any]) -> list[Row]:
    """What helps by more than seeds and images can tell, the largest effect first; or that nothing does."""
    found = [
        *_modes(of, audit["price"]),
        *_defences(of, audit["defences"]),
        *_watch(audit["detection"], audit["headline"]),
    ]
    found.sort(key=lambda each: -each[0])
    lines = [
        {"text": text, "effect": f"{100 * gain:.1f} points of agreement less", "from": at} for gain, text, at in found
    ]
    nothing = (
        "Nothing here helps: no switch that was tried takes more from the best attacker we ran than chance explains."
    )
    return lines[:SHOWN] or [{"text": nothing, "effect": "none", "from": "price"}]


def _helps(of: Findings, before: Spread, after: Spread) -> bool:
    """Whether agreement falls by more than the spread over seeds, and than images can tell."""
    if not of.images or not gains(before, after):
        return False
    return wilson_interval(before.mean, of.images)[0] > wilson_interval(after.mean, of.images)[1]


def _of(told: Row) -> Spread:
    return Spread(told["mean"], told["sd"], told.get("n", 1))


def _modes(of: Findings, lines: Sequence[Row]) -> Iterator[tuple[float, str, str]]:
    """Label modes beside the teacher's own: the agreement of the best attacker of each."""
    scored = [line for line in lines if line["mean"] is not None]
    best = {line["mode"]: line for line in sorted(scored, key=lambda line: line["mean"])}
    before = best.pop(of.own, None)
    for mode, line in best.items():
        if before is not None and _helps(of, _of(before), _of(line)):
            what = "labels alone" if mode == "label" else mode
            text = f"Answer {what}: the best attacker we ran agrees on {line['mean']:.1%}, not {before['mean']:.1%}"
            yield before["mean"] - line["mean"], text + _paid(of, mode), f"price.{lines.index(line)}"


def _defences(of: Findings, tried: Sequence[Row]) -> Iterator[tuple[float, str, str]]:
    before = next((line["best_score"] for line in tried if line["defence"] == NO_DEFENCE), None)
    for at, line in enumerate(tried):
        after = line["best_score"]
        if before and after and line["defence"] != NO_DEFENCE and _helps(of, _of(before), _of(after)):
            what = f"Switch on {line['defence']}"
            if line["defence"].startswith("quota"):
                what = f"Give no client more than {line['defence'].partition('=')[2]} images ({line['defence']})"
            text = f"{what}: its best attacker we ran agrees on {after['mean']:.1%}, not {before['mean']:.1%}"
            yield before["mean"] - after["mean"], text + _paid(of, line["defence"]), f"defences.{at}"


def _paid(of: Findings, name: str) -> str:
    paid = (bill(of.utility, name) or {}).get("held_out", {})
    if paid.get("l1_mean") is None:
        return "."
    lost = paid.get("accuracy_drop")
    accuracy = "" if lost is None else f" and they lose {100 * lost:.1f} points of accuracy"
    return f"; your users' answers change by {paid['l1_mean']:.2f} on average{accuracy}."


def _watch(told: Row | None, head: Row) -> Iterator[tuple[float, str, str]]:
    """The detector that leaves the worst attack least, of those that never rang in honest images in random order."""
    loud = {each["detector"] for each in (told or {}).get("benign", ()) if each["stream"] == RANDOM and each["alarms"]}
    every: dict[str, list[tuple[float, Row, int]]] = {}
    for at, each in enumerate((told or {}).get("attacks", ())):
        if (each["mode"], each["defence"]) == (head["mode"], NO_DEFENCE) and each["detector"] not in loud:
            worth = each["agreement_at_alarm"] if each["first_alarm"] is not None else 1.0
            every.setdefault(each["detector"], []).append((1.0 if worth is None else worth, each, at))
    worst = [max(of, key=lambda pair: pair[0]) for of in every.values()]
    best = min(worst, key=lambda pair: pair[0], default=None)
    reached = (head["best_agreement"] or {}).get("mean")
    if best is None or reached is None or best[1]["first_alarm"] is None or best[0] >= reached:
        return
    share, each, at = best
    streams = (
        [line for line in told["benign"] if (line["detector"], line["stream"]) == (each["detector"], RANDOM)]
        if told
        else []
    )
    honest = "".join(f"; in {line['sessions']} honest sessions it never did" for line in streams)
    text = f"Watch with {each['detector']}, and stop whom it names: it rang in every attack, in the worst at image "
    text += f"{each['first_alarm']:,}, when the copy agreed on {share:.1%}{honest}."
    yield reached - share, text, f"detection.attacks.{at}"
