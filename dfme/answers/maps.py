"""Defences as maps of probabilities, float64: the owner applies them, and an attacker can know
them.

p are the model's probabilities (B images, K classes) and m = argmax p; q those of a surrogate
student. At zero strength every map returns p bit for bit. A row's answer does not depend on the
other rows of its batch.
"""

from collections.abc import Callable
from functools import partial
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import one_hot, pad

from dfme.answers.reading import read_custom
from dfme.config import defences
from dfme.config.defence_options import DefenceOptions, OwnDefence
from dfme.config.imports import blaming
from dfme.errors import UserError

LEAD = 2e-7  # of a top score that is kept, at least: float32 tells so much apart everywhere below 1
ALL_SETS = 10  # classes up to which MAD tries every set that holds the top class


def lattice(p_BK: Tensor, n: int) -> Tensor:
    """The nearest multiples of 1/n that sum to one, by largest remainders; a tie goes to the top
    class.

    Where another class comes level with the top one, a unit moves up from the one that has most (of
    several, the one whose p is least). Scores keep their order; float32 tells them apart up to n =
    2^22.
    """
    p_BK = p_BK.double()
    top_BK = one_hot(p_BK.argmax(-1), p_BK.shape[-1]).bool()
    scaled_BK = p_BK / _sum(p_BK) * n
    counts_BK = scaled_BK.floor()
    remainders_BK = scaled_BK - counts_BK
    # By remainder, the top class first among equals: two stable sorts.
    first_BK = (~top_BK).double().argsort(dim=-1, stable=True)
    then_BK = remainders_BK.gather(-1, first_BK).argsort(dim=-1, descending=True, stable=True)
    ranks_BK = first_BK.gather(-1, then_BK).argsort(dim=-1)
    counts_BK += ranks_BK < (n - _sum(counts_BK))
    others_BK = counts_BK.masked_fill(top_BK, -1.0)
    level_B1 = others_BK.amax(-1, keepdim=True) >= _sum(counts_BK * top_BK)
    giver_BK = one_hot((others_BK - p_BK / 2).argmax(-1), p_BK.shape[-1])
    return (counts_BK + (top_BK.double() - giver_BK) * level_B1) / n


def temperature(p_BK: Tensor, t: float) -> Tensor:
    """softmax(log p / t)."""
    p_BK = p_BK.double()
    if t == 1:
        return p_BK.clone()
    scores_BK = (p_BK / p_BK.amax(-1, keepdim=True)).log() / t
    return _held(_normalised(scores_BK.exp()), p_BK)


def modelguard_w(p_BK: Tensor, epsilon: float, margin: float) -> Tensor:
    """ModelGuard-W: minimise <log(p + 1e-6), y> within the ball, keeping the top class by the
    margin.
    """
    p_BK = p_BK.double()
    return minimise((p_BK + 1e-6).log(), p_BK, epsilon, max(margin, LEAD))


def reverse_sigmoid(p_BK: Tensor, beta: float, gamma: float) -> Tensor:
    """Lee et al. 2018: max(0, p - beta (sigmoid(gamma logit p) - 1/2)), normalised.

    The top class stays on top where its p is at least 1/2 and neither option is above 1, not
    elsewhere.
    """
    p_BK = p_BK.double()
    if 0 in (beta, gamma):
        return p_BK.clone()
    # sigmoid, whatever the batch
    taken_BK = beta * (1 / (1 + (-gamma * torch.logit(p_BK, eps=1e-12)).exp()) - 0.5)
    y_BK = _normalised((p_BK - taken_BK).clamp(min=0))
    if max(beta, gamma) > 1:
        return y_BK
    return torch.where(p_BK.amax(-1, keepdim=True) >= 0.5, _held(y_BK, p_BK), y_BK)


