"""A detector of all traffic: do the last images, whoever asked them, look like benign ones?

It sees all accounts as one stream, so splitting an attack over accounts hides nothing from it. It
is a two-sample test of the model's scores by the maximum mean discrepancy (MMD, Gretton et al.,
JMLR 13, 2012), of windows against benign images, as Liu, Guo and Dong (arXiv 2606.05725, 2026)
watch traffic for extraction. Ours are the pairs within classes, the three mixes and the bound.
"""

from collections import deque
from functools import lru_cache

import torch
from torch import Tensor

from dfme.teachers.owner.watch.detector import Benign, Detector, Observation, digests_of

MIN_OF_CLASS = 8  # benign images; rarer classes count as one
MIN_PAIRS = 24  # of fewer, flips say little
MIN_PROBABILITY = 1e-4  # smaller ones count as this
MAX_MEDIAN = 512  # benign images that the median distance is of
MIN_MEDIAN = 1e-3


class MmdDetector(Detector):
    """Unbiased MMD^2 of the last ``WINDOW`` different images to benign ones, over its bound.

    An image is the logarithms of its probabilities, less their mean. The kernel is the mean of four
    Gaussian ones, exp(-d^2 / (2 s^2)), with s of .5, 1, 2 and 4 times the median distance of benign
    images. Each image of the window has a benign partner of its predicted class, so that a change
    of the classes' mix alone is nothing. If both come from one distribution, which is which in a
    pair is a toss: the bound is the largest MMD^2 after ``FLIPS`` random exchanges within pairs.
    At one look, every ``EVERY`` images, the value exceeds it with probability 1 / (FLIPS + 1) at
    most, exactly. Partners are plain, or corrupted, or both in turn; the least ratio of the three
    counts, so honest images may be either. An image asked again counts once. Of fewer benign images
    the window is as many.
    """

    of_all_traffic = True
    statistic = (
        "MMD^2 of the scores of the last 512 images of all accounts to benign ones of the same "
        "classes, over the largest of 999 random exchanges"
    )
    threshold = 1.25  # heuristic: honest traffic is near benign images, not quite of them
    WINDOW = 512
    EVERY = 128
    FLIPS = 999
    SCALES = (0.5, 1.0, 2.0, 4.0)

    def __init__(self, benign: Benign) -> None:
        super().__init__(benign)
        self._window = min(self.WINDOW, len(benign.plain))
        top_N = self.tops(benign.plain.p_BK)
        rare_K = top_N.bincount(minlength=benign.classes) < MIN_OF_CLASS
        last = int((~rare_K).sum())
        self._stratum_K = torch.where(rare_K, last, (~rare_K).cumsum(0) - 1)
        self._mixes = [self._by_stratum(mix_NK) for mix_NK in mixes(benign)]
        plain_ND = self.place(benign.plain.p_BK[:MAX_MEDIAN])
        apart_M = torch.pdist(plain_ND)
        self._median = max(float(apart_M.median()), MIN_MEDIAN)
        self.state["images"] = 0
        self.state["scores"] = benign.plain.p_BK[:0]
        self.state["digests"] = torch.empty(0, dtype=torch.int64)
        self.rows = {"scores": self._window, "digests": self._window}

    def place(self, p_NK: Tensor) -> Tensor:
        """Where the kernel sees images (N, K), float32."""
        log_NK = p_NK.clamp(min=MIN_PROBABILITY).log()
        return (log_NK - log_NK.mean(1, keepdim=True)).float()

    def tops(self, p_NK: Tensor) -> Tensor:
        """Predicted classes of images (N,)."""
        return p_NK.argmax(1)

    def measure(self, seen: Observation, last: float) -> Tensor:
        statistics = list[float]()
        digests = deque(self.state["digests"].tolist(), self._window)
        scores = deque(self.state["scores"], self._window)
        for digest, p_K in zip(digests_of(seen.rows_BR), seen.p_BK, strict=True):
            if digest not in digests:
                digests.append(digest)
                scores.append(p_K)
            self.state["images"] += 1
            if self.state["images"] % self.EVERY == 0:
                last = self.look(torch.stack([*scores]))
            statistics.append(last)
        if scores:
            self.state["scores"] = torch.stack([*scores])
            self.state["digests"] = torch.tensor([*digests])
        return torch.tensor(statistics, dtype=torch.float64)

    def look(self, p_NK: Tensor) -> float:
        """The statistic of a window, the oldest image first."""
        window = self._by_stratum(p_NK.flip(0))
        return min(self._ratio(window, mix) for mix in self._mixes)

    def _by_stratum(self, p_NK: Tensor) -> list[Tensor]:
        """Places of images, by the stratum of their predicted class."""
        place_ND = self.place(p_NK)
        stratum_N = self._stratum_K[self.tops(p_NK)]
        return [place_ND[stratum_N == stratum] for stratum in range(int(self._stratum_K.max()) + 1)]

    def _ratio(self, window: list[Tensor], mix: list[Tensor]) -> float:
        """MMD^2 of pairs, the newest of the window first, over the largest after exchanges."""
        sizes = [min(len(ours), len(others)) for ours, others in zip(window, mix, strict=True)]
        if (pairs := sum(sizes)) < min(MIN_PAIRS, self._window):
            return 0.0
        x_ND = torch.cat([ours[:size] for ours, size in zip(window, sizes, strict=True)])
        y_ND = torch.cat([others[:size] for others, size in zip(mix, sizes, strict=True)])
        across_NN = self._kernel(x_ND, y_ND)
        h_NN = self._kernel(x_ND, x_ND) + self._kernel(y_ND, y_ND) - across_NN - across_NN.T
        h_NN.fill_diagonal_(0)  # unbiased: no image beside itself, nor beside its partner
        sign_NF = signs(self.WINDOW, self.FLIPS)[:pairs]
        bound = float(((h_NN @ sign_NF) * sign_NF).sum(0).amax())
        return float(h_NN.sum()) / bound if bound > 0 else 0.0

    def _kernel(self, x_ND: Tensor, y_MD: Tensor) -> Tensor:
        square_NM = torch.cdist(x_ND, y_MD).square_()
        kernels = [(square_NM / (-2 * (scale * self._median) ** 2)).exp_() for scale in self.SCALES]
        return torch.stack(kernels).mean(0)


@lru_cache(maxsize=4)
def signs(pairs: int, flips: int) -> Tensor:
    """+1, and -1 where the two of a pair are exchanged (pairs, flips), by a public seed."""
    rng = torch.Generator().manual_seed(0)
    return torch.randint(2, (pairs, flips), generator=rng).float() * 2 - 1


def mixes(benign: Benign) -> list[Tensor]:
    """Scores of benign images: plain, corrupted, and every second corrupted."""
    plain_NK = benign.plain.p_BK
    worn_NK = benign.corrupted.p_BK
    size = min(len(plain_NK), len(worn_NK))
    second_N1 = (torch.arange(size) % 2 == 1)[:, None]
    return [plain_NK, worn_NK, torch.where(second_N1, worn_NK[:size], plain_NK[:size])]
