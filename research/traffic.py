"""`python -m research.traffic`: what the detector `mmd` says of honest traffic, and of traffic that
an attack is a part of.

Half of the held-out images calibrates it. From the other half come honest accounts, as `run.py
detect` makes them: five streams, whose accounts ask in turn. An attack asks drawn images, public
pictures (`--pictures`) or images of the model's own training (`--data`'s part `train`); of mixed
traffic each image is the attack's with the given probability. A row has the share of looks above
the threshold: for honest traffic all looks, for attacks those at a full window.

Other forms of the test are there to be compared: `--place` (where its kernel sees an image),
`--window`, and `--weights` (features of a public backbone in place of scores).
"""

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import normalize

from dfme.data import load_dataset
from dfme.nets.public import public_net, read_weights
from dfme.queries.programs import ProceduralImages
from dfme.spec import Teacher
from dfme.statistics import share_at_most
from dfme.teachers.owner.features import as_asked
from dfme.teachers.owner.utility import corrupted
from dfme.teachers.owner.watch.detector import (
    SESSION,
    STREAMS,
    UNIT,
    Benign,
    Observation,
    held_out,
    session,
)
from dfme.teachers.owner.watch.traffic import MmdDetector
from research.programs import teacher_of
from research.script import reported

BURST = 10  # images of an account in a row
ATTACK = 3_000  # images of an attack
PROGRAMS = {"drawn: frugal": ("leaves", "pen", "text"), "drawn: things": ("things",)}
SHARES = (1.0, 0.5, 0.25, 0.1)
SINGLE = 4  # accounts of a stream that are looked at alone
Features = Callable[[Tensor], Tensor]


class OfProbabilities(MmdDetector):
    """The kernel sees probabilities."""

    def place(self, p_NK: Tensor) -> Tensor:
        return p_NK.float()


class OfRoots(MmdDetector):
    """The kernel sees their square roots: Hellinger's distance."""

    def place(self, p_NK: Tensor) -> Tensor:
        return p_NK.sqrt().float()


class OfFeatures(MmdDetector):
    """The kernel sees features, which stand behind the probabilities of the classes."""

    def tops(self, p_NK: Tensor) -> Tensor:
        return p_NK[:, : self.benign.classes].argmax(1)

    def place(self, p_NK: Tensor) -> Tensor:
        return p_NK[:, self.benign.classes :].float()


FORMS = {"log": MmdDetector, "p": OfProbabilities, "root": OfRoots}


@dataclass
class Asker:
    """A teacher, and what the detector sees of images that it is asked; ``features``: besides."""

    teacher: Teacher
    features: Features | None
    seconds: float = 0.0
    images: int = 0

    def __call__(self, x_NCHW: Tensor) -> Observation:
        """Images within 0 and 1 as the watch would see them."""
        p_NK = torch.cat([self._scores(part) for part in x_NCHW.split(250)])
        if self.features is not None:
            began = time.process_time()
            parts = [self.features(part) for part in x_NCHW.split(100)]
            self.seconds += time.process_time() - began
            self.images += len(x_NCHW)
            p_NK = torch.cat([p_NK, torch.cat(parts).double()], 1)
        return Observation(x_NCHW, p_NK)

    def _scores(self, x_BCHW: Tensor) -> Tensor:
        with torch.no_grad():
            raw_BK = self.teacher(as_asked(x_BCHW, self.teacher)).double()
        if self.teacher.label_mode.kind == "logits":
            return raw_BK.softmax(1)
        return normalize(raw_BK.clamp(min=0), p=1.0)


def joined(parts: Sequence[Observation]) -> Observation:
    return Observation(
        torch.cat([part.images_BCHW for part in parts]), torch.cat([part.p_BK for part in parts])
    )


