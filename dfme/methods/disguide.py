"""DisGUIDE: Disagreement-Guided Data-Free Model Extraction (Rosenthal, Enouen, Pham, Tan; AAAI 2023)."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from dfme.compute import evaluating
from dfme.methods.base import Metrics, Parts
from dfme.methods.configs import DisguideConfig
from dfme.methods.generator_losses import diversity, seen_by, spread
from dfme.methods.teaching import Taught, Teaching
from dfme.spec import LABEL_KINDS, LabelKind

GREY = (0.299, 0.587, 0.114)
"""Luma weights of red, green and blue (ITU-R BT.601)."""


SETTLING = 50
"""Batches generated before the first step: what statistics were initialised with counts .9 to this power then."""


class Disguide(Taught):
    """A generator of images on which the students' probabilities differ and that spread over the classes.

    An iteration is ``generator_steps`` steps of the generator, which ask nothing, then ``student_steps`` batches for
    the students: cost = B * d images. The generator minimises

        - mean_{b,k} std_e(p) + lambda * sum_k pbar_k log pbar_k,

    p the probabilities of student e in eval mode, pbar their mean over students and batch.

    Differences from the paper, with the paper's values where we know them:

    - students, optimiser, schedule and replay are options (``student``, ``schedule``); the paper's: two students, one
      SGD of .03 over both, x0.3 at 40 and 80 % of the budget, three steps on uniform samples of a replay of a million
      images after each fresh batch (``configs/cifar10_disguide.yaml``);
    - lambda is .2 by default, the paper's for 10 classes (.04 for 100);
    - the images that are paid for come from the generator in eval mode, as published; before the first step its
      statistics are let settle on its own output, since at small budgets those that it is initialised with would
      decide what is asked (10 % agreement on digits at 20,000 queries without it);
    - the generator is DFME's, with Adam 1e-4 as published; g of 1 and d of 5 are DFME's values;
    - one student is reported beside the soft vote of both; the paper reports the vote;
    - the last students are reported, never the best on the evaluation set.
    """

    label_modes: ClassVar[tuple[LabelKind, ...]] = LABEL_KINDS

    def __init__(self, config: DisguideConfig, parts: Parts) -> None:
        self.cost = config.batch_size * config.student_steps
        self._config = config
        self._parts = parts
        self._generating = parts.generator_trainer(config.generator_lr)
        self._sampler = parts.sampler(config.batch_size)
        self._teaching = Teaching(parts, self._images, config.batch_size)
        self._settled = False

    @torch.no_grad()
    def prepare(self) -> tuple[str, ...]:
        """Let the generator's statistics settle, which asks nobody: images to pay for are drawn by them."""
        if not self._settled:
            for _ in range(SETTLING):
                self._generating.generate(self._config.batch_size)
            self._settled = True
        return ()

    def step(self) -> Metrics:
        metrics: Metrics = {}
        for _ in range(self._config.generator_steps):
            metrics |= self._generating.descend_by(self._loss, self._config.batch_size)
        return metrics | self._teaching.spend(self.cost)

    def _loss(self, u_BCHW: Tensor) -> Tensor:
        parts = self._parts
        scores_EBK = seen_by(parts.trainer.nets, parts.generator.squash(u_BCHW))
        return self._config.diversity * diversity(scores_EBK) - spread(scores_EBK)

    def _images(self, count: int) -> Tensor:
        """Images to pay for, some of them made grey."""
        with evaluating(self._parts.generator):
            x_BCHW = self._sampler.images(count)
        every = self._config.grey_every
        if every and x_BCHW.shape[1] == len(GREY):
            weight_C = torch.tensor(GREY, device=x_BCHW.device)
            grey_BHW = torch.einsum("bchw,c->bhw", x_BCHW[::every], weight_C)
            x_BCHW[::every] = self._parts.oracle.spec.quantise(grey_BHW[:, None].expand_as(x_BCHW[::every]))
        return x_BCHW

    def state_dict(self) -> dict[str, Any]:
        return {"generator": self._generating.state_dict(), "settled": self._settled}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._generating.load_state_dict(state["generator"])
        self._settled = state["settled"]