def mad(
    p_BK: Tensor, q_BK: Tensor, epsilon: float, vertices: Literal["argmax", "extreme"]
) -> Tensor:
    """MAD (Orekondy et al. 2020) with the Jacobian of the last layer, by which the features cancel.

    Takes the vertex y* whose gradient q - y* has the largest angle to q - p, and goes from p as far
    towards it as the ball allows. ``argmax``: y* is uniform over a set of classes with the top one
    (and 1e-5 more on it): all of these up to ``ALL_SETS`` classes, above that only those that take
    the classes by q - p, which are enough for uniform q. ``extreme``: y* is any one class. y* = q
    turns nothing and is not taken.
    """
    p_BK = p_BK.double()
    q_BK = q_BK.double()
    if epsilon == 0:
        return p_BK.clone()
    if vertices == "extreme":
        y_BK = one_hot(
            _cosines(p_BK, q_BK, p_BK - q_BK, q_BK, 1.0).argmin(-1), p_BK.shape[-1]
        ).double()
    else:
        top_BK = one_hot(p_BK.argmax(-1), p_BK.shape[-1]).double()
        y_BK = _normalised(_best_set(p_BK, q_BK, top_BK) + 1e-5 * top_BK)
    distance_B1 = _sum((y_BK - p_BK).abs())
    share_B1 = (epsilon / distance_B1.clamp(min=1e-300)).clamp(max=1)
    y_BK = (1 - share_B1) * p_BK + share_B1 * y_BK
    return y_BK if vertices == "extreme" else _held(y_BK, p_BK)


def grad2(p_BK: Tensor, q_BK: Tensor, epsilon: float, margin: float | None) -> Tensor:
    """GRAD^2 (Mazeika et al. 2022) at the last layer: the least inner product of gradients, cost p
    - q.
    """
    margin = None if margin is None else max(margin, LEAD)
    return minimise(p_BK.double() - q_BK.double(), p_BK, epsilon, margin)


def noise(p_BK: Tensor, z_BK: Tensor, sigma: float, keep_top: bool) -> Tensor:
    """max(0, p + sigma z), normalised, z standard normal; without a positive entry the greatest
    gets all.

    ``keep_top``: the largest score changes places with that of the top class.
    """
    p_BK = p_BK.double()
    if sigma == 0:
        return p_BK.clone()
    noisy_BK = p_BK + sigma * z_BK.double()
    greatest_B1 = noisy_BK.argmax(-1, keepdim=True)
    alone_BK = torch.zeros_like(p_BK).scatter_(-1, greatest_B1, 1.0)
    y_BK = torch.where(noisy_BK.amax(-1, keepdim=True) > 0, noisy_BK.clamp(min=0), alone_BK)
    y_BK = _normalised(y_BK)
    if not keep_top:
        return y_BK
    top_B1 = p_BK.argmax(-1, keepdim=True)
    swapped_BK = y_BK.scatter(-1, greatest_B1, y_BK.gather(-1, top_B1))
    return _held(swapped_BK.scatter(-1, top_B1, y_BK.gather(-1, greatest_B1)), p_BK)


MAPS: dict[str, Callable[..., Tensor]] = {
    "lattice": lattice,
    "temperature": temperature,
    "modelguard_w": modelguard_w,
    "reverse_sigmoid": reverse_sigmoid,
}
"""Maps whose parameters, after p, are the options of the defence of this name."""


def map_of(options: DefenceOptions, rng: torch.Generator) -> Callable[[Tensor], Tensor] | None:
    """Return the map that an attacker can compute from a defence's name and options; None: there is
    none.

    q is taken for uniform, noise is drawn from ``rng``.
    """
    if options.name in MAPS:
        return partial(MAPS[options.name], **vars(options))
    match options:
        case defences.Mad(epsilon=epsilon, vertices=vertices):
            return lambda p_BK: mad(p_BK, uniform(p_BK), epsilon, vertices)
        case defences.Grad2(epsilon=epsilon):
            return lambda p_BK: grad2(p_BK, uniform(p_BK), epsilon, options.margin_kept)
        case defences.Noise(sigma=sigma, keep_top=keep_top):
            return lambda p_BK: noise(p_BK, _normal(p_BK, rng), sigma, keep_top)
        case OwnDefence(has_map=True):
            return blaming(f"the map of {options.name}", UserError)(
                partial(read_custom, options.make().map)
            )
    return None


def uniform(p_BK: Tensor) -> Tensor:
    """The answers of a surrogate that knows nothing."""
    return torch.full_like(p_BK, 1 / p_BK.shape[-1], dtype=torch.float64)


