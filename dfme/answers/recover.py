"""Probabilities recovered from defended answers by an attacker who knows the defence and its
options.

Probabilities p are drawn as a classifier may have them, and what the defence makes of them, y. Then
either the y nearest to an answer say what its p was (``Table``), or a small network learns it
(``trained_net``).
"""

from collections.abc import Callable
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from dfme.answers.maps import map_of
from dfme.answers.reading import cut_to
from dfme.compute.device import derived_seed
from dfme.compute.modules import Adam
from dfme.config.defences import parse_defences, stated
from dfme.config.sections import AnswersConfig
from dfme.errors import Ref, UserError, say
from dfme.spec import LabelMode

Recovery = Callable[[Tensor], Tensor]
"""From answers (B, K) to the probabilities (B, K) that the model may have had."""

ENTRIES = 100_000  # pairs that are drawn; fewer of more than 41 classes ...
NUMBERS = 1 << 22  # ... so many numbers in all
TOLERANCE = (
    0.01  # L1 distance up to which an entry's y counts as the answer (ModelGuard's Bayes attack)
)
AT_ONCE = 1 << 22  # numbers that answers are compared with at once: bounds memory
PART = 4_096  # probabilities that a map is given at once
HIDDEN = (128, 64)  # units of the net
PAIRS = 20_000  # in an epoch of it, picked anew from all that are drawn
EPOCHS = 200
BATCH = 2_000  # pairs in a step


def known_map(config: AnswersConfig, raw_mode: LabelMode, rng: torch.Generator) -> Recovery:
    """Map of the defences that ``knows`` names, and of the answers' rounding, on probabilities (N,
    K).

    ``rng`` draws the noise of random ones. UserError for a defence that is no map of probabilities.
    """
    stack = parse_defences(config.knows)
    maps = [map_of(options, rng) for options in stack]
    for options, change in zip(stack, maps, strict=True):
        if change is None:
            hint = (
                ", or give the class a method map(p_BK) for attackers who know it"
                if options.kind
                else ""
            )
            raise UserError(
                say(
                    "{}: {}{}",
                    Ref("answers.knows", options),
                    "expected a defence whose answers follow from p; leave it out",
                    hint,
                )
            )

    def defended(p_NK: Tensor) -> Tensor:
        for change in filter(None, maps):
            p_NK = change(p_NK)
        return p_NK if raw_mode.decimals is None else cut_to(p_NK, raw_mode)

    return defended


def make_recovery(config: AnswersConfig, raw_mode: LabelMode, classes: int, seed: int) -> Recovery:
    """Return the table or net that ``config`` asks for, against its defence; the same for the same
    seed.
    """
    rng = torch.Generator().manual_seed(derived_seed(seed, "recovery"))
    facts = stated(parse_defences(config.knows), classes)
    draws = config.times if facts.random else 1  # whose average will be read
    defended = known_map(config, raw_mode, rng)
    p_NK = drawn(min(ENTRIES, NUMBERS // classes), classes, rng)
    y_NK = torch.cat(
        [sum((defended(part) for _ in range(draws)), 0 * part) / draws for part in p_NK.split(PART)]
    )
    if config.recover == "net":
        return trained_net(p_NK.float(), y_NK.float(), seed, rng)
    return Table(p_NK, y_NK, raw_mode.decimals is None and facts.keeps_top == "yes")


def drawn(count: int, classes: int, rng: torch.Generator) -> Tensor:
    """softmax(s N(0, I)), s uniform in 1 to 8 (heuristic), float64 (N, K); row i has top class i
    mod K.
    """
    sharpness_N1 = 1 + 7 * torch.rand(count, 1, generator=rng, dtype=torch.float64)
    p_NK = (sharpness_N1 * torch.randn(count, classes, generator=rng, dtype=torch.float64)).softmax(
        dim=1
    )
    rows = torch.arange(count)
    wanted = torch.arange(count) % classes
    top = p_NK.argmax(dim=1)
    p_NK[rows, top], p_NK[rows, wanted] = p_NK[rows, wanted], p_NK[rows, top]
    return p_NK


class Table:
    """Mean of log p, normalised, over entries whose y is within TOLERANCE of the answer, or else
    nearest.

    ``by_class``: the defence keeps the top class; an answer is compared with the entries of its own
    alone.
    """

    def __init__(self, p_NK: Tensor, y_NK: Tensor, by_class: bool) -> None:
        self._by_class = by_class
        groups = p_NK.shape[1] if by_class else 1
        pairs_2NK = torch.stack([y_NK, p_NK.log()]).float()[:, : len(p_NK) // groups * groups]
        self._pairs_2GNK = pairs_2NK.unflatten(1, (-1, groups)).transpose(1, 2).contiguous()

    def __call__(self, answers_BK: Tensor) -> Tensor:
        self._pairs_2GNK = self._pairs_2GNK.to(answers_BK.device)
        at_once = max(1, AT_ONCE // self._pairs_2GNK[0, 0].numel())
        return torch.cat([self._read(part) for part in answers_BK.split(at_once)])

    def _read(self, answers_BK: Tensor) -> Tensor:
        (y, log_p) = self._pairs_2GNK
        answers = answers_BK[None]
        if self._by_class:
            top_B = answers_BK.argmax(dim=1)
            y = y[top_B]
            log_p = log_p[top_B]
            answers = answers_BK[:, None]
        distances = torch.cdist(answers, y, p=1)
        near = (distances <= distances.amin(dim=-1, keepdim=True).clamp_min(TOLERANCE)).float()
        log_p_BK: Tensor = (near @ log_p / near.sum(dim=-1, keepdim=True)).flatten(0, 1)
        return log_p_BK.softmax(dim=1)


def trained_net(p_NK: Tensor, y_NK: Tensor, seed: int, rng: torch.Generator) -> Recovery:
    """A network that learns p from log y by cross-entropy: D-DAE's generator, without its shadow
    models.
    """
    sizes = (p_NK.shape[1], *HIDDEN)
    with torch.random.fork_rng(devices=[]), torch.enable_grad():
        torch.default_generator.manual_seed(derived_seed(seed, "recovery net"))
        hidden = [(nn.Linear(a, b), nn.BatchNorm1d(b), nn.LeakyReLU()) for a, b in pairwise(sizes)]
        net = nn.Sequential(
            *(layer for layers in hidden for layer in layers), nn.Linear(sizes[-1], sizes[0])
        )
        optimizer = Adam(net.parameters(), lr=1e-2)
        for _ in range(EPOCHS):
            for picked in torch.randperm(len(p_NK), generator=rng)[:PAIRS].split(BATCH):
                optimizer.zero_grad()
                cross_entropy(net(y_NK[picked].clamp_min(1e-4).log()), p_NK[picked]).backward()
                optimizer.step()
    net.eval()

    @torch.no_grad()
    def recovered(answers_BK: Tensor) -> Tensor:
        scores_BK: Tensor = net.to(answers_BK.device)(answers_BK.clamp_min(1e-4).log())
        return scores_BK.softmax(dim=1)

    return recovered
