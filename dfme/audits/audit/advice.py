"""Advice of an audit: what helps beyond chance, and by how much."""

from collections.abc import Iterator

from dfme.audits.audit.findings import Findings
from dfme.audits.audit.headline import SCALE
from dfme.audits.audit.model import Entry
from dfme.audits.compare.attacked import gains
from dfme.audits.compare.figures import Spread
from dfme.audits.compare.plan import NO_DEFENCE
from dfme.report.facts import is_above, wilson_interval

ADVICE = 3  # lines what to do
NOTHING = "No change that we tried helps: none lowers the best copy's agreement beyond chance."
UNTRIED = "We tried no change of your model's answers: see what was not run, and why."


def advice(of: Findings, detection: Entry | None) -> list[Entry]:
    """What helps beyond chance of seeds and images, largest effect first; or that nothing does."""
    told = [
        {"text": text, "effect": f"{100 * gain:.1f} points of agreement less", "from": at}
        for gain, text, at in sorted(
            [*_switches(of), *_watch(of, detection)], key=lambda each: -each[0]
        )
    ]
    tried = detection or len([*of.switches()]) > 1
    return told[:ADVICE] or [
        {"text": NOTHING if tried else UNTRIED, "effect": "none", "from": "price.0"}
    ]


def _switches(of: Findings) -> Iterator[tuple[float, str, str]]:
    switches = [*of.switches()]
    if not switches or switches[0][0] != NO_DEFENCE:
        return
    before = switches[0][2]
    flattered = of.balanced_at(switches[0][3]) if of.beside.is_large else None
    least = f"; one constant answer on {of.constant:.1%}" if of.beside.is_large else ""
    cheapest = sorted(switches[1:], key=lambda each: of.paid(each[0]).get("l1_mean") or 0.0)
    for name, kind, after, at in cheapest:  # of equal effect the first
        left = None if flattered is None else of.balanced_at(at)
        # what takes away no more than a constant answer flatters is no help
        if left is not None and flattered is not None and left >= flattered:
            continue
        if _helps(of, before, after) and ("misinform" not in name or of.holds_data):
            answers = f"Answer {'labels alone' if name == 'label' else name}"
            what = answers if kind == "label mode" else f"Switch on {name}"
            if name.startswith("quota"):
                what = f"Answer no client more than {int(name.partition('=')[2]):,} images ({name})"
            text = (
                f"{what}: the best copy then agrees on {after.mean:.1%} "
                f"({before.mean:.1%} before{least})."
            )
            if left is not None and flattered is not None:
                text += (
                    f" With each class counting alike it is {left:.1%} ({flattered:.1%} before)."
                )
            paid = of.paid(name).get("l1_mean")
            lost = of.paid(name).get("accuracy_drop")
            if paid is not None:
                text += f" Your users' answers change by {paid:.2f} on average, {SCALE}"
                moves = (
                    f"{'falls' if (lost or 0) > 0 else 'rises'} by "
                    f"{100 * abs(lost or 0):.1f} points"
                )
                falls = moves if lost else "does not change"
                text += "." if lost is None else f"; their accuracy {falls}."
            means = [
                [line["mean"] or 0.0 for line in of.like if line["mode"] == mode]
                for mode in (of.own, name)
            ]
            if all(shares := [max(each, default=0.0) for each in means]):
                text += f" The copy of somebody with images like yours agrees on {shares[1]:.1%} "
                text += f"({shares[0]:.1%} before)."
            yield before.mean - max(after.mean, of.constant or 0.0), text, at


def _helps(of: Findings, before: Spread, after: Spread) -> bool:
    """True if agreement falls by more than the spread over seeds, and than the images can tell.

    An agreement that is not above a constant answer's is no copy, and nothing can take it away.
    """
    if (
        not of.images
        or not gains(before, after)
        or not is_above(before.mean, of.constant, of.images)
    ):
        return False
    return wilson_interval(before.mean, of.images)[0] > wilson_interval(after.mean, of.images)[1]


def _watch(of: Findings, told: Entry | None) -> Iterator[tuple[float, str, str]]:
    """The detector with alarms in the fewest honest streams; of equal ones the best against
    attacks.
    """
    benign, attacks = ((told or {}).get(name, ()) for name in ("benign", "attacks"))
    before = next((score for name, _, score, _ in of.switches() if name == NO_DEFENCE), None)
    able = list[tuple[int, float, int, list[Entry]]]()
    for name in dict.fromkeys(each["detector"] for each in benign):
        streams = [each for each in benign if each["detector"] == name]
        place = name, of.own, NO_DEFENCE
        raised = [
            (1.0 if (worth := each["agreement_at_alarm"]) is None else worth, at)
            for at, each in enumerate(attacks)
            if (each["detector"], each["mode"], each["defence"]) == place
        ]
        worst = max(raised, default=(1.0, 0))
        quiet = not any(each["alarms"] for each in streams if each["stream"] == "random order")
        if quiet and before is not None and _helps(of, before, Spread(worst[0], None, 1)):
            able.append((sum(bool(each["alarms"]) for each in streams), *worst, streams))
    if before is None or not able:
        return
    _, share, at, streams = min(able, key=lambda one: one[:2])
    wrong = [one for one in streams if one["alarms"]]
    false = [
        f"{one['sessions_with_alarm']} of {one['sessions']} ({one['stream']})" for one in wrong
    ]
    honest = ", ".join(false) or f"none of {sum(one['sessions'] for one in streams)}"
    most = max(one["per_10000_upper"] for one in streams)
    name = attacks[at]["detector"]
    first = attacks[at]["first_alarm"]
    text = (
        f"Switch on the detector {name}, and block the accounts that it names. It raised "
        "an alarm in "
    )
    text += (
        f"every attack: in the worst case after {first:,} queries, when the copy agreed "
        f"on {share:.1%} "
    )
    text += (
        f"(in the end on {before.mean:.1%}). Honest sessions with a false alarm: {honest}; at most "
    )
    text += f"{most:,.0f} alarms in 10,000 queries, as far as your images tell."
    yield before.mean - share, text, f"detection.attacks.{at}"
