"""Advice of an audit: what helps beyond chance, and by how much."""

from collections.abc import Iterator

from dfme.audits.audit.findings import Findings
from dfme.audits.audit.headline import SCALE
from dfme.audits.audit.model import Entry
from dfme.audits.compare.attacked import gains
from dfme.audits.compare.plan import NO_DEFENCE
from dfme.report.facts import is_above
from dfme.statistics import Spread, wilson_interval

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
        void = "misinform" in name and not of.holds_data
        if void or not _helps(of, before, after):
            continue
        text = (
            f"{_what_to_do(name, kind)}: the best copy then agrees on {after.mean:.1%} "
            f"({before.mean:.1%} before{least})."
        )
        if left is not None and flattered is not None:
            text += f" With each class counting alike it is {left:.1%} ({flattered:.1%} before)."
        text += _paid(of, name) + _with_images(of, name)
        yield before.mean - max(after.mean, of.constant or 0.0), text, at


def _what_to_do(name: str, kind: str) -> str:
    if name.startswith("quota"):
        return f"Answer no client more than {int(name.partition('=')[2]):,} images ({name})"
    if kind == "label mode":
        return "Answer labels alone" if name == "label" else f"Answer {name}"
    return f"Switch on {name}"


def _paid(of: Findings, name: str) -> str:
    """A sentence on what honest users pay for a switch, where it was measured."""
    change = of.paid(name).get("l1_mean")
    lost = of.paid(name).get("accuracy_drop")
    if change is None:
        return ""
    text = f" Your users' answers change by {change:.2f} on average, {SCALE}"
    if lost is None:
        return f"{text}."
    if not lost:
        return f"{text}; their accuracy does not change."
    way = "falls" if lost > 0 else "rises"
    return f"{text}; their accuracy {way} by {100 * abs(lost):.1f} points."


def _with_images(of: Findings, name: str) -> str:
    """A sentence on a switch's effect on an attacker with images like the owner's, where known."""
    best = []
    for mode in (of.own, name):
        means = [line["mean"] or 0.0 for line in of.like if line["mode"] == mode]
        best.append(max(means, default=0.0))
    if not all(best):
        return ""
    before, after = best
    return (
        f" The copy of somebody with images like yours agrees on {after:.1%} ({before:.1%} before)."
    )


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


def _place(attack: Entry) -> tuple[str, str, str]:
    return attack["detector"], attack["mode"], attack["defence"]


def _worth(attack: Entry) -> float:
    """Agreement of the copy at the first alarm; all where there was none."""
    worth: float | None = attack["agreement_at_alarm"]
    return 1.0 if worth is None else worth


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
        worst = (1.0, 0)
        raised = [at for at, each in enumerate(attacks) if _place(each) == place]
        if raised:
            worst = max((_worth(attacks[at]), at) for at in raised)
        quiet = not any(each["alarms"] for each in streams if each["stream"] == "random order")
        if quiet and before is not None and _helps(of, before, Spread(worst[0], None, 1)):
            able.append((sum(bool(each["alarms"]) for each in streams), *worst, streams))
    if before is None or not able:
        return
    _, share, at, streams = min(able, key=lambda one: one[:2])
    false = [
        f"{stream['sessions_with_alarm']} of {stream['sessions']} ({stream['stream']})"
        for stream in streams
        if stream["alarms"]
    ]
    honest = ", ".join(false) or f"none of {sum(stream['sessions'] for stream in streams)}"
    most = max(stream["per_10000_upper"] for stream in streams)
    name = attacks[at]["detector"]
    first = attacks[at]["first_alarm"]
    text = (
        f"Switch on the detector {name}, and block the accounts that it names. It raised an alarm "
        f"in every attack: in the worst case after {first:,} queries, when the copy agreed on "
        f"{share:.1%} (in the end on {before.mean:.1%}). Honest sessions with a false alarm: "
        f"{honest}; at most {most:,.0f} alarms in 10,000 queries, as far as your images tell."
    )
    yield before.mean - share, text, f"detection.attacks.{at}"