def in_turn(accounts: Sequence[Observation], rng: torch.Generator) -> Observation:
    """Traffic of accounts that ask in bursts, in random order, each image of each once."""
    bursts = [len(account) // BURST for account in accounts]
    turns = torch.arange(len(accounts)).repeat_interleave(torch.tensor(bursts))
    asked = [0] * len(accounts)
    parts = list[Observation]()
    for account in turns[torch.randperm(len(turns), generator=rng)].tolist():
        parts.append(accounts[account][asked[account] : asked[account] + BURST])
        asked[account] += BURST
    return joined(parts)


def mixed(
    attack: Observation, honest: Observation, share: float, count: int, rng: torch.Generator
) -> Observation:
    """Traffic of ``count`` images, each the attack's with probability ``share``."""
    attacks_N = torch.rand(count, generator=rng) < share
    places_N = torch.where(
        attacks_N, (attacks_N.cumsum(0) - 1) % len(attack), ((~attacks_N).cumsum(0) - 1)
    )
    places_N = torch.where(attacks_N, places_N, len(attack) + places_N % len(honest))
    both = joined([attack, honest])
    return Observation(both.images_BCHW[places_N], both.p_BK[places_N])


@dataclass
class Looks:
    """Looks at several streams: how many there were and how many were above the threshold."""

    count: int = 0
    above: int = 0
    images: int = 0
    seconds: float = 0.0

    def take(self, detector: MmdDetector, seen: Observation, full: bool) -> None:
        """Look at one stream with a fresh detector; ``full``: at full windows alone."""
        began = time.process_time()
        statistic_N = detector.see(seen).statistic_B
        self.seconds += time.process_time() - began
        first = detector.WINDOW if full else detector.EVERY
        looks = statistic_N[first - 1 :: detector.EVERY]
        self.count += len(looks)
        self.above += int((looks > detector.threshold).sum())
        self.images += len(seen)

    @property
    def percent(self) -> str:
        return f"{100 * self.above / max(self.count, 1):.1f}"


@dataclass
class Table:
    """What one detector says; ``make``: a fresh one."""

    make: Callable[[], MmdDetector]
    rows: dict[str, Looks] = field(default_factory=dict)

    def take(self, row: str, seen: Observation, full: bool = False) -> None:
        self.rows.setdefault(row, Looks()).take(self.make(), seen, full)


def accounts_of(
    ask: Asker, stream: str, data: str, other: str | None, seed: int, count: int
) -> list[Observation]:
    """Honest accounts of a stream; none where it has no images."""
    if stream == "other data" and other is None:
        return []
    images, _, places_N = held_out(data, ask.teacher.spec)
    if stream == "other data":
        images = held_out(str(other), ask.teacher.spec)[0]
        places_N = torch.arange(len(images))
    rngs = [torch.Generator().manual_seed(20 * seed + number) for number in range(count)]
    return [ask(torch.cat([*session(stream, images, places_N, rng)])) for rng in rngs]


def attacks(
    ask: Asker, data: str, pictures: str | None, rng: torch.Generator
) -> Iterator[tuple[str, Observation]]:
    """Images of each attack."""
    spec = ask.teacher.spec
    low, high = spec.bounds
    for name, programs in PROGRAMS.items():
        x_NCHW = ProceduralImages(spec, programs).draw(ATTACK, rng)
        yield name, ask((x_NCHW - low) / (high - low))
    for name, source in {"public pictures": pictures, "training images": data}.items():
        if source is not None:
            images = load_dataset(source, "train", shape=spec.shape)
            yield name, ask(images.batch(torch.randperm(len(images), generator=rng)[:ATTACK]))


def features_of(weights: str, teacher: Teacher) -> Features:
    """The features of images within 0 and 1 in a public backbone."""
    net = public_net(read_weights(weights), teacher.spec, teacher.num_classes).eval()

    def features(x_BCHW: Tensor) -> Tensor:
        with torch.no_grad():
            return net.features(as_asked(x_BCHW, teacher))

    return features


def calibrated(ask: Asker, data: str, form: type[MmdDetector]) -> Callable[[], MmdDetector]:
    """What makes fresh detectors, calibrated as a watch would be."""
    test, calibration_N, _ = held_out(data, ask.teacher.spec)
    x_NCHW = test.batch(calibration_N)
    worn_NCHW = corrupted(x_NCHW, UNIT, torch.Generator().manual_seed(0)).clamp(0, 1)
    benign = Benign(ask(x_NCHW), ask(worn_NCHW), ask.teacher.num_classes)
    return lambda: form(benign)


def measured(of: argparse.Namespace, ask: Asker, table: Table, seed: int) -> None:
    """One seed's looks into the table."""
    rng = torch.Generator().manual_seed(seed)
    everybody = list[Observation]()
    for stream in STREAMS:
        accounts = accounts_of(ask, stream, of.data, of.other, seed, of.accounts)
        if not accounts:
            continue
        table.take(f"honest, {stream}", in_turn(accounts, rng))
        for account in accounts[:SINGLE]:
            table.take(f"one account, {stream}", account)
        if stream == "other data":  # of another kind than the owner's
            table.take("honest, with other data", in_turn([*everybody, *accounts], rng))
        else:
            everybody += accounts
    honest = in_turn(everybody, rng)
    table.take("honest, all", honest)
    for name, attack in attacks(ask, of.data, of.pictures, rng):
        for share in SHARES:
            row = f"{name}, {100 * share:.0f} %"
            table.take(row, mixed(attack, honest, share, of.images, rng), full=True)


def printed(table: Table, window: int) -> str:
    """Each row: share of looks above, looks, and for honest ones the upper bound (95 %), as if
    windows that do not overlap were independent.
    """
    lines = ["| traffic | looks above, % | of looks | at most, % |", "| --- | ---: | ---: | ---: |"]
    for name, looks in table.rows.items():
        bound = ""
        if name.startswith(("honest", "one account")):
            windows = max(looks.images // window, 1)
            bound = f"{100 * share_at_most(looks.above, looks.count, windows):.1f}"
        lines.append(f"| {name} | {looks.percent} | {looks.count} | {bound} |")
    images = sum(looks.images for looks in table.rows.values())
    spent = sum(looks.seconds for looks in table.rows.values())
    return "\n".join([*lines, f"\n{1000 * spent / images:.2f} ms an image in the detector"])


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m research.traffic", description=__doc__)
    parser.add_argument("teacher", type=Path, help="weights of run.py train-teacher, or a .pt2")
    parser.add_argument("data", help="held-out images: the name of a data set, or an .npz file")
    parser.add_argument("--other", help="honest images of another kind: a data set or a file")
    parser.add_argument("--pictures", help="public pictures that an attack asks: an .npz file")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--accounts", type=int, default=8, help="honest accounts of each stream")
    parser.add_argument("--images", type=int, default=4_096, help="images of mixed traffic")
    parser.add_argument("--place", choices=[*FORMS], default="log", help="what the kernel sees")
    parser.add_argument("--window", type=int, default=MmdDetector.WINDOW)
    parser.add_argument("--every", type=int, default=MmdDetector.EVERY, help="images to a look")
    parser.add_argument("--weights", help="features of these public weights in place of scores")
    parser.add_argument("-t", "--trust", action="store_true", help="run the code of a .pt2 program")
    of = parser.parse_args()
    teacher = teacher_of(of.teacher, of.trust)
    base = OfFeatures if of.weights else FORMS[of.place]
    form = type("Form", (base,), {"WINDOW": of.window, "EVERY": of.every})
    ask = Asker(teacher, features_of(of.weights, teacher) if of.weights else None)
    table = Table(calibrated(ask, of.data, form))
    print(f"honest accounts have {SESSION} images each; a window has {of.window}", flush=True)
    for seed in of.seeds:
        measured(of, ask, table, seed)
    print(printed(table, of.window))
    if ask.images:
        print(f"{1000 * ask.seconds / ask.images:.1f} ms an image in the backbone")


if __name__ == "__main__":
    sys.exit(reported("traffic", main))
