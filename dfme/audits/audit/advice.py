"""Advice of an audit: what helps beyond chance, and by how much."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from dfme.audits.audit.findings import Findings
from dfme.audits.audit.headline import SCALE
from dfme.audits.audit.ladder import IMAGES
from dfme.audits.audit.parts import SwitchKind, WatchedAttack, WatchedAttacks
from dfme.audits.audit.result import Advice
from dfme.audits.compare.attacked import gains
from dfme.audits.compare.plan import NO_DEFENCE
from dfme.config.defences import OF_ALL_TRAFFIC
from dfme.measured import HonestStream
from dfme.report.run_files import is_above
from dfme.spec import LabelMode
from dfme.statistics import Spread, wilson_interval

ADVICE = 3  # lines what to do
DECIMALS = {1: "one decimal", 2: "two decimals", 3: "three decimals", 4: "four decimals"}
NOTHING = "No change that we tried helps: none lowers the best copy's agreement beyond chance."
UNTRIED = "We tried no change of your model's answers: see what was not run, and why."


class _Help(NamedTuple):
    """What to do, the agreement that it takes away, and the row of audit.json that says so.

    ``rounds``: whether it is to answer with fewer decimals.
    """

    gain: float
    text: str
    place: str
    rounds: bool = False


def advice(findings: Findings, detection: WatchedAttacks | None) -> list[Advice]:
    """What helps beyond chance of seeds and images, largest effect first; or that nothing does."""
    helps = sorted(
        [*_switches(findings), *_watch(findings, detection)], key=lambda option: -option.gain
    )
    if helps:
        shown = helps[:ADVICE]
        # what honest users hardly notice is never left out for what they do
        shown[-1:] = [option for option in helps[ADVICE:] if option.rounds][:1] or shown[-1:]
        return [
            Advice(option.text, f"{100 * option.gain:.1f} points of agreement less", option.place)
            for option in shown
        ]
    tried = detection or len(findings.switches()) > 1
    return [Advice(NOTHING if tried else UNTRIED, "none", "price.0")]


def _switches(findings: Findings) -> Iterator[_Help]:
    switches = findings.switches()
    if not switches or switches[0].name != NO_DEFENCE:
        return
    large = findings.beside.is_large
    bare = switches[0]
    before = bare.agreement
    least = f"; one constant answer on {findings.constant:.1%}" if large else ""
    cheapest = sorted(switches[1:], key=lambda switch: findings.l1_mean(switch.name) or 0.0)
    for switch in cheapest:  # of equal effect the first
        after = switch.agreement
        balanced = ""
        if large and bare.balanced is not None and switch.balanced is not None:
            # what takes away no more than a constant answer flatters is no help
            if switch.balanced >= bare.balanced:
                continue
            balanced = (
                f" With each class counting alike it is {switch.balanced:.1%} "
                f"({bare.balanced:.1%} before)."
            )
        void = "misinform" in switch.name and not findings.holds_data
        if void or not _helps(findings, before, after):
            continue
        text = (
            f"{_what_to_do(switch.name, switch.kind)}: the best copy then agrees on "
            f"{after.mean:.1%} ({before.mean:.1%} before{least}).{balanced}"
        )
        text += _paid(findings, switch.name) + _with_pictures(findings, switch.name)
        gain = before.mean - max(after.mean, findings.constant or 0.0)
        is_mode = switch.kind == "label mode"
        rounds = is_mode and LabelMode.parse(switch.name).decimals is not None
        yield _Help(gain, text, switch.place, rounds)


def _what_to_do(name: str, kind: SwitchKind) -> str:
    if name.startswith("quota"):
        return f"Answer no client more than {int(name.partition('=')[2]):,} images ({name})"
    if kind == "label mode":
        decimals = LabelMode.parse(name).decimals
        if decimals is not None:
            return f"Answer with {DECIMALS.get(decimals, f'{decimals} decimals')} ({name})"
        return "Answer labels alone" if name == "label" else f"Answer {name}"
    return f"Switch on {name}"


def _paid(findings: Findings, name: str) -> str:
    """A sentence on what honest users pay for a switch, where it was measured."""
    bill = findings.paid(name)
    if bill is None or bill.l1_mean is None:
        return ""
    text = f" Your users' answers change by {bill.l1_mean:.2f} on average, {SCALE}"
    lost = bill.accuracy_drop
    if lost is None:
        return f"{text}."
    if not lost:
        return f"{text}; their accuracy does not change."
    way = "falls" if lost > 0 else "rises"
    return f"{text}; their accuracy {way} by {100 * abs(lost):.1f} points."


def _with_pictures(findings: Findings, name: str) -> str:
    """Sentences on a switch's effect on attackers with public pictures, or with images like the
    owner's, where known.
    """
    text = ""
    for pictures in ("public", "like"):
        best = []
        for mode in (findings.mode, name):
            lines = [line for line in findings.price if line.pictures == pictures]
            means = [line.mean or 0.0 for line in lines if line.mode == mode]
            best.append(max(means, default=0.0))
        before, after = best
        if before and after and lines != findings.without_images:
            text += (
                f" The copy of somebody with {IMAGES[pictures]} agrees on {after:.1%} "
                f"({before:.1%} before)."
            )
    return text


def _helps(findings: Findings, before: Spread, after: Spread) -> bool:
    """True if agreement falls by more than the spread over seeds, and than the images can tell.

    An agreement that is not above a constant answer's is no copy, and nothing can take it away.
    """
    images = findings.images
    is_copy = images and is_above(before.mean, findings.constant, images)
    if not is_copy or not gains(before, after):
        return False
    return wilson_interval(before.mean, images)[0] > wilson_interval(after.mean, images)[1]


class _Alarm(NamedTuple):
    """An attack by its place in the list, and the agreement of the copy at its first alarm; all
    where there was none.
    """

    agreement: float
    place: int


def _worst(attacks: Sequence[WatchedAttack], detector: str, mode: str) -> _Alarm:
    """The attack on the model as deployed of which a detector names the copy last."""
    alarms = [
        _Alarm(1.0 if attack.agreement_at_alarm is None else attack.agreement_at_alarm, place)
        for place, attack in enumerate(attacks)
        if (attack.detector, attack.mode, attack.defence) == (detector, mode, NO_DEFENCE)
    ]
    return max(alarms, default=_Alarm(1.0, 0))


def _watch(findings: Findings, detection: WatchedAttacks | None) -> Iterator[_Help]:
    """The detector with alarms in the fewest honest streams; of equal ones the best against
    attacks. One of all traffic names no account that could be blocked.
    """
    switches = findings.switches()
    if detection is None or not switches or switches[0].name != NO_DEFENCE:
        return
    before = switches[0].agreement
    able = list[tuple[int, _Alarm, list[HonestStream]]]()
    named = dict.fromkeys(stream.detector for stream in detection.benign)
    for detector in (name for name in named if name not in OF_ALL_TRAFFIC):
        streams = [stream for stream in detection.benign if stream.detector == detector]
        worst = _worst(detection.attacks, detector, findings.mode)
        quiet = not any(stream.alarms for stream in streams if stream.stream == "random order")
        if quiet and _helps(findings, before, Spread(worst.agreement, None, 1)):
            able.append((sum(bool(stream.alarms) for stream in streams), worst, streams))
    if not able:
        return
    _, worst, streams = min(able, key=lambda choice: (choice[0], choice[1].agreement))
    false = [
        f"{stream.sessions_with_alarm} of {stream.sessions} ({stream.stream})"
        for stream in streams
        if stream.alarms
    ]
    honest = ", ".join(false) or f"none of {sum(stream.sessions for stream in streams)}"
    most = max(stream.per_10000_upper for stream in streams)
    attack = detection.attacks[worst.place]
    text = (
        f"Switch on the detector {attack.detector}, and block the accounts that it names. It "
        f"raised an alarm in every attack: in the worst case after {attack.first_alarm:,} queries, "
        f"when the copy agreed on {worst.agreement:.1%} (with a quarter more at most; in the end "
        f"on {before.mean:.1%}). Honest "
        f"sessions with a false alarm: {honest}; at most {most:,.0f} alarms in 10,000 queries, as "
        "far as your images tell. Many accounts that share the queries may hide them from it."
    )
    yield _Help(before.mean - worst.agreement, text, f"detection.attacks.{worst.place}")
