"""The detectors: three for images near earlier ones, as differences are; six for foreign ones."""

import math
from collections import Counter
from functools import lru_cache

import torch
from torch import Tensor

from dfme.teachers.owner.watch.detector import (
    Benign,
    Detector,
    Observation,
    cells_of,
    digests_of,
    nearest_before,
    squared,
)

LEVEL = 1e-4  # of a false alarm, at one look
MAX_OF_CLASS = 2_000  # of a set of PRADA's
MAX_MEMBERS = 200_000  # of its sets together
MAX_DISTANCES = 5_000  # of its test
ROYSTON = (
    (0.221157, -0.147981, -2.071190, 4.434685, -2.706056),
    (0.042981, -0.293762, -1.752461, 5.682633, -3.582633),
)


class DuplicatesDetector(Detector):
    """Hits: images nearer to an earlier one than honest ones. A repeat is a retry, no hit.

    The nearest neighbour, an alarm every 50 hits: SEAT (Zhang et al. 2021), after Chen, Carlini and
    Wagner
    2019. SEAT remembers 100,000 images, and then none; here it is the last 20,000: a millisecond an
          image.
    """

    statistic = "images nearer to an earlier one than 99.9 % of held-out images are, repeats apart"
    threshold = 50

    def __init__(self, benign: Benign) -> None:
        super().__init__(benign)
        self.state["repeats"] = 0
        self.state["earlier"] = benign.plain.rows_BR[:0]
        self.rows = {"earlier": 20_000}

    def measure(self, seen: Observation, last: float) -> Tensor:
        near_B, repeat_B = nearest_before(seen.rows_BR, self.state["earlier"], self.rows["earlier"])
        self._keep("earlier", seen.rows_BR)
        self.state["repeats"] += int(repeat_B.sum())
        return last + ((near_B < self.benign.nearest) & ~repeat_B).double().cumsum(0)

    def _new_alarms(self, statistic_B1: Tensor) -> Tensor:
        return (statistic_B1 // self.threshold).diff() > 0


class PairsDetector(Detector):
    """Images beside one of the 1,024 before them, as a finite difference's are (ours). A repeat is
    none.
    """

    statistic = (
        "share of the last 512 images within a third of that distance of one of the 1,024 before"
    )
    threshold = 0.25
    MIN_SHARE_OF = 64

    def __init__(self, benign: Benign) -> None:
        super().__init__(benign)
        self.state["earlier"] = benign.plain.rows_BR[:0]
        self.state["near"] = torch.empty(0, dtype=torch.bool)
        self.rows = {"earlier": 1_024, "near": 512}

    def measure(self, seen: Observation, last: float) -> Tensor:
        near_B, repeat_B = nearest_before(seen.rows_BR, self.state["earlier"], self.rows["earlier"])
        self._keep("earlier", seen.rows_BR)
        return self._share(
            "near", (near_B < self.benign.nearest / 3) & ~repeat_B, self.MIN_SHARE_OF
        )


class PradaDetector(Detector):
    """PRADA (Juuti et al. 2019), its server's constants: normality of distances within a class.

    Ours: a set has at most 2,000 images (200,000 all together), the test takes the last 5,000
    distances, and the very image of a set asked again is a retry, and gives no distance.
    """

    statistic = "1 - Shapiro-Wilk's W of distances to the nearest image of the class's growing set"
    threshold = 0.1
    EVERY = 10
    MIN_OF_CLASS = 10
    MIN_DISTANCES = 100
    SIGMAS = 3.0

    def __init__(self, benign: Benign) -> None:
        super().__init__(benign)
        sets = [f"set {top}" for top in range(benign.classes)]
        most = max(1, min(MAX_OF_CLASS, MAX_MEMBERS // benign.classes))
        self.rows = dict.fromkeys(sets, most) | {"distances": MAX_DISTANCES}
        self.state |= dict.fromkeys(sets, benign.plain.rows_BR[:0])
        # count, mean, squares, limit
        limits_K4 = torch.tensor([[1.0, 0, 0, 0]]).double().repeat(benign.classes, 1)
        self.state["distances"] = torch.empty(0, 2).double()
        self.state["images"] = 0
        self.state["limits"] = limits_K4

    def measure(self, seen: Observation, last: float) -> Tensor:
        top_B = seen.p_BK.argmax(1)
        distance_B = torch.empty(len(seen)).double()
        statistics = list[float]()
        for top in top_B.unique().tolist():
            distance_B[top_B == top] = self._distances(top, seen.rows_BR[top_B == top])
        had = len(self.state["distances"])
        is_B = ~distance_B.isnan()
        new_B2 = torch.stack([top_B, distance_B], 1)
        all_N2 = torch.cat([self.state["distances"], new_B2[is_B]])
        for end in (had + is_B.cumsum(0)).tolist():
            self.state["images"] += 1
            if self.state["images"] % self.EVERY == 0:
                last = self._test(all_N2[max(0, end - MAX_DISTANCES) : end], last)
            statistics.append(last)
        self._keep("distances", all_N2[had:])
        return torch.tensor(statistics, dtype=torch.float64)

    def _distances(self, top: int, rows_BR: Tensor) -> Tensor:
        """Distance of each to its class's growing set; NaN for the first one and for retries."""
        name = f"set {top}"
        distances = list[float]()
        within_BB = squared(rows_BR, rows_BR)
        set_NR = self.state[name]
        members = {*digests_of(set_NR)}
        digests = digests_of(rows_BR)
        count, mean, squares, limit = self.state["limits"][top].tolist()
        nearest_B = (
            squared(rows_BR, set_NR).amin(1)
            if len(set_NR)
            else torch.full((len(rows_BR),), math.inf)
        )
        for row_R, within_B in zip(rows_BR, within_BB, strict=True):
            digest = digests[len(distances)]
            near = math.sqrt(float(nearest_B[len(distances)])) / 255
            new = near < math.inf and (near > 0 or digest not in members)
            distances.append(near if new else math.nan)
            if near > limit and len(set_NR) < self.rows[name]:
                members.add(digest)
                set_NR = torch.cat([set_NR, row_R[None]])
                nearest_B = nearest_B.minimum(within_B)
                if near < math.inf:
                    count = max(count, 0) + 1
                    change = near - mean
                    mean += change / count
                    squares += change * (near - mean)
                    limit = max(limit, mean - math.sqrt(max(squares, 0) / count))
        self.state["limits"][top] = torch.tensor([count, mean, squares, limit], dtype=torch.float64)
        self.state[name] = set_NR
        return torch.tensor(distances, dtype=torch.float64)

    def _test(self, distances_N2: Tensor, last: float) -> float:
        _, class_N, count_K = distances_N2[:, 0].unique(return_inverse=True, return_counts=True)
        kept_N = distances_N2[:, 1][count_K[class_N] >= self.MIN_OF_CLASS]
        if len(kept_N) > self.MIN_DISTANCES:
            kept_N = kept_N[(kept_N - kept_N.mean()).abs() < self.SIGMAS * kept_N.std(correction=0)]
        return 1 - shapiro_wilk(kept_N) if len(kept_N) > self.MIN_DISTANCES else last


def shapiro_wilk(values_N: Tensor) -> float:
    """W of at least 12 values with Royston's weights (AS R94, 1995): 1 for normal ones, else
    less.
    """
    apart_N = (values_N - values_N.mean()).sort().values
    return float((_weights(len(apart_N)) * apart_N).sum() ** 2 / (apart_N * apart_N).sum())


@lru_cache(maxsize=64)
def _weights(n: int) -> Tensor:
    m_N = torch.special.ndtri((torch.arange(1, n + 1).double() - 0.375) / (n + 0.25))
    powers_5 = n ** (-torch.arange(1, 6).double() / 2)
    ends_2 = m_N[-2:] / m_N.norm() + torch.tensor(ROYSTON[::-1], dtype=torch.float64) @ powers_5
    scale = ((1 - 2 * (ends_2 * ends_2).sum()) / (m_N[2:-2] * m_N[2:-2]).sum()).sqrt()
    return torch.cat([-ends_2.flip(0), m_N[2:-2] * scale, ends_2])


class LabelsDetector(Detector):
    """The threshold: what honest classes in random order are expected to come to, as if normal, and
    McDiarmid's bound (1989) on what goes beyond it at ``LEVEL``. That benign images are a sample
    too is in both.
    """

    statistic = (
        "total variation of the classes' shares (decay 1 - 1/64) to those of held-out images"
    )
    WINDOW = 64

    def __init__(self, benign: Benign) -> None:
        super().__init__(benign)
        top_N = benign.plain.p_BK.argmax(1)
        self.usual_K = top_N.bincount(minlength=benign.classes).double() / len(top_N)
        spread = 1 / (2 * self.WINDOW - 1) + 1 / len(benign.plain)
        expected = (
            float((2 / math.pi * spread * self.usual_K * (1 - self.usual_K)).sqrt().sum()) / 2
        )
        self.threshold = expected + math.sqrt(-math.log(LEVEL) / 2 * spread)
        self.state["shares"] = self.usual_K.clone()

    def measure(self, seen: Observation, last: float) -> Tensor:
        share_K = self.state["shares"]
        apart = [torch.empty(0).double()]
        for top in seen.p_BK.argmax(1).tolist():
            share_K *= 1 - 1 / self.WINDOW
            share_K[top] += 1 / self.WINDOW
            apart.append((share_K - self.usual_K).abs_().sum()[None] / 2)
        return torch.cat(apart)


class ScoresDetector(Detector):
    """Two-sample Kolmogorov-Smirnov test of the top scores of the last 256 images, at ``LEVEL``."""

    statistic = (
        "KS distance of the last 256 top scores to held-out images', times sqrt(nm / (n + m))"
    )
    threshold = math.sqrt(-math.log(LEVEL / 2) / 2)
    MAX_REFERENCE = 1_000

    def __init__(self, benign: Benign) -> None:
        super().__init__(benign)
        self._places_M = benign.plain.p_BK.amax(1)[: self.MAX_REFERENCE].sort().values
        self._usual_2M = staircase(self._places_M, self._places_M)
        self.state["scores"], self.rows = torch.empty(0).double(), {"scores": 256}

    def measure(self, seen: Observation, last: float) -> Tensor:
        statistics = list[float]()
        m = len(self._places_M)
        had = len(self.state["scores"])
        score_N = torch.cat([self.state["scores"], seen.p_BK.amax(1)])
        # how many of the scores so far are below, and up to, each place: windows are differences
        sides = (score_N[:, None] < self._places_M, score_N[:, None] <= self._places_M)
        counts_2NM = torch.stack([side_NM.cumsum(0) for side_NM in sides])
        counts_2NM = torch.cat([torch.zeros_like(counts_2NM[:, :1]), counts_2NM], 1)
        for end in range(had + 1, len(score_N) + 1):
            n = min(end, self.rows["scores"])
            share_2M = (counts_2NM[:, end] - counts_2NM[:, end - n]).double() / n
            distance = float((share_2M - self._usual_2M).abs_().amax())
            statistics.append(distance * math.sqrt(n * m / (n + m)))
        self._keep("scores", score_N[had:])
        return torch.tensor(statistics, dtype=torch.float64)


def staircase(values_N: Tensor, places_M: Tensor) -> Tensor:
    """Share of values below, and up to, each place (2, M): staircases differ most at values."""
    ordered_N = values_N.sort().values
    counts = [torch.searchsorted(ordered_N, places_M, right=right) for right in (False, True)]
    return torch.stack(counts).double() / len(values_N)


class CoverageDetector(Detector):
    """Occupied cells of the scores in a random projection, as B4B counts buckets (Dubinski et al.
    2023).

    The threshold: how many a window of benign images, plain and corrupted together, is expected to
    occupy (rarefaction, Hurlbert 1971), and Chernoff's bound on what goes beyond it at ``LEVEL``.
    """

    statistic = (
        "cells that the scores of the last 256 images occupy, .2 wide, on 4 axes drawn at random"
    )
    WINDOW = 256

    def __init__(self, benign: Benign) -> None:
        super().__init__(benign)
        count_C = benign.cell_N.unique(return_counts=True)[1]
        left_W = torch.arange(len(benign.cell_N), 0, -1)[: self.WINDOW].double()
        # a cell is empty if every image of the window is one of the others
        expected = float((1 - ((left_W - count_C[:, None]).clamp(min=0) / left_W).prod(1)).sum())
        third = -math.log(LEVEL) / 3
        self.threshold = expected + third + math.sqrt(third * third + 6 * third * expected)
        self.state["cells"] = benign.cell_N[:0]
        self.rows = {"cells": len(left_W)}

    def measure(self, seen: Observation, last: float) -> Tensor:
        had = len(self.state["cells"])
        cell_N = torch.cat([self.state["cells"], cells_of(seen.p_BK)])
        self._keep("cells", cell_N[had:])
        cells = cell_N.tolist()
        most = self.rows["cells"]
        window = Counter(cells[:had])
        occupied = list[int]()
        for end in range(had, len(cells)):
            window[cells[end]] += 1
            if end >= most:
                window[cells[end - most]] -= 1
                window += Counter()  # forgets what is counted no more
            occupied.append(len(window))
        return torch.tensor(occupied)


class MahalanobisDetector(Detector):
    """Images further from their class (Lee et al. 2018) than 99 % of benign ones."""

    statistic = "share of the last 64 images that lie further from every class than 99 % held out"
    threshold = 0.5
    WINDOW = 64

    def __init__(self, benign: Benign) -> None:
        super().__init__(benign)
        self.limit = float(
            torch.tensor(benign.plain.log_distances, dtype=torch.float64).quantile(0.99)
        )
        self.state["far"], self.rows = torch.empty(0, dtype=torch.bool), {"far": self.WINDOW}

    def measure(self, seen: Observation, last: float) -> Tensor:
        log_B = torch.tensor(seen.log_distances, dtype=torch.float64)
        return self._share("far", log_B > self.limit, self.WINDOW)


class SequentialDetector(Detector):
    """CUSUM (Page 1954) of z = (log d - mean) / sd within +-4, d squared feature distance.

    Mean and sd are of benign images plain and corrupted together. Of independent normal z: one in
    19,112 images raises an alarm.
    """

    statistic = "CUSUM of z = log Mahalanobis distance, standardised: S = max(0, S + z - 0.5)"
    threshold = 8.0

    def step(self, last: float, z: float) -> float:
        return max(0.0, last + z - 0.5)

    def measure(self, seen: Observation, last: float) -> Tensor:
        mean, sd = self.benign.log_distance
        statistics = list[float]()
        for distance in seen.log_distances:
            last = self.step(last, min(max((distance - mean) / sd, -4.0), 4.0))
            statistics.append(last)
        return torch.tensor(statistics, dtype=torch.float64)


class SprtDetector(SequentialDetector):
    """Wald's test (1945) of z moved by 1 against not, from 0 again below; 1 % are missed."""

    statistic = (
        "log likelihood ratio of z moved by 1 against not, from 0 again where it falls below -4.6"
    )
    threshold = math.log((1 - 0.01) / LEVEL)
    home = math.log(0.01 / (1 - LEVEL))

    def step(self, last: float, z: float) -> float:
        return moved if (moved := last + z - 0.5) > self.home else 0.0
