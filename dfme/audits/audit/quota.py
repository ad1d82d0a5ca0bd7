"""The rate-limit sheet: how many images a key may ask in a term, from an audit's curves."""

import math

from dfme.audits.audit.model import Entry, cells_in
from dfme.audits.compare.plan import NO_DEFENCE

TERMS = {"minute": 60, "hour": 3_600, "day": 86_400, "month": 2_592_000}
"""Seconds of each term of ``--per``; a month has 30 days."""

WARNING = (
    "nginx, Envoy and Kong count requests: let one carry one image, or divide by those it may "
    "carry. serve "
    "counts images, those of all keys together: run one for each key. The quota comes back: D "
    "terms give one "
    "key D times as many images. Many accounts break it: one published campaign had 24,000."
)


def sheet(audit: Entry, checked: str | None) -> Entry | None:
    """The largest quota with all curves of the model as deployed below ``--keep-below``; None
    unasked.

    It is a number of images at which the attacker who first gets there was scored, and still below:
    what a copy is worth in between is not known. ``checked``: the cell of an attack under the
    quota, if any.
    """
    level = audit["options"]["keep_below"]
    cells = {cell["name"]: cell for cell in audit["cells"]}
    # every attacker and seed on the model's own answers, or their labels, without a defence
    own = cells_in(audit, audit["target"]["label_mode"], "label")
    bare = [line["attackers"] for line in audit["defences"] if line["defence"] == NO_DEFENCE]
    deployed = dict.fromkeys(
        [*own, *(name for of in bare for each in of for name in each["cells"])]
    )
    known = [cells[name] for name in deployed if name in cells and cells[name]["curve"]]
    if level is None or not known:
        return None
    steps = {cell["name"]: _step(cell["curve"], level) for cell in known}
    constant = audit["games"]["constant"]
    void = constant is not None and constant >= level
    over = {name: step for name, step in steps.items() if step is not None}
    worst = max(known, key=lambda cell: max(share for _, share in cell["curve"]))
    worst = cells[min(over, key=lambda name: over[name])] if over else worst
    images = 0 if void else over.get(worst["name"], audit["options"]["budget"])
    best = max(
        (share for cell in known for at, share in cell["curve"] if at <= images), default=0.0
    )
    found: Entry = {
        "keep_below": level,
        "per": audit["options"]["per"],
        "images": images,
        "best": best,
        "attacker": worst["row"],
        "cell": worst["name"],
        "open": not over,
        "checked": None,
    }
    if void:
        text = (
            f"No quota keeps an agreement below {level:.1%}: one constant answer agrees on "
            f"{constant:.1%} without a query. Give a larger --keep-below, or images of which each "
            "class has as many."
        )
        return {**found, "lines": {}, "text": [text]}
    under = cells.get(checked or "") if over else worst
    if under and under["agreement"] is not None:
        holds = under["agreement"] < level
        found["checked"] = {"cell": under["name"], "agreement": under["agreement"], "holds": holds}
    kept = images and (found["checked"] or {"holds": True})["holds"]
    return found | {"lines": _lines(images, found["per"]) if kept else {}, "text": _text(found)}


def _step(curve: list[list[float]], level: float) -> int | None:
    """The last images at which a curve was scored before those at which it gets there; None: it
    does not.
    """
    first = next((at for at, share in curve if share >= level), None)
    return None if first is None else int(max((at for at, _ in curve if at < first), default=0))


def _lines(images: int, per: str) -> dict[str, str]:
    """The quota as servers say it; nginx lets burst + 1 requests pass at once, then ``rate`` a
    minute.

    It counts no request with an empty key, so ``key:`` stands before a header that may be missing.
    """
    minutes = TERMS[per] // 60
    rate, burst = divmod(images - 1, minutes)
    zone = f"limit_req_zone key:$http_x_api_key zone=copy:10m rate={rate}r/m;"
    rare = f"# limit_req cannot: its least rate, 1r/m, is {minutes:,} per {per}"
    kong = f"config: {{{per}: {images}, limit_by: credential, policy: cluster}}"
    limit = f"{{unit: {per}, requests_per_unit: {images}}}"
    return {
        "nginx": f"{zone} limit_req zone=copy burst={burst} nodelay;" if rate else rare,
        "Envoy": f"descriptors: [{{key: api_key, rate_limit: {limit}}}]",
        "Kong": f"plugins: [{{name: rate-limiting, {kong}}}]",
        "serve": (
            f"python run.py serve --teacher.defences quota:images={images}:window={TERMS[per]}"
        ),
    }


def _text(found: Entry) -> list[str]:
    level = f"{found['keep_below']:.1%}"
    if not found["images"]:
        return [
            f"No quota keeps {found['attacker']} below {level}: its first copy on record is better."
        ]
    more = f"{found['attacker']} is the first to get there with more"
    if found["open"]:
        more = "none that ran got there, and what more images buy is not known"
    first = (
        f"{found['images']:,} images per {found['per']} for a key keep every attacker below {level}"
    )
    under = "We did not check it with an attack."
    if (seen := found["checked"]) is not None:
        judged = (
            "the quota holds" if seen["holds"] else "the quota DOES NOT HOLD: take a smaller one"
        )
        copy = f"a copy by {found['attacker']} agrees on {seen['agreement']:.1%}"
        under = f"We checked it with an attack: with no more images {copy}; {judged}."
    return [f"{first} by their curves (the best: {found['best']:.1%}); {more}.", under, WARNING]


def below(queries: float) -> int:
    """A round number of images, to two digits, below so many."""
    unit = 10 ** max(0, math.floor(math.log10(queries - 1)) - 1)
    return int((queries - 1) // unit * unit)
