"""The answer that costs least within an L1 ball: one exact solver of whole batches, for all who need one."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

POINTS = 9
"""Places of the top score that are tried at once; each round keeps the two gaps around the best, a quarter."""

ROUNDS = 22
"""Rounds: 4^-22 is 6e-14, and no place of the top score is further from the best one."""


def minimise(cost_BK: Tensor, p_BK: Tensor, epsilon: float, margin: float | None) -> Tensor:
    """The y_BK that minimises <cost, y> over the simplex where |y - p|_1 <= epsilon; float64.

    ``margin``: y_m >= y_k + margin for every other class k, where m = argmax p. Where the ball holds no such y, the
    largest margin that it holds takes its place; this is p itself where epsilon is 0. None: the top is not held.

    The least cost is convex in the top score t = y_m, so t is searched. With t fixed, everything above t - margin is
    cut, and what else may move goes from the dearest classes to the cheapest: sorted cumulative sums find how much.
    """
    p_BK, cost_BK = p_BK.double().contiguous(), cost_BK.double().contiguous()
    if epsilon == 0:
        return p_BK.clone()
    half, total_B1 = epsilon / 2, p_BK.sum(-1, keepdim=True)
    order_BK = cost_BK.argsort(dim=-1, stable=True)
    cost_BK, sorted_BK = cost_BK.gather(-1, order_BK), p_BK.gather(-1, order_BK)
    if margin is None:
        none_B1 = torch.zeros_like(total_B1)
        y_BK = _exchange(sorted_BK, total_B1 - sorted_BK, none_B1, none_B1, half)
    else:
        top_B1 = (order_BK == p_BK.argmax(-1, keepdim=True)).long().argmax(-1, keepdim=True)
        y_BK = _search(cost_BK, sorted_BK, top_B1, total_B1, half, margin)
    return torch.empty_like(y_BK).scatter_(-1, order_BK, y_BK)


def _search(cost_BK: Tensor, p_BK: Tensor, top_B1: Tensor, total_B1: Tensor, half: float, margin: float) -> Tensor:
    """The best answer over all t, classes in the order of their cost."""
    low_B1, high_B1, margin_B1 = _range_of_top(p_BK, top_B1, total_B1, half, margin)
    top_p_B1, is_top_B1K = p_BK.gather(-1, top_B1), torch.zeros_like(p_BK).scatter_(-1, top_B1, 1.0)[:, None].bool()
    steps_G = torch.linspace(0, 1, POINTS, dtype=p_BK.dtype, device=p_BK.device)
    for _ in range(ROUNDS):
        t_BG = low_B1.lerp(high_B1, steps_G)
        cap_BG1 = (t_BG - margin_B1)[..., None]
        kept_BGK = p_BK[:, None].minimum(cap_BG1).masked_fill_(is_top_B1K, 0.0)
        room_BGK = (cap_BG1 - kept_BGK).masked_fill_(is_top_B1K, 0.0)
        cut_BG1 = (p_BK[:, None] - cap_BG1).clamp_(min=0).masked_fill_(is_top_B1K, 0.0).cumsum(-1)[..., -1:]
        rise_BG1 = t_BG[..., None] - top_p_B1[..., None]
        y_BGK = _exchange(kept_BGK, room_BGK, cut_BG1 - rise_BG1.clamp(max=0), rise_BG1.clamp(min=0), half)
        y_BGK = torch.where(is_top_B1K, t_BG[..., None], y_BGK)
        best_B1 = (cost_BK[:, None] * y_BGK).cumsum(-1)[..., -1].argmin(-1, keepdim=True)
        low_B1 = t_BG.gather(-1, (best_B1 - 1).clamp(min=0))
        high_B1 = t_BG.gather(-1, (best_B1 + 1).clamp(max=POINTS - 1))
    return y_BGK.gather(1, best_B1[..., None].expand(-1, 1, p_BK.shape[-1]))[:, 0]


def _range_of_top(
    p_BK: Tensor, top_B1: Tensor, total_B1: Tensor, half: float, margin: float
) -> tuple[Tensor, Tensor, Tensor]:
    """The least and the greatest top score that the ball allows, and the margin, at most the largest in the ball."""
    classes, top_p_B1 = p_BK.shape[-1], p_BK.gather(-1, top_B1)
    high_B1 = (top_p_B1 + half).minimum(total_B1)
    others_BK = p_BK.scatter(-1, top_B1, -2.0)  # below whatever level the cuts can reach
    largest_B1 = high_B1 - _level(others_BK, high_B1 - top_p_B1)
    margin_B1 = largest_B1.clamp(max=margin)
    raised_BK = p_BK + margin_B1
    low_B1 = _level(raised_BK.scatter(-1, top_B1, top_p_B1), torch.full_like(total_B1, half))
    low_B1 = low_B1.maximum((total_B1 + (classes - 1) * margin_B1) / classes)
    return low_B1.minimum(high_B1), high_B1, margin_B1


def _level(heights_BK: Tensor, volume_B1: Tensor) -> Tensor:
    """The level to which heights must be cut for ``volume`` to come off in all."""
    counts_K = torch.arange(1, heights_BK.shape[-1] + 1, dtype=heights_BK.dtype, device=heights_BK.device)
    sums_BK = heights_BK.sort(-1, descending=True).values.cumsum(-1)
    return ((sums_BK - volume_B1) / counts_K).amax(-1, keepdim=True)


def _exchange(kept: Tensor, room: Tensor, cut: Tensor, rise: Tensor, half: float) -> Tensor:
    """Scores after the best exchange, classes (last axis) in the order of their cost.

    ``cut`` has come off already and ``rise`` has been given to the top already; the rest of the cut goes to the
    cheapest classes, as far as they have room, the rest of the rise comes from the dearest. Then mass moves from the
    dearest to the cheapest until they meet, or ``half`` has moved in all.
    """
    room_before = pad(room.cumsum(-1), (1, 0))
    kept_after = pad(kept.flip(-1).cumsum(-1).flip(-1), (0, 1))
    meet = (room_before + rise).minimum(kept_after + cut).amax(-1, keepdim=True)
    moved = meet.maximum(cut).maximum(rise).clamp(max=half)
    taken = (moved - cut - kept_after[..., 1:]).clamp_(min=0).minimum(kept)
    given = (moved - rise - room_before[..., :-1]).clamp_(min=0).minimum(room)
    return kept + given - taken
