"""The ladder of attackers: what an attacker has, in words; which of them nobody tried; how long a
key's limit of images holds one up. No torch.
"""

import math
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from dfme.audits.audit.price_parts import Pictures, PriceLine
from dfme.config.messages import printable
from dfme.config.settings import Job
from dfme.config.values import parse_count
from dfme.errors import UserError
from dfme.nets.sources import find_source
from dfme.queries.programs import PROCEDURAL

LIKE = "knockoff"
PUBLIC = "public"
PUBLIC_POOL = "public_pool"
PUBLIC_LIKE = "public_like"
HAVING_LIKE = (LIKE, PUBLIC_LIKE)
"""Rows of attackers who have images like the owner's."""
HAVING_WEIGHTS = (PUBLIC, PUBLIC_POOL, PUBLIC_LIKE)
"""Rows of attackers whose students start from weights that anybody can download."""
RECOGNISED_SIDE = 32
"""From so many pixels a side on no model is called safe without a word about public weights."""

WITHIN = {"second": 1, "minute": 60, "hour": 3_600, "day": 86_400}
SHORT = {"s": "second", "sec": "second", "min": "minute", "h": "hour", "d": "day"}
"""Terms of a rate in seconds, and how else people write them."""
HOUR = 3_600
FEW_HOURS = 48  # up to which a delay is said in hours
WEIGHTS = "weights that anybody can download"


@dataclass(frozen=True)
class ImageRate:
    """The images that a key is allowed in a term; ``text`` as the owner states it."""

    images: float
    term: str
    text: str

    def hours(self, queries: float | None) -> float | None:
        """Hours until so many queries are answered; None where their number is not known."""
        if queries is None:
            return None
        return round(queries / self.images * WITHIN[self.term] / HOUR, 6)


def parse_rate(text: str) -> ImageRate:
    """Images of a key in a term, such as 60/min or 10k/day. UserError for anything else."""
    count, _, term = text.partition("/")
    name = SHORT.get(term.strip(), term.strip())
    try:
        images = parse_count(count)
    except ValueError:
        images = 0
    if images < 1 or name not in WITHIN:
        raise UserError(f"expected images/TERM such as 60/min, TERM of {', '.join(WITHIN)}")
    article = "an" if name == "hour" else "a"
    return ImageRate(images, name, f"{images:,} images {article} {name}")


def delay(hours: float | None) -> str:
    """Hours as people say them; empty if they are not known."""
    if hours is None:
        return ""
    if hours < 1:
        return _count(60 * hours, "minute")
    return _count(hours, "hour") if hours < FEW_HOURS else _count(hours / 24, "day")


def _count(number: float, unit: str) -> str:
    """Rounded up, below ten to a tenth: 64 images at 60 a minute do not take two."""
    parts = 10 if 1 < number < 10 else 1
    rounded = math.ceil(round(parts * number, 3)) / parts
    return f"{rounded:,.9g} {unit}" if rounded == 1 else f"{rounded:,.9g} {unit}s"


def pictures_of(row: str, job: Job) -> Pictures | None:
    """What the pool of a row is, if it has one: public pictures, or images like the owner's."""
    if str(getattr(job.method_config, "pool", PROCEDURAL)) == PROCEDURAL:
        return None
    return "public" if row == PUBLIC_POOL else "like"


def weights_of(job: Job) -> str | None:
    """What people call the weights that the job's students start from, if there are any."""
    student = job.config.student
    if student.weights is None:
        return None
    name = Path(student.weights).name or student.weights
    with suppress(UserError):  # which are no longer there
        name = find_source(student.weights, student.arch).name
    return printable(name)


IMAGES = {
    None: "images drawn by programs",
    "public": "public pictures",
    "like": "images like yours",
}
"""What an attacker asks, by its pictures."""


def possessions(weights: str | None, pictures: Pictures | None, knows: str | None) -> str:
    """What an attacker had, in words that follow "with"."""
    parts = [] if weights is None else [f"{WEIGHTS} ({weights})"]
    drawn = "" if knows is None or pictures else _drawn_for(knows)
    return " and ".join([*parts, f"{IMAGES[pictures]}{drawn}"])


def possessed(row: str, job: Job) -> str:
    """What the attacker of a row has, in words that follow "with"."""
    domain = job.queries.domain
    knows = None if domain == "unknown" else domain
    return possessions(weights_of(job), pictures_of(row, job), knows)


def _drawn_for(knows: str) -> str:
    return f" by somebody who knows that your model is for {knows}"


def whom(line: PriceLine) -> str:
    """The attacker of a price in the middle of a sentence; empty for one who has nothing."""
    knows = line.knows
    if line.weights is None and line.pictures != "public":
        return f" an attacker who knows that it is for {knows}" if knows else ""
    return f" somebody with {possessions(line.weights, line.pictures, knows)}"


def untried(lines: Iterable[PriceLine], side: int | None) -> list[str]:
    """What attackers had of whom no attack has finished, in words that follow "with".

    ``side``: the longer one of the images, None where nobody knows it. Weights count from
    ``RECOGNISED_SIDE`` on.
    """
    finished = [line for line in lines if line.mean is not None]
    tried = {line.pictures for line in finished}
    small = side is not None and side < RECOGNISED_SIDE
    missing = []
    if not small and all(line.weights is None for line in finished):
        missing.append(WEIGHTS)
    if "public" not in tried:
        missing.append("public pictures")
    if "like" not in tried:
        missing.append("pictures like yours")
    return missing


def not_tried(missing: Sequence[str]) -> str:
    """A sentence on attackers that were not tried; empty where all were."""
    if not missing:
        return ""
    *first, last = missing
    before = "".join(f"{part}, with " for part in first[:-1])
    before += f"{first[-1]} or with " if first else ""
    return f"Somebody with {before}{last} was not tried."
