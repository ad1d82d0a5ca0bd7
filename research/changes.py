"""`python -m research.changes`: how often two audits of equal models are said to differ, and of
unequal ones, by the rules of `run.py audit --against` for agreement.

Audits are drawn: each seed's copy has an agreement from a normal distribution around the model's
own, of which the evaluation images show a share. The images are drawn anew for each copy; those of
real audits are the same ones, so that real differences are surer than these.
"""

import argparse
import sys
from collections.abc import Sequence

import numpy as np

from dfme.audits.audit.history import agreement_change
from dfme.audits.audit.parts import Interval
from dfme.statistics import Spread, difference_interval, spread
from research.script import reported

DIFFERENCES = (0.0, 0.05, 0.1)


def drawn(
    rng: np.random.Generator, share: float, deviation: float, images: int, seeds: int
) -> Spread:
    """The agreement of an audit's copies on so many images, over seeds."""
    shares = list[float]()
    for _ in range(seeds):
        own = float(np.clip(rng.normal(share, deviation), 0, 1))
        shares.append(int(rng.binomial(images, own)) / images)
    result = spread(shares)
    assert result is not None
    return result


def told(before: Spread, now: Spread, images: int) -> int:
    """1 where the later copy is called cheaper, -1 where dearer."""
    low, high = difference_interval(now.mean, images, before.mean, images)
    return agreement_change(now, before, Interval(low, high))


def rates(
    rng: np.random.Generator, difference: float, images: int, seeds: int, args: argparse.Namespace
) -> tuple[float, float]:
    """Shares of the pairs of audits that are called cheaper, and dearer."""
    changes = list[int]()
    for _ in range(args.pairs):
        before = drawn(rng, args.agreement, args.deviation, images, seeds)
        now = drawn(rng, args.agreement + difference, args.deviation, images, seeds)
        changes.append(told(before, now, images))
    return changes.count(1) / args.pairs, changes.count(-1) / args.pairs


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=1_000)
    parser.add_argument("--agreement", type=float, default=0.8)
    parser.add_argument("--deviation", type=float, default=0.015, help="between seeds")
    parser.add_argument("--images", type=int, nargs="+", default=[180, 1_000, 10_000])
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 3, 5])
    args = parser.parse_args(words)
    rng = np.random.default_rng(0)
    heads = " | ".join(f"{100 * difference:+.0f} points" for difference in DIFFERENCES)
    print(f"| seeds | images | {heads} |")
    print(f"|{'---|' * (2 + len(DIFFERENCES))}")
    for seeds in args.seeds:
        for images in args.images:
            pairs = [rates(rng, difference, images, seeds, args) for difference in DIFFERENCES]
            cells = " | ".join(f"{cheaper:.1%} / {dearer:.1%}" for cheaper, dearer in pairs)
            print(f"| {seeds} | {images:,} | {cells} |", flush=True)


if __name__ == "__main__":
    sys.exit(reported("changes", main))
