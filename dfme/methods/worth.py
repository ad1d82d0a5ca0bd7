"""Whether a generator's training is worth its queries: what the last steps gained, against what they cost."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from dfme.compute import held_to

WINDOW = 12
"""Iterations in a trial, of which the second half is held against the first; heuristic."""


class _Trials(NamedTuple):
    left: int  # iterations, this one too, up to the next decision
    pause: int  # iterations without a step of the generator that follow a trial which does not pay
    training: bool = True  # the generator is stepped in this iteration
    neighbours: int = 0  # that this trial has paid for so far
    trials: int = 0
    paid_off: int = 0  # of these
    first: float = 0.0  # r over the first half of the last trial
    second: float = 0.0  # and over the second


class TrainingWorth:
    """Trains the generator in trials of ``WINDOW`` iterations: a bandit with two arms, to train and to rest.

    What training is for are images that are harder for the student than those it could have without. So the measure is
    the student's loss on the generator's images over its loss on a program's, both just paid for and not learnt from
    yet: r. A trial's gain is r over its second half less r over its first. It pays if what it promises for the
    generator's share of the images left to pay for outweighs the neighbours that it paid for:

        gain * (share * images left) > images of a trial that are neighbours

    in units of what one of the program's images is worth. Then the next trial follows at once; else a pause, twice as
    long after each trial that did not pay, in which all images are the student's. The weights stay where they are.
    Heuristic, our own. It asks nothing. Of several processes all find the same.
    """

    def __init__(self, device: torch.device) -> None:
        self._so_far, self._news = _Trials(WINDOW, WINDOW), list[str]()
        self._losses_24 = torch.zeros(2, 4, dtype=torch.float64, device=device)

    @property
    def training(self) -> bool:
        """Whether the generator's steps are taken in this iteration."""
        return self._so_far.training

    def watch(self, loss_N: Tensor, drawn: int) -> None:
        """The student's losses on images just paid for, of which the last ``drawn`` are a program's."""
        if self.training:
            made_N, drawn_N = loss_N.double().tensor_split([len(loss_N) - drawn])
            half = int(self._so_far.left <= WINDOW // 2)
            sums = [each.sum() for part_N in (made_N, drawn_N) for each in (part_N, torch.ones_like(part_N))]
            self._losses_24[half] += torch.stack(sums)

    def trains(self, ahead: int) -> bool:
        """The same of the iteration ``ahead`` iterations from now; of those beyond the next decision, at most."""
        return self.training or ahead >= self._so_far.left

    def end_iteration(self, neighbours: int, to_come: float) -> None:
        """One iteration is over, of whose images so many were ``neighbours``; ``to_come``: the generator's from now on.

        Where a trial ends the host waits for the device, here and nowhere else.
        """
        before = self._so_far
        so_far = before._replace(left=before.left - 1, neighbours=before.neighbours + neighbours * before.training)
        if so_far.left == 0 and so_far.training:
            so_far = self._decide(so_far._replace(neighbours=0), so_far.neighbours / max(1.0, to_come))
        elif so_far.left == 0:
            so_far = so_far._replace(training=True, left=WINDOW)
        self._so_far = so_far

    def _decide(self, so_far: _Trials, needed: float) -> _Trials:
        ratios = [made * drawn / max(1e-12, of * loss) for made, of, loss, drawn in self._losses_24.tolist()]
        self._losses_24.zero_()
        number, left, gain = so_far.trials + 1, WINDOW, ratios[1] - ratios[0]
        so_far = so_far._replace(trials=number, first=ratios[0], second=ratios[1])
        if pays := gain > needed:
            so_far = so_far._replace(paid_off=so_far.paid_off + 1)
        else:
            left = so_far.pause
            so_far = so_far._replace(pause=2 * left)
        then = "it goes on" if pays else f"the next {left:,} iterations are the student's alone"
        found = f"trial {number} of its training gained {gain:+.3f}, {needed:.3f} is its price"
        if number == 1 or not pays:
            self._news.append(f"generator: {found} (loss over that on a program's images); {then}")
        return so_far._replace(training=pays, left=left)

    def news(self) -> tuple[str, ...]:
        """What was decided since this was last asked."""
        news, self._news = tuple(self._news), []
        return news

    @property
    def facts(self) -> dict[str, Any]:
        """For the run's summary."""
        so_far, gain = self._so_far, self._so_far.second - self._so_far.first
        return {"trials": so_far.trials, "paid_off": so_far.paid_off, "gain": gain, "trains": so_far.training}

    def state_dict(self) -> dict[str, Any]:
        return {"so_far": self._so_far._asdict(), "losses": self._losses_24.clone()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._so_far = _Trials(**held_to(self._so_far._asdict(), state["so_far"], "training_worth"))
        self._losses_24.copy_(held_to(self._losses_24, state["losses"], "training_worth, losses"))
