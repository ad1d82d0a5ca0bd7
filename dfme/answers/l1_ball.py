"""The answer that costs least within an L1 ball: one exact solver of whole batches, for all who need one."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

ROUNDS = 44
"""Times the range of the top score is halved: to 6e-14."""

ROWS = 512
"""Answers solved at once: what is held of them fits a processor's cache."""


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
    if len(p_BK) > ROWS:
        parts = zip(cost_BK.split(ROWS), p_BK.split(ROWS), strict=True)
        return torch.cat([minimise(cost, p, epsilon, margin) for cost, p in parts])
    half, total_B1 = epsilon / 2, p_BK.sum(-1, keepdim=True)
    if margin is None:
        order_BK = cost_BK.argsort(dim=-1, stable=True)
        sorted_BK, none_B1 = p_BK.gather(-1, order_BK), torch.zeros_like(total_B1)
        y_BK = _exchange(sorted_BK, total_B1 - sorted_BK, none_B1, none_B1, half)
        return torch.empty_like(p_BK).scatter_(-1, order_BK, y_BK)
    top_B1 = p_BK.argmax(-1, keepdim=True)
    order_BO = cost_BK.scatter(-1, top_B1, float("inf")).argsort(dim=-1, stable=True)[:, :-1]  # all but the top
    others_BO, top_p_B1, tops_cost_B1 = p_BK.gather(-1, order_BO), p_BK.gather(-1, top_B1), cost_BK.gather(-1, top_B1)
    cost_B1O, sum_B11 = cost_BK.gather(-1, order_BO)[:, None], others_BO.cumsum(-1)[:, None, -1:]
    low_B1, high_B1, margin_B1 = _range_of_top(others_BO, top_p_B1, total_B1, half, margin)
    quarters = torch.linspace(0, 1, 5, dtype=p_BK.dtype, device=p_BK.device)
    for _ in range(ROUNDS):
        t_B5 = low_B1.lerp(high_B1, quarters)
        t_B31 = t_B5[:, 1:-1, None]
        cap_B31 = t_B31 - margin_B1[..., None]
        kept_B3O, rise_B31 = others_BO[:, None].minimum(cap_B31), t_B31 - top_p_B1[..., None]
        cut_B31 = sum_B11 - kept_B3O.cumsum(-1)[..., -1:] - rise_B31.clamp(max=0)
        y_B3O = _exchange(kept_B3O, cap_B31 - kept_B3O, cut_B31, rise_B31.clamp(min=0), half)
        value_B3 = (cost_B1O * y_B3O).cumsum(-1)[..., -1] + tops_cost_B1 * t_B31[..., 0]
        best_B1 = value_B3.argmin(-1, keepdim=True)
        low_B1, high_B1 = t_B5.gather(-1, best_B1), t_B5.gather(-1, best_B1 + 2)
    y_BO = y_B3O.gather(1, best_B1[..., None].expand(-1, 1, order_BO.shape[-1]))[:, 0]
    y_BK = torch.empty_like(p_BK).scatter_(-1, order_BO, y_BO)
    return y_BK.scatter_(-1, top_B1, t_B5.gather(-1, best_B1 + 1))


def _range_of_top(
    others_BO: Tensor, top_p_B1: Tensor, total_B1: Tensor, half: float, margin: float
) -> tuple[Tensor, Tensor, Tensor]:
    """The least and the greatest top score that the ball allows, and the margin, at most the largest in the ball."""
    high_B1, others = (top_p_B1 + half).minimum(total_B1), others_BO.shape[-1]
    margin_B1 = (high_B1 - _level(others_BO, high_B1 - top_p_B1)).clamp(max=margin)
    low_B1 = _level(torch.cat([others_BO + margin_B1, top_p_B1], dim=-1), torch.full_like(total_B1, half))
    low_B1 = low_B1.maximum((total_B1 + others * margin_B1) / (others + 1))
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