def _best_set(p_BK: Tensor, q_BK: Tensor, top_BK: Tensor) -> Tensor:
    """Uniform over the set of classes with the top one that turns the gradient most."""
    gain_BK = q_BK - p_BK
    order_BK = gain_BK.masked_fill(top_BK.bool(), float("inf")).argsort(
        dim=-1, descending=True, stable=True
    )
    gain_BK = gain_BK.gather(-1, order_BK)
    q_sorted_BK = q_BK.gather(-1, order_BK)
    sizes_S = _over_sets(p_BK.new_ones(1, p_BK.shape[-1]))[0]
    cosines_BS = _cosines(
        p_BK, q_BK, -_over_sets(gain_BK) / sizes_S, _over_sets(q_sorted_BK) / sizes_S, 1 / sizes_S
    )
    best_B1 = cosines_BS.argmin(-1, keepdim=True)
    places_K = torch.arange(p_BK.shape[-1], device=p_BK.device)
    every = len(places_K) <= ALL_SETS
    member_BK = ((2 * best_B1 + 1) >> places_K) & 1 if every else (places_K <= best_B1).long()
    return _normalised(torch.zeros_like(p_BK).scatter_(-1, order_BK, member_BK.double()))


def _over_sets(values_BK: Tensor) -> Tensor:
    """Sums over each set with the first class: set s holds class k if bit k of 2s + 1 is set; or
    prefixes.
    """
    if values_BK.shape[-1] > ALL_SETS:
        return values_BK.cumsum(-1)
    sums_BS = values_BK[:, :1]
    for value_B1 in values_BK[:, 1:].split(1, dim=-1):
        sums_BS = torch.cat([sums_BS, sums_BS + value_B1], dim=-1)
    return sums_BS


def _cosines(
    p_BK: Tensor, q_BK: Tensor, loss_BS: Tensor, q_BS: Tensor, square_S: Tensor | float
) -> Tensor:
    """Cosines of q - y and q - p up to the length of q - p, from <y, p - q>, <y, q>, <y, y> of
    vertices y.
    """
    inner_BS = _sum(q_BK * (q_BK - p_BK)) + loss_BS
    squares_BS = _sum(q_BK * q_BK) - 2 * q_BS + square_S
    # One that cannot turn anything; squares this small are what rounding leaves of nothing.
    return torch.where(
        squares_BS > 1e-14, inner_BS / squares_BS.clamp(min=1e-14).sqrt(), float("inf")
    )


def _held(y_BK: Tensor, p_BK: Tensor) -> Tensor:
    """y with the top class of p ahead of all others by ``LEAD`` at least."""
    top_B1 = p_BK.argmax(-1, keepdim=True)
    least_B1 = y_BK.scatter(-1, top_B1, -1.0).amax(-1, keepdim=True) + 2 * LEAD
    raised_BK = y_BK.scatter(-1, top_B1, y_BK.gather(-1, top_B1).maximum(least_B1))
    return torch.where(y_BK.gather(-1, top_B1) < least_B1, _normalised(raised_BK), y_BK)


def _normalised(y_BK: Tensor) -> Tensor:
    return y_BK / _sum(y_BK)


def _sum(values_BK: Tensor) -> Tensor:
    return values_BK.cumsum(-1)[..., -1:]  # in one order, whatever the size of the batch


def _normal(p_BK: Tensor, rng: torch.Generator) -> Tensor:
    return torch.randn(p_BK.shape, generator=rng, dtype=torch.float64, device=rng.device).to(
        p_BK.device
    )


ROUNDS = 44  # times the range of the top score is halved: to 6e-14
ROWS = 512  # answers solved at once: what is held of them fits a processor's cache


