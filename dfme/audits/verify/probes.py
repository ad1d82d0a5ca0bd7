"""Probes: images, plain or corrupted, that the owner's model gets wrong, and references not as it
does.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from dfme.audits.verify.evidence import Evidence, follow, share
from dfme.data import ImageSet
from dfme.run.scores import batches
from dfme.spec import ImageSpec

LOOKED_AT = 8_000  # plain and corrupted images among which probes are looked for
# most of the probes with the same expected answer: else one answer to everything would match
ONE_CLASS = 0.2

Answer = Callable[
    [Tensor], Tensor
]  # classes in the owner's order, on the host, of images within 0 and 1


class Probes(NamedTuple):
    """Images within 0 and 1, in the order in which they are asked, and the owner's answers to them.

    Their SHA-256 is over the images' bytes (float32), then the classes' (int64).
    """

    images: Tensor
    expected: Tensor


class Mistakes(NamedTuple):
    """Images that the owner's model gets wrong, its answers (N,) and those of each reference (R,
    N).
    """

    images: Tensor
    expected_N: Tensor
    answers_RN: Tensor

    def without(self, reference: int) -> "Mistakes":
        rest = torch.arange(len(self.answers_RN)) != reference
        return self._replace(answers_RN=self.answers_RN[rest])


def find_mistakes(
    data: ImageSet,
    spec: ImageSpec,
    model: Answer,
    others: Sequence[Answer],
    rng: torch.Generator | None,
) -> Mistakes:
    """Look at all images as they are, then, by an ``rng``, corrupted, until at ``LOOKED_AT`` or
    more.
    """
    wrong = list[tuple[Tensor, Tensor]]()
    for again in range(1 if rng is None else 1 + math.ceil(LOOKED_AT / len(data))):
        for plain_BCHW, label_B in zip(
            data.split(500), data.required_labels.split(500), strict=True
        ):
            images = [plain_BCHW]
            if again and rng is not None:
                images = [corrupted(x_1CHW, rng) for x_1CHW in plain_BCHW.split(1)]
            x_BCHW = spec.quantise(torch.cat(images))
            class_B = model(x_BCHW)
            wrong.append((x_BCHW[class_B != label_B], class_B[class_B != label_B]))
    (x_NCHW, class_N) = (torch.cat(parts) for parts in zip(*wrong, strict=True))
    rows = [torch.cat([other(part) for part in batches(x_NCHW)]) for other in others]
    return Mistakes(x_NCHW, class_N, torch.stack(rows))


def choose(mistakes: Mistakes, most: int, rng: torch.Generator) -> Tensor:
    """Places of at most so many probes in a random order: those with the fewest references on their
    side.

    Fewer than half of the references are, and no expected class has more than its share.
    """
    agree_N = (mistakes.answers_RN == mistakes.expected_N).sum(0)
    order_N = (agree_N + torch.rand(len(agree_N), generator=rng)).argsort()
    order_N = order_N[2 * agree_N[order_N] < len(mistakes.answers_RN)]
    kinds = set(mistakes.expected_N.tolist())
    room = dict.fromkeys(kinds, math.ceil(max(ONE_CLASS, 1 / max(1, len(kinds))) * most))
    places = list[int]()
    for place in order_N.tolist():
        kind = int(mistakes.expected_N[place])
        room[kind] -= 1
        if room[kind] >= 0:
            places.append(place)
    places_N = torch.tensor(places[:most], dtype=torch.int64)
    return places_N[torch.randperm(len(places_N), generator=rng)]


def matched(mistakes: Mistakes, reference: int, most: int, rng: torch.Generator) -> list[bool]:
    """Matches of a reference on the probes that the others choose: it has no part in the choice."""
    at = choose(mistakes.without(reference), most, rng)
    hits: list[bool] = (mistakes.answers_RN[reference, at] == mistakes.expected_N[at]).tolist()
    return hits


def p_reference(mistakes: Mistakes, most: int, rng: torch.Generator) -> float:
    """The largest share of matches of a reference, left out, or of one answer to everything."""
    expected_N = mistakes.expected_N[choose(mistakes, most, rng)]
    answerers: list[list[bool]] = [[]]
    if len(expected_N):
        answerers = [(expected_N == expected_N.mode().values).tolist()]
    for reference in range(len(mistakes.answers_RN)):
        answerers.append(matched(mistakes, reference, most, rng))
    return max(share(sum(hits), len(hits)) for hits in answerers)


def left_out(mistakes: Mistakes, most: int, rng: torch.Generator) -> list[Evidence]:
    """Evidence on each reference, if the others were all the references there are."""
    evidence = []
    for reference in range(len(mistakes.answers_RN)):
        hits = matched(mistakes, reference, most, rng)
        evidence.append(
            follow(([hit] for hit in hits), p_reference(mistakes.without(reference), most, rng))
        )
    return evidence


def corrupted(x_1CHW: Tensor, rng: torch.Generator) -> Tensor:
    """An image within 0 and 1 noisy, blurred, faded, turned or partly covered, as chance says."""
    (way, more, left, top) = torch.rand(4, generator=rng).tolist()
    (height, width) = x_1CHW.shape[2:]
    if way < 0.2:
        x_1CHW = x_1CHW + torch.randn(x_1CHW.shape, generator=rng) * (0.1 + 0.4 * more)
    elif way < 0.4:
        radius = 1 + int(more * max(1, height // 10))
        padded = functional.pad(x_1CHW, (radius,) * 4, mode="replicate")
        x_1CHW = x_1CHW.lerp(functional.avg_pool2d(padded, 2 * radius + 1, 1), 0.5 + 0.5 * left)
    elif way < 0.6:
        x_1CHW = x_1CHW * (0.2 + 0.4 * more) + 0.3 * top
    elif way < 0.8:
        (cos, sin) = (turned(1.6 * more - 0.8) for turned in (math.cos, math.sin))
        moved = torch.tensor([[[cos, -sin, 0.6 * left - 0.3], [sin, cos, 0.6 * top - 0.3]]])
        grid = functional.affine_grid(moved, list(x_1CHW.shape), align_corners=False)
        x_1CHW = functional.grid_sample(x_1CHW, grid, padding_mode="border", align_corners=False)
    else:
        (high, wide) = (int(size * (0.3 + 0.3 * more)) for size in (height, width))
        row = int(top * (height - high + 1))
        column = int(left * (width - wide + 1))
        x_1CHW = x_1CHW.clone()
        x_1CHW[:, :, row : row + high, column : column + wide] = torch.rand(1, generator=rng)
    return x_1CHW