def minimise(cost_BK: Tensor, p_BK: Tensor, epsilon: float, margin: float | None) -> Tensor:
    """The y_BK that minimises <cost, y> over the simplex where |y - p|_1 <= epsilon; float64.

    ``margin``: y_m >= y_k + margin for every other class k, where m = argmax p; at most the largest
    margin that the ball holds. None: the top is not held.

    The least cost is convex in the top score t = y_m, so t is searched. With t fixed, everything
    above t - margin is cut, and what else may move goes from the dearest classes to the cheapest:
    sorted cumulative sums find how much.
    """
    p_BK = p_BK.double().contiguous()
    cost_BK = cost_BK.double().contiguous()
    if epsilon == 0:
        return p_BK.clone()
    if len(p_BK) > ROWS:
        parts = zip(cost_BK.split(ROWS), p_BK.split(ROWS), strict=True)
        return torch.cat([minimise(cost, p, epsilon, margin) for cost, p in parts])
    half = epsilon / 2
    total_B1 = p_BK.sum(-1, keepdim=True)
    if margin is None:
        order_BK = cost_BK.argsort(dim=-1, stable=True)
        sorted_BK = p_BK.gather(-1, order_BK)
        none_B1 = torch.zeros_like(total_B1)
        y_BK = _exchange(sorted_BK, total_B1 - sorted_BK, none_B1, none_B1, half)
        return torch.empty_like(p_BK).scatter_(-1, order_BK, y_BK)
    top_B1 = p_BK.argmax(-1, keepdim=True)
    # all but the top
    order_BO = cost_BK.scatter(-1, top_B1, float("inf")).argsort(dim=-1, stable=True)[:, :-1]
    others_BO = p_BK.gather(-1, order_BO)
    top_p_B1 = p_BK.gather(-1, top_B1)
    tops_cost_B1 = cost_BK.gather(-1, top_B1)
    cost_B1O = cost_BK.gather(-1, order_BO)[:, None]
    sum_B11 = others_BO.cumsum(-1)[:, None, -1:]
    low_B1, high_B1, margin_B1 = _range_of_top(others_BO, top_p_B1, total_B1, half, margin)
    quarters = torch.linspace(0, 1, 5, dtype=p_BK.dtype, device=p_BK.device)
    for _ in range(ROUNDS):
        t_B5 = low_B1.lerp(high_B1, quarters)
        t_B31 = t_B5[:, 1:-1, None]
        cap_B31 = t_B31 - margin_B1[..., None]
        kept_B3O = others_BO[:, None].minimum(cap_B31)
        rise_B31 = t_B31 - top_p_B1[..., None]
        cut_B31 = sum_B11 - kept_B3O.cumsum(-1)[..., -1:] - rise_B31.clamp(max=0)
        y_B3O = _exchange(kept_B3O, cap_B31 - kept_B3O, cut_B31, rise_B31.clamp(min=0), half)
        value_B3 = (cost_B1O * y_B3O).cumsum(-1)[..., -1] + tops_cost_B1 * t_B31[..., 0]
        best_B1 = value_B3.argmin(-1, keepdim=True)
        low_B1 = t_B5.gather(-1, best_B1)
        high_B1 = t_B5.gather(-1, best_B1 + 2)
    y_BO = y_B3O.gather(1, best_B1[..., None].expand(-1, 1, order_BO.shape[-1]))[:, 0]
    y_BK = torch.empty_like(p_BK).scatter_(-1, order_BO, y_BO)
    return y_BK.scatter_(-1, top_B1, t_B5.gather(-1, best_B1 + 1))


def _range_of_top(
    others_BO: Tensor, top_p_B1: Tensor, total_B1: Tensor, half: float, margin: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the least and greatest top score in the ball, and the margin, at most the ball's
    largest.
    """
    high_B1 = (top_p_B1 + half).minimum(total_B1)
    others = others_BO.shape[-1]
    margin_B1 = (high_B1 - _level(others_BO, high_B1 - top_p_B1)).clamp(max=margin)
    low_B1 = _level(
        torch.cat([others_BO + margin_B1, top_p_B1], dim=-1), torch.full_like(total_B1, half)
    )
    low_B1 = low_B1.maximum((total_B1 + others * margin_B1) / (others + 1))
    return low_B1.minimum(high_B1), high_B1, margin_B1


def _level(heights_BK: Tensor, volume_B1: Tensor) -> Tensor:
    """The level to which heights must be cut for ``volume`` to come off in all."""
    counts_K = torch.arange(
        1, heights_BK.shape[-1] + 1, dtype=heights_BK.dtype, device=heights_BK.device
    )
    sums_BK = heights_BK.sort(-1, descending=True).values.cumsum(-1)
    return ((sums_BK - volume_B1) / counts_K).amax(-1, keepdim=True)


def _exchange(held: Tensor, room: Tensor, cut: Tensor, rise: Tensor, half: float) -> Tensor:
    """Scores after the best exchange, classes (last axis) in the order of their cost.

    ``cut`` has come off and ``rise`` been given to the top already; the rest of the cut goes to the
    cheapest classes with room, the rest of the rise comes from the dearest. Then mass moves from
    the dearest to the cheapest until they meet, or ``half`` has moved in all.
    """
    room_before = pad(room.cumsum(-1), (1, 0))
    kept_after = pad(held.flip(-1).cumsum(-1).flip(-1), (0, 1))
    meet = (room_before + rise).minimum(kept_after + cut).amax(-1, keepdim=True)
    moved = meet.maximum(cut).maximum(rise).clamp(max=half)
    drawn = (moved - cut - kept_after[..., 1:]).clamp_(min=0).minimum(held)
    added = (moved - rise - room_before[..., :-1]).clamp_(min=0).minimum(room)
    return held + added - drawn
